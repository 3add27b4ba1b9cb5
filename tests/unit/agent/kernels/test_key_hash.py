"""Key hashes are written down, so they are pinned; span rows follow from them."""

import datetime as dt
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.kernels.key_hash import key_hash
from agent.rows.changes import BEFORE_FULL, BEFORE_KEY, BEFORE_NONE, DELETE, INSERT, TRUNCATE, UPDATE, Changes
from agent.rows.schema import Column, TableSchema
from agent.rows.spans import by_span, keep_span, key_changes
from owner.scheduler.spans import even_spans
from reactor.ids import KEY_SPACE, TableSpan

_MASK = (1 << 64) - 1


def _mix(x: int) -> int:
    x ^= x >> 30
    x = x * 0xBF58476D1CE4E5B9 & _MASK
    x ^= x >> 27
    x = x * 0x94D049BB133111EB & _MASK
    return x ^ x >> 31


def _hash(*words: int) -> int:
    h = 0
    for word in words:
        h = _mix(h ^ (word & _MASK))
    return h


def _words(data: bytes) -> list[int]:
    return [int.from_bytes(data[i : i + 8], "little") for i in range(0, len(data), 8)] + [len(data)]


_NULL = 0x9E3779B97F4A7C15


@pytest.mark.parametrize(
    ("kind", "value", "words"),
    [
        (pa.bool_(), True, [1]), (pa.int16(), -3, [-3]), (pa.int32(), -3, [-3]), (pa.int64(), 2**63 - 1, [2**63 - 1]),
        (pa.date32(), dt.date(1969, 12, 31), [-1]), (pa.time64("us"), dt.time(0, 0, 1), [10**6]),
        (pa.timestamp("us"), dt.datetime(1970, 1, 1, 0, 0, 2), [2 * 10**6]), (pa.float64(), 1.0, [0x3FF0 << 48]),
        (pa.float32(), 1.0, [0x3FF0 << 48]), (pa.float64(), -0.0, [0]), (pa.float64(), float("nan"), [0x7FF8 << 48]),
        (pa.decimal128(38, 2), Decimal("-0.01"), [-1, -1]), (pa.decimal128(12, 2), Decimal("1.5"), [150, 0]),
        (pa.string(), "", _words(b"")), (pa.string(), "grün", _words("grün".encode())),
        (pa.string(), "exactly8", _words(b"exactly8")), (pa.binary(), b"123456789", _words(b"123456789")),
        (pa.string(), None, [_NULL]), (pa.int32(), None, [_NULL]), (pa.decimal128(5, 1), None, [_NULL, _NULL]),
    ],
)  # fmt: skip
def test_the_hash_of_every_type_is_as_it_is_written_down(kind: pa.DataType, value: Any, words: list[int]) -> None:
    rows = pa.record_batch([pa.array([None, value, None], kind)], names=["k"])
    assert key_hash(rows, ["k"])[1] == _hash(*words)
    assert key_hash(rows.slice(1, 1), ["k"]).tolist() == [_hash(*words)]


def test_columns_continue_from_each_other_and_no_key_is_zero() -> None:
    rows = pa.record_batch([pa.array([1, 2]), pa.array(["a", "b"])], names=["a", "b"])
    assert key_hash(rows, ["a", "b"]).tolist() == [_hash(n, *_words(s)) for n, s in ((1, b"a"), (2, b"b"))]
    assert key_hash(rows, []).tolist() == [0, 0]


_SCHEMA = TableSchema(1, "s", "t", (Column("k", 20, -1, is_key=True), Column("v", 25, -1)))


def _changes(rows: list[tuple[int, int | None, int | None, int]]) -> Changes:
    """Rows of (op, key after, key before, before kind)."""
    ops, after, before, kinds = zip(*rows, strict=True)
    count = len(rows)

    def image(keys: tuple[int | None, ...]) -> pa.RecordBatch:
        values = [None if key is None else f"v{key}" for key in keys]
        return pa.record_batch([pa.array(keys, pa.int64()), pa.array(values, pa.string())], names=["k", "v"])

    return Changes(
        schema=_SCHEMA,
        op=np.array(ops, np.int8),
        commit_ts=np.arange(count),
        seq=np.arange(count),
        after=image(after),
        before=image(before),
        before_kind=np.array(kinds, np.int8),
        unchanged={"v": np.array([op == UPDATE for op in ops])},
    )


