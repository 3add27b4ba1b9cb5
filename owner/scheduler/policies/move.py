"""Move policy: moves a span to the capture that an operator requests."""

from collections.abc import Mapping

from owner.scheduler.replication import SetState
from owner.scheduler.tasks import MoveTask
from owner.scheduler.view import View
from reactor.ids import CaptureId, TableSpan


def plan(view: View, wishes: Mapping[TableSpan, CaptureId]) -> list[MoveTask]:
    """Return the moves that can start now."""
    return [MoveTask(span, wishes[span]) for span in sorted(wishes) if _can_start(view, span, wishes[span])]


def settle(view: View, wishes: dict[TableSpan, CaptureId]) -> None:
    """Drop requests that are fulfilled or impossible: an unknown span, or a capture that does not serve."""
    for span, capture in list(wishes.items()):
        replication = view.span_index.sets.get(span)
        if replication is None or capture not in view.serving or replication.primary == capture:
            del wishes[span]


def _can_start(view: View, span: TableSpan, capture: CaptureId) -> bool:
    replication = view.span_index.sets.get(span)
    return replication is not None and replication.state is SetState.REPLICATING and capture in view.serving
