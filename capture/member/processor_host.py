"""The processors of one capture: performs what ``agent.control.processors`` decides, and brings each its messages.

A processor that crashes ends alone: what it crashed with becomes an error of its changefeed, which the owner sees in
etcd. Messages for changefeeds that have no processor here are dropped; the owner sends again until it is answered.
"""

import uuid
from collections import deque
from collections.abc import Callable, Mapping
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
    ProcessorEnded,
    ProcessorReported,
    StartProcessor,
    StopProcessor,
)
from agent.control.runtime import SpanRuntime
from agent.running_error import running_error
from capture.actors.actor import ActorRef, Cell
from capture.errors import ActorDeadError, ActorError, MailboxFullError, MessagingError, ProcessorCrashedError
from capture.version import installed_version
from reactor.effects import Log
from reactor.errors import WeirError
from reactor.ids import CaptureId, ChangefeedId
from reactor.messages import Message
from reactor.records.changefeed import ChangefeedInfo, RunningError

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
    ) -> None:
        self._capture = capture
        self._peers = peers
        self._plant = plant
        self._tasks = tasks
        self._post = post
        self._processors: dict[ChangefeedId, ActorRef[Input]] = {}
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
                if changefeed in self._processors:
                    self._processors[changefeed].stop(drain=False)
            case Observe(changefeed, feed):
                self._tell(changefeed, Moved(feed))
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
        for changefeed in self._processors:
            self._tell(changefeed, Elected(owner))
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

    def _tell(self, changefeed: ChangefeedId, message: Input) -> None:
        processor = self._processors.get(changefeed)
        if processor is None:
            return
        try:
            processor.tell_nowait(message)
        except ActorDeadError:
            pass  # it is ending; ``ProcessorEnded`` is on its way
        except MailboxFullError:
            # heartbeats and etcd's state come again, and what an order is for is asked for again
            _log.warning("processor is not keeping up", changefeed=changefeed)

    def _start(self, changefeed: ChangefeedId, info: ChangefeedInfo) -> None:
        def report(error: RunningError) -> None:
            self._post(ProcessorReported(changefeed, info.epoch, error))

        def warn(error: RunningError) -> None:
            self._post(ProcessorReported(changefeed, info.epoch, error, is_warning=True))

        try:
            runtime = self._plant.open(info)
        except Exception as error:  # what is stored may be anything, and is this changefeed's alone
            _log.warning("a processor did not start", changefeed=changefeed, exc_info=error)
            report(running_error(error) if isinstance(error, WeirError) else _unforeseen(changefeed, error))
            self._post(ProcessorEnded(changefeed))
            return
        gate = Gate(uuid.uuid4().hex, info.epoch, version=installed_version(), owner=self._owner)
        agent = Agent(self._capture, changefeed, gate=gate)
        if self.is_leaving:
            agent.stop_serving()
        processor = Processor(agent, runtime, send=self._send, report=report, warn=warn, leave=self.stop_serving)
        cell: Cell[Input] = Cell(lambda: processor, f"processor-{changefeed}", mailbox_size=_MAILBOX_SIZE)
        self._processors[changefeed] = cell.ref
        self._tasks.start_soon(self._run, changefeed, cell, report, name=cell.name)

    async def _run(self, changefeed: ChangefeedId, cell: Cell[Input], report: Callable[[RunningError], None]) -> None:
        try:
            await cell.run()
        except Exception as error:
            report(_unforeseen(changefeed, error))
        finally:
            del self._processors[changefeed]
            cell.close()
            self._post(ProcessorEnded(changefeed))

    def _send(self, message: Message) -> None:
        try:
            self._peers.send_nowait(OWNER_TOPIC, message)
        except MessagingError as error:
            _log.debug("an answer to the owner was not sent", receiver=message.receiver, error=str(error))


def _unforeseen(changefeed: ChangefeedId, error: Exception) -> RunningError:
    text = f"the processor of {changefeed} crashed ({type(error).__name__}); see the log"
    return running_error(ProcessorCrashedError(text))
