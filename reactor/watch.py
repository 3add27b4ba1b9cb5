"""Watch cursor: stands between a watch and the state, so that revisions only grow and our own writes are read.

Stale events are dropped. After a commit of ours the state is not used until the watch has brought all that came before
it; where our commit is the very next revision, nothing came before it.

Pure: the worker pushes what the watch brings, and drains it into the state when ``is_caught_up``.
"""

import itertools

from reactor.store.port import Event, WatchBatch


class WatchCursor:
    """Where the watch is. ``revision``: the last one seen; ``barrier``: the one that must be seen first."""

    __slots__ = ("_pending", "barrier", "revision")

    def __init__(self) -> None:
        self.revision = 0
        self.barrier = 0
        self._pending: list[Event] = []

    def reset(self, revision: int) -> None:
        """The prefix was read as of ``revision``; what the watch had brought before is part of that."""
        self.revision = revision
        self._pending.clear()

    def push(self, batch: WatchBatch) -> tuple[Event, ...]:
        """Take a batch in; the events of it that are new.

        A progress batch moves nothing: it may overtake events (see ``WatchBatch``).
        """
        fresh = tuple(event for event in batch.events if event.mod_revision > self.revision)
        if fresh:
            assert all(a.mod_revision <= b.mod_revision for a, b in itertools.pairwise(fresh))
            self.revision = fresh[-1].mod_revision
            self._pending.extend(fresh)
        return fresh

    def commit(self, revision: int) -> bool:
        """We committed at ``revision``: nothing is drained before it. True: it comes next, whoever brings it."""
        self.barrier = max(self.barrier, revision)
        return revision == self.revision + 1

    @property
    def is_caught_up(self) -> bool:
        return self.revision >= self.barrier

    @property
    def has_pending(self) -> bool:
        return bool(self._pending)

    def drain(self) -> list[Event]:
        """The events that wait, oldest first; nothing while the barrier holds."""
        if not self.is_caught_up:
            return []
        pending, self._pending = self._pending, []
        return pending
