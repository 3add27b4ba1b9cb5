"""Small tables are read together, in one job: each once, and what befalls one of them befalls no other."""

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.errors import DecodeError, JobError, StatementRefusedError, TableLockedError, WorkerLostError
from agent.pacing import Pace, RowBudget
from agent.ports.sink import Sink, StagedFile
from agent.ports.snapshot import ChunkToStage, DoneChunks, DumpOrder, Plan, Staged, TablePlan, described, stage_each
from agent.rows.schema import TableSchema
from agent.task_errors import carried
from agent.units.chunk_run import ChunkRun
from agent.units.manifest import Manifest
from reactor.errors import WeirError
from reactor.ids import Ts
from reactor.records.changefeed import SinkMode
from reactor.records.tables.table import TableRecord
from tests.unit.agent.units.test_chunk_run import Chunks, NoSink

CAUGHT = (DecodeError, JobError, StatementRefusedError, TableLockedError)


@dataclass
class Session:
    """``errors``: those of tables, once each if a job may be tried again, else always. ``lethal``: its reader ends."""

    plan: Plan
    errors: dict[int, WeirError] = field(default_factory=dict)
    lethal: int = -1
    jobs: list[list[int]] = field(default_factory=list)

    def is_paced(self, table: TablePlan) -> bool:
        return False

    def stage(self, chunks: Sequence[ChunkToStage]) -> list[Staged]:
        self.jobs.append([chunk.table.record.table_id for chunk in chunks])
        if self.lethal in self.jobs[-1]:
            raise WorkerLostError("Python worker exited unexpectedly; it is tried again")
        return stage_each(chunks, self._stage)

    def _stage(self, chunk: ChunkToStage) -> tuple[StagedFile, ...]:
        table_id = chunk.table.record.table_id
        if (error := self.errors.get(table_id)) is not None:
            if error.retryable and error.code != TableLockedError.code:
                del self.errors[table_id]
            raise error
        return (StagedFile(f"{table_id}-{chunk.number}", 1, 1),)

    def verify(self) -> None: ...

    def is_alive(self) -> bool:
        return True


def run_of(
    path: Path, counts: Sequence[int], *, rows: int = 1, epoch: int = 1, pace: Pace | None = None, parallel: int = 4
) -> tuple[ChunkRun, Session]:
    """``counts``: chunks of each table; ``rows``: of a chunk."""
    tables = [TableRecord(table_id=number, schema_name="public", name=f"t{number}") for number in range(len(counts))]
    order = DumpOrder(
        tuple(tables), SinkMode.UPSERT, cast("Callable[[], Sink]", NoSink), epoch, pace=pace, parallel=parallel
    )
    plans = tuple(
        TablePlan(table, TableSchema(table.table_id, "public", table.name, ()), Chunks(count, count * rows), 1)
        for table, count in zip(tables, counts, strict=True)
    )
    session = Session(Plan(1, Ts(1), plans))
    return ChunkRun(order, session, Manifest.open(str(path))), session


def read(run: ChunkRun) -> DoneChunks:
    done: DoneChunks = {}
    run.run(done, stopped=threading.Event(), on_done=lambda: None)
    return done


def test_many_small_tables_take_few_jobs(tmp_path: Path) -> None:
    run, session = run_of(tmp_path, [1] * 1000)
    done = read(run)
    assert Counter(table for job in session.jobs for table in job) == Counter(range(1000))
    assert {(table, number): chunk.files[0].path for (table, number), chunk in done.items()} == {
        (table, 0): f"{table}-0" for table in range(1000)
    }
    assert len(session.jobs) <= 1000 // 64 + 20
    assert len(session.jobs[-1]) < 8, "at the end all threads have something to do"


def test_few_tables_are_read_at_once(tmp_path: Path) -> None:
    run, session = run_of(tmp_path, [1] * 4)
    read(run)
    assert [len(job) for job in session.jobs] == [1] * 4


@pytest.mark.parametrize("rows", [100_000, 250_000])
def test_a_job_has_no_more_rows_than_a_chunk(tmp_path: Path, rows: int) -> None:
    run, session = run_of(tmp_path, [1] * 40, rows=rows)
    read(run)
    assert max(map(len, session.jobs)) == 250_000 // rows


def test_chunks_of_divided_tables_and_reading_that_is_limited_stay_alone(tmp_path: Path) -> None:
    run, session = run_of(tmp_path, [1, 1, 3, 3, 1, 1], parallel=1)
    read(run)
    assert session.jobs == [[0, 1], *([2],) * 3, *([3],) * 3, [4, 5]]
    run, session = run_of(tmp_path / "limited", [1] * 20, pace=Pace((RowBudget(1_000_000),)))
    read(run)
    assert [len(job) for job in session.jobs] == [1] * 20


def test_a_table_that_ends_its_reader_is_found_among_others(tmp_path: Path) -> None:
    run, session = run_of(tmp_path, [1] * 100)
    session.lethal = 17
    done: DoneChunks = {}
    with pytest.raises(WorkerLostError):
        run.run(done, stopped=threading.Event(), on_done=lambda: None)
    assert Manifest.open(str(tmp_path)).read_attempts() == [((17,), False)]
    run, session = run_of(tmp_path, [1] * 100, epoch=2)
    session.lethal = 17
    run.run(done, stopped=threading.Event(), on_done=lambda: None)
    assert [table for (table, _), chunk in done.items() if chunk.refused] == [17]
    assert [table for (table, _), chunk in done.items() if chunk.files] == [table for table, _ in done if table != 17]
    assert len(done) == 100


def test_a_table_that_is_locked_ends_the_run_and_the_rest_is_kept(tmp_path: Path) -> None:
    run, session = run_of(tmp_path, [1] * 64, parallel=1)
    session.errors[20] = TableLockedError("a statement waits")
    done: DoneChunks = {}
    with pytest.raises(WeirError, match="a statement waits"):
        run.run(done, stopped=threading.Event(), on_done=lambda: None)
    assert sorted(table for table, _ in done) == list(range(20))


@given(st.dictionaries(st.integers(0, 59), st.sampled_from([0, 1, 2]), max_size=30), st.integers(1, 4))
def test_each_table_is_read_or_refused_whatever_befalls_others(
    tmp_path_factory: pytest.TempPathFactory, errors: dict[int, int], parallel: int
) -> None:
    run, session = run_of(tmp_path_factory.mktemp("dump"), [1] * 60, parallel=parallel)
    session.errors = {
        table: (StatementRefusedError("no right"), JobError("passing"), DecodeError("bad row").of_table(table))[kind]
        for table, kind in errors.items()
    }
    done = read(run)
    assert {table for (table, _), chunk in done.items() if chunk.files} == {
        table for table in range(60) if errors.get(table, 1) == 1
    }
    assert {table for (table, _), chunk in done.items() if chunk.refused} == {
        table for table, kind in errors.items() if kind != 1
    }


def test_names_of_jobs_tell_how_many_tables_they_read() -> None:
    plan = TablePlan(TableRecord(table_id=1, schema_name="s", name="t"), TableSchema(1, "s", "t", ()), Chunks(2, 2), 1)
    chunks = [ChunkToStage(plan, number, "0") for number in (0, 1)]
    assert described(chunks[:1]) == "dump s.t 1/2"
    assert described(chunks) == "dump s.t 1/2 and 1 more"


@pytest.mark.parametrize("error", [error("text") for error in CAUGHT])
def test_errors_keep_what_is_decided_by(error: WeirError) -> None:
    sent = carried(error)
    assert (sent.code, sent.retryable, sent.scope, str(sent)) == (error.code, error.retryable, error.scope, "text")
