"""The flusher on virtual time: whom a failure concerns, who waits for it, and who hears of it."""

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import anyio
import pytest

from agent.control.flusher import Flusher, Join, Leave, Limits
from agent.control.runtime import NOBODY, Advanced, Flushed, FlushLimits, SpanFlushed, SpanPosition, Together
from agent.errors import (
    JobError,
    SinkConfigError,
    SinkError,
    SinkFencedError,
    SinkPassingError,
    SinkTimeoutError,
    TableHeldError,
    TablePassingError,
    WorkerLostError,
)
from agent.running_error import running_error
from benchmarks.support.actor_system import ActorSystem
from capture.actors.actor import ActorRef
from reactor.errors import Scope, WeirError
from reactor.ids import MAX_TS, TableSpan, Ts
from reactor.messages import Barrier
from reactor.records.changefeed import RunningError
from reactor.records.log_head import LogHead
from reactor.records.tables.table import TableRecord

pytestmark = pytest.mark.looptime


def table(number: int) -> TableRecord:
    return TableRecord(table_id=number, schema_name="public", name=f"t{number}", key=("id",), start_ts=Ts(10))


@dataclass
class Sink:
    """``refuses``: tables and what a flush says of them; ``kills``: a table that ends each job that it is in;
    ``settles``: spans that have been flushed are together."""

    refuses: dict[int, WeirError] = field(default_factory=dict)
    fails: WeirError | None = None
    kills: int | None = None
    settles: bool = False
    kill_with: WeirError = field(default_factory=lambda: JobError("a task has ended the executor"))
    flushes: list[tuple[float, frozenset[int]]] = field(default_factory=list)
    named: dict[int, set[str]] = field(default_factory=dict)

    async def flush(
        self, positions: Sequence[SpanPosition], limits: FlushLimits, together: Together = NOBODY
    ) -> Flushed:
        tables = frozenset(at.table.table_id for at in positions)
        self.flushes.append((anyio.current_time(), tables))
        for at in positions:
            self.named.setdefault(at.table.table_id, set()).add(at.table.name)
        await anyio.sleep(0.1)
        if self.fails is not None:
            raise self.fails
        if self.kills in tables:
            raise self.kill_with
        spans = tuple(self._flushed(at, limits) for at in positions)
        return Flushed(spans, together_ts=limits.highest_ts if self.settles else None)

    def _flushed(self, at: SpanPosition, limits: FlushLimits) -> SpanFlushed:
        error = self.refuses.get(at.table.table_id)
        if error is not None:
            return SpanFlushed(at, error=running_error(error).with_(table_id=at.table.table_id))
        to_ts = limits.target(at.table.table_id)
        moved = replace(at, checkpoint_ts=to_ts, committed_ts=to_ts)
        return SpanFlushed(moved, rows=1, is_settled=self.settles)


@dataclass
class Rig:
    sink: Sink
    flusher: ActorRef[object]
    limits: Limits
    poke: object
    reached: dict[int, int] = field(default_factory=dict)
    together: set[int] = field(default_factory=set)
    failed: dict[int, RunningError] = field(default_factory=dict)
    warned: list[RunningError] = field(default_factory=list)

    def on_advanced(self, advanced: Advanced) -> None:
        assert not any(span.error for span in advanced.spans)
        self.reached |= {span.position.table.table_id: span.position.checkpoint_ts for span in advanced.spans}
        self.together |= {span.table_id for span in advanced.joined}
        self.together -= {span.table_id for span in advanced.left}
        self.reached |= dict.fromkeys(self.together, advanced.checkpoint_ts)

    def on_report(self, flushed: SpanFlushed) -> None:
        assert flushed.error is not None
        self.failed[flushed.position.table.table_id] = flushed.error
        self.flusher.tell_nowait(Leave(flushed.position.span))  # as its writer does

    segments: int = 0
    written_ts: int = 0
    tables: dict[int, TableRecord] = field(default_factory=dict)

    def move(self, resolved_ts: int, *, removed_ts: int = 0, suspects: Iterable[int] = ()) -> None:
        """Move the log's head by a segment."""
        self.segments += 1
        self.written_ts = resolved_ts
        self.set(resolved_ts, removed_ts=Ts(removed_ts), suspects=suspects)

    def set(self, resolved_ts: int, *, barrier: int = MAX_TS, suspects: Iterable[int] = (), **changes: object) -> None:
        """Set the limits; the log has as many segments as before."""
        seqs = dict.fromkeys(("last_seq", "complete_seq", "written_seq"), self.segments)
        head = LogHead(resolved_ts=Ts(resolved_ts), written_ts=Ts(self.written_ts), **seqs).with_(**changes)
        self.limits.now = FlushLimits(head, Barrier(Ts(barrier)), tables=self.tables, suspects=frozenset(suspects))
        self.poke()  # type: ignore[operator]


