"""Agenda: decides which changefeeds an owner ticks now: those with news, and those whose time has come.

News is a message, an answer, a job, a changed record, a tick that committed something or failed, or a change of what
all changefeeds share: the captures, the cluster's format. A tick may ask for the next one (``WakeAt``). No changefeed
waits for longer than ``patience_s``, so that timeouts are noticed.

Among many changefeeds, those without news are ticked in common rounds: their heartbeats to one capture then travel
together, and each process wakes a few times per second rather than for every changefeed. One tick takes a limited
number, the longest waiting ones first, so it never occupies the event loop for long.
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
#: interval of the common rounds of many changefeeds
_ROUND_S = 0.5
#: changefeeds in one tick, not counting those with messages
_TICKED_MAX = 10


@dataclass(frozen=True, slots=True)
class _Ticked:
    """``change``: of its records, as its tick at ``at`` has seen them. ``next_at``: when it is ticked without news."""

    at: float
    change: int
    next_at: float


class Agenda:
    """The changefeeds of one owner."""

    def __init__(self) -> None:
        self._ticked: dict[ChangefeedId, _Ticked] = {}
        self._noted: set[ChangefeedId] = set()
        self._shared: object = None
        self._is_behind = False

    def begin(self, changefeeds: Collection[ChangefeedId], shared: object) -> None:
        """Begin a tick. ``shared``: what all changefeeds depend on; if it has changed, all are due."""
        for gone in self._ticked.keys() - changefeeds:
            del self._ticked[gone]
        self._noted.intersection_update(changefeeds)
        if shared != self._shared:
            self._shared = shared
            self._noted.update(changefeeds)

    def note(self, changefeed: ChangefeedId) -> None:
        """There is news that its records do not show."""
        self._noted.add(changefeed)

    def due(
        self, feeds: Iterable[ChangefeedState], now: float, *, with_messages: Collection[ChangefeedId] = ()
    ) -> list[ChangefeedState]:
        """Return those that this tick takes: all with messages, which cannot wait, and of the others those that have
        waited longest."""
        ticked, noted = self._ticked, self._noted
        first: list[ChangefeedState] = []
        others: list[ChangefeedState] = []
        for feed in feeds:  # with no call for those without news, since they are many
            if (id := feed.id) in with_messages:
                first.append(feed)
            elif id in noted or id not in ticked or ticked[id].change != feed.change or now >= ticked[id].next_at:
                others.append(feed)
        room = max(1, _TICKED_MAX - len(first))
        self._is_behind = len(others) > room
        if self._is_behind:
            others.sort(key=lambda feed: self._last_at(feed.id))
        return [*first, *others[:room]]

    def done(self, feed: ChangefeedState, effects: Iterable[Effect], now: float) -> None:
        """A tick has decided ``effects``; after a commit there is another one: it may have been refused."""
        next_at = now + self.patience_s
        self._noted.discard(feed.id)
        for effect in effects:
            match effect:
                case Commit():
                    self._noted.add(feed.id)
                case WakeAt(at):
                    next_at = min(next_at, at)
        self._ticked[feed.id] = _Ticked(now, feed.change, self._in_round(next_at, now))

    def wakes(self, now: float) -> Sequence[WakeAt]:
        """Return when the first changefeed is due without news."""
        if self._is_behind:
            return [WakeAt(now)]
        at = min((last.next_at for id, last in self._ticked.items() if id not in self._noted), default=math.inf)
        return [WakeAt(at)] if at < math.inf else []

    @property
    def patience_s(self) -> float:
        return max(_PATIENCE_S, min(len(self._ticked) / _QUIET_PER_S, _PATIENCE_MAX_S))

    def _last_at(self, changefeed: ChangefeedId) -> float:
        last = self._ticked.get(changefeed)
        return last.at if last else -math.inf

    def _in_round(self, at: float, now: float) -> float:
        """Return ``at``, or among many changefeeds the first common round from then; what is wanted soon is exact."""
        if self.patience_s <= _PATIENCE_S or at <= now + _ROUND_S:
            return at
        return math.ceil(at / _ROUND_S) * _ROUND_S
