"""A processor as an actor on virtual time: spans, flushes and units through its mailbox, with parts in memory."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import anyio
import pytest

from agent.control.agent import Agent
from agent.control.effects import AgentEffect, AgentEvent, SpansProgress, StartUnit
from agent.control.gate import Gate, Owner
from agent.control.processor import FromOwner, Input, Moved, Processor
from agent.control.runtime import NOBODY, Flushed, FlushLimits, Progress, SpanFlushed, SpanPosition, Together, UnitState
from agent.control.span_writer import SpanWriter
from agent.errors import JobTimeoutError, SinkConfigError, SinkConflictError, SinkError, TableForeignError
from benchmarks.support.actor_system import ActorSystem
from capture.actors.actor import ActorRef
from capture.errors import MailboxFullError
from reactor import keys
from reactor.ids import MAX_TS, CaptureId, ChangefeedId, TableSpan, Ts
from reactor.messages import (
    AddSpan,
    Barrier,
    Body,
    DispatchResponse,
    Header,
    Heartbeat,
    HeartbeatResponse,
    Liveness,
    Message,
    RemoveSpan,
    SpanCheckpoint,
    SpanState,
    StartWorker,
    StopWorker,
    WorkerStage,
)
from reactor.records.changefeed import RunningError, Unit, UnitRecord, UnitStage
from reactor.records.log_head import LogHead
from reactor.records.tables.schema_change import DdlRecord, SchemaChangeKind, TableChange
from reactor.records.tables.table import TableRecord
from reactor.state import ClusterState

pytestmark = pytest.mark.looptime

FEED, OWNER, HERE = ChangefeedId("feed"), CaptureId("owner"), CaptureId("here")
SPAN = TableSpan(7)
TABLE = TableRecord(table_id=7, schema_name="public", name="t", key=("id",), start_ts=Ts(10))


@dataclass
class MemoryParts:
    """A runtime whose sink is a dictionary; ``errors`` are raised by the next flushes, one each."""

    recorded: dict[TableSpan, Ts] = field(default_factory=lambda: {SPAN: Ts(10)})
    errors: list[Exception] = field(default_factory=list)
    #: the sink has the table under this name only
    name: str = ""
    asked_for: list[str] = field(default_factory=list)
    flushes: list[tuple[Ts, Ts]] = field(default_factory=list)
    flush_takes_s: float = 0.1
    unit_error: Exception | None = None
    is_closed: bool = False

    async def open_span(self, table: TableRecord, span: TableSpan, checkpoint_ts: Ts) -> SpanPosition:
        self.asked_for.append(table.name)
        if self.name and table.name != self.name:
            raise TableForeignError(f"the sink has no record of {table.name}; copy it again")
        recorded = self.recorded[span]
        return SpanPosition(span, table, recorded, max(recorded, checkpoint_ts))

    async def flush(
        self, positions: Sequence[SpanPosition], limits: FlushLimits, together: Together = NOBODY
    ) -> Flushed:
        await anyio.sleep(self.flush_takes_s)
        if self.errors:
            raise self.errors.pop(0)
        return Flushed(tuple(self._flushed(position, limits) for position in positions))

    def _flushed(self, position: SpanPosition, limits: FlushLimits) -> SpanFlushed:
        to_ts = limits.target(position.table.table_id)
        self.flushes.append((position.committed_ts, to_ts))
        self.recorded[position.span] = to_ts
        return SpanFlushed(replace(position, committed_ts=to_ts, checkpoint_ts=to_ts), commit_time=1.0, rows=1)

    async def run_unit(self, order: StartUnit, on_progress: Progress) -> None:
        on_progress(UnitState(5, 9, bytes_done=70))
        if self.unit_error:
            raise self.unit_error
        if order.unit is Unit.SYNC:
            await anyio.sleep_forever()

    async def close(self) -> None:
        self.is_closed = True


class Rig:
    """A processor with its owner played by the test."""

    def __init__(self, processor: ActorRef[Input], runtime: MemoryParts, agent: Agent) -> None:
        self.processor = processor
        self.runtime = runtime
        self.agent = agent
        self.sent: list[Body] = []
        self.reported: list[RunningError] = []
        self.warned: list[RunningError] = []
        self.leaves = 0
        self.crashes: list[str] = []
        self.state = ClusterState("c")

    def on_sent(self, message: Message) -> None:
        self.sent.append(message.body)

    def on_reported(self, error: RunningError) -> None:
        self.reported.append(error)

    def on_leave(self) -> None:
        self.leaves += 1

    async def order(self, body: Body) -> None:
        header = Header("0.1.0", 3, self.agent.gate.processor_epoch, 1)
        await self.processor.tell(FromOwner(Message(OWNER, HERE, FEED, header, body)))

    async def log_moves(self, resolved: int, *, tables: tuple[TableRecord, ...] = (TABLE,)) -> None:
        unit = UnitRecord(unit=Unit.SYNC, stage=UnitStage.RUNNING, tables=tables)
        head = LogHead(epoch=1, resolved_ts=Ts(resolved), resolved_time=5.0)
        self.state.update(str(keys.UnitKey("c", "default", FEED, "main")), unit.encode(), mod_revision=1)
        self.state.update(str(keys.LogKey("c", "default", FEED, "main")), head.encode(), mod_revision=2)
        await self.processor.tell(Moved(self.state.changefeeds[FEED]))

    async def add_span(self) -> None:
        checkpoint = SpanCheckpoint(Ts(10), Ts(10))
        await self.order(Heartbeat((SPAN,), barrier=Barrier(MAX_TS)))
        await self.order(AddSpan(SPAN, True, checkpoint))
        await self.until(lambda: self.span_state() is SpanState.PREPARED)
        await self.order(AddSpan(SPAN, False, checkpoint))
        await self.until(lambda: self.span_state() is SpanState.REPLICATING)

    def span_state(self) -> SpanState | None:
        return self.agent.spans[SPAN].state if SPAN in self.agent.spans else None

    def checkpoint(self) -> int:
        return self.agent.spans[SPAN].checkpoint.checkpoint_ts

    async def until(self, condition: Callable[[], object]) -> None:
        """Virtual time jumps, so looking again costs nothing."""
        with anyio.fail_after(600):
            while not condition():  # noqa: ASYNC110
                await anyio.sleep(0.01)


@asynccontextmanager
async def rig() -> AsyncIterator[Rig]:
    runtime = MemoryParts()
    agent = Agent(HERE, FEED, gate=Gate("run", 1, version="0.1.0", owner=Owner(OWNER, 3)))
    built: list[Rig] = []
    processor = Processor(
        agent,
        runtime,
        send=lambda m: built[0].on_sent(m),
        report=lambda e: built[0].on_reported(e),
        warn=lambda e: built[0].warned.append(e),
        leave=lambda: built[0].on_leave(),
        crashed=lambda name, error: built[0].crashes.append(f"{name}: {error}"),
        is_alone=lambda: False,
    )
    async with ActorSystem("test") as system:
        ref = system.spawn(processor, "processor", mailbox_size=65_536)
        built.append(Rig(ref, runtime, agent))
        await ref.tell(
            FromOwner(Message(OWNER, HERE, FEED, Header("0.1.0", 3, "", 1), Heartbeat((), False, Barrier())))
        )
        await built[0].until(lambda: agent.is_barrier_known)
        yield built[0]
        ref.stop(drain=False)
    assert runtime.is_closed


async def test_a_span_is_prepared_run_flushed_and_its_checkpoint_reported() -> None:
    async with rig() as r:
        await r.log_moves(20)
        await r.add_span()
        await r.until(lambda: r.checkpoint() == 20)
        assert r.runtime.flushes == [(10, 20)]
        reported = [b for b in r.sent if isinstance(b, HeartbeatResponse) and b.statuses]
        assert reported[-1].statuses[-1].checkpoint.checkpoint_ts == 20


async def test_the_progress_of_all_spans_of_a_flush_is_one_event(monkeypatch: pytest.MonkeyPatch) -> None:
    """An event for each of twenty thousand spans took two seconds of the loop at each flush."""
    tables = tuple(TABLE.with_(table_id=number, name=f"t{number}") for number in range(1, 201))
    spans = [TableSpan(table.table_id) for table in tables]
    events: list[AgentEvent] = []
    handle_event = Agent.handle_event

    def noted(agent: Agent, event: AgentEvent, now: float) -> list[AgentEffect]:
        events.append(event)
        return handle_event(agent, event, now)

    monkeypatch.setattr(Agent, "handle_event", noted)
    async with rig() as r:
        r.runtime.recorded = dict.fromkeys(spans, Ts(10))
        await r.log_moves(20, tables=tables)
        await r.order(Heartbeat(tuple(spans), barrier=Barrier(MAX_TS)))
        for is_secondary, state in ((True, SpanState.PREPARED), (False, SpanState.REPLICATING)):
            for span in spans:
                await r.order(AddSpan(span, is_secondary, SpanCheckpoint(Ts(10), Ts(10))))
            await r.until(lambda wanted=state: [at.state for at in r.agent.spans.values()] == [wanted] * len(spans))  # type: ignore[misc]
        await r.order(Heartbeat((), barrier=Barrier(MAX_TS)))
        await r.until(lambda: {r.agent.spans[span].checkpoint.checkpoint_ts for span in spans} == {20})
        events.clear()
        await r.log_moves(30, tables=tables)
        await r.until(lambda: {r.agent.spans[span].checkpoint.checkpoint_ts for span in spans} == {30})
        [progress] = events
        assert isinstance(progress, SpansProgress)
        assert {one.span for one in progress.spans} == {*spans}


async def test_what_arrives_during_a_flush_is_one_next_flush() -> None:
    async with rig() as r:
        await r.log_moves(20)
        await r.add_span()
        for resolved in range(21, 60):
            await r.log_moves(resolved)
        await r.until(lambda: r.checkpoint() == 59)
        assert len(r.runtime.flushes) <= 3


async def test_nothing_is_flushed_past_the_barrier() -> None:
    async with rig() as r:
        await r.log_moves(20)
        await r.add_span()
        await r.until(lambda: r.checkpoint() == 20)
        await r.order(Heartbeat((), barrier=Barrier(Ts(30))))
        await r.log_moves(50)
        await r.until(lambda: r.checkpoint() == 30)
        await r.order(Heartbeat((), barrier=Barrier(MAX_TS)))
        await r.until(lambda: r.checkpoint() == 50)


async def test_an_order_for_a_table_not_yet_seen_waits_for_etcd() -> None:
    async with rig() as r:
        await r.order(Heartbeat((SPAN,), barrier=Barrier(MAX_TS)))
        await r.order(AddSpan(SPAN, True, SpanCheckpoint(Ts(10), Ts(10))))
        await r.until(lambda: r.span_state() is SpanState.PREPARING)
        await r.log_moves(20)
        await r.until(lambda: r.span_state() is SpanState.PREPARED)


async def test_a_removed_span_stops_after_the_flush_under_way_with_its_last_checkpoint() -> None:
    async with rig() as r:
        r.runtime.flush_takes_s = 5.0
        await r.log_moves(20)
        await r.add_span()
        await r.order(RemoveSpan(SPAN))
        await r.until(lambda: SPAN not in r.agent.spans)
        last = [b for b in r.sent if isinstance(b, DispatchResponse)][-1]
        assert last.status.state is SpanState.STOPPED
        assert last.status.checkpoint.checkpoint_ts == r.runtime.recorded[SPAN] == 20
        await r.log_moves(30)
        assert r.runtime.flushes == [(10, 20)]


async def test_passing_errors_are_tried_again_and_do_not_reach_the_owner() -> None:
    async with rig() as r:
        r.runtime.errors = [SinkConflictError("conflict; again")] * 3
        await r.log_moves(20)
        await r.add_span()
        await r.until(lambda: r.checkpoint() == 20)
        assert r.reported == []


async def test_a_table_that_the_sink_has_renamed_is_asked_for_until_its_record_has_the_new_name() -> None:
    """The sink renames it before etcd says so, and a crash may lie in between."""
    renamed = TABLE.with_(name="t_new")
    change = TableChange(table_id=7, kind=SchemaChangeKind.RENAME, table=renamed)
    async with rig() as r:
        key = str(keys.DdlKey("c", "default", FEED, Ts(15)))
        record = DdlRecord(ts=Ts(15), changes=(change,))
        r.state.update(key, record.encode(), mod_revision=3)
        await r.log_moves(20)
        r.runtime.name = "t_new"
        await r.order(Heartbeat((SPAN,), barrier=Barrier(MAX_TS)))
        await r.order(AddSpan(SPAN, True, SpanCheckpoint(Ts(10), Ts(10))))
        await r.until(lambda: len(r.runtime.asked_for) > 2)
        assert (r.span_state(), r.reported, r.warned) == (SpanState.PREPARING, [], [])
        r.state.update(key, record.with_(done=True).encode(), mod_revision=4)
        await r.log_moves(20, tables=(renamed,))
        await r.until(lambda: r.span_state() is SpanState.PREPARED)
        assert set(r.runtime.asked_for) == {"t", "t_new"}


async def test_a_table_that_the_sink_does_not_have_is_reported_at_once() -> None:
    async with rig() as r:
        await r.log_moves(20)
        r.runtime.name = "another"
        await r.order(Heartbeat((SPAN,), barrier=Barrier(MAX_TS)))
        await r.order(AddSpan(SPAN, True, SpanCheckpoint(Ts(10), Ts(10))))
        await r.until(lambda: bool(r.reported))
        assert (r.reported[0].code, r.runtime.asked_for) == ("TableForeign", ["t"])


async def test_a_lasting_error_ends_the_span_and_reaches_the_owner() -> None:
    async with rig() as r:
        r.runtime.errors = [SinkError("nobody knows; look at the log")]
        await r.log_moves(20)
        await r.add_span()
        await r.until(lambda: bool(r.reported))
        assert r.reported[0].code == "Sink"
        assert r.span_state() is None


async def test_a_flush_that_was_given_up_is_tried_again_and_people_are_notified_at_once() -> None:
    async with rig() as r:
        r.runtime.errors = [JobTimeoutError("it hangs; look there")]
        await r.log_moves(100)
        await r.add_span()
        await r.until(lambda: r.checkpoint() == 100)
        assert [error.code for error in r.warned] == ["JobTimeout"]
        assert r.reported == []


async def test_five_passing_errors_in_a_row_reach_the_owner() -> None:
    async with rig() as r:
        r.runtime.errors = [SinkConflictError("conflict; again")] * 5
        await r.log_moves(20)
        await r.add_span()
        await r.until(lambda: bool(r.reported))
        assert r.reported[0].retryable


async def test_a_unit_reports_progress_and_its_end() -> None:
    async with rig() as r:
        await r.order(StartWorker("main", Unit.DUMP, 1))
        await r.until(lambda: "main" in r.agent.slots and not r.agent.slots["main"].is_running)
        status = r.agent.slots["main"].status
        assert status is not None
        assert status.stage is WorkerStage.FINISHED
        assert (status.rows_done, status.rows_total, status.bytes_done) == (5, 9, 70)


async def test_a_unit_is_stopped_and_reports_it_last() -> None:
    async with rig() as r:
        await r.order(StartWorker("main", Unit.SYNC, 1))
        await r.until(lambda: "main" in r.agent.slots and r.agent.slots["main"].is_running)
        await r.order(StopWorker("main", 1))
        await r.until(lambda: not r.agent.slots["main"].is_running)
        status = r.agent.slots["main"].status
        assert status is not None
        assert status.stage is WorkerStage.STOPPED


async def test_a_drained_capture_is_reported_once() -> None:
    async with rig() as r:
        for _ in range(3):
            await r.order(Heartbeat((), True, Barrier()))
        await r.until(lambda: any(isinstance(b, HeartbeatResponse) and b.liveness is Liveness.STOPPING for b in r.sent))
        assert r.leaves == 1


async def test_a_unit_that_fails_says_why() -> None:
    async with rig() as r:
        r.runtime.unit_error = SinkConfigError("not writable; chmod it")
        await r.order(StartWorker("main", Unit.LOAD, 1))
        await r.until(lambda: "main" in r.agent.slots and not r.agent.slots["main"].is_running)
        status = r.agent.slots["main"].status
        assert status is not None
        assert status.error is not None
        assert status.error.message == "not writable; chmod it"


def crash_once(monkeypatch: pytest.MonkeyPatch, owner: type, name: str, *, times: int = 1) -> None:
    """Its next calls raise what nobody foresaw."""
    original, left = getattr(owner, name), [times]

    async def crash(self: object, *args: object) -> object:
        if left[0]:
            left[0] -= 1
            raise ZeroDivisionError("a bug")
        return await original(self, *args)

    monkeypatch.setattr(owner, name, crash)


#: a schema change lets the writer of a span that flows do something
CHANGED = TABLE.with_(key=("id", "n"))


@pytest.mark.parametrize("step", ["_prepare", "_run", "_handle"])
async def test_a_span_that_crashes_is_built_again_and_continues(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it was at: what it has to do is the agent's to know, and how far it is the sink's."""
    async with rig() as r:
        if step != "_handle":
            crash_once(monkeypatch, SpanWriter, step)
        await r.log_moves(100)
        await r.add_span()
        await r.until(lambda: r.checkpoint() == 100)
        if step == "_handle":
            crash_once(monkeypatch, SpanWriter, step)
        await r.log_moves(150, tables=(CHANGED,))
        await r.until(lambda: bool(r.crashes))
        await r.log_moves(200, tables=(CHANGED,))
        await r.until(lambda: r.checkpoint() == 200)
        (crash,) = r.crashes
        assert crash == f"span {SPAN} of public.t: a bug"
        ends = [before for before, _ in r.runtime.flushes[1:]]
        assert ends == [after for _, after in r.runtime.flushes[:-1]], "each flush begins where the one before ended"
        assert r.reported == []