@asynccontextmanager
async def rig(*tables: int, sink: Sink, is_alone: bool = False) -> AsyncIterator[Rig]:
    limits = Limits()
    built: list[Rig] = []
    flusher = Flusher(
        sink,  # type: ignore[arg-type]
        limits,
        advanced=lambda advanced: built[0].on_advanced(advanced),
        report=lambda flushed: built[0].on_report(flushed),
        warn=lambda error: built[0].warned.append(error),
        is_alone=lambda: is_alone,
    )
    async with ActorSystem("test") as system:
        ref = system.spawn(flusher, "flusher")
        built.append(Rig(sink, ref, limits, flusher.poke))  # type: ignore[arg-type]
        for number in tables:
            await ref.tell(Join(SpanPosition(TableSpan(number), table(number), Ts(10), Ts(10))))
        await anyio.sleep(0.01)
        yield built[0]
        ref.stop(drain=False)


async def test_a_table_that_is_refused_for_good_ends_alone() -> None:
    async with rig(1, 2, sink=Sink({1: TableHeldError("no such directory; make it")})) as r:
        r.move(100)
        await anyio.sleep(1.0)
        assert r.failed[1].is_of_table
        assert r.reached == {2: 100}


async def test_a_table_whose_trouble_may_pass_delays_no_other() -> None:
    async with rig(1, 2, sink=Sink({1: TablePassingError("busy; wait")})) as r:
        for at in range(100, 130):
            r.move(at)
            await anyio.sleep(0.3)
            assert r.reached[2] == at
        assert not r.failed
        assert sum(1 in tables for _, tables in r.sink.flushes) < 6
        r.sink.refuses.clear()
        await anyio.sleep(20)
        assert r.reached == {1: 129, 2: 129}


async def test_after_some_tries_the_owner_holds_it() -> None:
    async with rig(1, 2, sink=Sink({1: TablePassingError("busy; wait")})) as r:
        r.move(100)
        await anyio.sleep(60)
        assert r.failed[1].is_of_table
        assert r.failed[1].retryable
        assert r.failed.keys() == {1}


async def test_what_one_is_refused_while_another_is_written_is_its_own() -> None:
    async with rig(1, 2, sink=Sink({1: SinkError("no; whatever that means")})) as r:
        r.move(100)
        await anyio.sleep(1.0)
        assert (r.failed[1].table_id, r.failed[1].is_of_table) == (1, True)
    async with rig(1, sink=Sink({1: SinkError("no; whatever that means")})) as r:
        r.move(100)
        await anyio.sleep(1.0)
        assert not r.failed[1].is_of_table, "it may be the sink's"


async def test_a_writer_that_is_late_is_no_trouble_of_its_table() -> None:
    async with rig(1, 2, sink=Sink({1: SinkFencedError("recorded further; this writer is late")})) as r:
        r.move(100)
        await anyio.sleep(1.0)
        assert not r.failed[1].is_of_table


async def test_what_the_sink_refuses_as_a_whole_is_retried_without_limit_and_reported() -> None:
    async with rig(1, 2, sink=Sink(fails=SinkConfigError("not writable; chmod it"))) as r:
        r.move(100)
        await anyio.sleep(3_600)
        assert r.failed == {}
        assert len(r.warned) > 200
        r.sink.fails = None
        await anyio.sleep(20)
        assert r.reached == {1: 100, 2: 100}


async def test_a_table_that_ends_every_job_is_found_and_ends_alone() -> None:
    async with rig(1, 2, 3, sink=Sink(kills=2)) as r:
        for at in range(100, 160):
            r.move(at)
            await anyio.sleep(1.0)
        assert r.failed.keys() == {2}
        assert (r.failed[2].table_id, r.failed[2].is_of_table) == (2, True)
        assert r.reached == {1: 159, 3: 159}
        assert r.sink.flushes[-1][1] == {1, 3}, "then all are flushed together again"


async def test_a_job_that_fails_whatever_is_in_it_is_nobodys_own() -> None:
    async with rig(1, 2, sink=Sink(fails=JobError("no executor"))) as r:
        r.move(100)
        await anyio.sleep(120)
        assert not any(error.is_of_table for error in r.failed.values())


