"""Agenda: decides which changefeeds an owner ticks now: those with news, and those whose time has come.

News is a message, an answer, a job, a changed record, a tick that committed something or failed, or a change of what
all changefeeds share: the captures, the cluster's format. A tick may ask for the next one (``WakeAt``). No changefeed
waits for longer than ``patience_s``, so that timeouts are noticed.

Among many changefeeds, those without news are ticked in common rounds, and so are those whose news is only progress:
one tick takes in the log's new end and how far all captures have got, their heartbeats to one capture travel together,
and each process wakes a few times per second rather than for every changefeed. One tick takes a limited number, the
longest waiting ones first, so it never occupies the event loop for long. It looks at no others.
"""

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush, nsmallest

from reactor.effects import Commit, Effect, WakeAt
from reactor.ids import ChangefeedId

#: more changefeeds than this are many
_MANY = 12
#: the longest time between two ticks of a changefeed without news, of a few and of many; in between, the number that is
#: ticked per second
_PATIENCE_S, _PATIENCE_MAX_S = 0.5, 30.0
_QUIET_PER_S = 5.0
#: interval of the common rounds of many changefeeds
_ROUND_S = 0.5
#: changefeeds in one tick
_TICKED_MAX = 10
#: entries that are void, before all of them are removed
_VOID_MAX = 256


@dataclass(frozen=True, slots=True)
class _Ticked:
    """``at``: when it was ticked; ``next_at``: when it is ticked without news."""

    at: float
    next_at: float


class Agenda:
    """The changefeeds of one owner."""

    def __init__(self) -> None:
        self._ticked: dict[ChangefeedId, _Ticked] = {}
        #: those with news, or whose time has come
        self._noted: set[ChangefeedId] = set()
        #: those with news that waits for the round at this time
        self._waiting: set[ChangefeedId] = set()
        self._round_at = -math.inf
        #: when each is ticked without news; an entry that is not the last of its changefeed is void
        self._times: list[tuple[float, ChangefeedId]] = []
        self._shared: object = None
        self._is_behind = False

    def begin(self, changefeeds: Iterable[ChangefeedId], shared: object) -> None:
        """Begin a tick. ``shared``: what all ``changefeeds`` depend on; if it has changed, all are due."""
        if shared != self._shared:
            self._shared = shared
            self._noted.update(changefeeds)

    def note(self, changefeed: ChangefeedId, *, is_urgent: bool = True, is_own: bool = False) -> None:
        """There is news of it, or it is new. If there are many, what is not urgent waits for a common round, and what
        it has written of its own progress for other news."""
        if is_urgent or not self._are_many:
            self._noted.add(changefeed)
        elif not is_own:
            self._waiting.add(changefeed)

    def forget(self, changefeed: ChangefeedId) -> None:
        """It is not owned here any more."""
        self._ticked.pop(changefeed, None)
        self._noted.discard(changefeed)
        self._waiting.discard(changefeed)

    def due(self, now: float, *, without: Collection[ChangefeedId] = ()) -> list[ChangefeedId]:
        """Return those that this tick takes: at most so many, the longest waiting ones. ``without``: none of these."""
        while self._times and self._times[0][0] <= now:
            at, changefeed = heappop(self._times)
            if self._is_valid(at, changefeed):
                self._noted.add(changefeed)
        if self._waiting and now >= self._round_at:
            self._noted |= self._waiting
            self._waiting.clear()
            self._round_at = (math.floor(now / _ROUND_S) + 1) * _ROUND_S
        found = sorted(self._noted.difference(without))
        self._is_behind = len(found) > _TICKED_MAX
        return nsmallest(_TICKED_MAX, found, key=self._last_at) if self._is_behind else found

    def done(self, changefeed: ChangefeedId, effects: Iterable[Effect], now: float) -> None:
        """A tick has decided ``effects``; after a commit there is another one: it may have been refused."""
        next_at = now + self.patience_s
        self._noted.discard(changefeed)
        self._waiting.discard(changefeed)
        for effect in effects:
            match effect:
                case Commit():
                    self._noted.add(changefeed)
                case WakeAt(at):
                    next_at = min(next_at, at)
        next_at = self._in_round(next_at, now)
        self._ticked[changefeed] = _Ticked(now, next_at)
        heappush(self._times, (next_at, changefeed))
        if len(self._times) > _VOID_MAX + 2 * len(self._ticked):
            self._times = [(known.next_at, id) for id, known in self._ticked.items()]
            heapify(self._times)

    def wakes(self, now: float) -> Sequence[WakeAt]:
        """Return when the first changefeed is due without news."""
        if self._is_behind:
            return [WakeAt(now)]
        while self._times and not self._is_valid(*self._times[0]):
            heappop(self._times)
        at = min(self._times[0][0] if self._times else math.inf, self._round_at if self._waiting else math.inf)
        return [WakeAt(at)] if at < math.inf else []

    def validate(self, changefeeds: Collection[ChangefeedId]) -> None:
        """Assert that each of the owner's ``changefeeds`` will be ticked."""
        timed = {id for at, id in self._times if self._is_valid(at, id)}
        assert set(changefeeds) <= timed | self._noted, "a changefeed would never be ticked again"

    @property
    def patience_s(self) -> float:
        many_s = min(len(self._ticked) / _QUIET_PER_S, _PATIENCE_MAX_S)
        return max(many_s, _PATIENCE_S) if self._are_many else _PATIENCE_S

    @property
    def _are_many(self) -> bool:
        return len(self._ticked) > _MANY

    def _is_valid(self, at: float, changefeed: ChangefeedId) -> bool:
        """Return whether ``at`` is when it is ticked without news; with news it is ticked before, and gets another."""
        last = self._ticked.get(changefeed)
        return last is not None and last.next_at == at and changefeed not in self._noted

    def _last_at(self, changefeed: ChangefeedId) -> float:
        last = self._ticked.get(changefeed)
        return last.at if last else -math.inf

    def _in_round(self, at: float, now: float) -> float:
        """Return ``at``, or among many changefeeds the first common round from then; what is wanted soon is exact."""
        if not self._are_many or at <= now + _ROUND_S:
            return at
        return math.ceil(at / _ROUND_S) * _ROUND_S
