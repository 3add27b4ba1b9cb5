"""A writer that is killed before any step of what it does to a table: done again, no row is lost or doubled."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder

from agent.ports.sink import Alters, Maintains, Replaces, SpanRepartition, Splits
from agent.rows.schema_change import ColumnMove, SchemaChange
from agent.sinks.iceberg.table.catalogs.lake import Lake
from agent.sinks.iceberg.upkeep import expiry
from agent.sinks.uri import parse_sink_uri
from owner.scheduler.spans import even_spans
from reactor.ids import Ts
from reactor.records.tables.schema_change import SchemaChangeKind
from tests.contracts.sink_bed import COMBINATIONS, IMPLEMENTATIONS, SPAN, TABLE, Bed
from tests.integration.agent.sinks.iceberg.lake import table_of
from tests.integration.agent.sinks.steps import Outcome, run
from tests.unit.agent.changes_build import ARROW, delete, insert, table_schema, truncate, update

_SINKS = (
    *("delta-vectors", "delta-changelog", "iceberg-upsert", "iceberg-changelog"),
    pytest.param("iceberg-v3", marks=pytest.mark.matrix),
)
_NAMED = TABLE.with_(name="named")
_SOME = [update(1, "u", "x", ts=310), delete(2, None, None, ts=320), insert(9, "i", "z", ts=330)]


def _loaded(bed: Bed) -> None:
    bed.load((1, "a", "x"), (2, "b", "y"))


def _flushed(bed: Bed) -> None:
    assert bed.flush(300, 400, _SOME).committed


def _truncated(bed: Bed) -> None:
    assert bed.flush(300, 400, [truncate(ts=310), insert(9, "i", "z", ts=330)]).committed


def _renamed(bed: Bed) -> None:
    sink = bed.open()
    assert isinstance(sink, Alters)
    same = tuple(ColumnMove(item.name, item.type, item.name) for item in ARROW)
    kind, schema = SchemaChangeKind.RENAME, table_schema(name="named")
    sink.alter([SchemaChange(Ts(350), kind, TABLE, _NAMED, same, schema, ARROW)])


def _split(bed: Bed) -> None:
    sink = bed.open()
    assert isinstance(sink, Splits)
    sink.repartition(TABLE, SpanRepartition((SPAN,), even_spans(SPAN.table_id, 2), Ts(300), 1))


def _replaced(bed: Bed) -> None:
    sink = bed.open()
    assert isinstance(sink, Replaces)
    sink.replace(bed.copied(400, (7, "c", "w")))


def _expired(bed: Bed) -> None:
    while expiry.expire(Lake.of(parse_sink_uri(bed.uri)).place(TABLE), retention_s=0):
        pass


def _maintained(bed: Bed) -> None:
    sink = bed.open()
    assert isinstance(sink, Maintains)
    sink.maintain(TABLE)


def _story(bed: Bed, *, turns: int) -> None:
    """The table is at 300, after so many flushes; the next one has to compact."""
    bed.load(*((at, f"n{at}", "b") for at in range(6)))
    for turn in range(turns):
        some = [update(1, f"t{turn}", "x", ts=101 + turn), insert(100 + turn, "n", "y", ts=101 + turn)]
        assert bed.flush(100 + turn, 101 + turn, some).committed
    assert bed.flush(100 + turns, 300, [update(3, "v", "x", ts=290)]).committed


@dataclass(frozen=True)
class Act:
    """``turns``: flushes before it. ``only``: the sinks that have it."""

    does: Callable[[Bed], None]
    turns: int = 0
    only: str = ""


_ACTS = {
    "load": Act(_loaded),
    "flush": Act(_flushed, 3),
    "compacting flush": Act(_flushed, 23),
    "truncate": Act(_truncated, 3),
    "rename": Act(_renamed),
    "split": Act(_split),
    "copy": Act(_replaced, 3),
    "maintain": Act(_maintained, 3),
    "expiry": Act(_expired, 20, "iceberg"),
}


def _done(bed: Bed, name: str) -> None:
    _ACTS[name].does(bed)


def _stored(bed: Bed, name: str) -> list[Any]:
    """All rows after the act, as readers that are not ours see them; those of a changelog with their Ts and number."""
    table = _NAMED if name == "rename" else TABLE
    if bed.uri.startswith("iceberg"):
        found = table_of(bed, table).scan().to_arrow()
    else:
        delta = DeltaTable(Path(bed.uri.partition("://")[2].partition("?")[0]) / "public" / table.name)
        found = pa.table(QueryBuilder().register("t", delta).execute("SELECT * FROM t").read_all())
    names = sorted({*found.column_names} - {"_commit_timestamp", "_unchanged"})
    return sorted((tuple(row.values()) for row in found.select(names).to_pylist()), key=repr)


def _expected(outcome: Outcome | None) -> Outcome:
    assert outcome is not None, "nobody kills it"
    return outcome


# Kills at each step of a split take a minute and more; daily the contract tests split, and the sample has other acts.
@pytest.mark.minutes(0.6)
@pytest.mark.sample(0.12)
@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.matrix] * (name == "split")) for name in _ACTS])
@pytest.mark.parametrize("kind", _SINKS)
def test_what_a_killed_writer_began_is_done_again(kind: str, name: str, tmp_path: Path) -> None:
    act = _ACTS[name]
    if not kind.startswith(act.only):
        pytest.skip(f"only {act.only} does {name} apart from its flushes")
    bed, lake, kept = Bed.of((IMPLEMENTATIONS | COMBINATIONS)[kind], tmp_path), tmp_path / "lake", tmp_path / "kept"
    lake.mkdir()
    if name != "load":
        _expected(run(partial(_story, bed, turns=act.turns), lake))
    shutil.copytree(lake, kept)
    whole = _expected(run(partial(_done, bed, name), lake))
    wanted = _expected(run(partial(_stored, bed, name), lake)).value
    assert whole.steps
    for fatal in range(whole.steps):
        shutil.rmtree(lake)
        shutil.copytree(kept, lake)
        assert run(partial(_done, bed, name), lake, fatal) is None, "the act takes the same steps each time"
        _expected(run(partial(_done, bed, name), lake))
        assert _expected(run(partial(_stored, bed, name), lake)).value == wanted, f"killed before step {fatal}"