async def test_a_fault_of_the_capture_is_no_tables_and_is_not_waited_for_without_end() -> None:
    lacks = SinkPassingError("cannot write t1: this capture has no file descriptor left")
    lacks.scope = Scope.CAPTURE
    async with rig(1, 2, sink=Sink(refuses={1: lacks})) as r:
        r.move(100)
        await anyio.sleep(120)
        assert r.reached == {2: 100}
        assert (r.failed[1].scope, r.failed[1].is_of_table) == (Scope.CAPTURE, False)


class Losing(Sink):
    """One table ends a process of Spark's in each job that it is in."""

    def __init__(self, table: int) -> None:
        super().__init__(kills=table)

    async def flush(
        self, positions: Sequence[SpanPosition], limits: FlushLimits, together: Together = NOBODY
    ) -> Flushed:
        self.kill_with = WorkerLostError("Python worker exited unexpectedly")
        return await super().flush(positions, limits, together)


async def test_processes_that_are_lost_are_the_captures_fault_first() -> None:
    async with rig(1, 2, 3, sink=Losing(1)) as r:
        r.move(100)
        await anyio.sleep(30)
        assert (r.failed[1].scope, r.failed[1].table_id, r.failed[1].retryable) == (Scope.CAPTURE, 1, True)
        assert r.failed.keys() == {1}
        assert r.reached == {2: 100, 3: 100}, "others flow beside it"
        assert r.failed[1].message.count("kernel's log") == 1


async def test_a_suspect_that_loses_processes_here_too_is_the_cause() -> None:
    async with rig(1, 2, sink=Losing(1)) as r:
        r.move(100, suspects=[1])
        await anyio.sleep(30)
        assert (r.failed[1].is_of_table, r.failed[1].code) == (True, "WorkerLost")
        assert r.reached == {2: 100}


async def test_on_the_only_capture_a_table_that_loses_processes_is_the_cause() -> None:
    async with rig(1, 2, sink=Losing(1), is_alone=True) as r:
        r.move(100)
        await anyio.sleep(30)
        assert r.failed[1].is_of_table
        assert r.reached == {2: 100}


async def test_the_only_table_of_a_job_that_loses_processes_moves_too() -> None:
    async with rig(1, sink=Losing(1)) as r:
        r.move(100)
        await anyio.sleep(30)
        assert (r.failed[1].scope, r.failed[1].table_id) == (Scope.CAPTURE, 1)
        assert len(r.sink.flushes) == 3


async def test_losses_with_a_success_between_them_are_nobodys() -> None:
    """The kernel takes a process now and then; others have been written in the meantime, and this one too."""
    async with rig(1, 2, sink=Losing(1)) as r:
        for at in range(100, 140, 10):
            r.sink.kills = 1
            r.move(at)
            await anyio.sleep(2.5)
            r.sink.kills = None
            r.move(at + 5)
            await anyio.sleep(20)
            assert r.reached == {1: at + 5, 2: at + 5}
        assert not r.failed


async def test_a_table_that_has_lost_processes_ends_no_job_of_others() -> None:
    async with rig(1, 2, 3, sink=Losing(1)) as r:
        for at in range(100, 140):
            r.move(at)
            await anyio.sleep(0.5)
        ended = [tables for _, tables in r.sink.flushes if 1 in tables]
        assert ended[:2] == [{1, 2, 3}] * 2
        assert set(ended[2:]) == {frozenset({1})}, "it is written apart until it is written"


async def test_suspects_are_flushed_apart_after_all_others() -> None:
    async with rig(*range(1, 7), sink=Sink()) as r:
        r.move(100, suspects=(2, 5))
        await anyio.sleep(2.0)
        assert [tables for _, tables in r.sink.flushes] == [{1, 3, 4, 6}, {2}, {5}]
        assert set(r.reached.values()) == {100}
        r.move(110)
        await anyio.sleep(1.0)
        assert r.sink.flushes[-1][1] == set(range(1, 7)), "they are cleared"


async def test_many_suspects_are_flushed_in_few_groups() -> None:
    async with rig(*range(1, 101), sink=Sink()) as r:
        r.move(100, suspects=range(1, 101))
        await anyio.sleep(10.0)
        flushed = [tables for _, tables in r.sink.flushes]
        assert sorted(table for tables in flushed for table in tables) == list(range(1, 101))
        assert max(map(len, flushed)) == 13
        assert len(flushed) == 8


async def test_a_sink_that_hangs_for_one_table_is_found_too() -> None:
    async with rig(1, 2, sink=Sink(kills=2, kill_with=SinkTimeoutError("no answer; see what hangs"))) as r:
        for at in range(100, 160):
            r.move(at)
            await anyio.sleep(1.0)
        assert (r.failed[2].table_id, r.failed[2].is_of_table) == (2, True)
        assert r.reached == {1: 159}


