"""Positions: spans that are together move in one step, and no change is passed over; the flusher with the real plan."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from random import Random
from typing import cast

import anyio
import pytest

from agent.control.flusher import Flusher, Join, Leave, Limits
from agent.control.positions import Positions
from agent.control.runtime import NOBODY, Advanced, Flushed, FlushLimits, SpanFlushed, SpanPosition, Together
from agent.errors import JobError, TablePassingError
from agent.flush import job
from agent.flush.plan import Weights
from agent.log.reader import LogReader
from agent.ports.capabilities import Capabilities, Guarantee
from agent.ports.executor import Executor
from agent.ports.sink import FeedContext, FlushResult, FlushTask, Sink
from agent.rows.batches import SegmentRef
from benchmarks.support.actor_system import ActorSystem
from reactor.ids import MAX_TS, TableSpan, Ts
from reactor.messages import Barrier
from reactor.records.changefeed import SinkMode
from reactor.records.log_head import LogHead
from reactor.records.tables.table import TableRecord

FEED = FeedContext("feed", "delta+file:///lake", SinkMode.UPSERT)


def position(table: int, ts: int) -> SpanPosition:
    record = TableRecord(table_id=table, schema_name="public", name=f"t{table}", key=("id",))
    return SpanPosition(TableSpan(table), record, Ts(ts), Ts(ts))


def arrived(at: SpanPosition, ts: int) -> SpanFlushed:
    return SpanFlushed(replace(at, checkpoint_ts=Ts(ts)), is_settled=True)


def together(*tables: int, ts: int) -> Positions:
    positions = Positions()
    for table in tables:
        positions.put(position(table, 1))
    positions.move([arrived(at, ts) for at in [*positions.apart.values()]], Ts(ts))
    assert not positions.apart
    return positions


def test_those_that_arrive_move_on_in_one_step() -> None:
    positions = together(1, 2, ts=10)
    assert positions.move([], Ts(20))
    assert not positions.move([], Ts(20)), "they are there"
    assert positions.pop(TableSpan(1)) == replace(position(1, 1), checkpoint_ts=Ts(20))
    assert len(positions) == 1


def test_one_that_fails_stays_where_it_was_and_the_others_go_on() -> None:
    positions = together(1, 2, ts=10)
    [woken] = positions.together.of([1])
    positions.take_changes()
    assert positions.move([SpanFlushed(woken)], Ts(20))
    assert positions.take_changes() == ((), (TableSpan(1),))
    assert positions.apart == {TableSpan(1): woken}
    positions.move([arrived(woken, 20)], Ts(20))
    assert positions.take_changes() == ((TableSpan(1),), ())
    assert positions.together.of([1, 2]) == [replace(position(at, 1), checkpoint_ts=Ts(20)) for at in (2, 1)][::-1]


def test_what_may_have_events_behind_its_record_does_not_join() -> None:
    positions = Positions()
    positions.put(position(1, 1))
    positions.move([SpanFlushed(replace(position(1, 1), checkpoint_ts=Ts(10)))], Ts(10))
    assert not positions.together


def test_no_span_moves_back() -> None:
    with pytest.raises(AssertionError, match="move back"):
        together(1, ts=10).move([], Ts(9))
    with pytest.raises(AssertionError, match="moved back in a flush"):
        together(1, ts=10).move([arrived(position(1, 1), 5)], Ts(10))


def test_a_table_with_another_record_is_apart() -> None:
    positions = together(1, 2, ts=10)
    renamed = position(1, 1).table.with_(name="other")
    positions.renew(None, lambda known: renamed if known.table_id == 1 else known)
    assert positions.apart == {TableSpan(1): SpanPosition(TableSpan(1), renamed, Ts(1), Ts(10))}


class Lake:
    """Log, sink and executor; what it has written, by table. Tables in ``refused`` cannot be written; ``filtered`` ones
    have changes that leave nothing."""

    capabilities = Capabilities(guarantee=Guarantee.EXACTLY_ONCE)

    def __init__(self, tables: Iterable[int]) -> None:
        self.events: dict[int, list[int]] = {table: [] for table in tables}
        self.written: dict[int, set[int]] = {table: set() for table in tables}
        self.records = dict.fromkeys(tables, Ts(1))
        self.refused: set[int] = set()
        self.filtered: set[int] = set()
        self.is_down = False
        self.log: list[SegmentRef] = []
        #: how many single spans each flush was given, and returned
        self.sizes: list[tuple[int, int]] = []
        weights = Weights(merge_bytes=25)
        parts = (cast("Sink", self), cast("LogReader", self), cast("Executor", self))
        self._context = job.FlushContext(FEED, *parts, weights)

    def add(self, first: int, last: int, tables: Iterable[int]) -> None:
        ids = frozenset(tables)
        self.log.append(SegmentRef("", len(self.log), 1, Ts(first), Ts(last), Ts(last), 10, ids))
        for table in ids:
            self.events[table].append(last)

    async def flush(
        self, positions: Sequence[SpanPosition], limits: FlushLimits, together: Together = NOBODY
    ) -> Flushed:
        await anyio.sleep(0.1)
        flushed = job.flush(self._context, positions, limits, together)
        self.sizes.append((len(positions), len(flushed.spans)))
        return flushed

    def segments(self, head: LogHead, from_ts: Ts, to_ts: Ts, *, known_ts: Ts) -> tuple[SegmentRef, ...]:
        return tuple(item for item in self.log if item.last_ts > from_ts and item.first_ts <= to_ts)

    def map(self, function: object, groups: Sequence[Sequence[FlushTask]], **_: object) -> list[list[FlushResult]]:
        if self.is_down:
            raise JobError("Spark is gone")
        return [[self._write(task) for task in group] for group in groups]

    def commit(self, tasks: Sequence[FlushTask], results: Sequence[FlushResult]) -> Sequence[FlushResult]:
        return results

    def cores(self) -> int:
        return 2

    def _write(self, task: FlushTask) -> FlushResult:
        table = task.table.table_id
        if table in self.refused:
            error = TablePassingError("busy; wait")
            return replace(task.result(), error=str(error), error_code=error.code, scope=error.scope)
        assert task.from_ts == self.records[table], "a sink refuses another writer"
        read = {item.last_ts for item in task.segments if table in item.tables}
        self.written[table] |= {ts for ts in read if task.from_ts < ts <= task.to_ts}
        if table in self.filtered:
            return task.result()
        self.records[table] = task.to_ts
        return task.result(committed=True, rows=1)

    def missing(self, table: int, ts: int) -> set[int]:
        """Return changes of a table up to ``ts`` that were not written."""
        return {at for at in self.events[table] if at <= ts} - self.written[table]


class Rig:
    def __init__(self, lake: Lake, system: ActorSystem) -> None:
        self.lake = lake
        self.limits = Limits()
        self.reached: dict[int, int] = {}
        self.together: set[int] = set()
        self.flusher = Flusher(
            lake,  # type: ignore[arg-type]
            self.limits,
            advanced=self._on_advanced,
            report=self._on_report,
            warn=lambda _: None,
            is_alone=lambda: False,
        )
        self.ref = system.spawn(self.flusher, "flusher")
        self._left: list[int] = []

    async def join(self, table: int) -> None:
        recorded = self.lake.records[table]
        checkpoint_ts = max(recorded, Ts(self.reached.get(table, 0)))
        at = replace(position(table, recorded), checkpoint_ts=checkpoint_ts)
        await self.ref.tell(Join(at))

    def move(self, ts: int, *, barrier: int = MAX_TS, barriers: Iterable[tuple[int, int]] = ()) -> None:
        of_tables = tuple((table, Ts(at)) for table, at in barriers)
        self.limits.now = FlushLimits(LogHead(resolved_ts=Ts(ts)), Barrier(Ts(barrier), of_tables))
        self.flusher.poke()

    async def join_those_that_left(self) -> None:
        left, self._left = self._left, []
        for table in left:
            await self.join(table)

    def _on_advanced(self, advanced: Advanced) -> None:
        moved = [(at.position.table.table_id, at.position.checkpoint_ts) for at in advanced.spans]
        self.together -= {span.table_id for span in advanced.left}
        moved += [(table, advanced.checkpoint_ts) for table in self.together]
        moved += [(span.table_id, advanced.checkpoint_ts) for span in advanced.joined]
        self.together |= {span.table_id for span in advanced.joined}
        for table, ts in moved:
            assert ts >= self.reached.get(table, 0), f"table {table} goes back"
            assert not self.lake.missing(table, ts), f"table {table} is at {ts}, and lacks changes"
            self.reached[table] = ts

    def _on_report(self, flushed: SpanFlushed) -> None:
        self._left.append(flushed.position.table.table_id)
        self.ref.tell_nowait(Leave(flushed.position.span))


@pytest.mark.looptime
async def test_the_work_of_a_flush_does_not_grow_with_quiet_tables() -> None:
    lake = Lake(range(500))
    async with ActorSystem("test") as system:
        r = Rig(lake, system)
        for table in range(500):
            await r.join(table)
        for at in range(10, 60, 10):
            lake.add(at + 1, at + 9, [3, 4])
            r.move(at + 9)
            await anyio.sleep(1.0)
        r.ref.stop(drain=False)
    assert set(r.reached.values()) == {59}
    assert lake.sizes[-4:] == [(0, 2)] * 4, "the two that change"


@pytest.mark.sample(0.2)
@pytest.mark.looptime
@pytest.mark.parametrize("seed", range(30))
async def test_nothing_is_passed_over_whatever_happens(seed: int) -> None:
    random, tables = Random(seed), range(12)
    lake = Lake(tables)
    async with ActorSystem("test") as system:
        r = Rig(lake, system)
        for table in tables:
            await r.join(table)
        for round in range(1, 40):
            at = 10 * round
            lake.add(at + 1, at + 9, (table for table in tables if random.random() < 0.2))
            lake.refused = {table for table in tables if random.random() < 0.05}
            lake.filtered = {table for table in tables if random.random() < 0.1}
            lake.is_down = random.random() < 0.1
            barriers = [(table, at - random.randrange(20)) for table in tables if random.random() < 0.05]
            r.move(at + 9, barrier=random.choice([MAX_TS, at + 5]), barriers=barriers)
            await anyio.sleep(random.choice([0.05, 0.5, 3.0]))
            if random.random() < 0.2:
                table = random.choice(tables)
                left = await r.ref.ask(Leave(TableSpan(table)), 10.0)
                if left is not None:
                    assert not lake.missing(table, left.checkpoint_ts)
                    await r.join(table)
            await r.join_those_that_left()
        lake.refused, lake.filtered, lake.is_down = set(), set(), False
        r.move(at := 1_000)
        await anyio.sleep(60)
        await r.join_those_that_left()
        await anyio.sleep(60)
        r.ref.stop(drain=False)
    assert r.reached == dict.fromkeys(tables, at)
    assert not any(lake.missing(table, at) for table in tables)
