"""The processors of one capture: performs what ``agent.control.processors`` decides, and brings each its messages.

A processor that crashes is built again alone, from what etcd holds and under another processor epoch. Its mailbox
stays; what it had is lost: the sink says how far each span is, and epochs fence off what is still under way. How often
that happened is counted in etcd, and shown by ``query``; too often, and its changefeed fails. Messages for changefeeds
that have no processor here are dropped; the owner sends again until it is answered.
"""

import uuid
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol

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
from agent.running_error import running_error
from capture.actors.actor import ActorRef, Cell
from capture.actors.supervised import Supervised
from capture.errors import ActorDeadError, ActorError, MailboxFullError, MessagingError, ProcessorCrashedError
from capture.version import installed_version
from reactor.effects import Log
from reactor.errors import CrashedTooOftenError, WeirError
from reactor.ids import CaptureId, ChangefeedId
from reactor.messages import Message
from reactor.records.changefeed import ChangefeedInfo, RunningError
from reactor.restarts import RestartPolicy
from reactor.state import ChangefeedState

#: topics of ``capture.messaging.messenger``: orders to agents, answers to the owner
AGENT_TOPIC, OWNER_TOPIC = "agent", "owner"

_MAILBOX_SIZE = 65_536
_ASK_TIMEOUT_S = 5.0
#: the oldest go: whoever sent them sends again what is not answered
_EARLY_MAX = 10_000

_log = structlog.get_logger()


class RuntimeFactory(Protocol):
    """Builds the parts a processor works with."""

    def open(self, info: ChangefeedInfo) -> SpanRuntime:
        """:raises WeirError: the changefeed's URIs cannot be opened here."""
        ...


class Peers(Protocol):
    """The part of ``capture.messaging.messenger.Messenger`` that hosting needs."""

    def set_peers(self, peers: Mapping[CaptureId, str]) -> None: ...

    def send_nowait(self, topic: str, message: Message) -> None: ...