def _split() -> tuple[TableSpan, TableSpan, int, int]:
    """Two halves of the key space, and a key in each."""
    low = next(key for key in range(100) if _hash(key) < KEY_SPACE // 2)
    high = next(key for key in range(100) if _hash(key) >= KEY_SPACE // 2)
    return TableSpan(1, 0, KEY_SPACE // 2), TableSpan(1, KEY_SPACE // 2, KEY_SPACE), low, high


def test_only_an_update_with_another_key_before_is_a_key_change() -> None:
    changes = _changes(
        [(UPDATE, 1, None, BEFORE_NONE), (UPDATE, 1, 2, BEFORE_KEY), (UPDATE, 1, 1, BEFORE_FULL), (DELETE, None, 1, 1)]
    )
    assert key_changes(changes, ["k"]).tolist() == [False, True, False, False]


def test_each_span_keeps_its_rows_and_every_truncate() -> None:
    lower, upper, low, high = _split()
    changes = _changes(
        [
            (INSERT, low, None, BEFORE_NONE),
            (INSERT, high, None, BEFORE_NONE),
            (UPDATE, low, None, BEFORE_NONE),
            (DELETE, None, high, BEFORE_KEY),
            (TRUNCATE, None, None, BEFORE_NONE),
        ]
    )
    assert keep_span(changes, lower, key=["k"]).seq.tolist() == [0, 2, 4]
    assert keep_span(changes, upper, key=["k"]).seq.tolist() == [1, 3, 4]
    assert keep_span(changes, TableSpan(1), key=["k"]) is changes


def test_a_key_that_moves_to_another_span_is_a_delete_there_and_an_insert_here() -> None:
    lower, upper, low, high = _split()
    changes = _changes([(UPDATE, high, low, BEFORE_KEY), (UPDATE, low, low, BEFORE_FULL)])
    leaves, stays = keep_span(changes, lower, key=["k"]), keep_span(changes, upper, key=["k"])
    assert leaves.op.tolist() == [DELETE, UPDATE]
    assert leaves.after.column("k").to_pylist() == [None, low]
    assert leaves.unchanged["v"].tolist() == [False, True]
    assert stays.op.tolist() == [INSERT]
    assert stays.before_kind.tolist() == [BEFORE_NONE]
    assert stays.unchanged["v"].tolist() == [True]


@pytest.mark.matrix
@given(
    st.lists(
        st.tuples(st.sampled_from([INSERT, UPDATE, DELETE]), *[st.integers(0, 30)] * 2, st.booleans()),
        min_size=1,
        max_size=40,
    ),
    st.integers(1, 7),
)
def test_all_spans_at_once_get_what_each_would_get_by_itself(
    made: list[tuple[int, int, int, bool]], count: int
) -> None:
    """In the same order, with the halves of keys that move."""
    rows: list[tuple[int, int | None, int | None, int]] = [
        {
            INSERT: (INSERT, new, None, BEFORE_NONE),
            DELETE: (DELETE, None, old, BEFORE_KEY),
            UPDATE: (UPDATE, new, old if moves else new, BEFORE_FULL),
        }[op]
        for op, old, new, moves in made
    ]
    changes, spans = _changes(rows), even_spans(1, count)
    found = dict(by_span(changes, spans, key=["k"]))
    for number, span in enumerate(spans):
        alone = keep_span(changes, span, key=["k"])
        assert (number in found) == (len(alone) > 0)
        if len(alone):
            assert _told(found[number]) == _told(alone)


def _told(changes: Changes) -> list[object]:
    assert changes.before is not None
    unchanged = changes.unchanged.get("v", np.zeros(len(changes), np.bool_))
    columns = [changes.op.tolist(), changes.seq.tolist(), changes.before_kind.tolist(), unchanged.tolist()]
    return [*columns, changes.after.to_pylist(), changes.before.to_pylist()]
