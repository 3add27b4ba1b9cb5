"""Processor: one changefeed on one capture as an actor, with the agent's decisions, spans, units and flusher.

    owner's messages ─┐                       ┌─► Send, to the owner
    etcd moved ───────┼─► processor ─► agent ─┼─► span writers ─► flusher ─► parts
    spans, units ─────┘   (mailbox)           └─► unit runners

The processor only connects them: ``agent.control.agent`` decides, and ``agent.control.runtime`` does the I/O.
"""

import operator
from collections.abc import Callable
from dataclasses import dataclass

import anyio
import structlog

from agent.control import effects
from agent.control.actors import ActorContext, Reference
from agent.control.agent import Agent
from agent.control.flusher import Flusher, FlusherStatistics, Leave, Limits
from agent.control.gate import Owner
from agent.control.runtime import Advanced, FlushLimits, SpanFlushed, SpanRuntime, held_tables
from agent.control.span_writer import GiveUp, SpanOrder, SpanWriter, TableChanged
from agent.control.unit_runner import RunUnit, UnitRunner
from agent.own_faults import own_fault
from agent.running_error import running_error
from reactor.effects import Log, Send
from reactor.errors import CrashedTooOftenError, WeirError
from reactor.ids import TableSpan, Ts
from reactor.messages import Message, Place, SpanCheckpoint
from reactor.records.changefeed import RunningError
from reactor.records.log_head import LogHead
from reactor.records.tables.change_index import Newest
from reactor.records.tables.held import tried_after_end
from reactor.records.tables.table import TableRecord
from reactor.state import ChangefeedState

_MAILBOX_SIZE = 16_384
#: more than the orders and flushes that can be in flight for one span
_SPAN_MAILBOX_SIZE = 64


@dataclass(frozen=True, slots=True)
class FromOwner:
    message: Message


@dataclass(frozen=True, slots=True)
class Elected:
    """etcd shows this owner."""

    owner: Owner


@dataclass(frozen=True, slots=True)
class Moved:
    """The changefeed's records in etcd may have changed."""

    feed: ChangefeedState


@dataclass(frozen=True, slots=True)
class Happened:
    event: effects.AgentEvent


@dataclass(frozen=True, slots=True)
class ReportDue:
    """It is time to report changes to the owner."""


@dataclass(frozen=True, slots=True)
class AskStatistics:
    """Answered with ``ProcessorStatistics``."""


@dataclass(frozen=True, slots=True)
class StopServing:
    """This capture is leaving: hand over the spans, and accept no new ones."""


@dataclass(frozen=True, slots=True)
class ProcessorStatistics:
    """``spans`` and ``units``: the current number of them here."""

    spans: int
    units: int
    flusher: FlusherStatistics


@dataclass(slots=True)
class _Writer:
    """A span's actor across restarts; ``table``: its record when the span was added."""

    span: TableSpan
    table: TableRecord
    ref: Reference | None = None
    lives: int = 0


Input = FromOwner | Elected | Moved | Happened | ReportDue | AskStatistics | StopServing


