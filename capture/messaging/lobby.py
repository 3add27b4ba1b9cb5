"""Lobby: limits number and time of unauthenticated connections, and logs each refused attempt once.

If there are too many, the oldest one of the address with the most connections is closed: captures, which greet at once,
are authenticated before that.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import anyio
import structlog
from anyio.abc import ByteStream, SocketAttribute

from capture.messaging.frames import Reason

#: interval after which a repeated attempt is logged again
_AGAIN_S = 60.0
#: how many attempts are tracked individually, and the maximum lines per interval
_KNOWN_MAX, _LINES_MAX = 1_000, 100

_log = structlog.get_logger()


@dataclass(slots=True, eq=False)
class Place:
    """One connection in the lobby."""

    host: str
    scope: anyio.CancelScope
    is_evicted: bool = False


class Lobby:
    """``places`` for connections, each for ``seconds``."""

    def __init__(self, *, places: int, seconds: float) -> None:
        self._places = places
        self._seconds = seconds
        self._taken: OrderedDict[int, Place] = OrderedDict()

    @contextmanager
    def enter(self, host: str) -> Iterator[Place]:
        """Run the block in the place's ``scope``, which is cancelled when the time is over or the place is needed."""
        if len(self._taken) >= self._places:
            self._make_room()
        place = Place(host, anyio.CancelScope(deadline=anyio.current_time() + self._seconds))
        self._taken[id(place)] = place
        try:
            yield place
        finally:
            self._taken.pop(id(place), None)

    def _make_room(self) -> None:
        crowded, _ = Counter(place.host for place in self._taken.values()).most_common(1)[0]
        number, oldest = next((number, place) for number, place in self._taken.items() if place.host == crowded)
        del self._taken[number]
        oldest.is_evicted = True
        oldest.scope.cancel()


class Refusals:
    """Logs refused connections: each attempt (address, name, reason) once, and again at intervals.

    Names are chosen by the other side, so the number of lines is limited too; the rest is counted.
    """

    def __init__(self) -> None:
        self.count = 0
        self._seen: OrderedDict[tuple[str, str, str], float] = OrderedDict()
        self._began, self._lines, self._unsaid = -_AGAIN_S, 0, 0

    def note(self, reason: Reason, cause: str, *, host: str, sender: str = "") -> None:
        self.count += 1
        attempt, now = (host, sender[:64], cause[:200]), anyio.current_time()
        if now - self._began >= _AGAIN_S:
            self._began, self._lines = now, 0
        if now - self._seen.get(attempt, -_AGAIN_S) < _AGAIN_S or self._lines >= _LINES_MAX:
            self._unsaid += 1
            return
        self._seen[attempt] = now
        self._seen.move_to_end(attempt)
        if len(self._seen) > _KNOWN_MAX:
            self._seen.popitem(last=False)
        shown = {"sender": attempt[1]} if sender else {}
        more = {"unsaid": self._unsaid} if self._unsaid else {}
        _log.warning("connection refused", reason=reason.name.lower(), cause=attempt[2], host=host, **shown, **more)
        self._lines, self._unsaid = self._lines + 1, 0


def host_of(stream: ByteStream) -> str:
    """Return a connection's remote host; empty if unknown."""
    address = stream.extra(SocketAttribute.remote_address, None)
    return str(address[0]) if isinstance(address, tuple) else ""
