"""A whole cluster's decisions in memory: the real owner and real agents over one ``ClusterState``.

Commits are applied at once, messages arrive in the next step, units and executors do what they are asked and write the
records that real ones would. No clock but a number.
"""

from dataclasses import replace
from typing import Any

from agent.control import effects
from agent.control.agent import Agent
from agent.control.gate import Gate
from agent.control.gate import Owner as Elected
from agent.control.runtime import FlushLimits, held_tables
from agent.log.head import begun_again as log_again
from agent.ports.source import Position
from agent.units.records import OWNED
from agent.units.renewal import begun_again
from owner.owner import Owner
from owner.questions import (
    ApplySchema,
    CopyTable,
    DropCopy,
    MarkLeft,
    MeasureTables,
    PlaceTable,
    ReadPositions,
    ReleaseSource,
    RepartitionTable,
)
from owner.settings import OwnerSettings
from reactor import keys
from reactor.effects import Answer, Commit, Effect, Log, Send, WakeAt
from reactor.errors import IgnorePatchError, InvalidRecordError
from reactor.ids import CaptureId, ChangefeedId, TableSpan, Ts
from reactor.messages import Message, SpanCheckpoint, SpanState
from reactor.questions import Answered, Ask
from reactor.records.base import COUNT_MAX, Record
from reactor.records.capture import CaptureInfo
from reactor.records.changefeed import ChangefeedInfo, RunningError, Unit, UnitRecord, UnitStage
from reactor.records.log_head import LogHead
from reactor.records.tables.schema_change import DdlRecord
from reactor.records.tables.table import TableRecord
from reactor.records.task_position import TaskPosition
from reactor.state import ChangefeedState, ClusterState
from reactor.store.port import Event
from reactor.txn import BYTES_MAX, OPERATIONS_MAX
from reactor.views import ChangefeedView
from tests.unit.owner.owner_build import FEED, info

CLUSTER, NAMESPACE = "test", keys.DEFAULT_NAMESPACE
TABLES = tuple(
    TableRecord(table_id=n, schema_name="public", name=f"t{n}", key=("id",), start_ts=Ts(100)) for n in (1, 2)
)


class Processor:
    """An agent whose executor and units obey at once."""

    def __init__(self, cluster: "SmallCluster", capture: CaptureId, feed: ChangefeedId, epoch: int) -> None:
        self.agent = Agent(capture, feed, gate=Gate(f"{capture}-{epoch}", epoch, version="0.1.0"))
        self.epoch = epoch
        self.writing: set[TableSpan] = set()
        self.units: dict[str, effects.StartUnit] = {}
        #: a flush is under way: what is asked to stop does so at ``stop``
        self.is_slow = False
        self.stopping: list[TableSpan] = []
        self._cluster = cluster
        self._written: dict[TableSpan, Ts] = {}

    def take(self, done: list[effects.AgentEffect]) -> None:
        for effect in done:
            match effect:
                case Send():
                    self._cluster.sent.append(effect.message)
                case effects.PrepareSpan(span=span, checkpoint=checkpoint):
                    self._written[span] = checkpoint.checkpoint_ts
                    if not self._cluster.is_moving:
                        self.happened(effects.SpanPrepared(span))
                case effects.RunSpan(span=span):
                    self.writing.add(span)
                    self.happened(effects.SpanRunning(span))
                case effects.StopSpan(span=span):
                    self.stopping.append(span)
                    if not self.is_slow:
                        self.stop()
                case effects.StartUnit():
                    self.units[effect.source] = effect
                    self._cluster.unit_started(self.agent.capture, effect, self.agent.changefeed)
                case effects.StopUnit(source=source, epoch=epoch):
                    self.units.pop(source, None)
                    self.happened(effects.UnitStopped(source, epoch))

    def flush(self, feed: ChangefeedState, time: float) -> None:
        head = feed.heads["main"]
        limits = FlushLimits(head, self.agent.barrier, held_tables(feed.ddl.values()))
        for span in sorted(self.writing):
            allowed = limits.target(span.table_id)
            if self._written[span] < allowed:
                self._written[span] = allowed
                self.happened(effects.SpanProgress(span, self._at(span), time))

    def stop(self) -> None:
        stopping, self.stopping = self.stopping, []
        for span in stopping:
            self.writing.discard(span)
            self.happened(effects.SpanStopped(span, self._at(span)))

    def happened(self, event: effects.AgentEvent) -> None:
        self.take(self.agent.handle_event(event, self._cluster.now))

    def _at(self, span: TableSpan) -> SpanCheckpoint:
        return SpanCheckpoint(self._written[span], self._written[span])


