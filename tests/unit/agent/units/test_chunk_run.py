"""Chunk runs at a limited speed: chunks are handed out as the limit allows, and a stopped run ends at once."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from agent.errors import WorkerLostError
from agent.pacing import Pace, ReadingStopped, RowBudget
from agent.ports.sink import Sink, StagedFile
from agent.ports.snapshot import ChunkToStage, DoneChunks, DumpOrder, Plan, Staged, TablePlan, is_undivided
from agent.rows.schema import TableSchema
from agent.units import chunk_run
from agent.units.chunk_run import ChunkRun
from agent.units.dump_attempts import LOST_WORKERS
from agent.units.manifest import Manifest
from reactor.errors import Scope
from reactor.ids import Ts
from reactor.records.changefeed import SinkMode
from reactor.records.tables.table import TableRecord

#: a thread may begin a little after its chunk was paid for
_LATE = 0.8
TABLE = TableRecord(table_id=1, schema_name="public", name="t")


@dataclass
class Chunks:
    count: int
    rows: int

    def to_fields(self) -> dict[str, Any]:
        return {}


class NoSink:
    def unfit(self, tables: object) -> frozenset[int]:
        return frozenset()


@dataclass
class Session:
    """Every chunk has ``rows`` rows. ``waits``: it keeps to the pace itself, and waits."""

    plan: Plan
    rows: int
    pace: Pace
    waits: bool = False
    began: list[Any] = field(default_factory=list)
    reads: threading.Event = field(default_factory=threading.Event)

    def is_paced(self, table: TablePlan) -> bool:
        return self.waits

    def stage(self, chunks: Sequence[ChunkToStage]) -> list[Staged]:
        return [self._stage(chunk) for chunk in chunks]

    def _stage(self, chunk: ChunkToStage) -> tuple[StagedFile, ...]:
        self.began.append(time.monotonic())
        self.reads.set()
        if self.waits:
            self.pace.spend(self.rows)
            self.pace.wait()
        return (StagedFile(f"{chunk.number}.parquet", self.rows, 1),)

    def verify(self) -> None: ...

    def is_alive(self) -> bool:
        return True


def run_of(
    tmp_path: Path, *, rate: int, chunks: int, rows: int, estimated: int | None = None, waits: bool = False
) -> tuple[ChunkRun, Session]:
    pace = Pace((RowBudget(rate),))
    sink = cast("Callable[[], Sink]", NoSink)
    order = DumpOrder((TABLE,), SinkMode.UPSERT, sink, epoch=1, pace=pace, parallel=2)
    schema = TableSchema(1, "public", "t", ())
    counted = Chunks(chunks, chunks * (rows if estimated is None else estimated))
    session = Session(Plan(1, Ts(1), (TablePlan(TABLE, schema, counted, 1),)), rows, pace, waits)
    return ChunkRun(order, session, Manifest.open(str(tmp_path))), session


@pytest.mark.parametrize("estimated", [2_000, 0, 1_000])
def test_chunks_are_read_as_fast_as_is_allowed(tmp_path: Path, estimated: int) -> None:
    run, session = run_of(tmp_path, rate=50_000, chunks=6, rows=2_000, estimated=estimated)
    done: DoneChunks = {}
    started = time.monotonic()
    run.run(done, stopped=threading.Event(), on_done=lambda: None)
    assert len(done) == 6
    # two may be read at once before the first has reported how many rows it has
    assert session.began[-1] - started >= (5 if estimated == 2_000 else 4) * 2_000 / 50_000 * _LATE


def test_chunks_that_are_smaller_than_thought_are_no_reason_to_read_faster(tmp_path: Path) -> None:
    """What a filter has left out was read."""
    run, session = run_of(tmp_path, rate=50_000, chunks=4, rows=1, estimated=2_000)
    started = time.monotonic()
    run.run({}, stopped=threading.Event(), on_done=lambda: None)
    assert session.began[-1] - started >= 3 * 2_000 / 50_000 * _LATE


def test_a_stopped_run_does_not_wait_for_its_turn(tmp_path: Path) -> None:
    run, session = run_of(tmp_path, rate=1, chunks=3, rows=3_600)
    stopped, done = threading.Event(), dict[Any, Any]()
    run.run(done, stopped=stopped, on_done=stopped.set)
    assert (len(done), len(session.began)) == (1, 1)


def test_a_part_of_a_chunk_is_none(tmp_path: Path) -> None:
    run, session = run_of(tmp_path, rate=1, chunks=3, rows=3_600, waits=True)
    done: DoneChunks = {}
    stopper = threading.Thread(target=_stop_when_read, args=(session,))
    stopper.start()
    run.run(done, stopped=session.pace.stopped, on_done=lambda: None)
    stopper.join()
    assert done == {}
    with pytest.raises(ReadingStopped):
        session.pace.wait()


def test_a_chunk_that_takes_long_shows_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunk_run, "_RECORD_PERIOD_S", 0.001)
    run, session = run_of(tmp_path, rate=1, chunks=1, rows=3_600, waits=True)
    seen: list[int] = []

    def on_done() -> None:
        seen.append(session.pace.rows)
        if seen[-1]:
            session.pace.stopped.set()

    run.run({}, stopped=session.pace.stopped, on_done=on_done)
    assert seen[-1] == 3_600


def _stop_when_read(session: Session) -> None:
    session.reads.wait()
    session.pace.stopped.set()


def test_tables_that_cannot_be_divided_are_told(tmp_path: Path) -> None:
    _, session = run_of(tmp_path, rate=1_000, chunks=1, rows=1)
    order = DumpOrder((TABLE,), SinkMode.UPSERT, cast("Callable[[], Sink]", NoSink), epoch=1, pace=session.pace)
    [table] = session.plan.tables
    assert order.rows_at_once == 2_000
    for rows, count, undivided in ((4_000, 1, False), (4_001, 1, True), (40_000, 10, False)):
        plan = TablePlan(TABLE, table.schema, Chunks(count, rows), 1)
        assert is_undivided(order, plan) is undivided
        assert not is_undivided(DumpOrder((TABLE,), SinkMode.UPSERT, order.open_sink, epoch=1), plan)


class Losing(Session):
    """A table ends the processes that read it."""

    def _stage(self, chunk: ChunkToStage) -> tuple[StagedFile, ...]:
        table_id = chunk.table.record.table_id
        self.began.append(table_id)
        if table_id == 1:
            raise WorkerLostError("Python worker exited unexpectedly; it is tried again")
        return (StagedFile(f"{table_id}-{chunk.number}.parquet", 1, 1),)


def losing(tmp_path: Path, epoch: int) -> tuple[ChunkRun, Session]:
    tables = [TableRecord(table_id=number, schema_name="public", name=f"t{number}") for number in (1, 2, 3)]
    order = DumpOrder(tuple(tables), SinkMode.UPSERT, cast("Callable[[], Sink]", NoSink), epoch=epoch, parallel=1)
    plans = tuple(
        TablePlan(table, TableSchema(table.table_id, "public", table.name, ()), Chunks(2, 2), 1) for table in tables
    )
    session = Losing(Plan(1, Ts(1), plans), 1, Pace())
    return ChunkRun(order, session, Manifest.open(str(tmp_path))), session


def test_processes_that_are_lost_end_the_run_for_another_capture_and_then_the_table_is_skipped(tmp_path: Path) -> None:
    done: DoneChunks = {}
    first, session = losing(tmp_path, epoch=1)
    with pytest.raises(WorkerLostError) as lost:
        first.run(done, stopped=threading.Event(), on_done=lambda: None)
    assert (lost.value.scope, session.began.count(1) >= 3) == (Scope.CAPTURE, True)
    second, session = losing(tmp_path, epoch=2)
    second.run(done, stopped=threading.Event(), on_done=lambda: None)
    assert session.began.index(1) >= session.began.count(2) + session.began.count(3), "it is read last"
    assert {(table, chunk.refused) for (table, _), chunk in done.items()} == {(1, LOST_WORKERS), (2, ""), (3, "")}
    assert Manifest.open(str(tmp_path)).read_attempts() == [((1,), False)], "the note of the first run"


def test_a_table_that_loses_processes_on_one_capture_only_is_copied_by_another(tmp_path: Path) -> None:
    first, _ = losing(tmp_path, epoch=1)
    done: DoneChunks = {}
    with pytest.raises(WorkerLostError):
        first.run(done, stopped=threading.Event(), on_done=lambda: None)
    second, session = losing(tmp_path, epoch=2)
    session.stage = lambda chunks: [(StagedFile("1.parquet", 1, 1),) for _ in chunks]  # type: ignore[method-assign]
    second.run(done, stopped=threading.Event(), on_done=lambda: None)
    assert [chunk.refused for chunk in done.values()] == [""] * 6
