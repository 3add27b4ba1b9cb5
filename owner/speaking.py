"""Speaking: which captures have heard nothing from an owner for a while.

A capture that hears nothing gives up its work (``capture.member.ownership.owner_watch``), whichever changefeed the
messages are about. Heartbeats of many quiet changefeeds are rare, and all of them may begin at the same time: so one
changefeed after the other speaks for all.
"""

import math
from collections.abc import Iterable

from reactor.effects import Effect, Send, WakeAt
from reactor.ids import CaptureId, ChangefeedId

#: much less than the time after which a capture gives up
SPEAK_S = 1.0


class Speaking:
    """Times at which one owner has spoken to each capture."""

    def __init__(self) -> None:
        self._heard: dict[CaptureId, float] = {}
        #: when each changefeed has spoken for all
        self._spoke: dict[ChangefeedId, float] = {}

    def note(self, effects: Iterable[Effect], now: float) -> None:
        for effect in effects:
            if isinstance(effect, Send):
                self._heard[effect.message.receiver] = now

    def silent(self, captures: Iterable[CaptureId], now: float) -> list[CaptureId]:
        """Return those of ``captures`` that have heard nothing for ``SPEAK_S``: they are to be spoken to now."""
        self._heard = {capture: self._heard.get(capture, now) for capture in captures}
        found = [capture for capture, at in self._heard.items() if now - at >= SPEAK_S]
        self._heard.update(dict.fromkeys(found, now))
        return found

    def speaker(self, changefeeds: Iterable[ChangefeedId], now: float) -> ChangefeedId | None:
        """Return which of ``changefeeds`` speaks now: each has its turn."""
        self._spoke = {id: self._spoke.get(id, -math.inf) for id in changefeeds}
        speaker = min(self._spoke, key=lambda id: (self._spoke[id], id), default=None)
        if speaker is not None:
            self._spoke[speaker] = now
        return speaker

    def wakes(self) -> list[WakeAt]:
        """Return when the next capture will have heard nothing for too long."""
        return [WakeAt(min(self._heard.values()) + SPEAK_S)] if self._heard else []
