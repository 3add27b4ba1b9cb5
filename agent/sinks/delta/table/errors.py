"""Storage errors of a Delta table: what failed, whether it is transient, and whether it concerns one table or all.

delta-rs has a few error classes for everything, and pyarrow raises the system's. So errors are classified by the
system's error number if known (delta-rs writes ``os error 28``), otherwise by their text. A missing table directory
means nothing unless the sink's own directory is known to be present (``Lake.is_away``).
"""

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import pyarrow as pa
from deltalake.exceptions import DeltaError

from agent import own_faults
from agent.errors import SinkConfigError, SinkError, SinkPassingError, TableHeldError, TablePassingError
from agent.object_store import StoreOptionsError, without_credentials
from reactor.errors import Scope

#: a file in a sink's directory that shows that Weir wrote it, and that it is mounted
MARK = ".weir-sink"

_NUMBER = re.compile(r"os error (\d+)")
_PASSING = frozenset(
    {
        *(errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ESTALE, errno.ENOTCONN, errno.EHOSTDOWN),
        *(errno.ETIMEDOUT, errno.ENODEV, errno.ENXIO, errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.EBUSY),
        *(errno.ECONNREFUSED, errno.ECONNRESET, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ENETDOWN, errno.ENOMEM),
        *(errno.ESHUTDOWN, errno.EPIPE, errno.EINTR, errno.EREMOTEIO, errno.ENOLINK),
    }
)
_REFUSED = frozenset({errno.EACCES, errno.EPERM})
#: phrases of object stores that refuse all requests
_WRONG_STORE = re.compile(
    r"NoSuchBucket|bucket .*(not exist|not found)|AccessDenied|InvalidAccessKeyId|SignatureDoesNotMatch|InvalidToken|"
    r"ExpiredToken|\b40[13]\b|Unauthorized|Forbidden|Missing(Credentials|Region)|PermanentRedirect|Unauthenticated",
    re.IGNORECASE,
)
#: ... and phrases about a single table
_WRONG_TABLE = re.compile(
    r"not found|no such (key|file)|404|NoSuchKey|invalid (json|parquet|table|version)|corrupt|parquet|kernel error|"
    r"schema|deserializ|checkpoint|arrow",
    re.IGNORECASE,
)


class Place(Protocol):
    """Location of a failure, whose text names it: ``agent.sinks.delta.table.place.TablePlace``."""

    @property
    def root(self) -> str: ...

    @property
    def is_local(self) -> bool: ...

    def is_away(self) -> bool: ...


def storage_error(place: Place, doing: str, error: BaseException) -> SinkError:
    """``doing``: what was tried, as in "cannot ... the table"."""
    text, number = first_line(error), _number(error)
    tried = f"cannot {doing} {place}"
    if place.is_away():
        return away_error(place)
    if isinstance(error, StoreOptionsError):
        return SinkPassingError(
            f"{tried}: {text}; correct the options of the sink's URI, or of this capture's environment; it is tried "
            "again"
        )
    if lacks := own_faults.of_number(number):
        failed = SinkPassingError(f"{tried}: this capture {lacks}; it is tried again")
        failed.scope = Scope.CAPTURE
        return failed
    if number in _PASSING:
        reason = os.strerror(number)
        return SinkPassingError(f"{tried}: {reason}; make it writable or give it room, it is tried again")
    if number in _REFUSED:
        if place.root and not os.access(place.root, os.R_OK | os.W_OK | os.X_OK):
            return SinkPassingError(f"{tried}: {place.root} is closed to this user; give access, it is tried again")
        return TablePassingError(f"{tried}: {os.strerror(number)}; give this user access, it is tried again")
    if place.is_local or number is not None:
        return TableHeldError(f"{tried}: {text}; bring back what is missing or damaged, then resume the changefeed")
    if reason := without_credentials(str(error)):  # in a cause that comes after the first line
        return SinkPassingError(f"{tried}: {reason}; it is tried again")
    if _WRONG_STORE.search(text):
        return SinkConfigError(f"{tried}: {text}; see whether bucket and credentials in the sink's URI are right")
    if _WRONG_TABLE.search(text):
        return TableHeldError(f"{tried}: {text}; bring back what is missing or damaged, then resume the changefeed")
    return SinkPassingError(f"{tried}: {text}; the storage did not answer as it should, it is tried again")


def away_error(place: Place) -> SinkPassingError:
    return SinkPassingError(
        f"the sink directory {place.root} is not the one that was written: its file {MARK} is gone; mount it, or bring "
        "it back, it is tried again"
    )


@contextmanager
def storage_errors(place: Place, doing: str) -> Iterator[None]:
    """:raises SinkError: what the storage raises in here, in our words."""
    try:
        yield
    except BaseException as error:
        if not is_of_storage(error):
            raise
        raise storage_error(place, doing, error) from error


def is_of_storage(error: BaseException) -> bool:
    """The storage raised it, or what reads a damaged file or log. A panic of delta-rs is no ``Exception``."""
    return isinstance(error, (DeltaError, OSError, pa.ArrowException)) or type(error).__name__ == "PanicException"


def first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)[:200]


def _number(error: BaseException) -> int | None:
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno
    found = _NUMBER.search(str(error))
    return None if found is None else int(found[1])
