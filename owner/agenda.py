"""Agenda: decides which changefeeds an owner ticks now: those with news, and those whose time has come.

News is a message, an answer, a job, a changed record, a tick that committed something or failed, or a change of what
all changefeeds share: the captures, the cluster's format. A tick may ask for the next one (``WakeAt``). No changefeed
waits for longer than ``patience_s``, so that timeouts are noticed.
"""

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from reactor.effects import Commit, Effect, WakeAt
from reactor.ids import ChangefeedId
from reactor.state import ChangefeedState

#: the longest time between two ticks of a changefeed without news, of a few and of many; in between, the number that is
#: ticked per second
_PATIENCE_S, _PATIENCE_MAX_S = 0.5, 5.0
_QUIET_PER_S = 25.0


@dataclass(frozen=True, slots=True)
class _Ticked:
    """``change``: of its records, as its last tick has seen them. ``next_at``: when it is ticked without news."""

    change: int
    next_at: float


class Agenda:
    """The changefeeds of one owner."""

    def __init__(self) -> None:
        self._ticked: dict[ChangefeedId, _Ticked] = {}
        self._shared: object = None

    def begin(self, changefeeds: Collection[ChangefeedId], shared: object) -> None:
        """Begin a tick. ``shared``: what all changefeeds depend on; if it has changed, all are due."""
        if shared != self._shared:
            self._shared = shared
            self._ticked.clear()
        for gone in self._ticked.keys() - changefeeds:
            del self._ticked[gone]

    def note(self, changefeed: ChangefeedId) -> None:
        """There is news that its records do not show."""
        self._ticked.pop(changefeed, None)

    def is_due(self, feed: ChangefeedState, now: float) -> bool:
        last = self._ticked.get(feed.id)
        return last is None or last.change != feed.change or now >= last.next_at

    def done(self, feed: ChangefeedState, effects: Iterable[Effect], now: float) -> None:
        """A tick has decided ``effects``; after a commit there is another one: it may have been refused."""
        next_at = now + self.patience_s
        for effect in effects:
            match effect:
                case Commit():
                    self.note(feed.id)
                    return
                case WakeAt(at):
                    next_at = min(next_at, at)
        self._ticked[feed.id] = _Ticked(feed.change, next_at)

    def wakes(self) -> Sequence[WakeAt]:
        """Return when the first changefeed is due without news."""
        at = min((last.next_at for last in self._ticked.values()), default=math.inf)
        return [WakeAt(at)] if at < math.inf else []

    @property
    def patience_s(self) -> float:
        return max(_PATIENCE_S, min(len(self._ticked) / _QUIET_PER_S, _PATIENCE_MAX_S))
