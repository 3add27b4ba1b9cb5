"""Backoff: how long a failing changefeed waits before it restarts, and when it gives up.

Delays grow from 10 s by a factor of two up to 10 min, with a jitter of up to a tenth, so that changefeeds that failed
together do not restart together. It gives up after ``give_up_s`` without progress.
"""

import itertools
import zlib
from collections.abc import Callable

from owner.settings import BackoffSettings

#: returns the next number in [0, 1)
Uniform = Callable[[], float]


def uniform_of(seed: str) -> Uniform:
    """Return pseudo-random numbers that are the same for the same seed, so that a run can be repeated."""
    draws = itertools.count()
    return lambda: zlib.crc32(f"{seed}/{next(draws)}".encode()) / (1 << 32)


class Backoff:
    """One burst of errors: ``reset`` starts it, ``next_s`` is called after each error."""

    def __init__(self, settings: BackoffSettings, uniform: Uniform) -> None:
        self._settings = settings
        self._uniform = uniform
        self._interval_s = settings.initial_s
        self._since = 0.0

    def reset(self, now: float) -> None:
        self._interval_s = self._settings.initial_s
        self._since = now

    def next_s(self, now: float, *, give_up_s: float) -> float | None:
        """Return the seconds to wait; None: give up."""
        if now - self._since > give_up_s:
            return None
        jitter = self._settings.jitter * (2 * self._uniform() - 1)
        wait_s = self._interval_s * (1 + jitter)
        assert wait_s >= 0, f"a wait of {wait_s} s"
        self._interval_s = min(self._interval_s * self._settings.factor, self._settings.max_s)
        return wait_s
