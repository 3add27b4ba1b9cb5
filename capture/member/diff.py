"""Source and sink compared at one Ts, while changes go on.

    hold where the log is now ─► every span gets there ─► snapshot of the source at L ─► hold at L-1 ─► every span gets
    there ─► compare the tables with the snapshot ─► let go

Compared are the tables that are replicated: one that the filter would let in and that has not come yet is not. Held
tables are shown with their reason: nobody waits for them.

The first hold keeps every span behind L until the second one is in force. A transaction is in the snapshot iff its
commit record starts before L, so the sink holds exactly the same at L-1. A span that slipped past (a flush that was
under way) is seen, and so is a hold that was lost on the way (the changefeed ran anew): then all of it is done again.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import anyio

from capture.api import port as views
from capture.errors import JobRefusedError
from owner import jobs
from reactor.ids import ChangefeedId, Ts
from reactor.records.changefeed import ChangefeedInfo, FeedState, LogHead, TableRecord, UnitRecord

if TYPE_CHECKING:
    from capture.member.services import DataPlane

_ATTEMPTS = 5
_HOLD_S = 600.0
_REACH_TIMEOUT_S = 120.0
_LOOK_S = 0.05


class Operations(Protocol):
    """Where the owner is asked: the part of ``capture.member.cluster_service`` that a comparison needs."""

    async def ask(self, job: jobs.Job) -> Any: ...

    async def query(self, changefeed_id: str) -> views.ChangefeedView: ...

    def unit_of(self, changefeed_id: str) -> UnitRecord | None: ...

    def head_of(self, changefeed_id: str) -> LogHead: ...


async def compare(operations: Operations, data_plane: "DataPlane", info: ChangefeedInfo) -> list[views.TableDiff]:
    """Table by table.

    :raises JobRefusedError: the changefeed is not replicating, or does not get to the Ts in time.
    """
    try:
        for _ in range(_ATTEMPTS):
            waiting = await _held(operations, info.id)
            if waiting and len(waiting) == len(_tables(operations, info.id)):
                return sorted(waiting.values(), key=lambda one: one.table)
            held = await _hold(operations, info.id)
            await _reach(operations, info.id, lambda checkpoint, at=held: checkpoint >= at)  # type: ignore[misc]
            tables = _tables(operations, info.id)
            held_tables = await _held(operations, info.id)
            free = [table for table in tables if table.table_id not in held_tables]
            async with data_plane.comparison(info, free, operations.head_of(info.id)) as snapshot:
                try:
                    await operations.ask(jobs.HoldAt("", info.id, snapshot.ts, _HOLD_S))
                except JobRefusedError:
                    continue
                await _reach(operations, info.id, lambda checkpoint, at=snapshot.ts: checkpoint >= at)  # type: ignore[misc]
                if max(await _checkpoints(operations, info.id), default=Ts(0)) != snapshot.ts:
                    continue
                if _tables(operations, info.id) != tables or await _held(operations, info.id) != held_tables:
                    continue  # a schema has changed on the way, or a table was held or let go
                found = await snapshot.run()
                # what differs only counts if the sink stood still all the time
                if all(one.equal for one in found) or await operations.ask(jobs.Release("", info.id)) == snapshot.ts:
                    return sorted([*found, *held_tables.values()], key=lambda one: one.table)
    finally:
        with anyio.CancelScope(shield=True):
            await operations.ask(jobs.Release("", info.id))
    raise JobRefusedError(f"{info.id} could not be held at one position; try again when fewer changes are under way")


def _tables(operations: Operations, changefeed: ChangefeedId) -> tuple[TableRecord, ...]:
    """Those that are replicated, whatever else the filter would let in."""
    unit = operations.unit_of(changefeed)
    return tuple(sorted(unit.tables, key=lambda table: (table.schema_name, table.name))) if unit else ()


async def _held(operations: Operations, changefeed: ChangefeedId) -> dict[int, views.TableDiff]:
    """The held tables, as they are shown."""
    view = await operations.query(changefeed)
    return {
        table.table_id: views.TableDiff(table=table.table, equal=False, waiting=table.held.message)
        for table in view.tables
        if table.held is not None
    }


async def _hold(operations: Operations, changefeed: ChangefeedId) -> Ts:
    """Hold where the log is now; a span that is already past it means that the log has moved on: look again."""
    for _ in range(_ATTEMPTS):
        ts = operations.head_of(changefeed).resolved_ts
        try:
            await operations.ask(jobs.HoldAt("", changefeed, ts, _HOLD_S))
        except JobRefusedError:
            await anyio.sleep(_LOOK_S)
            continue
        return ts
    ts = operations.head_of(changefeed).resolved_ts
    await operations.ask(jobs.HoldAt("", changefeed, ts, _HOLD_S))
    return ts


async def _reach(operations: Operations, changefeed: ChangefeedId, is_there: Callable[[Ts], bool]) -> None:
    """Until every span is there."""
    with anyio.move_on_after(_REACH_TIMEOUT_S):
        while True:
            checkpoints = await _checkpoints(operations, changefeed)
            if checkpoints and all(is_there(checkpoint) for checkpoint in checkpoints):
                return
            await anyio.sleep(_LOOK_S)
    view = await operations.query(changefeed)
    raise JobRefusedError(f"{changefeed} does not get on ({view.blocked_by or 'it is behind'}); compare when it has")


async def _checkpoints(operations: Operations, changefeed: ChangefeedId) -> list[Ts]:
    view = await operations.query(changefeed)
    if view.state not in (FeedState.NORMAL, FeedState.WARNING):
        raise JobRefusedError(f"{changefeed} is {view.state}: only a running changefeed can be compared; resume it")
    return [Ts(span.checkpoint_ts) for table in view.tables if table.held is None for span in table.spans]
