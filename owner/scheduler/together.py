"""Spans together: those of a capture that it reports as one, since they are all at one place.

A capture names each span once, when it joins, and from then on reports one position for all. Spans that only advance
(``plain``) share one place here, too. All ``others`` are being moved or removed, catch up, or are not where the owner
had them: each move of the place counts as a report of their own.

Where the log has nothing behind the place that was reported last, the owner moves them with the log's head itself
(``SpanIndex.follow_log``): that is not reported.

All of this holds only if no message was lost, since it may have said that a span has left: whoever calls this has all
of the capture's messages since a full answer, or ends the group (``owner.scheduler.captures``).
"""

from dataclasses import dataclass, field

from reactor.ids import CaptureId, TableSpan, Ts
from reactor.messages import Place, SpanState, SpanStatus
from reactor.places import Here
from reactor.records.log_head import LogHead


@dataclass(slots=True)
class Group:
    """The spans together of one capture."""

    here: Here
    #: where its capture has reported them last
    reported_ts: Ts
    #: the head that they have followed since that report
    followed: LogHead | None = None
    plain: dict[TableSpan, None] = field(default_factory=dict)
    others: dict[TableSpan, None] = field(default_factory=dict)

    def statuses(self) -> list[SpanStatus]:
        """Return what the capture would report of the others, each by itself."""
        return [SpanStatus(span, SpanState.REPLICATING, *self.here.at) for span in self.others]


class Groups:
    """The groups by capture, and by the place that they share."""

    def __init__(self) -> None:
        self.by_capture: dict[CaptureId, Group] = {}
        self._by_place: dict[Here, Group] = {}

    def of(self, place: Here) -> Group | None:
        """Return the group whose spans share ``place``."""
        return self._by_place.get(place)

    def begin(self, capture: CaptureId, at: Place) -> None:
        here = Here(at)
        self.by_capture[capture] = self._by_place[here] = Group(here, at.checkpoint.checkpoint_ts)

    def end(self, capture: CaptureId) -> None:
        group = self.by_capture.pop(capture, None)
        if group is not None:
            del self._by_place[group.here]
