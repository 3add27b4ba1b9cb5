"""Metadata store port: the calls that Weir makes to its store, as a protocol with its request and response values.

``reactor.store.etcd`` implements it on etcd, ``reactor.store.sql`` on a database, ``reactor.store.memory`` in memory.
All pass the same contract tests (``tests/contracts/test_meta_store.py``), so results of one hold for the others. Keys
are text, values bytes; revisions count as etcd's do. The only errors are ``reactor.errors.StoreError`` and its
subclasses.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

#: sorts after every key
LAST = "\U0010ffff"


@dataclass(frozen=True, slots=True)
class KeyValue:
    """A key and its value. ``create_revision``: its creation; ``mod_revision``: its last change; lease 0: none."""

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

    With ``last``, it concerns every key from ``key`` to ``last`` (both included); with revision 0 it holds if there are
    none.
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
    """``succeeded``: every compare held and all operations were applied. ``revision``: of the store after the
    answer."""

    succeeded: bool
    revision: int


@dataclass(frozen=True, slots=True)
class Event:
    """One change of one key: ``value`` is None if it was deleted (by a client, or because its lease expired)."""

    key: str
    value: bytes | None
    mod_revision: int
    create_revision: int = 0
    lease: int = 0


@dataclass(frozen=True, slots=True)
class WatchBatch:
    """A delivery of a watch: all events of whole revisions, in order.

    ``revision``: of the last event. A progress batch has no events and only shows that the watch is alive: before etcd
    3.5.8 it may overtake events, so its revision must not be taken for "everything up to here was seen".
    """

    events: tuple[Event, ...]
    revision: int
    is_progress: bool = False


class MetaStore(Protocol):
    """The calls. Each ends within the client's timeout; reads include all that was committed before they began.

    A failed read, keep-alive, grant or revocation is retried on the other endpoints. A put, a delete or a transaction
    whose answer is lost raises ``StoreUnreachableError``: it may or may not have been applied.
    """

    async def get(self, key: str) -> KeyValue | None: ...

    async def get_prefix(self, prefix: str) -> Snapshot: ...

    async def put(self, key: str, value: bytes, *, lease: int = 0) -> int:
        """Return the revision of the write.

        :raises LeaseExpiredError: there is no such lease.
        """
        ...

    async def delete(self, key: str) -> bool:
        """Delete the key; return whether it existed."""
        ...

    async def txn(self, compares: Sequence[Compare], operations: Sequence[Operation]) -> TxnResult:
        """Apply all operations in one revision if every compare holds, else none. No key may be written twice.

        :raises TxnTooLargeError: exceeds the server's limits (which count compares too); nothing was applied.
        """
        ...

    async def grant(self, ttl_s: int) -> int:
        """Return a new lease's id; the server may grant a longer time than requested, never a shorter one."""
        ...

    async def revoke(self, lease: int) -> None:
        """End the lease and delete its keys; an expired lease is ignored."""
        ...

    async def keep_alive(self, lease: int) -> int:
        """Restart the lease's time; return its duration in seconds.

        :raises LeaseExpiredError: the lease has expired.
        """
        ...

    async def time_to_live(self, lease: int) -> int | None:
        """Return the seconds left, rounded; None if the lease has expired."""
        ...

    def watch_prefix(
        self, prefix: str, *, start_revision: int
    ) -> AbstractAsyncContextManager[AsyncIterator[WatchBatch]]:
        """Yield every change from ``start_revision`` on exactly once, however often the connection breaks.

        Iterating raises ``CompactedError`` when the server no longer has the next event: read the prefix again. Enter
        and leave it in one task.
        """
        ...

    async def compact(self, revision: int) -> None:
        """Discard the history before ``revision``."""
        ...

    async def pass_revision(self, revision: int, *, key: str) -> None:
        """Return when the next write will have a revision above ``revision``, which no write may have had yet.

        ``key``: may be written any number of times for that; it does not exist afterwards. Watches may have to read
        their prefix again. If this is interrupted, the store's revision is anything in between.

        :raises StoreError: the store counts by writing, and it is too far.
        """
        ...

    async def close(self) -> None: ...
