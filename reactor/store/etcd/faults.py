"""Faults: translates errors of etcd and gRPC to ``reactor.errors``. Texts name the endpoint and never a password."""

import grpc

from reactor.errors import (
    CompactedError,
    LeaseExpiredError,
    StoreAuthError,
    StoreError,
    StoreFullError,
    StoreUnreachableError,
    TxnTooLargeError,
)

Code = grpc.StatusCode

#: the token has expired, or predates a change of users: a new one helps
_STALE_TOKEN = ("invalid auth token", "revision of auth store is old", "auth: revision in header is old")

_FULL = "etcd's database is full; compact and defragment it or raise its quota, then disarm its alarm"
_BY_TEXT: tuple[tuple[str, type[StoreError], str], ...] = (
    ("required revision has been compacted", CompactedError, "the asked revision is compacted; read the prefix again"),
    ("requested lease not found", LeaseExpiredError, "the lease is over; start a new session"),
    ("too many operations in txn", TxnTooLargeError, "too many operations in one transaction; do fewer at once"),
    ("request is too large", TxnTooLargeError, "the request is over etcd's size limit; do less at once"),
    ("database space exceeded", StoreFullError, _FULL),
    ("authentication failed", StoreAuthError, "etcd refuses user or password; correct them"),
    ("user name is empty", StoreAuthError, "etcd asks for a user; give user and password"),
    ("user name not found", StoreAuthError, "etcd does not know this user; correct it"),
    ("authentication is not enabled", StoreAuthError, "this etcd has no users; leave user and password out"),
    ("permission denied", StoreAuthError, "the user may not do this in etcd; grant it read and write below /weir/"),
    ("invalid auth token", StoreAuthError, "etcd does not accept its own token; check that its members agree on users"),
)
#: INTERNAL is what a stream reports whose connection has just broken, and etcd's own client continues after it
#: (clientv3's ``isHaltErr``), so it is retried
_UNREACHABLE = frozenset(
    {Code.UNAVAILABLE, Code.DEADLINE_EXCEEDED, Code.CANCELLED, Code.RESOURCE_EXHAUSTED, Code.INTERNAL}
)


def is_stale_token(error: grpc.aio.AioRpcError) -> bool:
    return error.code() is Code.UNAUTHENTICATED or any(text in (error.details() or "") for text in _STALE_TOKEN)


def translate(error: grpc.aio.AioRpcError, *, endpoint: str) -> StoreError:
    """Return ``error`` as an error of ``reactor.errors``."""
    details = error.details() or error.code().name
    known = from_text(details, endpoint=endpoint)
    if known is not None:
        return known
    if error.code() in _UNREACHABLE:
        return unreachable(endpoint, details)
    return StoreError(f"etcd at {endpoint} refused: {_one_line(details)}")


def from_text(details: str, *, endpoint: str) -> StoreError | None:
    """Return the error that etcd means by ``details``, or None if it has no class here."""
    for text, kind, message in _BY_TEXT:
        if text in details:
            return kind(f"{message} ({endpoint})")
    return None


def unreachable(endpoint: str, details: str) -> StoreUnreachableError:
    return StoreUnreachableError(f"etcd at {endpoint} does not answer: {_one_line(details)}")


def _one_line(text: str) -> str:
    return " ".join(text.split())[:200]
