"""Processor host: performs the decisions of ``agent.control.processors`` on one capture, and delivers messages.

A crashed processor is restarted alone, from etcd's records and under another processor epoch. Its mailbox survives; its
state is lost: the sink knows each span's position, and epochs fence work in progress. Crashes are counted in etcd, and
shown by ``query``; when the restart budget is exhausted, the changefeed fails. Messages for changefeeds without a
processor here are dropped; the owner repeats them until it is answered.

A fault of the capture fails no changefeed. The processor ends, and with it all its spans and units; the next one takes
no work and says so, and the owner assigns everything to others. That holds for all changefeeds while the capture is
unwell (``agent.health.health``), and for one while something is missing for it alone, or has failed here lately.
"""

import uuid
from collections import deque
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Protocol

import anyio
import structlog
from anyio.abc import TaskGroup

from agent.control.agent import Agent
from agent.control.gate import Gate, Owner
from agent.control.processor import (
    AskStatistics,
    Elected,
    FromOwner,
    Input,
    Moved,
    Processor,
    ProcessorStatistics,
    StopServing,
)
from agent.control.processors import (
    FaultOver,
    ManagerEffect,
    MeetOwner,
    MeetPeers,
    Observe,
    ProcessorCrashed,
    ProcessorEnded,
    ProcessorReported,
    StartProcessor,
    StopProcessor,
)
from agent.control.runtime import SpanRuntime
from agent.errors import OwnFaultError
from agent.health.health import Health
from agent.own_faults import own_fault
from agent.running_error import running_error
from capture.actors.actor import ActorRef, Cell
from capture.actors.supervised import Supervised
from capture.errors import ActorDeadError, ActorError, MailboxFullError, MessagingError, ProcessorCrashedError
from capture.member.faulty_runtime import FaultyRuntime, Rests
from capture.version import installed_version
from reactor.effects import Log
from reactor.errors import CrashedTooOftenError, Scope, WeirError
from reactor.ids import CaptureId, ChangefeedId
from reactor.messages import Heartbeat, Message
from reactor.records.changefeed import ChangefeedInfo, RunningError
from reactor.restarts import RestartPolicy
from reactor.state import ChangefeedState

#: topics of ``capture.messaging.messenger``: orders to agents, answers to the owner
AGENT_TOPIC, OWNER_TOPIC = "agent", "owner"

_MAILBOX_SIZE = 65_536
_ASK_TIMEOUT_S = 5.0
#: maximum messages, weighted by the spans they name, of owners not shown here yet. The oldest are dropped: their sender
#: repeats unanswered ones
_EARLY_MAX = 50_000

_log = structlog.get_logger()


class RuntimeFactory(Protocol):
    """Creates the parts a processor works with."""

    async def load(self, info: ChangefeedInfo) -> None:
        """Import in a thread what ``open`` needs. Raises nothing: ``open`` reports what is wrong."""
        ...

    def open(self, info: ChangefeedInfo) -> SpanRuntime:
        """:raises WeirError: the changefeed's URIs cannot be opened here."""
        ...


class Peers(Protocol):
    """The part of ``capture.messaging.messenger.Messenger`` that hosting needs."""

    def set_peers(self, peers: Mapping[CaptureId, str]) -> None: ...

    def send_nowait(self, topic: str, message: Message) -> None: ...


