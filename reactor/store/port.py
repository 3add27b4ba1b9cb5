"""Metadata store port: what Weir asks of etcd, as a protocol with its request and response values.

``reactor.store.etcd`` speaks it to a server, ``reactor.store.memory`` is the same in memory; both pass the same
contract tests (``tests/integration/reactor/store``), so whatever is tested on one holds on the other. Keys are text,
values bytes; revisions are etcd's. The only errors are ``reactor.errors.EtcdError`` and its children.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


@dataclass(frozen=True, slots=True)
class KeyValue:
    """A key as it is: ``create_revision`` when it came to be, ``mod_revision`` its last change; no lease is 0."""

    key: str
    value: bytes
    create_revision: int
    mod_revision: int
    lease: int = 0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Every key under a prefix, sorted by key, as of one ``revision`` of the whole store."""

    items: tuple[KeyValue, ...]
    revision: int


class Target(StrEnum):
    """The property of a key that a transaction compares. An absent key has both revisions 0."""

    MOD_REVISION = "mod"
    CREATE_REVISION = "create"


@dataclass(frozen=True, slots=True)
class Compare:
    """Holds when ``target`` of ``key`` equals ``revision``.

    With ``last``, it is about every key from ``key`` to ``last`` (both included); with revision 0 it says that there
    is none.
    """

    key: str
    target: Target
    revision: int
    last: str = ""


@dataclass(frozen=True, slots=True)
class Put:
    key: str
    value: bytes
    lease: int = 0


@dataclass(frozen=True, slots=True)
class Delete:
    key: str


Operation = Put | Delete


@dataclass(frozen=True, slots=True)
class TxnResult:
    """``succeeded``: every compare held and all operations were done. ``revision``: of the store after the answer."""

    succeeded: bool
    revision: int


@dataclass(frozen=True, slots=True)
class Event:
    """One change of one key: ``value`` is None where it was deleted (by anybody, or by its lease running out)."""

    key: str
    value: bytes | None
    mod_revision: int
    create_revision: int = 0
    lease: int = 0


@dataclass(frozen=True, slots=True)
class WatchBatch:
    """What a watch brings: all events of whole revisions, in order.

    ``revision``: of the last event. A progress batch has no events and says only that the watch is alive: before
    etcd 3.5.8 it may overtake events, so its revision must not be taken for "everything up to here was seen".
    """

    events: tuple[Event, ...]
    revision: int
    is_progress: bool = False


class EtcdClient(Protocol):
    """The calls. Every one ends within the client's timeout; reads see all that was committed before they began.

    A read, a keep-alive, a grant or a revocation that fails is tried again on the other endpoints. A put, a delete or
    a transaction whose answer is lost raises ``EtcdUnreachableError``: it may or may not have been done.
    """

    async def get(self, key: str) -> KeyValue | None: ...

    async def get_prefix(self, prefix: str) -> Snapshot: ...

    async def put(self, key: str, value: bytes, *, lease: int = 0) -> int:
        """The revision of the write.

        :raises LeaseExpiredError: there is no such lease.
        """
        ...

    async def delete(self, key: str) -> bool:
        """Whether there was such a key."""
        ...

    async def txn(self, compares: Sequence[Compare], operations: Sequence[Operation]) -> TxnResult:
        """Do all operations in one revision if every compare holds, else nothing. No key may be written twice.

        :raises TxnTooLargeError: over the server's limits (which count compares too); nothing was done.
        """
        ...

    async def grant(self, ttl_s: int) -> int:
        """A new lease's id; the server may give a longer time than asked, never a shorter one."""
        ...

    async def revoke(self, lease: int) -> None:
        """End the lease and delete its keys; a lease that is gone already is fine."""
        ...

    async def keep_alive(self, lease: int) -> int:
        """Start the lease's time again; its whole time in seconds.

        :raises LeaseExpiredError: it is over.
        """
        ...

    async def time_to_live(self, lease: int) -> int | None:
        """Seconds left, rounded; None when the lease is over."""
        ...

    def watch_prefix(
        self, prefix: str, *, start_revision: int
    ) -> AbstractAsyncContextManager[AsyncIterator[WatchBatch]]:
        """Every change from ``start_revision`` on, none twice, none left out, however often the connection breaks.

        Iterating raises ``CompactedError`` when the server no longer has what comes next: read the prefix again.
        Enter and leave it in one task.
        """
        ...

    async def compact(self, revision: int) -> None:
        """Forget the history before ``revision``."""
        ...

    async def close(self) -> None: ...
