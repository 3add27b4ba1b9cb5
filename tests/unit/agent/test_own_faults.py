"""Own faults: known by what they are, however deep below other errors, and never by a disk that may be the lake's."""

import errno

import pytest
from deltalake.exceptions import CommitFailedError, DeltaError
from obstore.exceptions import GenericError
from pg8000.exceptions import DatabaseError
from pymysql.err import OperationalError

from agent.errors import LogError, OwnFaultError, SinkPassingError, SourceError
from agent.own_faults import own_fault
from reactor.errors import Scope


def wrapped(cause: BaseException, *, hidden: bool = False) -> Exception:
    """As the parts that do I/O raise it."""
    try:
        try:
            raise cause
        except BaseException as error:
            if hidden:
                raise LogError("the log storage failed; it is retried automatically") from None
            raise LogError("the log storage failed; it is retried automatically") from error
    except LogError as error:
        return ExceptionGroup("in a task group", [error])


@pytest.mark.parametrize(
    ("error", "word"),
    [
        (OSError(errno.EMFILE, "Too many open files"), "LimitNOFILE"),
        (OSError(errno.ENFILE, "Too many open files in system"), "file-max"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "memory"),
        (MemoryError(), "memory"),
        (RuntimeError("can't start new thread"), "TasksMax"),
        (DeltaError("Generic LocalFileSystem error: Too many open files (os error 24)"), "LimitNOFILE"),
        (CommitFailedError("Too many open files (os error 24)"), "LimitNOFILE"),
        (GenericError("Too many open files (os error 24)"), "LimitNOFILE"),
    ],
)
def test_what_the_process_lacks_is_the_captures_fault(error: Exception, word: str) -> None:
    for raised in (error, wrapped(error), wrapped(error, hidden=True)):
        fault = own_fault(raised)
        assert fault is not None
        assert (fault.scope, fault.retryable) == (Scope.CAPTURE, True)
        assert word in str(fault)
        assert "\n" not in str(fault)


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        OSError(errno.EROFS, "Read-only file system"),
        OSError(errno.ECONNREFUSED, "Connection refused"),
        SinkPassingError("disk full (os error 28)"),
        RuntimeError("another one"),
        ValueError("row 24"),
        SourceError('42P01: relation "Too many open files (os error 24)" does not exist'),
        OperationalError(1146, "Table 'x.Too many open files (os error 24)' doesn't exist"),
        DatabaseError({"M": "Too many open files (os error 24)"}),
    ],
)
def test_what_may_be_the_lakes_or_the_sources_is_not(error: Exception) -> None:
    assert own_fault(wrapped(error)) is None


def test_a_task_without_memory_may_have_been_too_large() -> None:
    assert own_fault(MemoryError(), with_memory=False) is None
    assert own_fault(OSError(errno.EMFILE, "x"), with_memory=False) is not None


def test_a_known_fault_is_not_wrapped_again() -> None:
    known = OwnFaultError("Spark did not start")
    assert own_fault(wrapped(known)) is known
