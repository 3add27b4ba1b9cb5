"""Rebalance policy: evens out counts in one round, when an operator asks."""

from owner.scheduler.tasks import Burst
from owner.scheduler.view import View, level


def plan(view: View) -> Burst | None:
    """One burst of moves that levels the counts; None while spans are not settled.

    A leaving capture makes it an empty burst, so that the wish is dropped: its spans are moved anyway.
    """
    if view.has_stopping:
        return Burst(())
    if not view.is_settled or not view.serving:
        return None
    return Burst(tuple(level(view, limit=len(view.span_index.sets))))
