"""Drain policy: moves a leaving capture's spans to the others."""

from owner.scheduler.captures import CaptureStatus
from owner.scheduler.tasks import MoveTask
from owner.scheduler.view import View, least_loaded
from reactor.ids import CaptureId


def pick_target(view: View) -> CaptureId | None:
    """Return a stopping capture that has spans. The owner's capture is skipped: it resigns, and its successor drains
    it."""
    stopping = {id for id, status in view.captures.items() if status is CaptureStatus.STOPPING and id != view.owner}
    return min((capture for capture in stopping if view.span_index.held_by(capture)), default=None)


def plan(view: View, target: CaptureId) -> list[MoveTask]:
    """Return a few moves away from ``target``, each to the least loaded capture; none before every span is settled."""
    loads = view.loads()
    loads.pop(target, None)
    if not loads or not view.is_settled:
        return []
    tasks = []
    for span in view.span_index.written_by(target)[: view.max_tasks]:
        capture = least_loaded(loads)
        loads[capture] += 1
        tasks.append(MoveTask(span, capture))
    return tasks