async def test_a_span_that_crashes_while_it_stops_still_says_its_last_word(monkeypatch: pytest.MonkeyPatch) -> None:
    async with rig() as r:
        await r.log_moves(100)
        await r.add_span()
        crash_once(monkeypatch, SpanWriter, "_stop")
        await r.order(RemoveSpan(SPAN))
        await r.until(lambda: r.span_state() is None)
        assert len(r.crashes) == 1
        last = [body.status for body in r.sent if isinstance(body, DispatchResponse)][-1]
        assert last.state is SpanState.STOPPED
        await r.add_span()
        await r.log_moves(200)
        await r.until(lambda: r.checkpoint() == 200)


async def test_a_span_is_stopped_while_it_waits_for_its_next_life(monkeypatch: pytest.MonkeyPatch) -> None:
    async with rig() as r:
        await r.log_moves(100)
        await r.add_span()
        await r.until(lambda: r.checkpoint() == 100)
        crash_once(monkeypatch, SpanWriter, "_handle", times=3)
        await r.log_moves(200, tables=(CHANGED,))
        await r.until(lambda: bool(r.crashes))
        await r.order(RemoveSpan(SPAN))
        await r.until(lambda: r.span_state() is None)
        assert len(r.runtime.flushes) == 2, "nothing is flushed for a span that is not there"


