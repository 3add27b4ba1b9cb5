"""Heartbeat budget: bounds how often captures are asked for everything they have, over all changefeeds of an owner.

Such questions find what got lost, so they may take their time. One round asks for ``full_spans_per_round`` spans and
a little more, and the rounds of a second for ``full_spans_per_s``, however many spans there are.
"""

from owner.settings import SchedulerSettings


class HeartbeatBudget:
    """One round's. ``spans``: how many there are in all."""

    def __init__(self, settings: SchedulerSettings, *, spans: int) -> None:
        self.interval_s = max(settings.full_heartbeat_s, spans / settings.full_spans_per_s)
        self._room = settings.full_spans_per_round

    def take(self, spans: int) -> bool:
        """Whether a capture may be asked for its ``spans`` in this round."""
        if self._room <= 0:
            return False
        self._room -= spans
        return True
