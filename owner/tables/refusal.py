"""Refusal: a table that cannot continue, as reported to ``owner.feed.holds.held``."""

from dataclasses import dataclass

from reactor.ids import Ts
from reactor.records.changefeed import RunningError
from reactor.records.tables.held import HoldOrigin


@dataclass(frozen=True, slots=True)
class Refusal:
    """A table that cannot continue past ``ts``, and why."""

    table_id: int
    name: str
    ts: Ts
    origin: HoldOrigin
    error: RunningError
