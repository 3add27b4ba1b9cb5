"""Proofs of publications as values: transaction ids that wrap, and what is written down reads the same again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.errors import PositionLostError
from agent.sources.postgres.publication.losses import refuse_other_history
from agent.sources.postgres.publication.proof import FIRST_MAX, UNKNOWN_TS, ColumnFacts, Proof
from agent.sources.postgres.server import xids
from reactor.ids import Ts

_ROUND = 1 << 32
_keys = st.from_regex(r"[prndika][0-9]{1,9}", fullmatch=True)
_xids = st.integers(0, 1 << 63)
_tables = st.integers(1, _ROUND - 1)


@given(st.integers(3, 1 << 40), st.integers(1, (1 << 31) - 1))
def test_a_transaction_of_the_last_two_thousand_million_has_its_full_number(ahead: int, age: int) -> None:
    xid = ahead - age
    if xid > 0 and xid % _ROUND >= 3:
        assert xids.full(xid % _ROUND, ahead) == xid


@given(st.integers(0, _ROUND - 1), st.integers(3, 1 << 40))
def test_no_transaction_is_of_the_future(xmin: int, ahead: int) -> None:
    """What a wrapped number hides is old: the server lets none be older than two thousand million that counts."""
    assert xids.full(xmin, ahead) <= ahead
    assert xids.full(0, ahead) == xids.full(1, ahead) == xids.full(2, ahead) == xids.ANCIENT


@given(
    st.builds(
        Proof,
        digest=st.text(),
        horizon=_xids,
        recent=st.dictionaries(_keys, _xids),
        since=st.dictionaries(_keys, _xids),
        terms=st.dictionaries(_tables, st.text(min_size=1)),
        leaves=st.dictionaries(_tables, st.dictionaries(_tables, _tables, min_size=1)),
        held=st.frozensets(_tables),
        clean=st.frozensets(_tables),
        read_ts=st.integers(1, UNKNOWN_TS),
        timeline=st.integers(0, 1 << 31),
    )
)
def test_a_proof_reads_as_it_was_written(proof: Proof) -> None:
    assert Proof.from_text(proof.to_text()) == proof


@given(
    st.dictionaries(
        _tables,
        st.tuples(_tables, st.dictionaries(st.integers(1, 1600), st.tuples(*[st.integers(-1, 2**31)] * 3), min_size=1)),
    )
)
def test_files_and_columns_read_as_they_were_written(facts: dict[int, tuple[int, dict[int, ColumnFacts]]]) -> None:
    proof = Proof(
        files={table: file for table, (file, _) in facts.items()},
        columns={table: columns for table, (_, columns) in facts.items()},
    )
    assert Proof.from_text(proof.to_text()) == proof


@pytest.mark.parametrize(("read_ts", "digest", "timeline"), [(499, "b", 1), (500, "a", 1), (900, "b", 2)])
def test_a_proof_counts_on_a_promoted_server_that_has_all_that_it_saw(read_ts: int, digest: str, timeline: int) -> None:
    refuse_other_history(Proof(digest="a", read_ts=read_ts, timeline=timeline), digest, {1: Ts(500)})


@pytest.mark.parametrize(("read_ts", "words"), [(500, "at 0/1F4; they"), (UNKNOWN_TS, "at an unknown position; they")])
def test_a_proof_does_not_count_on_a_promoted_server_that_may_lack_what_it_saw(read_ts: int, words: str) -> None:
    with pytest.raises(PositionLostError, match=words):
        refuse_other_history(Proof(digest="a", read_ts=read_ts, timeline=1), "b", {1: Ts(500)})


def test_a_first_proof_stays_small_however_many_columns_there_are() -> None:
    """It lies in etcd; later ones are files."""
    columns = {
        table: {number: (table * 7919, -1, number * 104_729 ^ table) for number in range(50)} for table in range(2_000)
    }
    text = Proof(digest="x", files={table: table for table in columns}, columns=columns).to_text(FIRST_MAX)
    assert len(text) < 40_000
    assert Proof.from_text(text) == Proof(digest="x")


@given(_xids, st.dictionaries(_keys, _xids), _keys, _xids)
def test_a_row_is_known_by_number_and_transaction(horizon: int, recent: dict[str, int], row: str, xid: int) -> None:
    proof = Proof(horizon=horizon, recent=recent)
    assert proof.has_seen(row, xid) == (xid < horizon or recent.get(row) == xid)
    if xid >= horizon:
        assert not Proof(horizon=horizon, recent={row: xid}).has_seen(row, xid + 1)
