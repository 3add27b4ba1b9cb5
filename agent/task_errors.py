"""Task errors: what becomes of an error on its way from a Spark task to the capture.

An exception of a library may not be picklable, or only where that library is. So code, text and scope are sent, as an
error of ours without a cause.
"""

from typing import Final

from agent.errors import JobError, WorkerLostError
from agent.own_faults import own_fault
from reactor.errors import Scope, WeirError

_LENGTH_MAX: Final = 300


def carried(error: Exception) -> JobError:
    """Return what is sent in place of ``error``. A fault of the process keeps its own code."""
    if (fault := own_fault(error, with_memory=False)) is not None:
        return _like(fault, str(fault))
    if isinstance(error, WeirError):
        return _like(error, str(error))
    sent = JobError(f"{type(error).__name__}: {_first_line(error)}")
    if own_fault(error) is not None:
        sent.code = WorkerLostError.code
    return sent


def received(sent: JobError, description: str, *, is_here: bool) -> JobError:
    """Return the error as the capture takes it. ``description``: of the job; empty: the error says enough. ``is_here``:
    tasks run on this machine, so what they lack this capture lacks."""
    error = _like(sent, f"{description}: {sent}" if description else str(sent))
    if error.scope is Scope.CAPTURE and not is_here:
        error.code, error.scope = JobError.code, Scope.CHANGEFEED
    return error


def _like(error: WeirError, text: str) -> JobError:
    found = JobError(text)
    found.code, found.retryable, found.scope = error.code, error.retryable, error.scope
    return found


def _first_line(error: BaseException) -> str:
    lines = (line.strip() for line in str(error).splitlines())
    return next((line for line in lines if line), type(error).__name__)[:_LENGTH_MAX]
