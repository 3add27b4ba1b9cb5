"""Lobby: limits number and time of unauthenticated connections.

If there are too many, the oldest one of the address with the most connections is closed: captures, which greet at once,
are authenticated before that.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import anyio
from anyio.abc import ByteStream, SocketAttribute


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


def host_of(stream: ByteStream) -> str:
    """Return a connection's remote host; empty if unknown."""
    address = stream.extra(SocketAttribute.remote_address, None)
    return str(address[0]) if isinstance(address, tuple) else ""
