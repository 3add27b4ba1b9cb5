"""Load from a dump's manifest: every table once, resumable, and refused when the dump is not finished."""

import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from deltalake import DeltaTable

from agent.errors import LogError, SinkPassingError, TableForeignError
from agent.ports.capabilities import Capabilities, Guarantee
from agent.ports.sink import Sink
from agent.ports.snapshot import DoneChunk, Plan, TablePlan
from agent.rows.schema import TableSchema
from agent.sinks import open_sink
from agent.sources.postgres.snapshot.chunks import ChunkPlan, PlanKind
from agent.units.load import LoadUnit, create_empty
from agent.units.manifest import Manifest
from reactor.ids import TableSpan, Ts
from reactor.records.changefeed import SinkMode
from reactor.records.tables.table import TableRecord
from tests.integration.agent.flush.pgoutput_build import TABLE
from tests.patience import HANG_S
from tests.unit.agent.changes_build import ARROW, changes, insert

RECORD = TableRecord(table_id=TABLE.table_id, schema_name="public", name="t", key=("id",), start_ts=Ts(100))
OTHER = RECORD.with_(table_id=7, name="empty")
SPAN = TableSpan(TABLE.table_id)


def dumped(root: Path, tables: Sequence[tuple[TableRecord, TableSchema]], *, done: bool = True) -> str:
    """A dump with one chunk per table; the table ``t`` has three rows in it."""
    sink = open_sink(f"delta+file://{root}/lake", changefeed="feed", mode=SinkMode.UPSERT)
    manifest = Manifest.for_source(str(root / "log"), changefeed="feed", source="main")
    plans = tuple(TablePlan(record, schema, ChunkPlan(PlanKind.WHOLE, count=1, rows=3), 1) for record, schema in tables)
    manifest.write_plan(Plan(1, Ts(100), plans))
    if done:
        batch = changes([insert(at, "a", "x") for at in range(3)], arrow=ARROW).after
        for number, (record, _) in enumerate(tables):
            files = sink.writer().stage(record, "0", iter([batch]), Ts(100)) if record.name == "t" else []
            manifest.write_done(1, number, [DoneChunk(record.table_id, 1, 0, tuple(files))])
    return manifest.uri


@pytest.mark.parametrize("storage", ["delta+file", "iceberg+file"])
def test_tables_of_a_real_sink_are_created_together(tmp_path: Path, storage: str) -> None:
    """In namespaces that are new, too, each of which is made once."""
    sink = open_sink(f"{storage}://{tmp_path}/lake", changefeed="feed", mode=SinkMode.UPSERT)
    tables = [RECORD.with_(table_id=n, schema_name=f"s{n % 2}", name=f"t{n}") for n in range(16)]
    for _ in range(2):
        create_empty(sink, [(table, replace(empty_schema(), table_id=table.table_id)) for table in tables])
        assert [sink.committed_ts(table, TableSpan(table.table_id)) for table in tables] == [100] * 16


def empty_schema() -> TableSchema:
    return TableSchema(7, "public", "empty", TABLE.columns)


async def test_every_table_is_loaded_once(tmp_path: Path) -> None:
    uri = dumped(tmp_path, [(RECORD, TABLE), (OTHER, empty_schema())])
    sink = open_sink(f"delta+file://{tmp_path}/lake", changefeed="feed", mode=SinkMode.UPSERT)
    reported: list[tuple[int, int]] = []
    await LoadUnit(uri, sink, on_progress=lambda done, total: reported.append((done, total))).run()
    assert reported[-1] == (3, 3)
    await LoadUnit(uri, sink).run()
    assert sink.committed_ts(RECORD, SPAN) == 100
    assert DeltaTable(tmp_path / "lake" / "public" / "t").to_pyarrow_table().num_rows == 3
    assert DeltaTable(tmp_path / "lake" / "public" / "empty").count() == 0
    assert DeltaTable(tmp_path / "lake" / "public" / "t").version() == 0


async def test_an_unfinished_dump_is_not_loaded(tmp_path: Path) -> None:
    uri = dumped(tmp_path, [(RECORD, TABLE)], done=False)
    sink = open_sink(f"delta+file://{tmp_path}/lake", changefeed="feed", mode=SinkMode.UPSERT)
    with pytest.raises(LogError, match=r"1 chunks of public\.t are not in the dump"):
        await LoadUnit(uri, sink).run()
    assert not (tmp_path / "lake" / "public" / "t" / "_delta_log").exists()


async def test_a_foreign_table_stops_the_unit_and_a_later_run_continues(tmp_path: Path) -> None:
    uri = dumped(tmp_path, [(RECORD, TABLE), (OTHER, empty_schema())])
    foreign = open_sink(f"delta+file://{tmp_path}/lake", changefeed="other", mode=SinkMode.UPSERT)
    create_empty(foreign, [(OTHER, empty_schema())])
    sink = open_sink(f"delta+file://{tmp_path}/lake", changefeed="feed", mode=SinkMode.UPSERT)
    with pytest.raises(TableForeignError, match="is written by changefeed 'other'"):
        await LoadUnit(uri, sink).run()
    assert sink.committed_ts(RECORD, SPAN) == 100


class Meeting:
    """A sink that loads ``at_once`` tables together: each waits until so many are being loaded."""

    def __init__(self, at_once: int, *, fails: str = "") -> None:
        self.capabilities = Capabilities(guarantee=Guarantee.IDEMPOTENT, loads_at_once=at_once)
        self.loaded: list[str] = []
        self._barrier = threading.Barrier(at_once)
        self._fails = fails

    def unfit(self, tables: Sequence[TableRecord]) -> dict[int, str]:
        return {table.table_id: "it has no place" for table in tables if table.name == "unfit"}

    def load(self, table: TableRecord, *_: object) -> None:
        self._barrier.wait(HANG_S)
        if table.name == self._fails:
            raise SinkPassingError("the disk is full")
        self.loaded.append(table.name)


def many(count: int) -> list[tuple[TableRecord, TableSchema]]:
    names = ["unfit", *(f"t{n}" for n in range(count))]
    return [(RECORD.with_(table_id=n, name=name), TableSchema(n, "public", name, ())) for n, name in enumerate(names)]


@pytest.mark.parametrize("at_once", [1, 2, 4])
async def test_as_many_tables_are_loaded_together_as_the_sink_allows(tmp_path: Path, at_once: int) -> None:
    uri, sink = dumped(tmp_path, many(8)), Meeting(at_once)
    reported: list[tuple[int, int]] = []
    await LoadUnit(uri, cast("Sink", sink), on_progress=lambda *at: reported.append(at)).run()
    assert sorted(sink.loaded) == [f"t{n}" for n in range(8)]
    assert len(reported) == 8
    empty = Meeting(at_once)
    create_empty(cast("Sink", empty), many(8))
    assert sorted(empty.loaded) == [f"t{n}" for n in range(8)]


async def test_a_table_that_fails_ends_the_unit_when_those_beside_it_are_loaded(tmp_path: Path) -> None:
    uri, sink = dumped(tmp_path, many(4)), Meeting(2, fails="t3")
    with pytest.raises(SinkPassingError, match="the disk is full"):
        await LoadUnit(uri, cast("Sink", sink)).run()
    assert sorted(sink.loaded) == ["t0", "t1", "t2"]
    empty = Meeting(2, fails="t3")
    with pytest.raises(SinkPassingError, match="the disk is full"):
        create_empty(cast("Sink", empty), many(4))
    assert sorted(empty.loaded) == ["t0", "t1", "t2"]
