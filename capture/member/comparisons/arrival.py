"""Arrival: waits until a changefeed's tables have reached a Ts, and names those that do not.

A table without progress is not waited for any longer after a while: sooner if the owner knows the cause, later if its
flush may just be slow. Held tables are never waited for.
"""

from collections.abc import Collection
from typing import Protocol

import anyio

from capture.api import port as views
from capture.errors import JobRefusedError
from reactor.ids import ChangefeedId, Ts
from reactor.records.changefeed import FeedState
from reactor.views import ChangefeedView, TableView

LOOK_S = 0.05
#: between two looks at every table: there may be thousands
_EVERY_TABLE_S = 1.0
#: maximum time without progress, of a table with a known cause
STUCK_S = 20.0
#: maximum time without progress, of a table that may only be slow
SLOW_S = 40.0
#: maximum total time
REACH_TIMEOUT_S = 120.0


class PendingError(JobRefusedError):
    """The changefeed is pending: it continues by itself."""

    code = JobRefusedError.code


class Queries(Protocol):
    async def query(self, changefeed_id: str, *, tables: bool = True) -> ChangefeedView: ...


class Progress:
    """Since when each table is at its position."""

    def __init__(self) -> None:
        self._last: dict[int, tuple[tuple[int, ...], float]] = {}

    def is_stuck(self, table: TableView, now: float) -> bool:
        at = tuple(span.checkpoint_ts for span in table.spans)
        known = self._last.get(table.table_id)
        if known is None or known[0] != at:
            self._last[table.table_id] = at, now
            return False
        return now - known[1] >= (STUCK_S if table.waiting_for else SLOW_S)


async def reach(queries: Queries, changefeed: ChangefeedId, ts: Ts, ids: Collection[int]) -> dict[int, views.TableDiff]:
    """Wait until every table is at ``ts`` or further; return those that do not get there, as results of a comparison.

    :raises JobRefusedError: the changefeed is not running.
    """
    started, progress = anyio.current_time(), Progress()
    look_at = started
    while True:
        view = await running(queries, changefeed, tables=False)
        now = anyio.current_time()
        if view.checkpoint_ts < ts and now < look_at:
            await anyio.sleep(LOOK_S)
            continue
        view = await running(queries, changefeed)
        now = anyio.current_time()
        look_at = now + _EVERY_TABLE_S
        waiting = [table for table in view.tables if table.table_id in ids and not _is_there(table, ts)]
        stuck = [progress.is_stuck(table, now) for table in waiting if table.held is None]
        if all(stuck) or now - started >= REACH_TIMEOUT_S:
            return {table.table_id: shown(table, view, ts) for table in waiting}
        await anyio.sleep(LOOK_S)


async def running(queries: Queries, changefeed: ChangefeedId, *, tables: bool = True) -> ChangefeedView:
    """:raises PendingError: the changefeed does not run now.
    :raises JobRefusedError: it does not run until it is resumed.
    """
    view = await queries.query(changefeed, tables=tables)
    why = f" ({view.error.message})" if view.error else ""
    if view.state is FeedState.PENDING:
        raise PendingError(f"{changefeed} is pending, and tries again by itself{why}; compare when it runs")
    if view.state not in (FeedState.NORMAL, FeedState.WARNING):
        raise JobRefusedError(
            f"{changefeed} is {view.state}{why}: only a running changefeed can be compared; resume it"
        )
    return view


def shown(table: TableView, view: ChangefeedView, ts: int) -> views.TableDiff:
    """Return a waiting table with its reason."""
    at = min((span.checkpoint_ts for span in table.spans), default=0)
    why = table.held.message if table.held else table.waiting_for or view.blocked_by or "it is behind"
    where = "" if table.held else f"at {at}, not yet at {ts}: "
    return views.TableDiff(table=table.table, equal=False, waiting=f"{where}{why}")


def _is_there(table: TableView, ts: Ts) -> bool:
    return table.held is None and bool(table.spans) and all(span.checkpoint_ts >= ts for span in table.spans)