async def test_a_span_that_crashes_too_often_fails_its_changefeed_and_no_other_span(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    original, other = MemoryParts.open_span, TableSpan(8)

    async def open_span(self: MemoryParts, table: TableRecord, span: TableSpan, checkpoint_ts: Ts) -> SpanPosition:
        if span == SPAN:
            raise ZeroDivisionError("a bug")
        return await original(self, table, span, checkpoint_ts)

    monkeypatch.setattr(MemoryParts, "open_span", open_span)
    async with rig() as r:
        r.runtime.recorded[other] = Ts(10)
        await r.log_moves(100, tables=(TABLE, TABLE.with_(table_id=8, name="u")))
        checkpoint = SpanCheckpoint(Ts(10), Ts(10))
        for span in (SPAN, other):
            await r.order(AddSpan(span, True, checkpoint))
        await r.until(lambda: bool(r.reported))
        assert len(r.crashes) == 6
        (error,) = r.reported
        assert (error.code, error.retryable, error.is_of_table) == ("CrashedTooOften", False, False)
        assert "public.t" in error.message
        assert r.span_state() is None
        await r.order(AddSpan(other, False, checkpoint))
        await r.until(lambda: r.agent.spans[other].state is SpanState.REPLICATING)


async def test_a_span_that_reads_nothing_any_more_crashes_its_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """What finds no room in a span's mailbox would be lost: the processor begins again without it."""

    async def never(self: MemoryParts, table: TableRecord, span: TableSpan, checkpoint_ts: Ts) -> SpanPosition:
        await anyio.sleep_forever()
        raise AssertionError

    monkeypatch.setattr(MemoryParts, "open_span", never)

    async def overflow() -> None:
        async with rig() as r:
            await r.log_moves(100)
            await r.order(AddSpan(SPAN, True, SpanCheckpoint(Ts(10), Ts(10))))
            for number in range(100):
                table = TABLE.with_(name=f"t{number}")
                unit = UnitRecord(unit=Unit.SYNC, stage=UnitStage.RUNNING, tables=(table,))
                r.state.update(str(keys.UnitKey("c", "default", FEED, "main")), unit.encode(), mod_revision=3 + number)
                await r.processor.tell(Moved(r.state.changefeeds[FEED]))
                await anyio.sleep(0.01)

    with pytest.raises(MailboxFullError):
        await overflow()
