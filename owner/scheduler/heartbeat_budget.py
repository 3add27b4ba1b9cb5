"""Heartbeat budget: limits how often captures are asked, and for full answers, over all changefeeds of an owner.

Captures report changes by themselves; heartbeats keep them attached to their owner, and full answers repair lost
messages. So neither is urgent, and an owner of many changefeeds sends about ``beats_per_s`` of them, spread over time.
One round asks for ``full_spans_per_round`` spans and a few more, and the rounds of a second for ``full_spans_per_s``,
however many spans there are.
"""

from owner.settings import SchedulerSettings


class HeartbeatBudget:
    """The budget of one round. ``spans``: the total number of spans. ``changefeeds``, ``captures``: each changefeed
    sends heartbeats to each capture."""

    def __init__(self, settings: SchedulerSettings, *, spans: int, changefeeds: int = 1, captures: int = 1) -> None:
        self._settings = settings
        self._spans = spans
        self._room = settings.full_spans_per_round
        #: each capture hears from its owner once in this time at least, from whichever changefeed
        heard_s = changefeeds * settings.heartbeat_s
        pairs = changefeeds * captures
        self._beat_s = min(pairs / settings.beats_per_s, heard_s, settings.beat_max_s)
        self._quiet_s = min(pairs / settings.quiet_beats_per_s, settings.whole_heartbeat_s)

    def beat_s(self, phase: float) -> float:
        """Return the interval of one changefeed's heartbeats to a capture. ``phase``, from 0 to 1, differs from
        changefeed to changefeed, which keeps them from all being due at once."""
        return max(self._settings.heartbeat_s, self._beat_s * (0.5 + phase))

    def quiet_s(self, phase: float) -> float:
        """Return the interval of one changefeed's heartbeats to a capture whose reports are complete."""
        return max(self._settings.heartbeat_s, self._quiet_s * (0.5 + phase))

    def full_s(self, phase: float) -> float:
        """Return the interval of full answers."""
        spread_s = self._spans / self._settings.full_spans_per_s
        return max(self._settings.full_heartbeat_s, spread_s, self.beat_s(phase))

    def take(self, spans: int) -> bool:
        """Return whether a capture may be asked for its ``spans`` in this round."""
        if self._room <= 0:
            return False
        self._room -= spans
        return True