class Processor:
    """``send`` sends a message to the owner; ``report`` reports an error to the manager and ``warn`` a warning;
    ``leave`` is called on ``LeaveAsked``; ``crashed`` counts a crash of the part named; ``is_alone`` tells whether the
    cluster has no other capture.

    Its memory does not survive a crash. It is then restarted with ``feed``, the records in etcd, and another processor
    epoch: the owner finds that it has nothing, and assigns spans and units again.
    """

    def __init__(
        self,
        agent: Agent,
        runtime: SpanRuntime,
        *,
        send: Callable[[Message], None],
        report: Callable[[RunningError], None],
        warn: Callable[[RunningError], None],
        leave: Callable[[], None],
        crashed: Callable[[str, Exception], None],
        is_alone: Callable[[], bool],
        feed: ChangefeedState | None = None,
    ) -> None:
        self._agent = agent
        self._runtime = runtime
        self._send = send
        self._report = report
        self._warn = warn
        self._leave = leave
        self._crashed = crashed
        self._feed = feed
        self._limits = Limits()
        self._flusher = Flusher(
            runtime, self._limits, advanced=self._on_advanced, report=self._on_failed, warn=warn, is_alone=is_alone
        )
        self._flusher_ref: Reference | None = None
        self._context: ActorContext | None = None
        self._writers: dict[TableSpan, _Writer] = {}
        self._units: dict[str, Reference] = {}
        self._tables: dict[int, TableRecord] = {}
        #: the records' own tuples: comparing their identity shows quickly that nothing has changed
        self._shown: list[tuple[TableRecord, ...]] = []
        #: the last change of the records that was more than progress
        self._news = -1
        self._unknown: list[effects.PrepareSpan] = []
        self._head: LogHead | None = None
        self._held: dict[int, Ts] = {}
        self._changes: Newest = {}
        #: of the schema changes that these two are of
        self._schemas: object = None
        self._suspects: frozenset[int] = frozenset()
        self._is_report_pending = False
        #: flushes whose progress the mailbox still has
        self._reports = 0
        self._log = structlog.get_logger().bind(changefeed=agent.changefeed)

    async def on_start(self, context: ActorContext) -> None:
        self._context = context
        self._flusher_ref = context.spawn(self._flusher, "flusher", mailbox_size=_MAILBOX_SIZE)
        if self._feed is not None:
            self._on_moved(self._feed)
        self._perform(self._agent.announce())

    async def on_stop(self) -> None:
        await self._runtime.close()

    async def handle(self, message: Input) -> ProcessorStatistics | None:
        now = anyio.current_time()
        match message:
            case FromOwner():
                self._perform(self._agent.handle(message.message, now))
                self._move_limits()
            case Elected():
                self._agent.gate.elect(message.owner)
            case Moved():
                self._on_moved(message.feed)
            case Happened():
                self._reports -= isinstance(message.event, effects.SpansProgress)
                self._perform(self._agent.handle_event(message.event, now))
                self._report_soon()
            case ReportDue():
                self._is_report_pending = False
                self._perform(self._agent.tick(now))
            case StopServing():
                self._agent.stop_serving()
                self._report_soon()
            case AskStatistics():
                return ProcessorStatistics(len(self._agent.spans), len(self._units), self._flusher.statistics)
        return None

    def follow(self, feed: ChangefeedState) -> bool:
        """Take in the move of a quiet log's head, if that is all and the owner needs no report of it; else return
        False: then ``Moved`` is to be sent."""
        head = next(iter(feed.heads.values()), None)
        is_busy = bool(feed.broken or self._unknown or self._reports) or feed.news != self._news
        if head is None or is_busy or not self._agent.is_barrier_known:
            return False
        limits = self._limits_at(head)
        if not self._flusher.can_follow(limits) or not self._agent.follow(head):
            return False
        self._head, self._limits.now = head, limits
        self._flusher.follow(limits.highest_ts)
        return True

    def _on_moved(self, feed: ChangefeedState) -> None:
        if feed.broken:
            return  # a record of a newer capture may hold a table: no head is followed past it
        self._head = next(iter(feed.heads.values()), None)
        if feed.news != self._news:  # the log's head moves many times while there is nothing else
            self._news = feed.news
            self._take_news(feed)
        waiting, self._unknown = self._unknown, []
        for order in waiting:
            self._prepare(order)
        self._move_limits()

    def _take_news(self, feed: ChangefeedState) -> None:
        if feed.ddl.version is not self._schemas:
            self._schemas = feed.ddl.version
            self._held = held_tables(feed.ddl.pending)
            self._changes = feed.ddl.newest_done()
        self._suspects = tried_after_end(feed.held.values()).union(feed.suspects.tables if feed.suspects else ())
        tables = [unit.tables for unit in feed.units.values()]
        if len(tables) != len(self._shown) or any(map(operator.is_not, tables, self._shown)):
            self._shown = tables
            self._tell_changes({table.table_id: table for known in tables for table in known})

    def _tell_changes(self, tables: dict[int, TableRecord]) -> None:
        before, self._tables = self._tables, tables
        for span in self._writers:
            after = tables.get(span.table_id)
            if after is not None and after != before.get(span.table_id):
                self._tell_writer(TableChanged(span, after))

    def _move_limits(self) -> None:
        """Update the flusher's limits. Nothing is written before the owner has sent a barrier."""
        if self._head is None or not self._agent.is_barrier_known:
            return
        limits = self._limits_at(self._head)
        if limits != self._limits.now:
            self._limits.now = limits
            self._flusher.poke()

    def _limits_at(self, head: LogHead) -> FlushLimits:
        return FlushLimits(head, self._agent.barrier, self._held, self._tables, self._changes, self._suspects)

    def _perform(self, todo: list[effects.AgentEffect]) -> None:
        for effect in todo:
            match effect:
                case Send():
                    self._send(effect.message)
                case Log():
                    getattr(self._log, effect.level)(effect.event, **dict(effect.fields))
                case effects.PrepareSpan():
                    self._prepare(effect)
                case effects.RunSpan():
                    self._tell_writer(effect)
                case effects.StopSpan():
                    self._stop_span(effect)
                case effects.StartUnit():
                    self._start_unit(effect)
                case effects.StopUnit():
                    self._stop_unit(effect)
                case effects.ReportError():
                    self._report(effect.error)
                case effects.LeaveAsked():
                    self._leave()

    # Spans

    def _prepare(self, order: effects.PrepareSpan) -> None:
        """Prepare a span; if the watch has not delivered its table yet, wait for it."""
        table = self._tables.get(order.span.table_id)
        if table is None:
            self._unknown.append(order)
            return
        assert self._context is not None, "it runs"
        assert order.span not in self._writers, f"span {order.span} has a writer, which has not said its last word"
        writer = self._writers[order.span] = _Writer(order.span, table)
        writer.ref = self._context.spawn_supervised(
            lambda: self._build(writer),
            f"span-{order.span}",
            on_crash=lambda error, is_final: self._on_crash(writer, error, is_final=is_final),
            mailbox_size=_SPAN_MAILBOX_SIZE,
        )
        self._tell_writer(order)

    def _build(self, writer: "_Writer") -> SpanWriter:
        """Create a span's actor, after a crash with the order that is in progress for it."""
        assert self._flusher_ref is not None
        span, is_first = writer.span, writer.lives == 0
        writer.lives += 1
        local = None if is_first or self._writers.get(span) is not writer else self._agent.spans.get(span)
        return SpanWriter(
            span,
            self._tables.get(span.table_id, writer.table),
            runtime=self._runtime,
            flusher=self._flusher_ref,
            emit=self._emit,
            warn=self._warn,
            is_settled=self._is_settled,
            again=local.orders_again() if local is not None else None,
        )

    def _is_settled(self, table: TableRecord) -> bool:
        return table.table_id not in self._held and self._tables.get(table.table_id, table) == table

    def _on_crash(self, writer: "_Writer", error: Exception, *, is_final: bool) -> None:
        """Suspend flushing the span until it has restarted; if its budget is exhausted, end the changefeed's run."""
        assert self._flusher_ref is not None
        span = writer.span
        name = f"span {span} of {writer.table.schema_name}.{writer.table.name}"
        self._crashed(name, error)
        if self._writers.get(span) is not writer:
            return  # it has already reported its end
        self._flusher_ref.tell_nowait(Leave(span))
        if is_final:
            assert self._context is not None
            last = self._writers[span] = _Writer(span, writer.table)
            last.ref = self._context.spawn(self._build(last), f"span-{span}-end", mailbox_size=_SPAN_MAILBOX_SIZE)
            cause = own_fault(error) or CrashedTooOftenError.of(name, error)
            self._tell_writer(GiveUp(span, running_error(cause)))

    def _tell_writer(self, order: SpanOrder) -> None:
        writer = self._writers.get(order.span)
        if writer is not None and writer.ref is not None:
            writer.ref.tell_nowait(order)

    def _stop_span(self, order: effects.StopSpan) -> None:
        if order.span in self._writers:
            self._tell_writer(order)
            return
        waiting = [prepare for prepare in self._unknown if prepare.span == order.span]
        self._unknown = [prepare for prepare in self._unknown if prepare.span != order.span]
        for prepare in waiting:
            self._emit(effects.SpanStopped(order.span, prepare.checkpoint))

    def _on_advanced(self, advanced: Advanced) -> None:
        self._agent.rows_flushed += sum(span.rows for span in advanced.spans)
        spans = tuple(map(_progress, advanced.spans))
        place = Place(SpanCheckpoint(advanced.checkpoint_ts, advanced.checkpoint_ts), advanced.commit_time)
        self._reports += 1
        self._post(Happened(effects.SpansProgress(spans, place, advanced.joined, advanced.left)))

    def _on_failed(self, flushed: SpanFlushed) -> None:
        assert flushed.error is not None, "a span that has moved continues"
        self._agent.rows_flushed += flushed.rows
        self._tell_writer(GiveUp(flushed.position.span, flushed.error))

    def _emit(self, event: effects.AgentEvent) -> None:
        """Pass on an event of a span or unit; after the last one, stop its actor."""
        match event:
            case effects.SpanStopped() | effects.SpanFailed():
                writer = self._writers.pop(event.span, None)
                if writer is not None and writer.ref is not None:
                    writer.ref.stop()
            case effects.UnitFinished() | effects.UnitStopped() | effects.UnitFailed():
                self._units.pop(event.source, None)
        self._post(Happened(event))

    # Units

    def _start_unit(self, order: effects.StartUnit) -> None:
        assert self._context is not None, "it runs"
        assert order.source not in self._units, f"a unit of {order.source} runs, which has not said its last word"
        runner = UnitRunner(self._runtime, emit=self._emit)
        unit = self._context.spawn(runner, f"{order.unit}-{order.source}-{order.epoch}", mailbox_size=4)
        self._units[order.source] = unit
        unit.tell_nowait(RunUnit(order))

    def _stop_unit(self, order: effects.StopUnit) -> None:
        if order.source in self._units:
            self._units[order.source].stop(drain=False)

    # The owner

    def _report_soon(self) -> None:
        """Merge the events of one round of the loop into one message to the owner."""
        if not self._is_report_pending:
            self._is_report_pending = True
            self._post(ReportDue())

    def _post(self, message: Input) -> None:
        assert self._context is not None
        try:
            self._context.me.tell_nowait(message)
        except WeirError as error:
            if error.code != "ActorDead":  # a full mailbox would lose the event: crash, and restart
                raise


def _progress(flushed: SpanFlushed) -> effects.SpanProgress:
    ts = flushed.position.checkpoint_ts
    return effects.SpanProgress(flushed.position.span, SpanCheckpoint(ts, ts), flushed.commit_time)