def failure(text: str) -> RunningError:
    return RunningError(code="SinkPassing", message=text)


def released(error: str = "") -> Answered[None]:
    """What the source says when it was asked to let a changefeed go."""
    return Answered(FEED, ReleaseSource(), error=failure(error) if error else None)


class SmallCluster:
    """``step`` is one round: owner's tick, agents' messages, units' and executors' work. ``known``: newest format."""

    def __init__(self, *captures: CaptureId, settings: OwnerSettings | None = None, known: int = 1) -> None:
        self.state = ClusterState(CLUSTER, removal_grace_s=0.0)
        self.now = 1000.0
        self.sent: list[Message] = []
        self.answers: dict[str, Answer] = {}
        self.dropped: list[Ask[Any]] = []
        self.reads: list[ReadPositions] = []
        self.repartitions: list[RepartitionTable] = []
        self.schemas: list[ApplySchema] = []
        self.copies: list[CopyTable | PlaceTable | DropCopy] = []
        self.measures: list[MeasureTables] = []
        self.marks: list[MarkLeft] = []
        self.logs: list[Log] = []
        self.jobs: list[object] = []
        self.processors: dict[tuple[CaptureId, ChangefeedId], Processor] = {}
        self.wake_at = 0.0
        #: the sink is between two steps of a move: no span can open its table
        self.is_moving = False
        self._known = known
        self._settings = settings = settings or OwnerSettings(standstill_s=1e9)
        self._revision = 0
        self.group_bytes = 0
        for capture in captures:
            self.join(capture)
        self.elections = 1
        self.owner = Owner(captures[0], self.elections, settings=settings)

    def put(self, key: keys.Key, record: Record | None) -> None:
        self.put_raw(str(key), record.encode() if record else None)

    def put_raw(self, key: str, value: bytes | None) -> None:
        self._revision += 1
        self.state.apply([Event(key, value, self._revision, self._revision)])

    def join(self, capture: CaptureId) -> None:
        found = CaptureInfo(
            id=capture, address="h:1", peer_address="h:2", version="0.1.0", cluster_id=CLUSTER, started_at=0.0
        ).with_(format=self._known)
        self.put(keys.CaptureKey(CLUSTER, capture), found)

    def leave(self, capture: CaptureId) -> None:
        self.put(keys.CaptureKey(CLUSTER, capture), None)
        for key in [key for key in self.processors if key[0] == capture]:
            del self.processors[key]

    def elect(self, capture: CaptureId) -> None:
        self.elections += 1
        self.owner = Owner(capture, self.elections, settings=self._settings)

    def end_move(self) -> None:
        """The tables lie where their records say: spans that wait open them."""
        self.is_moving = False
        for _, processor in sorted(self.processors.items()):
            waiting = [span for span, at in processor.agent.spans.items() if at.state is SpanState.PREPARING]
            for span in sorted(waiting):
                processor.happened(effects.SpanPrepared(span))

    def create(self, changefeed: ChangefeedInfo | None = None) -> None:
        created = changefeed or info()
        self.put(keys.InfoKey(CLUSTER, NAMESPACE, created.id), created)

    def info(self, feed: ChangefeedId = FEED) -> ChangefeedInfo:
        found = self.state.changefeeds[feed].info
        assert found is not None
        return found

    def checkpoint_ts(self, feed: ChangefeedId = FEED) -> int:
        status = self.state.changefeeds[feed].status
        return status.checkpoint_ts if status else 0

    def report(self, capture: CaptureId, error: RunningError | None, *, warning: RunningError | None = None) -> None:
        key = keys.PositionKey(CLUSTER, NAMESPACE, capture, FEED)
        self.put(key, TaskPosition(error=error, warning=warning))

    def fail_tables(self, capture: CaptureId, *errors: RunningError) -> None:
        """Their spans end there, as a span writer's do, and the owner hears why."""
        for (at, _), processor in sorted(self.processors.items()):
            for span in sorted(processor.writing) if at == capture else ():
                if any(error.table_id == span.table_id for error in errors):
                    processor.writing.discard(span)
                    processor.happened(effects.SpanStopped(span, processor._at(span)))
        self.put(keys.PositionKey(CLUSTER, NAMESPACE, capture, FEED), TaskPosition(tables=errors))

    def advance_log(self, resolved_ts: int, *, feed: ChangefeedId = FEED) -> None:
        head = LogHead(resolved_ts=Ts(resolved_ts), resolved_time=self.now)
        self.put(keys.LogKey(CLUSTER, NAMESPACE, feed, "main"), head)

    def change_schema(self, record: DdlRecord, *, feed: ChangefeedId = FEED) -> None:
        """Found in the log, whose head passes it."""
        self.put(keys.DdlKey(CLUSTER, NAMESPACE, feed, record.ts), record)
        self.advance_log(record.ts + 100, feed=feed)

    def unit_started(self, capture: CaptureId, order: effects.StartUnit, feed: ChangefeedId = FEED) -> None:
        self._put_unit(feed, order, UnitStage.RUNNING, capture)

    def finish_unit(self, *, feed: ChangefeedId = FEED) -> None:
        """The unit at work is through: its record says so, then its capture."""
        for (capture, owned), processor in sorted(self.processors.items()):
            order = processor.units.pop("main", None) if owned == feed else None
            if order is not None:
                self._put_unit(feed, order, UnitStage.FINISHED, capture)
                processor.happened(effects.UnitFinished(order.source, order.epoch))

    def take_position(self, ts: int, *, feed: ChangefeedId = FEED) -> None:
        """The sync unit has another position, and the log begins there."""
        found = self.state.changefeeds[feed]
        self.put(keys.UnitKey(CLUSTER, NAMESPACE, feed, "main"), begun_again(found.units["main"], Position(Ts(ts))))
        self.put(keys.LogKey(CLUSTER, NAMESPACE, feed, "main"), log_again(found.heads["main"], Ts(ts), position=""))

    def workers(self, feed: ChangefeedId = FEED) -> list[tuple[CaptureId, Unit]]:
        found = (
            (capture, processor) for (capture, owned), processor in sorted(self.processors.items()) if owned == feed
        )
        return [(capture, order.unit) for capture, processor in found for order in processor.units.values()]

    def writers(self) -> dict[TableSpan, list[CaptureId]]:
        result: dict[TableSpan, list[CaptureId]] = {}
        for (capture, _), processor in sorted(self.processors.items()):
            for span in sorted(processor.writing):
                result.setdefault(span, []).append(capture)
        return result

    def ask(self, job: object) -> None:
        self.jobs.append(job)
        self.step()

    def view(self, feed: ChangefeedId = FEED) -> ChangefeedView:
        return self.owner._view(self.state.changefeeds[feed], self.now, with_tables=True)  # type: ignore[return-value]

    def step(self, count: int = 1, *, after_s: float = 0.25) -> None:
        for _ in range(count):
            self.now += after_s
            self.state.begin_tick(self.now)
            self._tick_owner()
            self._tick_captures()

    def _tick_owner(self) -> None:
        mine = [message for message in self.sent if message.receiver == self.owner.capture and _is_answer(message)]
        self.sent = [message for message in self.sent if not _is_answer(message)]
        inbox, self.jobs = [*mine, *(self._complete(job) for job in self.jobs)], []
        done = list(self.owner.tick(self.state, inbox, self.now))
        for effect in done:
            if isinstance(effect, Commit):
                self._commit(effect)
        for effect in done:
            self._perform(effect)

    def _complete(self, job: object) -> object:
        """An answer about a schema change that names no tables is about those that were asked for last."""
        if isinstance(job, Answered) and isinstance(job.question, ApplySchema) and not job.question.record.changes:
            asked = [question for question in self.schemas if question.record.ts == job.question.record.ts]
            return replace(job, question=asked[-1]) if asked else job
        return job

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Send():
                self.sent.append(effect.message)
            case Answer():
                self.answers[effect.job_id] = effect
            case Ask(question=ReleaseSource()):
                self.dropped.append(effect)
            case Ask(question=ReadPositions() as question):
                self.reads.append(question)
            case Ask(question=RepartitionTable() as question):
                self.repartitions.append(question)
            case Ask(question=ApplySchema() as question):
                self.schemas.append(question)
            case Ask(question=MarkLeft() as question):
                self.marks.append(question)
            case Ask(question=MeasureTables() as question):
                self.measures.append(question)
            case Ask(question=CopyTable() | PlaceTable() | DropCopy() as question):
                self.copies.append(question)
            case Log():
                self.logs.append(effect)
            case WakeAt():
                self.wake_at = effect.at

    def _commit(self, effect: Commit) -> None:
        assert len(effect.group.patches) < OPERATIONS_MAX, "etcd refuses it"
        self.group_bytes = 0
        for patch in effect.group.patches:
            stored = self.state.raw.get(patch.key)
            try:
                value = patch.function(stored.value if stored else None)
            except IgnorePatchError:
                continue
            except InvalidRecordError:
                return  # the worker says so in the log, and the next tick decides again
            self.group_bytes += len(value or b"") * (stored is None or value != stored.value)
            assert self.group_bytes < BYTES_MAX, "etcd refuses it"
            self.put_raw(patch.key, value)

    def _tick_captures(self) -> None:
        self._start_and_stop_processors()
        orders, self.sent = self.sent, []
        for message in orders:
            processor = self.processors.get((message.receiver, message.changefeed))
            if processor is not None:
                processor.agent.gate.elect(Elected(self.owner.capture, self.elections))
                processor.take(processor.agent.handle(message, self.now))
        for (_, feed), processor in sorted(self.processors.items()):
            found = self.state.changefeeds.get(feed)
            if found is not None and "main" in found.heads and not found.broken:
                processor.flush(self.state.changefeeds[feed], self.now)
            processor.take(processor.agent.tick(self.now))

    def _start_and_stop_processors(self) -> None:
        wanted = {
            (capture, id): feed.info.epoch
            for id, feed in self.state.changefeeds.items()
            if feed.info is not None and feed.info.state in ("normal", "warning")
            for capture in self.state.captures
        }
        for key, processor in list(self.processors.items()):
            if wanted.get(key) != processor.epoch:
                del self.processors[key]
        for key in sorted(wanted.keys() - self.processors.keys()):
            self.processors[key] = Processor(self, key[0], key[1], wanted[key])

    def _put_unit(self, feed: ChangefeedId, order: effects.StartUnit, stage: UnitStage, capture: CaptureId) -> None:
        if order.epoch > COUNT_MAX:
            return  # what counts on from garbage crashes its unit
        stored = self.state.changefeeds[feed].units.get("main")
        tables = stored.tables if stored and stored.unit is order.unit is Unit.SYNC else TABLES
        record = UnitRecord(
            unit=order.unit, stage=stage, epoch=order.epoch, worker=capture, tables=tables, start_ts=Ts(100)
        )
        if stored is not None:
            record = record.with_(**{name: getattr(stored, name) for name in OWNED})
        self.put(keys.UnitKey(CLUSTER, NAMESPACE, feed, order.source), record)


def _is_answer(message: Message) -> bool:
    return type(message.body).__name__ in ("HeartbeatResponse", "DispatchResponse")