class ProcessorHost:
    """``post`` passes events to the reactor of ``agent.control.processors``; ``tasks`` runs the processors."""

    def __init__(
        self,
        capture: CaptureId,
        *,
        peers: Peers,
        plant: RuntimeFactory,
        tasks: TaskGroup,
        post: Callable[[object], None],
        policy: RestartPolicy | None = None,
        health: Health | None = None,
    ) -> None:
        self._capture = capture
        self._health = health or Health()
        self._peers = peers
        self._plant = plant
        self._tasks = tasks
        self._post = post
        self._processors: dict[ChangefeedId, ActorRef[Input]] = {}
        self._supervised: dict[ChangefeedId, Supervised] = {}
        self._policy = policy or RestartPolicy()
        #: their last state in etcd, for a processor that is restarted
        self._feeds: dict[ChangefeedId, ChangefeedState] = {}
        #: the current runs
        self._runs: dict[ChangefeedId, Processor] = {}
        #: those that have not been informed of their current owner
        self._unelected: set[ChangefeedId] = set()
        #: as etcd shows them here, and messages of those that it does not show yet
        self._owners: dict[ChangefeedId, Owner] = {}
        self._early: dict[ChangefeedId, deque[Message]] = {}
        self._early_weight = 0
        #: those for which this capture lacks something
        self._faulty: set[ChangefeedId] = set()
        self._rests = Rests()
        #: no other capture is a member
        self._is_alone = True
        #: this capture hands over its work and accepts none; one-way
        self.is_leaving = False

    def perform(self, effect: ManagerEffect) -> None:
        match effect:
            case StartProcessor(changefeed, info):
                self._start(changefeed, info)
            case StopProcessor(changefeed):
                if changefeed in self._supervised:
                    self._supervised[changefeed].stop(drain=False)
            case Observe(changefeed, feed):
                self._observe(changefeed, feed)
            case MeetOwner(changefeed, owner):
                self._meet_owner(changefeed, owner)
            case MeetPeers(addresses):
                self._is_alone = len(addresses) <= 1
                self._peers.set_peers(dict(addresses))
            case Log(level, event, fields):
                getattr(_log, level)(event, **dict(fields))

    async def on_message(self, message: Message) -> None:
        """Handle ``AGENT_TOPIC``. An owner's messages may arrive before etcd shows it here: they wait."""
        if message.header.owner_revision > self._owner_of(message.changefeed).revision:
            self._keep_early(message)
        else:
            self._tell(message.changefeed, FromOwner(message))

    def _keep_early(self, message: Message) -> None:
        self._early.setdefault(message.changefeed, deque()).append(message)
        self._early_weight += _weight(message)
        while self._early_weight > _EARLY_MAX:
            changefeed, kept = next(iter(self._early.items()))
            self._early_weight -= _weight(kept.popleft())
            if not kept:
                del self._early[changefeed]

    def _meet_owner(self, changefeed: ChangefeedId, owner: Owner) -> None:
        """Process messages of this owner from now on; drop those of others."""
        self._unelected.discard(changefeed)
        if owner.revision:
            self._owners[changefeed] = owner
            if not self._tell(changefeed, Elected(owner)):
                self._unelected.add(changefeed)
        else:
            self._owners.pop(changefeed, None)
        for message in self._early.pop(changefeed, ()):
            self._early_weight -= _weight(message)
            if message.header.owner_revision > owner.revision:
                self._keep_early(message)
            elif message.header.owner_revision == owner.revision and message.sender == owner.id:
                self._tell(changefeed, FromOwner(message))

    def _owner_of(self, changefeed: ChangefeedId) -> Owner:
        return self._owners.get(changefeed) or Owner()

    def stop_serving(self) -> None:
        """This capture is leaving: all agents, current and future, report it from now on."""
        self.is_leaving = True
        for changefeed in self._processors:
            self._tell(changefeed, StopServing())

    async def follow_health(self) -> None:
        """End the processors that work here whenever the capture falls ill: their work goes to others."""
        while True:
            await self._health.changed()
            if self._health.fault is not None:
                for changefeed in self._supervised.keys() - self._faulty:
                    self._supervised[changefeed].stop(drain=False)

    async def is_idle(self) -> bool:
        """Return whether no span and no unit is left here."""
        return not await self.at_work()

    async def at_work(self) -> Collection[ChangefeedId]:
        """Return the changefeeds of which there are spans or units here."""
        return [id for id, one in (await self.statistics()).items() if one.spans or one.units]

    async def statistics(self) -> dict[ChangefeedId, ProcessorStatistics]:
        answers: dict[ChangefeedId, ProcessorStatistics] = {}
        for changefeed, processor in list(self._processors.items()):
            try:
                answers[changefeed] = await processor.ask(AskStatistics(), _ASK_TIMEOUT_S)
            except ActorError:
                continue  # it is stopping
        return answers

    def _observe(self, changefeed: ChangefeedId, feed: ChangefeedState) -> None:
        """Also inform it of the owner, if there was no room for the news of its election."""
        self._feeds[changefeed] = feed
        if changefeed in self._unelected and self._tell(changefeed, Elected(self._owner_of(changefeed))):
            self._unelected.discard(changefeed)
        if not self._follow(changefeed, feed):
            self._tell(changefeed, Moved(feed))

    def _follow(self, changefeed: ChangefeedId, feed: ChangefeedState) -> bool:
        """Return whether its run needs no message: nearly always, only a quiet log's head has moved."""
        run = self._runs.get(changefeed)
        try:
            return run is not None and run.follow(feed)
        except Exception as error:  # of one changefeed, and must not end this capture's membership
            _log.warning("a processor did not follow its log", changefeed=changefeed, exc_info=error)
            return False

    def _tell(self, changefeed: ChangefeedId, message: Input) -> bool:
        """Return False if its mailbox is full."""
        processor = self._processors.get(changefeed)
        if processor is None:
            return True
        try:
            processor.tell_nowait(message)
        except ActorDeadError:
            pass  # it is stopping; ``ProcessorEnded`` will follow
        except MailboxFullError:
            # heartbeats and etcd's state are repeated, and so are orders
            _log.warning("processor is not keeping up", changefeed=changefeed)
            return False
        return True

    def _start(self, changefeed: ChangefeedId, info: ChangefeedInfo) -> None:
        def report(error: RunningError) -> None:
            if error.scope is Scope.CAPTURE:
                error = error.with_(code=OwnFaultError.code)
                self._rests.note(changefeed, error, anyio.current_time())
            self._post(ProcessorReported(changefeed, info.epoch, error))

        self._feeds.pop(changefeed, None)
        built: deque[Processor] = deque()

        def build() -> Processor:
            return built.popleft() if built else self._build(info, report)

        def on_crash(error: Exception, is_final: bool) -> None:
            name = f"the processor of {changefeed}"
            self._count_crash(changefeed, name, error)
            if is_final:
                report(running_error(own_fault(error) or CrashedTooOftenError.of(name, error)))

        cell: Cell[Input] = Cell(build, f"processor-{changefeed}", mailbox_size=_MAILBOX_SIZE)
        supervised = self._supervised[changefeed] = Supervised(cell, self._policy, on_crash)
        self._processors[changefeed] = cell.ref
        self._tasks.start_soon(self._run, info, supervised, report, built, name=cell.name)

    def _build(self, info: ChangefeedInfo, report: Callable[[RunningError], None]) -> Processor:
        """Create a new run of a processor: by its name the owner recognises that it has nothing yet.

        :raises WeirError: the changefeed's URIs cannot be opened here.
        """

        def warn(error: RunningError) -> None:
            self._post(ProcessorReported(info.id, info.epoch, error, is_warning=True))

        runtime, fault = self._opened(info)
        gate = Gate(uuid.uuid4().hex, info.epoch, version=installed_version(), owner=self._owner_of(info.id))
        agent = Agent(self._capture, info.id, gate=gate)
        if self.is_leaving or fault:
            agent.stop_serving()
        if fault:
            warn(fault)
            self._tasks.start_soon(self._try_again, info.id, name=f"fault-{info.id}")
        run = self._runs[info.id] = Processor(
            agent,
            runtime,
            send=self._send,
            report=report,
            warn=warn,
            leave=self.stop_serving,
            crashed=partial(self._count_crash, info.id),
            is_alone=lambda: self._is_alone,
            feed=self._feeds.get(info.id),
        )
        return run

    def _opened(self, info: ChangefeedInfo) -> tuple[SpanRuntime, RunningError | None]:
        """Return the runtime, and a fault of this capture that keeps it from working: then it takes part without work.

        :raises WeirError: the changefeed's URIs cannot be opened, here or elsewhere.
        """
        try:
            if fault := self._health.fault or self._rests.current(info.id, anyio.current_time()):
                raise fault
            runtime = self._plant.open(info)
        except WeirError as error:
            if error.scope is not Scope.CAPTURE:
                raise
            _log.warning("this capture cannot work for a changefeed", changefeed=info.id, reason=str(error))
            self._faulty.add(info.id)
            return FaultyRuntime(error), running_error(error)
        if info.id in self._faulty:
            self._faulty.discard(info.id)
            self._post(FaultOver(info.id))
        return runtime, None

    async def _try_again(self, changefeed: ChangefeedId) -> None:
        """Stop the processor so that its manager starts another: what this capture lacked may be available now."""
        supervised = self._supervised.get(changefeed)
        if self._health.fault is not None:
            await self._health.well()
        else:
            await anyio.sleep(self._rests.left_s(changefeed, anyio.current_time()))
        if supervised is not None and self._supervised.get(changefeed) is supervised:
            supervised.stop(drain=False)

    def _count_crash(self, changefeed: ChangefeedId, name: str, error: Exception) -> None:
        text = f"{name} crashed ({type(error).__name__}) and was started again; see the log of its capture"
        shown = running_error(ProcessorCrashedError(text)).with_(capture=self._capture)
        self._post(ProcessorCrashed(changefeed, shown))

    async def _run(
        self,
        info: ChangefeedInfo,
        supervised: Supervised,
        report: Callable[[RunningError], None],
        built: deque[Processor],
    ) -> None:
        """Messages wait in the mailbox until the first processor is ``built``. If it cannot be, that is reported."""
        try:
            await self._plant.load(info)
            if not supervised.is_cancelled and (processor := self._built(info, report)):
                built.append(processor)
                await supervised.run()
        finally:
            del self._processors[info.id], self._supervised[info.id]
            self._runs.pop(info.id, None)
            self._feeds.pop(info.id, None)
            supervised.close()
            self._post(ProcessorEnded(info.id))

    def _built(self, info: ChangefeedInfo, report: Callable[[RunningError], None]) -> Processor | None:
        try:
            return self._build(info, report)
        except Exception as error:  # the stored data may be anything, and concerns only this changefeed
            _log.warning("a processor did not start", changefeed=info.id, exc_info=error)
            known = own_fault(error) or (error if isinstance(error, WeirError) else None)
            report(running_error(known) if known else _unforeseen(info.id, error))
            return None

    def _send(self, message: Message) -> None:
        try:
            self._peers.send_nowait(OWNER_TOPIC, message)
        except MessagingError as error:
            _log.debug("an answer to the owner was not sent", receiver=message.receiver, error=str(error))


def _weight(message: Message) -> int:
    return 1 + (len(message.body.spans) if isinstance(message.body, Heartbeat) else 0)


def _unforeseen(changefeed: ChangefeedId, error: Exception) -> RunningError:
    text = f"the processor of {changefeed} crashed ({type(error).__name__}); see the log"
    return running_error(ProcessorCrashedError(text))
