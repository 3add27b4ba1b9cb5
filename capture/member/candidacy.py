"""Candidacy: this capture campaigns, and while it is elected it runs the owner's reactor.

    campaign ──elected──► owner's worker ──not owner any more──► campaign …
       └── leaving: never campaign again; resign if elected

Operators' jobs come in through ``submit`` and are answered by the owner's ``Answer`` effects. A job that was under way
when the ownership was lost fails with ``NotOwnerError``: whether it was done, the next owner knows.
"""

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import anyio
import structlog

from capture.errors import (
    CaptureNotFoundError,
    ChangefeedNotFoundError,
    JobRefusedError,
    MessagingError,
    StillRunningError,
)
from capture.member.processor_host import AGENT_TOPIC, Peers
from owner.jobs import Job
from owner.owner import Owner
from owner.settings import OwnerSettings
from reactor import keys
from reactor.effects import Answer, Effect, Log, Resign, Send
from reactor.election import Election
from reactor.errors import EtcdError, NotOwnerError, OwnerNotFoundError, SessionDoneError, WeirError
from reactor.ids import CaptureId
from reactor.messages import Message
from reactor.questions import Answered, Ask
from reactor.session import Session
from reactor.settings import ReactorSettings
from reactor.state import ClusterState
from reactor.store.port import EtcdClient
from reactor.worker import EtcdWorker

#: at most one candidacy a second
_CAMPAIGN_INTERVAL_S = 1.0
_JOB_TIMEOUT_S = 60.0

#: begins to answer a question; the answer goes to the callback (``capture.member.asking``)
AskLater = Callable[[Ask[Any], Callable[[Answered[Any]], None]], object]

#: code of an answer → how it is raised; any other is a refusal
_UNKNOWN: dict[object, type[WeirError]] = {
    "UnknownChangefeed": ChangefeedNotFoundError,
    "UnknownCapture": CaptureNotFoundError,
}

_log = structlog.get_logger()


@dataclass(slots=True)
class _Waiting:
    done: anyio.Event = field(default_factory=anyio.Event)
    answer: Answer | None = None


class Candidacy:
    """One capture's candidacy, for one session."""

    def __init__(
        self,
        capture: CaptureId,
        *,
        cluster: str,
        client: EtcdClient,
        session: Session,
        peers: Peers,
        settings: ReactorSettings,
        ask: AskLater,
    ) -> None:
        self._capture = capture
        self._cluster = cluster
        self._client = client
        self._session = session
        self._peers = peers
        self._settings = settings
        self._ask = ask
        self._election = Election(client, session, prefix=keys.owner_prefix(cluster))
        self._worker: EtcdWorker | None = None
        self._waiting: dict[str, _Waiting] = {}
        self._is_leaving = False
        self._scope: anyio.CancelScope | None = None

    @property
    def is_owner(self) -> bool:
        return self._worker is not None

    async def run(self) -> None:
        """Campaign and serve until asked to leave.

        :raises SessionDoneError: the session ended.
        """
        while not self._is_leaving:
            started = anyio.current_time()
            with anyio.CancelScope() as self._scope:
                await self._stand_and_serve()
            await anyio.sleep(max(0.0, started + _CAMPAIGN_INTERVAL_S - anyio.current_time()))
        await self._election.withdraw()

    def leave(self) -> None:
        """Never campaign again, and resign if elected. ``run`` returns."""
        self._is_leaving = True
        self.resign()

    def resign(self) -> None:
        """Resign; campaign again in a second, unless leaving."""
        if self._scope is not None:
            self._scope.cancel()

    async def on_message(self, message: Message) -> None:
        """The handler of ``OWNER_TOPIC``: answers of agents. This capture is not owner: they are for an older one."""
        if self._worker is not None:
            self._worker.post(message)

    async def submit(self, job: Job) -> Any:
        """Give ``job`` to the owner and wait for its answer.

        :raises NotOwnerError: this capture is not owner, or ceased to be meanwhile.
        :raises ChangefeedNotFoundError: it concerns no changefeed that is there.
        :raises CaptureNotFoundError: it concerns no capture that is there.
        :raises JobRefusedError: the owner says why.
        :raises StillRunningError: it takes longer than anybody waits for an answer.
        """
        if self._worker is None:
            raise NotOwnerError("this capture is not the owner; ask the owner")
        waiting = _Waiting()
        job = replace(job, job_id=uuid.uuid4().hex)
        self._waiting[job.job_id] = waiting
        self._worker.post(job)
        try:
            with anyio.move_on_after(_JOB_TIMEOUT_S):
                await waiting.done.wait()
        finally:
            self._waiting.pop(job.job_id, None)
        if not waiting.done.is_set():
            raise StillRunningError(
                f"the request is still running after {_JOB_TIMEOUT_S:.0f} s, and continues by itself; "
                "`weir changefeed query` shows how it went"
            )
        if waiting.answer is None:
            raise NotOwnerError("the owner resigned before it answered; ask again")
        if waiting.answer.error:
            raise _UNKNOWN.get(waiting.answer.value, JobRefusedError)(waiting.answer.error)
        return waiting.answer.value

    async def _stand_and_serve(self) -> None:
        try:
            await self._election.campaign(self._capture)
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
            self._worker = None
            self._abandon_jobs()
            await self._election.resign()

    async def _serve(self) -> None:
        revision = self._election.revision
        _log.info("elected owner", capture=self._capture, revision=revision)
        grace_s = self._settings.capture_removal_grace_s
        self._worker = EtcdWorker(
            self._client,
            Owner(self._capture, revision, settings=_owner_settings(), seed=self._capture),
            state=ClusterState(self._cluster, removal_grace_s=grace_s),
            session=self._session,
            perform=self._perform,
            owner_key=self._election.key,
            fences=[self._election.proof()],
            interval_s=self._settings.tick_interval_s,
            idle_interval_s=self._settings.idle_interval_s,
        )
        await self._worker.run()

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Send(message):
                self._send(message)
            case Answer():
                self._answer(effect)
            case Ask():
                if self._worker is not None:
                    self._ask(effect, self._worker.post)
            case Resign():
                self.resign()
            case Log(level, event, fields):
                getattr(_log, level)(event, **dict(fields))

    def _send(self, message: Message) -> None:
        try:
            self._peers.send_nowait(AGENT_TOPIC, message)
        except MessagingError as error:
            _log.debug("an order was not sent; it is sent again", receiver=message.receiver, error=str(error))
        except Exception as error:  # what cannot be encoded is one changefeed's, and ends no ownership
            _log.exception("an order cannot be sent", changefeed=message.changefeed, exc_info=error)

    def _answer(self, answer: Answer) -> None:
        waiting = self._waiting.get(answer.job_id)
        if waiting is not None:
            waiting.answer = answer
            waiting.done.set()

    def _abandon_jobs(self) -> None:
        for waiting in self._waiting.values():
            waiting.done.set()


def _owner_settings() -> OwnerSettings:
    """Ticks are given the loop's clock, people are shown Unix time."""
    return OwnerSettings(wall_offset_s=time.time() - anyio.current_time())
