"""Spans together: those of a processor that are all at one place, and how they are reported to the owner.

After a flush nearly all spans are at its target (``agent.control.positions``). They share one place here, too, and the
report says that it has moved, not where each of tens of thousands of spans is. A span is named once when it has joined,
and reported with its own status when it has left.
"""

from agent.control import effects
from agent.control.table_span import LocalSpan
from reactor.ids import TableSpan, Ts
from reactor.messages import Place, SpanCheckpoint, SpanState
from reactor.places import Here


class SpansTogether:
    """``place``: where all of ``spans`` are."""

    def __init__(self) -> None:
        self.spans: dict[TableSpan, LocalSpan] = {}
        #: of them, those that the owner does not take for such
        self.unnamed: dict[TableSpan, None] = {}
        #: the place is not the one that was reported, and the owner does not know it
        self.is_moved = False
        self._here = Here(Place(SpanCheckpoint(Ts(0), Ts(0))))
        #: are together with them in the flusher, and not yet here: their own place is ahead, or they do not run yet
        self._awaited: dict[TableSpan, None] = {}

    @property
    def place(self) -> Place:
        return self._here.at

    def move(self, to: Place) -> None:
        """Move the place, which goes back only if nobody is there."""
        before = self._here.at
        after = Place(to.checkpoint, to.time or before.time)
        if after == before or (self.spans and to.checkpoint < before.checkpoint):
            return
        self._here.at, self.is_moved = after, True

    def follow(self, to: Place) -> None:
        """Move the place to one that the owner knows without a report."""
        assert not (self.spans and to.checkpoint < self.place.checkpoint), "the place goes back"
        self._here.at = to

    def join(self, span: LocalSpan) -> bool:
        """Let a span join that has arrived; return whether it has advanced by itself."""
        at = self.place
        if span.span in self.spans:
            return False
        has_advanced = span.advance(effects.SpanProgress(span.span, *at))
        if span.state is SpanState.REPLICATING and span.checkpoint == at.checkpoint:
            span.place = self._here
            self.spans[span.span] = span
            self.unnamed[span.span] = None
            self._awaited.pop(span.span, None)
            return False
        self._awaited[span.span] = None
        return has_advanced

    def leave(self, at: TableSpan) -> bool:
        """Let a span have its own place, which is the same for now; return whether it was together with the others."""
        self._awaited.pop(at, None)
        return self.part(at)

    def part(self, at: TableSpan) -> bool:
        """Like ``leave``, but it joins again when the others have arrived where it is."""
        span = self.spans.pop(at, None)
        if span is None:
            return False
        self.unnamed.pop(at, None)
        if span.place is self._here:
            span.place = Here(self.place)
        return True

    def awaited(self) -> list[TableSpan]:
        return list(self._awaited)

    def note(self, span: LocalSpan) -> None:
        """After an event of its own: a span that has another place, or runs no more, is not with the others."""
        if span.place is self._here and span.state is SpanState.REPLICATING:
            return
        if self.part(span.span) and span.state is SpanState.REPLICATING:
            self._awaited[span.span] = None
        if span.is_gone:
            self._awaited.pop(span.span, None)

    def validate(self) -> None:
        """Assert the invariants between two messages."""
        for at, span in self.spans.items():
            assert span.place is self._here, f"{at} is not where the others are"
            assert span.state is SpanState.REPLICATING, f"{at} is {span.state}, and together with others"
            assert at not in self._awaited, f"{at} is awaited, and there"
        assert self.unnamed.keys() <= self.spans.keys(), "others are to be reported"
