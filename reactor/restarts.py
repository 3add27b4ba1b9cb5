"""Restart budget: how often a crashed component is restarted, and after what delay."""

from collections import deque
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """The number of crashes that are tolerable. The n-th restart within the period waits ``delay_s * 2**(n-1)``, at
    most ``delay_s_max``, so that a database that is down is not overloaded."""

    restarts_max: int = 5
    period_s: float = 60.0
    delay_s: float = 0.1
    delay_s_max: float = 10.0

    def delay_of(self, restart: int) -> float:
        return min(self.delay_s * 2.0 ** (restart - 1), self.delay_s_max)


class RestartBudget:
    """The restarts of one component. Pure: the time is passed in."""

    def __init__(self, policy: RestartPolicy) -> None:
        self._policy = policy
        self._times: deque[float] = deque()

    def spend(self, now: float) -> float | None:
        """Return the seconds to wait before the restart, or None if the budget is exhausted."""
        while self._times and self._times[0] <= now - self._policy.period_s:
            self._times.popleft()
        if len(self._times) >= self._policy.restarts_max:
            return None
        self._times.append(now)
        return self._policy.delay_of(len(self._times))