async def test_a_table_whose_log_is_gone_fails_no_flush_of_others() -> None:
    async with rig(1, 2, sink=Sink()) as r:
        r.move(100)
        await anyio.sleep(1.0)
        await r.flusher.tell(Join(SpanPosition(TableSpan(3), table(3), Ts(20), Ts(20))))
        r.move(200, removed_ts=50)
        await anyio.sleep(1.0)
        assert r.failed[3].code == "TableLogLost"
        assert r.failed[3].is_of_table
        assert r.reached == {1: 200, 2: 200}


async def test_many_spans_that_join_one_by_one_are_flushed_together() -> None:
    async with rig(*range(300), sink=Sink()) as r:
        r.move(100)
        await anyio.sleep(1.0)
        before = len(r.sink.flushes)
        for number in range(300, 400):
            await r.flusher.tell(Join(SpanPosition(TableSpan(number), table(number), Ts(10), Ts(10))))
            await anyio.sleep(0.01)
        await anyio.sleep(1.0)
        assert len(r.reached) == 400
        assert set(r.reached.values()) == {100}
        assert len(r.sink.flushes) - before <= 6


async def test_a_span_that_joins_has_the_newest_record_of_its_table() -> None:
    async with rig(1, sink=Sink()) as r:
        renamed = table(2).with_(name="renamed")
        r.limits.now = FlushLimits(LogHead(resolved_ts=Ts(100)), Barrier(MAX_TS), tables={2: renamed})
        for number in (2, 3):
            await r.flusher.tell(Join(SpanPosition(TableSpan(number), table(number), Ts(10), Ts(10))))
            await anyio.sleep(0.2)
        assert r.sink.named[2] == {"renamed"}
        assert r.sink.named[3] == {"t3"}


async def test_a_head_that_moves_without_segments_moves_spans_together_without_a_flush() -> None:
    async with rig(1, 2, sink=Sink(settles=True)) as r:
        r.move(100)
        await anyio.sleep(1.0)
        before = len(r.sink.flushes)
        r.set(200)
        assert r.reached == {1: 200, 2: 200}
        r.set(300, barrier=250)
        assert r.reached == {1: 250, 2: 250}
        r.set(300)
        assert r.reached == {1: 300, 2: 300}
        await anyio.sleep(1.0)
        assert len(r.sink.flushes) == before
        r.move(400)
        assert r.reached == {1: 300, 2: 300}
        await anyio.sleep(1.0)
        assert r.reached == {1: 400, 2: 400}
        assert len(r.sink.flushes) == before + 1


@pytest.mark.parametrize(
    "change",
    [{"written_seq": 0}, {"last_seq": 2}, {"last_seq": 2, "complete_seq": 2}, {"written_ts": 150}],
    ids=["older writer", "open", "segment of an older writer", "segment"],
)
async def test_a_log_that_may_have_more_is_read(change: dict[str, Any]) -> None:
    async with rig(1, sink=Sink(settles=True)) as r:
        r.move(100)
        await anyio.sleep(1.0)
        before = len(r.sink.flushes)
        r.set(200, **change)
        await anyio.sleep(1.0)
        assert len(r.sink.flushes) == before + 1


async def test_a_log_whose_end_has_not_been_reached_is_read_when_the_barrier_moves() -> None:
    async with rig(1, sink=Sink(settles=True)) as r:
        r.segments, r.written_ts = 1, 100
        r.set(100, barrier=50)
        await anyio.sleep(1.0)
        assert r.reached == {1: 50}
        before = len(r.sink.flushes)
        r.set(100)
        await anyio.sleep(1.0)
        assert r.reached == {1: 100}
        assert len(r.sink.flushes) == before + 1


async def test_a_transaction_that_is_open_at_the_end_of_the_log_is_read_when_it_is_complete() -> None:
    async with rig(1, sink=Sink(settles=True)) as r:
        r.segments, r.written_ts = 2, 200
        r.set(100, complete_seq=1)
        await anyio.sleep(1.0)
        before = len(r.sink.flushes)
        r.set(200)
        await anyio.sleep(1.0)
        assert len(r.sink.flushes) == before + 1


async def test_a_span_apart_is_flushed_whatever_the_head_says() -> None:
    async with rig(1, sink=Sink(settles=True)) as r:
        r.move(100)
        await anyio.sleep(1.0)
        await r.flusher.tell(Join(SpanPosition(TableSpan(2), table(2), Ts(20), Ts(20))))
        await anyio.sleep(0.01)
        r.set(200)
        await anyio.sleep(1.0)
        assert r.reached == {1: 200, 2: 200}
        assert {2} in [tables for _, tables in r.sink.flushes]
