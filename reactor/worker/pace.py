"""Pace of ticks: ticks as soon as there is a reason, but at most once per interval, and at least once per idle
interval.

Reasons are news (from the watch, the inbox, a ``wake``) and a wake-up time that has come. Pure: ``now`` is passed in,
of a clock that never goes back.
"""

import math


class Pace:
    """A token bucket (one token per ``interval_s``, at most ``burst``) behind the reasons."""

    def __init__(self, interval_s: float, *, burst: int, idle_interval_s: float) -> None:
        self._interval_s = interval_s
        self._burst = burst
        self._idle_interval_s = idle_interval_s
        self._tokens = float(burst)
        self._counted_at = -math.inf
        self._idle_at = -math.inf
        self._wake_at = math.inf
        self._has_news = False

    def note_news(self) -> None:
        self._has_news = True

    def note_wake(self, at: float) -> None:
        """Tick no later than ``at``; the earliest such time counts."""
        self._wake_at = min(self._wake_at, at)

    def take(self, now: float) -> bool:
        """Return whether to tick now; if so, the reasons are cleared."""
        if self.delay_s(now) > 0:
            return False
        self._tokens -= 1
        self._idle_at = now + self._idle_interval_s
        self._has_news = False
        if self._wake_at <= now:
            self._wake_at = math.inf
        return True

    def delay_s(self, now: float) -> float:
        """Return the seconds until the next tick if nothing new happens."""
        cause_s = 0.0 if self._has_news else max(0.0, min(self._idle_at, self._wake_at) - now)
        return max(cause_s, self._token_delay_s(now))

    def _token_delay_s(self, now: float) -> float:
        if self._interval_s <= 0:
            self._tokens = float(self._burst)
            return 0.0
        earned = (now - self._counted_at) / self._interval_s
        self._tokens = min(float(self._burst), self._tokens + earned)
        self._counted_at = now
        # slightly less than a token counts as one: rounding errors add up
        return 0.0 if self._tokens > 1 - 1e-6 else (1 - self._tokens) * self._interval_s
