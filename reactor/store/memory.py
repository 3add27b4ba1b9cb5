"""Memory store: an etcd in memory, with revisions, leases, watches with history, and compaction.

The counterpart of ``reactor.store.etcd`` for tests and simulation; both pass the same contract tests.

It is deterministic and has no tasks: leases expire by anyio's clock, noticed by the next call, and a waiting watcher
wakes up when the next lease may expire. So it runs on virtual time. ``Fault`` lets a test make calls fail, wait, or
lose their answer.
"""

from bisect import bisect_left
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Protocol

import anyio
import anyio.lowlevel

from reactor.errors import CompactedError, LeaseExpiredError, StoreError, StoreUnreachableError
from reactor.store import request
from reactor.store.port import Compare, Delete, Event, KeyValue, Operation, Put, Snapshot, Target, TxnResult, WatchBatch


class Fault(Protocol):
    """Called around every call of one client; it may raise in the call's place.

    ``before``: nothing has happened yet. ``after``: the call was applied, and its answer may still be lost.
    """

    async def before(self, call: str) -> None: ...

    async def after(self, call: str) -> None: ...


@dataclass(slots=True)
class _Lease:
    ttl_s: int
    deadline: float
    keys: set[str] = field(default_factory=set)


class MemoryEtcd:
    """The server. Share one between the clients of a test."""

    def __init__(self) -> None:
        self.revision = 1
        self._compacted = 0
        self._items: dict[str, KeyValue] = {}
        self._history: list[tuple[int, tuple[Event, ...]]] = []
        self._leases: dict[int, _Lease] = {}
        self._lease_count = 0
        self._changed = anyio.Event()

    def get(self, key: str) -> KeyValue | None:
        self.expire()
        return self._items.get(key)

    def get_prefix(self, prefix: str) -> Snapshot:
        self.expire()
        items = tuple(item for key, item in sorted(self._items.items()) if key.startswith(prefix))
        return Snapshot(items, self.revision)

    def txn(self, compares: Sequence[Compare], operations: Sequence[Operation]) -> TxnResult:
        self.expire()
        self._check(compares, operations)
        if not all(self._holds(compare) for compare in compares):
            return TxnResult(False, self.revision)
        self._apply(operations)
        return TxnResult(True, self.revision)

    def grant(self, ttl_s: int) -> int:
        self.expire()
        self._lease_count += 1
        lease = 0x7000_0000_0000_0000 + self._lease_count
        self._leases[lease] = _Lease(ttl_s, anyio.current_time() + ttl_s)
        self._wake_watchers()
        return lease

    def revoke(self, lease: int) -> None:
        self.expire()
        self._end_lease(lease)

    def keep_alive(self, lease: int) -> int:
        self.expire()
        entry = self._lease(lease)
        entry.deadline = anyio.current_time() + entry.ttl_s
        return entry.ttl_s

    def time_to_live(self, lease: int) -> int | None:
        self.expire()
        entry = self._leases.get(lease)
        return None if entry is None else round(entry.deadline - anyio.current_time())

    def compact(self, revision: int) -> None:
        self.expire()
        if revision <= self._compacted:
            raise CompactedError(f"revision {revision} is compacted already; the oldest is {self._compacted}")
        if revision > self.revision:
            raise StoreError(f"cannot compact revision {revision}: the store is at {self.revision}")
        self._compacted = revision
        self._history = [entry for entry in self._history if entry[0] >= revision]

    def pass_revision(self, revision: int) -> None:
        self.expire()
        if revision > self.revision:
            self.revision = self._compacted = revision
            self._history.clear()
            self._wake_watchers()

    def expire(self) -> None:
        """Remove the leases that have expired."""
        if not self._leases:
            return  # outside a loop there is no time
        now = anyio.current_time()
        over = [lease for lease, entry in self._leases.items() if entry.deadline <= now]
        for lease in over:
            self._end_lease(lease)

    def events_from(self, prefix: str, start_revision: int) -> WatchBatch | None:
        """Return all events under ``prefix`` from ``start_revision`` on; None if there are none.

        :raises CompactedError: the history does not reach back that far.
        """
        self.expire()
        if start_revision < self._compacted:
            raise CompactedError(f"revision {start_revision} has been compacted away; read the prefix again")
        first = bisect_left(self._history, start_revision, key=lambda entry: entry[0])
        matching = tuple(
            event for _, events in self._history[first:] for event in events if event.key.startswith(prefix)
        )
        return WatchBatch(matching, matching[-1].mod_revision) if matching else None

    async def wait_changed(self) -> None:
        """Wait for a write, or until the next lease expires."""
        deadline = min((entry.deadline for entry in self._leases.values()), default=float("inf"))
        with anyio.CancelScope(deadline=deadline):
            await self._changed.wait()

    def _check(self, compares: Sequence[Compare], operations: Sequence[Operation]) -> None:
        request.check(compares, operations)
        for operation in operations:
            if isinstance(operation, Put) and operation.lease:
                self._lease(operation.lease)

    def _holds(self, compare: Compare) -> bool:
        if not compare.last:
            return _revision(self._items.get(compare.key), compare.target) == compare.revision
        items = [item for key, item in self._items.items() if compare.key <= key <= compare.last]
        revisions = [_revision(item, compare.target) for item in items] or [0]
        return all(revision == compare.revision for revision in revisions)

    def _apply(self, operations: Sequence[Operation]) -> None:
        """Apply all operations in one revision, which is consumed only if something changes."""
        revision = self.revision + 1
        events = [event for operation in operations if (event := self._write(operation, revision)) is not None]
        if events:
            self.revision = revision
            self._history.append((revision, tuple(events)))
            self._wake_watchers()

    def _write(self, operation: Operation, revision: int) -> Event | None:
        old = self._items.pop(operation.key, None)
        if old is not None and old.lease in self._leases:
            self._leases[old.lease].keys.discard(old.key)
        match operation:
            case Delete(key):
                return None if old is None else Event(key, None, revision)
            case Put(key, value, lease):
                created = old.create_revision if old else revision
                self._items[key] = KeyValue(key, value, created, revision, lease)
                if lease:
                    self._leases[lease].keys.add(key)
                return Event(key, value, revision, created, lease)

    def _lease(self, lease: int) -> _Lease:
        if lease not in self._leases:
            raise LeaseExpiredError(f"lease {lease:x} is over; start a new session")
        return self._leases[lease]

    def _end_lease(self, lease: int) -> None:
        entry = self._leases.pop(lease, None)
        if entry is not None:
            self._apply([Delete(key) for key in sorted(entry.keys)])

    def _wake_watchers(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()


def _revision(item: KeyValue | None, target: Target) -> int:
    if item is None:
        return 0
    return item.mod_revision if target is Target.MOD_REVISION else item.create_revision


class MemoryClient:
    """One connection to a ``MemoryEtcd``."""

    def __init__(self, server: MemoryEtcd, *, fault: Fault | None = None) -> None:
        self._server = server
        self._fault = fault
        self._closed = False

    async def get(self, key: str) -> KeyValue | None:
        async with self._call("get"):
            return self._server.get(key)

    async def get_prefix(self, prefix: str) -> Snapshot:
        async with self._call("get_prefix"):
            return self._server.get_prefix(prefix)

    async def put(self, key: str, value: bytes, *, lease: int = 0) -> int:
        async with self._call("put"):
            return self._server.txn([], [Put(key, value, lease)]).revision

    async def delete(self, key: str) -> bool:
        async with self._call("delete"):
            before = self._server.revision
            return self._server.txn([], [Delete(key)]).revision > before

    async def txn(self, compares: Sequence[Compare], operations: Sequence[Operation]) -> TxnResult:
        async with self._call("txn"):
            return self._server.txn(compares, operations)

    async def grant(self, ttl_s: int) -> int:
        async with self._call("grant"):
            return self._server.grant(ttl_s)

    async def revoke(self, lease: int) -> None:
        async with self._call("revoke"):
            self._server.revoke(lease)

    async def keep_alive(self, lease: int) -> int:
        async with self._call("keep_alive"):
            return self._server.keep_alive(lease)

    async def time_to_live(self, lease: int) -> int | None:
        async with self._call("time_to_live"):
            return self._server.time_to_live(lease)

    async def compact(self, revision: int) -> None:
        async with self._call("compact"):
            self._server.compact(revision)

    async def pass_revision(self, revision: int, *, key: str) -> None:
        async with self._call("pass_revision"):
            self._server.pass_revision(revision)

    @asynccontextmanager
    async def watch_prefix(self, prefix: str, *, start_revision: int) -> AsyncIterator[AsyncIterator[WatchBatch]]:
        async with aclosing(self._batches(prefix, start_revision)) as batches:
            yield batches

    async def close(self) -> None:
        self._closed = True

    async def _batches(self, prefix: str, start_revision: int) -> AsyncGenerator[WatchBatch, None]:
        while True:
            await self._pass("watch")
            batch = self._server.events_from(prefix, start_revision)
            if batch is None:
                await self._server.wait_changed()
                continue
            start_revision = batch.revision + 1
            yield batch

    @asynccontextmanager
    async def _call(self, name: str) -> AsyncIterator[None]:
        await self._pass(name)
        yield
        if self._fault is not None:
            await self._fault.after(name)

    async def _pass(self, name: str) -> None:
        """Yield to other tasks first, like a call over a network."""
        await anyio.lowlevel.checkpoint()
        if self._closed:
            raise StoreUnreachableError("this etcd client is closed; open a new one")
        if self._fault is not None:
            await self._fault.before(name)
