"""Planted bugs of an owner that follows the log by itself: it takes spans for further than they are."""

from collections.abc import Callable
from contextlib import ExitStack
from unittest import mock

from owner.scheduler.span_index import SpanIndex
from reactor.ids import CaptureId, Ts
from reactor.messages import SpanStatus
from reactor.records.log_head import LogHead


def follow_a_log_that_has_events(stack: ExitStack) -> None:
    """The owner does not look where the log has its last event."""
    follow = SpanIndex.follow_log

    def planted(self: SpanIndex, head: LogHead) -> list[tuple[CaptureId, list[SpanStatus]]]:
        seqs = dict.fromkeys(("complete_seq", "written_seq"), head.last_seq)
        return follow(self, head.with_(written_ts=Ts(0), **seqs))

    stack.enter_context(mock.patch.object(SpanIndex, "follow_log", planted))


#: name → how to plant it
PLANTED: dict[str, Callable[[ExitStack], None]] = {
    plant.__name__.replace("_", " "): plant for plant in (follow_a_log_that_has_events,)
}
