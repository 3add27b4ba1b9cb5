"""Candidacy: runs the owner's actor under supervision for one session, and passes it messages and operators' jobs.

A job in progress when the ownership is lost fails with ``NotOwnerError``: only the next owner knows whether it was
done. An actor that exhausts its restart budget ends the membership, so that others can be owner.
"""

import uuid
from contextlib import suppress
from dataclasses import replace
from typing import Any

import anyio

from capture.actors.actor import Cell
from capture.actors.supervised import Supervised
from capture.errors import (
    ActorDeadError,
    CaptureNotFoundError,
    ChangefeedNotFoundError,
    JobRefusedError,
    MailboxFullError,
    StaleRequestError,
    StillRunningError,
)
from capture.member.owner_actor import AskLater, CandidateContext, Leave, OwnerActor, OwnerInput, Submitted, Waiting
from capture.member.processor_host import Peers
from owner.jobs import Job
from reactor import keys
from reactor.effects import CONFLICT
from reactor.errors import ConflictError, NotOwnerError, WeirError
from reactor.ids import CaptureId
from reactor.membership.election import Election
from reactor.membership.session import Session
from reactor.messages import Message
from reactor.restarts import RestartPolicy
from reactor.settings import ReactorSettings
from reactor.store.port import EtcdClient
from reactor.worker import EtcdWorker

_JOB_TIMEOUT_S = 60.0
#: how often a job is decided whose records change meanwhile
_SUBMITTED_MAX = 20
#: in addition to the worker's inbox (``reactor.worker.INBOX_SIZE``)
_MAILBOX_SIZE = 1024

#: code of an answer → error class; any other is a refusal
_UNKNOWN: dict[object, type[WeirError]] = {
    CONFLICT: ConflictError,
    "StaleRequest": StaleRequestError,
    "UnknownChangefeed": ChangefeedNotFoundError,
    "UnknownCapture": CaptureNotFoundError,
}


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
        policy: RestartPolicy | None = None,
    ) -> None:
        election = Election(client, session, prefix=keys.owner_prefix(cluster))
        self._session = session
        self._candidate = CandidateContext(capture, cluster, client, session, election, peers, settings, ask)
        self._waiting: dict[str, Waiting] = {}
        self._actor: OwnerActor | None = None
        self._failure: Exception | None = None
        cell: Cell[OwnerInput] = Cell(self._build, "owner", mailbox_size=_MAILBOX_SIZE)
        self._ref = cell.ref
        self._supervised = Supervised(cell, policy or RestartPolicy())

    @property
    def is_owner(self) -> bool:
        return self.worker is not None

    @property
    def worker(self) -> EtcdWorker | None:
        return self._actor.worker if self._actor is not None else None

    async def run(self) -> None:
        """Campaign and serve until asked to leave.

        :raises SessionDoneError: the session ended.
        """
        try:
            await self._supervised.run()
        finally:
            self._supervised.close()
            for waiting in self._waiting.values():  # including those whose jobs were not read
                waiting.done.set()
        if self._failure is not None:
            raise self._failure

    def leave(self) -> None:
        """Never campaign again, and resign if elected. ``run`` returns."""
        try:
            self._ref.tell_nowait(Leave())
        except MailboxFullError:
            self._supervised.stop(drain=False)
        except ActorDeadError:
            pass  # it has left

    def resign(self) -> None:
        """Resign; campaign again in a second, unless leaving."""
        if self._actor is not None:
            self._actor.resign()

    async def on_message(self, message: Message) -> None:
        """Handle ``OWNER_TOPIC``: answers of agents. If this capture is not owner, they are for an earlier one.

        Waits while the mailbox is full, which makes the sender wait.
        """
        if self.is_owner:
            with suppress(ActorDeadError):
                await self._ref.tell(message)

    async def submit(self, job: Job) -> Any:
        """Pass ``job`` to the owner and wait for its answer.

        :raises NotOwnerError: this capture is not owner, or lost the ownership meanwhile.
        :raises ChangefeedNotFoundError: there is no such changefeed.
        :raises CaptureNotFoundError: there is no such capture.
        :raises JobRefusedError: the owner refused; the error has the reason.
        :raises StillRunningError: it takes longer than the timeout.
        """
        for _ in range(_SUBMITTED_MAX - 1):
            try:
                return await self._submit(job)
            except ConflictError:  # its decision met a concurrent one, and nothing of it is stored
                continue
        try:
            return await self._submit(job)
        except ConflictError as error:
            raise JobRefusedError(str(error)) from None

    async def _submit(self, job: Job) -> Any:
        """:raises ConflictError: see ``CONFLICT``."""
        if not self.is_owner:
            raise NotOwnerError("this capture is not the owner; ask the owner")
        job = replace(job, job_id=uuid.uuid4().hex)
        waiting = self._waiting[job.job_id] = Waiting()
        try:
            self._ref.tell_nowait(Submitted(job, waiting))
            with anyio.move_on_after(_JOB_TIMEOUT_S):
                await waiting.done.wait()
        except MailboxFullError:
            raise JobRefusedError("the owner cannot keep up, as etcd does not answer it; ask again") from None
        except ActorDeadError:
            raise NotOwnerError("this capture has just ceased to be the owner; ask again") from None
        finally:
            del self._waiting[job.job_id]
        return _result(waiting)

    def _build(self) -> OwnerActor:
        self._actor = OwnerActor(self._candidate, self._waiting, fail=self._fail)
        return self._actor

    def _fail(self, error: Exception) -> None:
        self._failure = error


def _result(waiting: Waiting) -> Any:
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
