"""Subscription: a named position in the change log of one table, which holds the log until it expires."""

from collections.abc import Iterable

from reactor.ids import MAX_TS, Ts
from reactor.records.base import Record, StoredTs, TableId


class Subscription(Record):
    """Written by the owner's capture when its reader asks. ``table``: schema.name as it was at the last request.
    ``ts``: the reader has every change up to it. ``session``: of the one reader that may use it. ``expires_at``: Unix
    seconds, ``expires_seconds`` after the reader's last request.
    """

    name: str
    table_id: TableId
    table: str
    ts: StoredTs
    session: str
    expires_seconds: float
    expires_at: float


def needed_ts(subscriptions: Iterable[Subscription], now: float) -> Ts:
    """Return the Ts that every reader has passed; the largest Ts without readers. ``now``: Unix seconds."""
    return min((item.ts for item in subscriptions if item.expires_at > now), default=MAX_TS)
