"""Watch cursor: buffers a watch's events for the state, drops stale ones, and waits for our own commits.

After a commit of ours the state is not used until the watch has delivered everything before it; if our commit is the
next revision, there was nothing before it.

Pure: the worker pushes what the watch delivers, and drains it into the state when ``is_caught_up``.
"""

import itertools

from reactor.store.port import Event, WatchBatch


class WatchCursor:
    """The watch's position. ``revision``: the last one seen; ``barrier``: the one that must be seen first."""

    __slots__ = ("_pending", "barrier", "revision")

    def __init__(self) -> None:
        self.revision = 0
        self.barrier = 0
        self._pending: list[Event] = []

    def reset(self, revision: int) -> None:
        """The prefix was read at ``revision``; what the watch delivered before is part of that."""
        self.revision = revision
        self._pending.clear()

    def push(self, batch: WatchBatch) -> tuple[Event, ...]:
        """Add a batch; return its new events.

        A progress batch moves nothing: it may overtake events (see ``WatchBatch``).
        """
        fresh = tuple(event for event in batch.events if event.mod_revision > self.revision)
        if fresh:
            assert all(a.mod_revision <= b.mod_revision for a, b in itertools.pairwise(fresh))
            self.revision = fresh[-1].mod_revision
            self._pending.extend(fresh)
        return fresh

    def commit(self, revision: int) -> bool:
        """Note our commit at ``revision``: nothing is drained before it. Return whether it is the next revision."""
        self.barrier = max(self.barrier, revision)
        return revision == self.revision + 1

    @property
    def is_caught_up(self) -> bool:
        return self.revision >= self.barrier

    @property
    def has_pending(self) -> bool:
        return bool(self._pending)

    def drain(self) -> list[Event]:
        """Return the buffered events, oldest first; nothing while the barrier holds."""
        if not self.is_caught_up:
            return []
        pending, self._pending = self._pending, []
        return pending
