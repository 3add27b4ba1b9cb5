"""Group: transactions that wait at the same time are committed together, each with its own revision and answer.

A commit takes the disk a while, and one client's transactions wait for each other. So the thread that gets the lane
does all that are waiting; when the others get it, theirs is done.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from reactor.errors import StoreError
from reactor.store.port import Compare, Operation, Put, TxnResult
from reactor.store.sql.database import Database
from reactor.store.sql.lane import Lane
from reactor.store.sql.logic import Change, Head, Seen

#: of one commit: operations, and bytes of values
_OPERATIONS_MAX = 256
_BYTES_MAX = 2 << 20


@dataclass(slots=True, eq=False)
class Request:
    """``outcome``: the answer, whether something changed, and the store's head; or why there is none."""

    compares: Sequence[Compare]
    operations: Sequence[Operation]
    outcome: tuple[TxnResult, bool, Head] | StoreError | None = None
    is_given_up: bool = False

    @property
    def is_simple(self) -> bool:
        """It depends on the keys that it names, and on nothing else that another one might change."""
        has_lease = any(isinstance(operation, Put) and operation.lease for operation in self.operations)
        return not has_lease and not any(compare.last for compare in self.compares)

    @property
    def size(self) -> int:
        return sum(len(operation.value) for operation in self.operations if isinstance(operation, Put))


class Group:
    """The transactions that wait for the lane of one client. ``seen``: what the client has seen of the store."""

    def __init__(self, lane: Lane[Database], seen: Callable[[], Seen]) -> None:
        self._lane = lane
        self._seen = seen
        self._waiting: deque[Request] = deque()

    async def txn(
        self, compares: Sequence[Compare], operations: Sequence[Operation], timeout_s: float
    ) -> tuple[TxnResult, bool, Head]:
        """Return the answer, whether something changed, and the store's head.

        :raises StoreError: as ``MetaStore.txn``.
        """
        request = Request(compares, operations)
        self._waiting.append(request)
        try:
            await self._lane.run(lambda database, _: self._work(database, request), timeout_s)
        finally:
            request.is_given_up = True
        assert request.outcome is not None, "the lane does what waits for it"
        if isinstance(request.outcome, StoreError):
            raise type(request.outcome)(*request.outcome.args)  # several may raise it
        return request.outcome

    def _work(self, database: Database, request: Request) -> None:
        while request.outcome is None and not request.is_given_up:
            if requests := self._next():
                self._commit(database, requests)

    def _next(self) -> list[Request]:
        """Take what is committed together from the queue."""
        taken: list[Request] = []
        operations = size = 0
        while self._waiting:
            first = self._waiting[0]
            if not first.is_given_up:
                operations, size = operations + max(len(first.operations), len(first.compares)), size + first.size
                is_full = operations > _OPERATIONS_MAX or size > _BYTES_MAX
                if taken and (is_full or not first.is_simple or not taken[0].is_simple):
                    break
                taken.append(first)
            self._waiting.popleft()
        return taken

    def _commit(self, database: Database, requests: list[Request]) -> None:
        try:
            with database.writing(lambda: all(request.is_given_up for request in requests)) as statements:
                change = Change(statements)
                answers = change.txns([(request.compares, request.operations) for request in requests], self._seen())
                head = change.finish()
        except BaseException as error:
            reason = error if isinstance(error, StoreError) else StoreError(f"{database.name}: {error!r}")
            for request in requests:
                request.outcome = reason
            raise
        for request, answer in zip(requests, answers, strict=True):
            request.outcome = answer if isinstance(answer, StoreError) else (*answer, head)
