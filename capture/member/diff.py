"""Diff of a running changefeed: compares source and sink at one Ts, while changes continue.

    hold where the log is now ─► every span gets there ─► snapshot of the source at L ─► hold at L-1 ─► every span gets
    there ─► compare the tables with the snapshot ─► let go

Compared are the tables that are replicated: one that the filter would let in and that has not come yet is not. Tables
that are held, or that do not come to the Ts (``capture.member.arrival``), are shown with their reason; the others are
compared all the same.

The first hold keeps every span behind L until the second one is in force. A transaction is in the snapshot iff its
commit record starts before L, so the sink holds exactly the same at L-1. A span that slipped past (a flush that was
under way) is seen, and so is a hold that was lost on the way (the changefeed ran again): then all of it is done again.
"""

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import anyio

from capture.api import port as views
from capture.errors import JobRefusedError
from capture.member import arrival
from owner import jobs
from owner.progress.units import tables_of
from reactor.ids import ChangefeedId, Ts
from reactor.records.changefeed import ChangefeedInfo, LogHead, TableRecord, UnitRecord
from reactor.views import ChangefeedView

if TYPE_CHECKING:
    from capture.member.services import Comparison, DataPlane

_ATTEMPTS = 5
_HOLD_S = 600.0

Waiting = dict[int, views.TableDiff]


class OwnerQueries(Protocol):
    """Where the owner is asked: the part of ``capture.member.cluster_service`` that a comparison needs."""

    async def ask(self, job: jobs.Job) -> Any: ...

    async def query(self, changefeed_id: str) -> ChangefeedView: ...

    def unit_of(self, changefeed_id: str) -> UnitRecord | None: ...

    def head_of(self, changefeed_id: str) -> LogHead: ...


async def compare(operations: OwnerQueries, data_plane: "DataPlane", info: ChangefeedInfo) -> list[views.TableDiff]:
    """Table by table.

    :raises JobRefusedError: the changefeed is not replicating, or its tables are not known in time.
    """
    waiting: Waiting = {}
    try:
        await _begin(operations, info)
        for _ in range(_ATTEMPTS):
            found = await _attempt(operations, data_plane, info, waiting)
            if found is not None:
                return sorted([*found, *waiting.values()], key=lambda one: one.table)
    finally:
        with anyio.CancelScope(shield=True):
            await operations.ask(jobs.Release("", info.id))
    raise JobRefusedError(f"{info.id} could not be held at one position; try again when fewer changes are under way")


async def _attempt(
    operations: OwnerQueries, data_plane: "DataPlane", info: ChangefeedInfo, waiting: Waiting
) -> Sequence[views.TableDiff] | None:
    """The tables that could be compared; None: they were not at one Ts. ``waiting`` gets those that do not come."""
    waiting.update(await _held(operations, info.id))
    if not _ids(_tables(operations, info.id)) - waiting.keys():
        return []
    held_ts = await _hold(operations, info.id)
    waiting |= await arrival.reach(operations, info.id, held_ts, _ids(_tables(operations, info.id)) - waiting.keys())
    tables = _without(_tables(operations, info.id), waiting)
    if not tables:
        return []
    async with data_plane.comparison(info, tables, operations.head_of(info.id)) as snapshot:
        try:
            await operations.ask(jobs.HoldAt("", info.id, snapshot.ts, _HOLD_S))
        except JobRefusedError:
            return None
        waiting |= await arrival.reach(operations, info.id, snapshot.ts, _ids(tables))
        tables = _without(tables, waiting)
        if not await _stand_at(operations, info.id, snapshot.ts, _ids(tables)):
            return None
        if _without(_tables(operations, info.id), waiting) != tables:
            return None  # a schema has changed on the way
        return await _read(operations, info.id, snapshot, tables)


async def _read(
    operations: OwnerQueries, changefeed: ChangefeedId, snapshot: "Comparison", tables: Sequence[TableRecord]
) -> list[views.TableDiff] | None:
    """What differs only counts if the sink did not move all the time."""
    if not tables:
        return []
    found = await snapshot.run(_ids(tables))
    if all(one.equal for one in found):
        return found
    return found if await operations.ask(jobs.Release("", changefeed)) == snapshot.ts else None


async def _begin(operations: OwnerQueries, info: ChangefeedInfo) -> None:
    """Until the tables are in the sink; there may be none."""
    with anyio.move_on_after(arrival.REACH_TIMEOUT_S):
        while True:
            await arrival.running(operations, info.id)
            if tables_of(info.mode, operations.unit_of(info.id)) is not None:
                return
            await anyio.sleep(arrival.LOOK_S)
    view = await operations.query(info.id)
    raise JobRefusedError(f"{info.id} does not follow its source yet ({view.blocked_by}); compare when it does")


def _tables(operations: OwnerQueries, changefeed: ChangefeedId) -> tuple[TableRecord, ...]:
    """Those that are replicated, whatever else the filter would let in."""
    unit = operations.unit_of(changefeed)
    return tuple(sorted(unit.tables, key=lambda table: (table.schema_name, table.name))) if unit else ()


def _ids(tables: Sequence[TableRecord]) -> frozenset[int]:
    return frozenset(table.table_id for table in tables)


def _without(tables: Sequence[TableRecord], waiting: Collection[int]) -> tuple[TableRecord, ...]:
    return tuple(table for table in tables if table.table_id not in waiting)


async def _held(operations: OwnerQueries, changefeed: ChangefeedId) -> Waiting:
    """The held tables, as they are shown."""
    view = await operations.query(changefeed)
    return {table.table_id: arrival.shown(table, view, 0) for table in view.tables if table.held is not None}


async def _hold(operations: OwnerQueries, changefeed: ChangefeedId) -> Ts:
    """Hold where the log is now; a span that is already past it means that the log has moved on: look again."""
    for _ in range(_ATTEMPTS):
        ts = operations.head_of(changefeed).resolved_ts
        try:
            await operations.ask(jobs.HoldAt("", changefeed, ts, _HOLD_S))
        except JobRefusedError:
            await anyio.sleep(arrival.LOOK_S)
            continue
        return ts
    ts = operations.head_of(changefeed).resolved_ts
    await operations.ask(jobs.HoldAt("", changefeed, ts, _HOLD_S))
    return ts


async def _stand_at(operations: OwnerQueries, changefeed: ChangefeedId, ts: Ts, ids: Collection[int]) -> bool:
    """Each of the tables flows, and each of its spans is exactly at ``ts``."""
    view = await arrival.running(operations, changefeed)
    flowing = {table.table_id: table.spans for table in view.tables if table.held is None and table.spans}
    return all(id in flowing and all(span.checkpoint_ts == ts for span in flowing[id]) for id in ids)
