"""Job desk: passes operators' jobs to an actor that decides them, and its answers to the callers that wait.

A job in progress when the ownership is lost fails with ``NotOwnerError``: only the next owner knows whether it was
done.
"""

import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import anyio

from capture.errors import (
    ActorDeadError,
    CaptureNotFoundError,
    ChangefeedNotFoundError,
    JobRefusedError,
    MailboxFullError,
    StaleRequestError,
    StillRunningError,
)
from owner.jobs import Job
from reactor.effects import CONFLICT, Answer
from reactor.errors import ConflictError, NotOwnerError, WeirError

_JOB_TIMEOUT_S = 60.0
#: how often a job is decided whose records change meanwhile
_SUBMITTED_MAX = 20

#: code of an answer → error class; any other is a refusal
_UNKNOWN: dict[object, type[WeirError]] = {
    CONFLICT: ConflictError,
    "StaleRequest": StaleRequestError,
    "UnknownChangefeed": ChangefeedNotFoundError,
    "UnknownCapture": CaptureNotFoundError,
    "NotOwned": NotOwnerError,
}


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


class JobDesk:
    """``tell`` passes a job to the actor's mailbox."""

    def __init__(self, tell: Callable[[Submitted], None]) -> None:
        self._tell = tell
        self._waiting: dict[str, Waiting] = {}

    async def submit(self, job: Job) -> Any:
        """Pass ``job`` on and wait for its answer.

        :raises NotOwnerError: the ownership was lost meanwhile.
        :raises ChangefeedNotFoundError: there is no such changefeed.
        :raises CaptureNotFoundError: there is no such capture.
        :raises JobRefusedError: it is refused; the error has the reason.
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
        job = replace(job, job_id=uuid.uuid4().hex)
        waiting = self._waiting[job.job_id] = Waiting()
        try:
            self._tell(Submitted(job, waiting))
            with anyio.move_on_after(_JOB_TIMEOUT_S):
                await waiting.done.wait()
        except MailboxFullError:
            raise JobRefusedError("the owner cannot keep up, as etcd does not answer it; ask again") from None
        except ActorDeadError:
            raise NotOwnerError("this capture has just ceased to be the owner; ask again") from None
        finally:
            del self._waiting[job.job_id]
        return _result(waiting)

    def answer(self, answer: Answer) -> None:
        waiting = self._waiting.get(answer.job_id)
        if waiting is not None:
            waiting.answer = answer
            waiting.done.set()

    def dismiss(self) -> None:
        """Let all callers ask again: the ownership has ended."""
        for waiting in self._waiting.values():
            waiting.done.set()


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
