"""Owner actor: campaigns for ownership, and while it is elected passes its mailbox on to the owner's reactor.

    campaign ──elected──► owner's worker ──not owner any more──► campaign …
       └── leaving: never campaign again; resign if elected

A crash of the reactor ends the ownership: it resigns, and the restarted actor campaigns again; the new ownership's
revision fences all orders of this one. The owner's part of one changefeed crashes alone, without ending the ownership
(``owner.feed.crashes``). The data plane's answers bypass the mailbox: they must not be lost, and are limited by the
number of questions.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import anyio
import structlog

from capture.actors.actor import Context
from capture.errors import MessagingError
from capture.member.processor_host import AGENT_TOPIC, Peers
from owner.jobs import Job
from owner.owner import Owner
from owner.settings import OwnerSettings
from reactor.effects import Answer, Effect, Log, Resign, Send
from reactor.errors import EtcdError, NotOwnerError, OwnerNotFoundError, SessionDoneError
from reactor.ids import CaptureId
from reactor.membership.election import Election
from reactor.membership.session import Session
from reactor.messages import Message
from reactor.questions import Answered, Ask
from reactor.settings import ReactorSettings
from reactor.state import ClusterState
from reactor.store.port import EtcdClient
from reactor.worker import EtcdWorker

#: at most one candidacy per second
_CAMPAIGN_INTERVAL_S = 1.0

#: starts answering a question; the answer is passed to the callback (``capture.member.asking``)
AskLater = Callable[[Ask[Any], Callable[[Answered[Any]], None]], object]

_log = structlog.get_logger()


@dataclass(slots=True)
class Waiting:
    """A caller that waits for the answer to a job; there is none when the ownership has ended."""

    done: anyio.Event = field(default_factory=anyio.Event)
    answer: Answer | None = None


@dataclass(frozen=True, slots=True)
class Submitted:
    """An operator's job."""

    job: Job
    waiting: Waiting


@dataclass(frozen=True, slots=True)
class Leave:
    """Never campaign again, and resign if elected; the actor ends."""


OwnerInput = Message | Submitted | Leave


@dataclass(frozen=True, slots=True)
class CandidateContext:
    """What survives a crash: the capture, its cluster, session and peers."""

    capture: CaptureId
    cluster: str
    client: EtcdClient
    session: Session
    election: Election
    peers: Peers
    settings: ReactorSettings
    ask: AskLater


class OwnerActor:
    """One instance of the actor. ``waiting``: current callers by job. ``fail`` gets errors that end the membership,
    since a restart would not help."""

    def __init__(
        self, candidate: CandidateContext, waiting: Mapping[str, Waiting], *, fail: Callable[[Exception], None]
    ) -> None:
        self.worker: EtcdWorker | None = None
        self._candidate = candidate
        self._waiting = waiting
        self._fail = fail
        self._is_leaving = False
        self._scope: anyio.CancelScope | None = None
        self._context: Context | None = None

    async def on_start(self, context: Context) -> None:
        self._context = context
        context.start(self._campaign, "campaign")

    async def handle(self, message: OwnerInput) -> None:
        match message:
            case Message():
                if self.worker is not None:
                    await self.worker.take(message)
            case Submitted(job, waiting):
                if self.worker is None:
                    waiting.done.set()
                elif not waiting.done.is_set():  # the ownership has ended, and its callers were answered
                    await self.worker.take(job)
            case Leave():
                self._is_leaving = True
                self.resign()

    def resign(self) -> None:
        """Resign; campaign again in a second, unless leaving."""
        if self._scope is not None:
            self._scope.cancel()

    async def _campaign(self) -> None:
        assert self._context is not None
        try:
            while not self._is_leaving:
                started = anyio.current_time()
                with anyio.CancelScope() as self._scope:
                    await self._campaign_and_serve()
                await anyio.sleep(max(0.0, started + _CAMPAIGN_INTERVAL_S - anyio.current_time()))
            await self._candidate.election.withdraw()
        except (SessionDoneError, EtcdError) as error:
            self._fail(error)
        self._context.stop()

    async def _campaign_and_serve(self) -> None:
        election = self._candidate.election
        try:
            await election.campaign(self._candidate.capture)
            await self._serve()
        except (NotOwnerError, OwnerNotFoundError) as error:
            _log.info("ownership lost", reason=str(error))
        except SessionDoneError:
            raise
        except EtcdError as error:
            if not error.retryable:
                raise
            _log.warning("ownership given up", reason=str(error))
        finally:
            self.worker = None
            for waiting in self._waiting.values():
                waiting.done.set()
            await election.resign()

    async def _serve(self) -> None:
        candidate, settings = self._candidate, self._candidate.settings
        revision = candidate.election.revision
        _log.info("elected owner", capture=candidate.capture, revision=revision)
        self.worker = EtcdWorker(
            candidate.client,
            Owner(candidate.capture, revision, settings=_owner_settings(), seed=candidate.capture),
            state=ClusterState(candidate.cluster, removal_grace_s=settings.capture_removal_grace_s),
            session=candidate.session,
            perform=self._perform,
            owner_key=candidate.election.key,
            fences=[candidate.election.proof()],
            interval_s=settings.tick_interval_s,
            idle_interval_s=settings.idle_interval_s,
        )
        await self.worker.run()

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Send(message):
                self._send(message)
            case Answer():
                self._answer(effect)
            case Ask():
                if self.worker is not None:
                    self._candidate.ask(effect, self.worker.post)
            case Resign():
                self.resign()
            case Log(level, event, fields):
                getattr(_log, level)(event, **dict(fields))

    def _send(self, message: Message) -> None:
        try:
            self._candidate.peers.send_nowait(AGENT_TOPIC, message)
        except MessagingError as error:
            _log.debug("an order was not sent; it is sent again", receiver=message.receiver, error=str(error))
        except Exception as error:  # a message that cannot be encoded must not end the ownership
            _log.exception("an order cannot be sent", changefeed=message.changefeed, exc_info=error)

    def _answer(self, answer: Answer) -> None:
        waiting = self._waiting.get(answer.job_id)
        if waiting is not None:
            waiting.answer = answer
            waiting.done.set()


def _owner_settings() -> OwnerSettings:
    """Ticks get the loop's clock, people see Unix time."""
    return OwnerSettings(wall_offset_s=time.time() - anyio.current_time())