class ProcessorHost:
    """``post`` takes events to the reactor of ``agent.control.processors``; ``tasks`` is what processors run in."""

    def __init__(
        self,
        capture: CaptureId,
        *,
        peers: Peers,
        plant: RuntimeFactory,
        tasks: TaskGroup,
        post: Callable[[object], None],
        policy: RestartPolicy | None = None,
    ) -> None:
        self._capture = capture
        self._peers = peers
        self._plant = plant
        self._tasks = tasks
        self._post = post
        self._processors: dict[ChangefeedId, ActorRef[Input]] = {}
        self._supervised: dict[ChangefeedId, Supervised] = {}
        self._policy = policy or RestartPolicy()
        #: as etcd showed it last, for a processor that is built again
        self._feeds: dict[ChangefeedId, ChangefeedState] = {}
        #: those that have not heard of the present owner
        self._unelected: set[ChangefeedId] = set()
        #: as etcd shows it here, and what has come of one that it does not show yet
        self._owner = Owner()
        self._early: deque[Message] = deque(maxlen=_EARLY_MAX)
        #: this capture gives up what it has and takes nothing new; one-way
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
            case MeetOwner(owner):
                self._meet_owner(owner)
            case MeetPeers(addresses):
                self._peers.set_peers(dict(addresses))
            case Log(level, event, fields):
                getattr(_log, level)(event, **dict(fields))

    async def on_message(self, message: Message) -> None:
        """The handler of ``AGENT_TOPIC``. An owner may be heard before etcd shows it here: what it says waits."""
        if message.header.owner_revision > self._owner.revision:
            self._early.append(message)
        else:
            self._tell(message.changefeed, FromOwner(message))

    def _meet_owner(self, owner: Owner) -> None:
        self._owner = owner
        self._unelected = {changefeed for changefeed in self._processors if not self._tell(changefeed, Elected(owner))}
        early, self._early = self._early, deque(maxlen=_EARLY_MAX)
        for message in early:
            if message.header.owner_revision == owner.revision:
                self._tell(message.changefeed, FromOwner(message))
            elif message.header.owner_revision > owner.revision:
                self._early.append(message)

    def stop_serving(self) -> None:
        """This capture is leaving: every agent says so from now on, those that come later too."""
        self.is_leaving = True
        for changefeed in self._processors:
            self._tell(changefeed, StopServing())

    async def is_idle(self) -> bool:
        """No span and no unit is here any more."""
        return all(not (one.spans or one.units) for one in (await self.statistics()).values())

    async def statistics(self) -> dict[ChangefeedId, ProcessorStatistics]:
        answers: dict[ChangefeedId, ProcessorStatistics] = {}
        for changefeed, processor in list(self._processors.items()):
            try:
                answers[changefeed] = await processor.ask(AskStatistics(), _ASK_TIMEOUT_S)
            except ActorError:
                continue  # it is ending
        return answers

    def _observe(self, changefeed: ChangefeedId, feed: ChangefeedState) -> None:
        """Also the owner, if there was no room for the news of its election."""
        self._feeds[changefeed] = feed
        if changefeed in self._unelected and self._tell(changefeed, Elected(self._owner)):
            self._unelected.discard(changefeed)
        self._tell(changefeed, Moved(feed))

    def _tell(self, changefeed: ChangefeedId, message: Input) -> bool:
        """False if its mailbox is full."""
        processor = self._processors.get(changefeed)
        if processor is None:
            return True
        try:
            processor.tell_nowait(message)
        except ActorDeadError:
            pass  # it is ending; ``ProcessorEnded`` is on its way
        except MailboxFullError:
            # heartbeats and etcd's state come again, and what an order is for is asked for again
            _log.warning("processor is not keeping up", changefeed=changefeed)
            return False
        return True

    def _start(self, changefeed: ChangefeedId, info: ChangefeedInfo) -> None:
        def report(error: RunningError) -> None:
            self._post(ProcessorReported(changefeed, info.epoch, error))

        self._feeds.pop(changefeed, None)
        try:
            first: Processor | None = self._build(info, report)
        except Exception as error:  # what is stored may be anything, and is this changefeed's alone
            _log.warning("a processor did not start", changefeed=changefeed, exc_info=error)
            report(running_error(error) if isinstance(error, WeirError) else _unforeseen(changefeed, error))
            self._post(ProcessorEnded(changefeed))
            return

        def build() -> Processor:
            nonlocal first
            processor, first = first or self._build(info, report), None
            return processor

        def on_crash(error: Exception, is_final: bool) -> None:
            name = f"the processor of {changefeed}"
            self._count_crash(changefeed, name, error)
            if is_final:
                report(running_error(CrashedTooOftenError.of(name, error)))

        cell: Cell[Input] = Cell(build, f"processor-{changefeed}", mailbox_size=_MAILBOX_SIZE)
        supervised = self._supervised[changefeed] = Supervised(cell, self._policy, on_crash)
        self._processors[changefeed] = cell.ref
        self._tasks.start_soon(self._run, changefeed, supervised, name=cell.name)

    def _build(self, info: ChangefeedInfo, report: Callable[[RunningError], None]) -> Processor:
        """A new run of a processor: the owner recognises it by its name, and that it has nothing yet.

        :raises WeirError: the changefeed's URIs cannot be opened here.
        """

        def warn(error: RunningError) -> None:
            self._post(ProcessorReported(info.id, info.epoch, error, is_warning=True))

        runtime = self._plant.open(info)
        gate = Gate(uuid.uuid4().hex, info.epoch, version=installed_version(), owner=self._owner)
        agent = Agent(self._capture, info.id, gate=gate)
        if self.is_leaving:
            agent.stop_serving()
        return Processor(
            agent,
            runtime,
            send=self._send,
            report=report,
            warn=warn,
            leave=self.stop_serving,
            crashed=partial(self._count_crash, info.id),
            feed=self._feeds.get(info.id),
        )

    def _count_crash(self, changefeed: ChangefeedId, name: str, error: Exception) -> None:
        text = f"{name} crashed ({type(error).__name__}) and was started again; see the log of its capture"
        shown = running_error(ProcessorCrashedError(text)).with_(capture=self._capture)
        self._post(ProcessorCrashed(changefeed, shown))

    async def _run(self, changefeed: ChangefeedId, supervised: Supervised) -> None:
        try:
            await supervised.run()
        finally:
            del self._processors[changefeed], self._supervised[changefeed]
            self._feeds.pop(changefeed, None)
            supervised.close()
            self._post(ProcessorEnded(changefeed))

    def _send(self, message: Message) -> None:
        try:
            self._peers.send_nowait(OWNER_TOPIC, message)
        except MessagingError as error:
            _log.debug("an answer to the owner was not sent", receiver=message.receiver, error=str(error))


def _unforeseen(changefeed: ChangefeedId, error: Exception) -> RunningError:
    text = f"the processor of {changefeed} crashed ({type(error).__name__}); see the log"
    return running_error(ProcessorCrashedError(text))
