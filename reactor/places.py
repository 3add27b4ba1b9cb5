"""Places of spans: a place belongs to one span, or is shared by many that move as one.

A capture and the owner both keep tens of thousands of spans that are nearly all at one position. Those share a
``Here``: to move it moves them all.
"""

from reactor.messages import Place, SpanCheckpoint


class Here:
    """A place that spans share, or that one has for itself. Compared by identity."""

    __slots__ = ("at",)

    def __init__(self, at: Place) -> None:
        self.at = at


class Placed:
    """A span that is somewhere. ``place``: its own, or the one that it shares, which moves."""

    __slots__ = ("place",)

    def __init__(self, at: Place) -> None:
        self.place = Here(at)

    @property
    def checkpoint(self) -> SpanCheckpoint:
        return self.place.at.checkpoint

    @property
    def checkpoint_time(self) -> float:
        return self.place.at.time
