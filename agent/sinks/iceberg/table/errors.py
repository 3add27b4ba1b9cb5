"""Storage errors of an Iceberg table: what failed, whether it is transient, and whether it concerns one table or all.

The catalog (a database or an HTTP service) and the file system fail in ways of their own. Errors are classified by
their class or the system's error number if known, otherwise by their text. What they say is cut to a line: it names no
credentials, since those are arguments of connections and not of statements.
"""

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa
from pyiceberg import exceptions as iceberg
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError

from agent import own_faults
from agent.errors import SinkConfigError, SinkError, SinkPassingError, TableHeldError, TablePassingError
from reactor.errors import Scope

#: of the HTTP client under the REST catalog
_HTTP = ("requests.", "urllib3.")
_REFUSED = (iceberg.UnauthorizedError, iceberg.ForbiddenError, iceberg.OAuthError, iceberg.SignError)
_PASSING = (
    iceberg.CommitStateUnknownException,
    iceberg.ServerError,
    iceberg.ServiceUnavailableError,
    iceberg.AuthorizationExpiredError,
)
_NUMBERS_OF_TABLE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EISDIR})
_WRONG_STORE = re.compile(
    r"NoSuchBucket|AccessDenied|ACCESS_DENIED|InvalidAccessKeyId|SignatureDoesNotMatch|InvalidToken|ExpiredToken|"
    r"Forbidden|password authentication failed|Access denied for user",
    re.IGNORECASE,
)
#: of AWS's client, under Glue
_OF_AWS = ("botocore.", "boto3.")
_WRONG_AWS = re.compile(
    r"credential|AccessDenied|UnrecognizedClient|InvalidSignature|security token|InvalidClientToken|ExpiredToken|"
    r"not authorized|InvalidInput|Validation",
    re.IGNORECASE,
)
_SECRET = re.compile(r"(://[^/?#:@\s]*:)[^@\s]*@")


def storage_error(place: object, doing: str, error: BaseException) -> SinkError:
    """``doing``: what was tried, as in "cannot ... the table"."""
    text, tried = first_line(error), f"cannot {doing} {place}"
    number = error.errno if isinstance(error, OSError) else None
    if lacks := own_faults.of_number(number):
        failed = SinkPassingError(f"{tried}: this capture {lacks}; it is tried again")
        failed.scope = Scope.CAPTURE
        return failed
    is_of_aws = type(error).__module__.startswith(_OF_AWS)
    if isinstance(error, ArgumentError):
        return _option_error(tried, error)
    if isinstance(error, _REFUSED) or (is_of_aws and _WRONG_AWS.search(text)) or _WRONG_STORE.search(text):
        return SinkConfigError(f"{tried}: {text}; see whether location and credentials in the sink's URI are right")
    if isinstance(error, (*_PASSING, SQLAlchemyError)) or _is_http(error) or is_of_aws:
        return SinkPassingError(f"{tried}: {text}; the catalog did not answer as it should, it is tried again")
    if isinstance(error, PermissionError):
        return TablePassingError(f"{tried}: {text}; give this user access, it is tried again")
    if isinstance(error, FileNotFoundError) or number in _NUMBERS_OF_TABLE or not isinstance(error, OSError):
        return TableHeldError(f"{tried}: {text}; bring back what is missing or damaged, then resume the changefeed")
    reason = os.strerror(number) if number is not None else text
    return SinkPassingError(f"{tried}: {reason}; the storage did not answer as it should, it is tried again")


@contextmanager
def storage_errors(place: object, doing: str) -> Iterator[None]:
    """:raises SinkError: what catalog or storage raise in here, in our words. A refused commit is not an error."""
    try:
        yield
    except iceberg.CommitFailedException:
        raise
    except Exception as error:
        if not is_of_storage(error):
            raise
        raise storage_error(place, doing, error) from error


@contextmanager
def option_errors(place: object, doing: str) -> Iterator[None]:
    """Translate how drivers fail if an option's value is not what they expect: in no way of their own.

    :raises SinkError: such an error occurs in here.
    """
    try:
        yield
    except (AttributeError, ImportError, TypeError, ValueError) as error:
        if is_of_storage(error):
            raise
        raise _option_error(f"cannot {doing} {place}", error) from error


def _option_error(tried: str, error: BaseException) -> SinkError:
    text = f"{tried}: {first_line(error)}"
    if not isinstance(error, (ImportError, NoSuchModuleError)):
        return SinkConfigError(f"{text}; correct the sink's URI and its options")
    lacks = SinkPassingError(f"{text}; install it on this capture, or correct the options of the sink's URI")
    lacks.scope = Scope.CAPTURE
    return lacks


def is_of_storage(error: BaseException) -> bool:
    """Catalog or storage raised it, or what reads a damaged file."""
    if isinstance(error, (OSError, pa.ArrowException, SQLAlchemyError)) or _is_http(error):
        return True
    return (
        type(error).__module__ == iceberg.__name__
        or type(error).__module__.startswith(_OF_AWS)
        or (isinstance(error, ValueError) and type(error).__module__.startswith("pydantic"))
    )


def _is_http(error: BaseException) -> bool:
    return type(error).__module__.startswith(_HTTP)


def first_line(error: BaseException) -> str:
    line = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return _SECRET.sub(r"\1***@", line)[:200]
