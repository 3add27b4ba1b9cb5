"""Grouped transactions: independent transactions of one process that share one transaction of the store.

A store pays for each transaction, and every watcher for each revision. Transactions that may wait are gathered for a
moment: hardly at all where they are rare, and for up to 25 milliseconds where they are many.

    gathered ─► sent as one ─► succeeded: so has each of them
                             ├ refused: each is sent again, alone
                             └ no answer: each may have been applied

The first of a group sends it. If it is cancelled before, the others are gathered again. One that is cancelled before
the group is sent is not part of it.
"""

from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

import anyio

from reactor.errors import StoreError, StoreUnreachableError
from reactor.store.port import Compare, MetaStore, Operation, Put, TxnResult
from reactor.store.request import OPERATIONS_MAX

#: how long transactions are gathered that come once a second; twice as long for twice as many
_WINDOW_S: Final = 0.0025
_WINDOW_S_MAX: Final = 0.025
#: the rate is that of as many
_COUNTED: Final = 32
_BYTES_MAX: Final = 1 << 19


class GroupedTxns:
    """Transactions on one client's store. No one depends on another's."""

    def __init__(self, client: MetaStore) -> None:
        self._client = client
        self._gathering: _Group | None = None
        self._began: deque[float] = deque(maxlen=_COUNTED)

    async def txn(self, compares: Sequence[Compare], operations: Sequence[Operation]) -> TxnResult:
        """See ``MetaStore.txn``."""
        self._began.append(anyio.current_time())
        asked = _Asked(tuple(compares), tuple(operations))
        while True:
            group = self._gathering
            if group is None or not group.has_room(asked):
                return await self._lead(asked)
            group.add(asked)
            try:
                await group.is_done.wait()
            finally:
                group.withdraw(asked)
            if group.error is not None:
                raise group.error
            if group.result is not None:
                return group.result if group.result.succeeded else await self._client.txn(*asked)

    async def _lead(self, asked: "_Asked") -> TxnResult:
        group = self._gathering = _Group(asked)
        try:
            await anyio.sleep(self._window_s())
            self._close(group)
            group.error = StoreUnreachableError("the process stopped while it sent a transaction")
            group.result = await self._client.txn(*group.take())
            group.error = None
        except StoreError as error:
            group.error = error
            raise
        finally:
            self._close(group)
            group.is_done.set()
        if group.result.succeeded or group.is_single:
            return group.result
        return await self._client.txn(*asked)

    def _close(self, group: "_Group") -> None:
        if self._gathering is group:
            self._gathering = None

    def _window_s(self) -> float:
        past_s = max(1.0, anyio.current_time() - self._began[0])
        return min(_WINDOW_S * len(self._began) / past_s, _WINDOW_S_MAX)


class _Asked(NamedTuple):
    compares: tuple[Compare, ...]
    operations: tuple[Operation, ...]

    @property
    def bytes(self) -> int:
        return sum(len(each.key) + len(each.value) for each in self.operations if isinstance(each, Put))


class _Group:
    """Transactions that are sent as one. Neither ``result`` nor ``error``, though it is done: nothing was sent."""

    def __init__(self, first: _Asked) -> None:
        self.is_done = anyio.Event()
        self.result: TxnResult | None = None
        self.error: StoreError | None = None
        self.is_single = False
        self._asked = [first]

    def has_room(self, asked: _Asked) -> bool:
        """Return whether it fits, and writes nothing that another one writes."""
        compares = sum(len(each.compares) for each in self._asked) + len(asked.compares)
        operations = sum(len(each.operations) for each in self._asked) + len(asked.operations)
        if max(compares, operations) > OPERATIONS_MAX or sum(e.bytes for e in self._asked) + asked.bytes > _BYTES_MAX:
            return False
        written = {operation.key for each in self._asked for operation in each.operations}
        return written.isdisjoint(operation.key for operation in asked.operations)

    def add(self, asked: _Asked) -> None:
        self._asked.append(asked)

    def withdraw(self, asked: _Asked) -> None:
        """Take it out, if nothing has been sent."""
        self._asked = [each for each in self._asked if each is not asked]

    def take(self) -> tuple[list[Compare], list[Operation]]:
        """Return what is sent."""
        self.is_single = len(self._asked) == 1
        compares = [compare for each in self._asked for compare in each.compares]
        return compares, [operation for each in self._asked for operation in each.operations]
