"""Lowest position: the minimum of many positions of which a few change at a time, with its commit time.

Spans that are flushed together have the same Ts, so there are few different positions, however many spans there are.
Each position is counted, and the minimum is at the top of a heap. Positions with count 0 are removed when they reach
the top.
"""

from collections import Counter
from collections.abc import Iterable
from heapq import heapify, heappop, heappush

from reactor.ids import Ts


class LowestPosition:
    """Positions with their counts. A position's commit time is the last one reported, 0 if none was."""

    __slots__ = ("_counts", "_heap", "_times")

    def __init__(self) -> None:
        self._counts: dict[Ts, int] = {}
        self._times: dict[Ts, float] = {}
        self._heap: list[Ts] = []

    @property
    def ts(self) -> Ts | None:
        """The minimum; None if there are no positions."""
        heap, counts = self._heap, self._counts
        while heap and heap[0] not in counts:
            heappop(heap)
        return heap[0] if heap else None

    @property
    def time(self) -> float:
        """The commit time of the minimum."""
        ts = self.ts
        return 0.0 if ts is None else self._times.get(ts, 0.0)

    def add(self, ts: Ts, time: float, many: int = 1) -> None:
        count = self._counts.get(ts, 0)
        self._counts[ts] = count + many
        if not count:
            self._push(ts)
        if time:
            self._times[ts] = time

    def remove(self, ts: Ts, many: int = 1) -> None:
        count = self._counts[ts] - many
        if count:
            self._counts[ts] = count
        else:
            del self._counts[ts]
            self._times.pop(ts, None)

    def move(self, before: Ts, after: Ts, time: float, many: int = 1) -> None:
        """Move ``many`` from ``before`` to ``after``."""
        if before != after:
            self.add(after, time, many)
            self.remove(before, many)
        elif time:
            self._times[after] = time

    def validate(self, positions: Iterable[Ts]) -> None:
        """Assert that these are the positions that were added and not removed."""
        assert self._counts == Counter(positions), "positions are counted that nobody has, or not counted"
        assert self._counts.keys() <= set(self._heap), "a position is missing in the heap"
        assert self._times.keys() <= self._counts.keys(), "a time is kept of a position where nobody is"

    def _push(self, ts: Ts) -> None:
        """Push onto the heap. Rebuilds it when unused positions, which a slower one keeps from the top, accumulate."""
        heappush(self._heap, ts)
        if len(self._heap) > 2 * len(self._counts) + 64:
            self._heap = list(self._counts)
            heapify(self._heap)
