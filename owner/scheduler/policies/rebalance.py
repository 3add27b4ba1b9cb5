"""Rebalance policy: evens out span counts in one round, when an operator requests it."""

from owner.scheduler.tasks import Burst
from owner.scheduler.view import View, level


def plan(view: View) -> Burst | None:
    """Return one burst of moves that levels the counts; None while spans are not settled.

    While a capture is leaving the burst is empty, so the request is dropped: its spans are moved anyway.
    """
    if view.has_stopping:
        return Burst(())
    if not view.is_settled or not view.serving:
        return None
    return Burst(tuple(level(view, limit=len(view.span_index.sets))))
