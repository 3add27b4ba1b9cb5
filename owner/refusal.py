"""Refusal: one table that cannot go on, as whoever finds it out says to who holds it (``owner.held``)."""

from dataclasses import dataclass

from reactor.held import HoldOrigin
from reactor.ids import Ts
from reactor.records import RunningError


@dataclass(frozen=True, slots=True)
class Refusal:
    """A table that cannot go on past ``ts``, and why."""

    table_id: int
    name: str
    ts: Ts
    origin: HoldOrigin
    error: RunningError
