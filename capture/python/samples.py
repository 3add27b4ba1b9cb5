"""Samples: a changefeed's lag and throughput over time, from the answers that one object has received."""

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from reactor.views import ChangefeedView

#: samples that are kept: an hour of one per second
KEPT = 3600
#: the throughput is an average of this time, since rows arrive in flushes
_AVERAGE_S = 5.0


@dataclass(frozen=True, slots=True)
class Sample:
    """``time``: Unix seconds. ``lag_seconds``: None if unknown. ``changes``: row changes written so far, counted by
    one owner."""

    time: float
    lag_seconds: float | None
    changes: int


class Samples:
    """The newest samples of one changefeed, oldest first."""

    def __init__(self) -> None:
        self._kept: deque[Sample] = deque(maxlen=KEPT)

    def add(self, view: ChangefeedView, *, now: float | None = None) -> None:
        """Add a sample; ``now`` in Unix seconds, None: the present time."""
        self._kept.append(Sample(time.time() if now is None else now, view.lag_seconds, view.changes))

    def rows_per_second(self) -> float | None:
        """Return the row changes per second over the last seconds; None until there are two samples of one owner."""
        if not self._kept:
            return None
        last = self._kept[-1]
        first = last
        for sample in reversed(self._kept):
            if sample.changes > first.changes:  # another owner counts from 0
                break
            first = sample
            if last.time - first.time >= _AVERAGE_S:
                break
        took_s = last.time - first.time
        return (last.changes - first.changes) / took_s if took_s > 0 else None

    def __iter__(self) -> Iterator[Sample]:
        return iter(self._kept)

    def __len__(self) -> int:
        return len(self._kept)
