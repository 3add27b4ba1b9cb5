"""Heartbeat budget: limits how often captures are asked for full answers, over all changefeeds of an owner.

Full answers repair lost messages, so they are not urgent. One round asks for ``full_spans_per_round`` spans and a few
more, and the rounds of a second for ``full_spans_per_s``, however many spans there are.
"""

from owner.settings import SchedulerSettings


class HeartbeatBudget:
    """The budget of one round. ``spans``: the total number of spans."""

    def __init__(self, settings: SchedulerSettings, *, spans: int) -> None:
        self.interval_s = max(settings.full_heartbeat_s, spans / settings.full_spans_per_s)
        self._room = settings.full_spans_per_round

    def take(self, spans: int) -> bool:
        """Return whether a capture may be asked for its ``spans`` in this round."""
        if self._room <= 0:
            return False
        self._room -= spans
        return True
