"""Balance policy: evens out span counts gradually, so that new captures get their share without an operator."""

from owner.scheduler.tasks import MoveTask
from owner.scheduler.view import View, level


def plan(view: View) -> list[MoveTask]:
    """Return a few moves; none while a capture is leaving or a span is moving, so that plans do not interfere."""
    if view.has_stopping or not view.is_settled or len(view.serving) < 2:
        return []
    return level(view, limit=view.max_tasks)
