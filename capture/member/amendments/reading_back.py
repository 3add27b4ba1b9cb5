"""Reading back: a table that is held for a left-out value gets the source's rows that its sink lacks.

    snapshot of the source at P ─► the log reaches P ─► rows of left-out updates are written ─► the table is tried again

The table stays held meanwhile. If it is tried, and moves, the sink refuses the rows (``agent.feeds.read_back``).
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

import anyio

from agent.feeds.read_back import HeldLog
from capture.errors import JobRefusedError
from capture.member import services
from owner import jobs
from owner.progress.units import SOURCE
from owner.scheduler.spans import even_spans
from reactor.ids import Ts
from reactor.records.changefeed import ChangefeedInfo, SinkMode, UnitRecord
from reactor.records.log_head import LogHead
from reactor.records.tables.held import HeldTable
from reactor.records.tables.partitioning import TablePartitioning

if TYPE_CHECKING:
    from capture.member.services import DataPlane

_LOOK_S = 0.05
#: for the log to reach the snapshot
_REACH_TIMEOUT_S = 60.0


class OwnerQueries(Protocol):
    """Access to the owner: the part of ``capture.member.cluster_service`` that this needs."""

    async def ask(self, job: jobs.Job) -> Any: ...

    def unit_of(self, changefeed_id: str) -> UnitRecord | None: ...

    def cuts_of(self, changefeed_id: str) -> Mapping[int, TablePartitioning]: ...

    def head_of(self, changefeed_id: str) -> LogHead: ...


async def read_back(operations: OwnerQueries, data_plane: "DataPlane", info: ChangefeedInfo, held: HeldTable) -> int:
    """Write the rows, and have the table tried again; return how many, 0 if that does not help.

    :raises JobRefusedError: the log does not reach the source's position in time, or the table is not held any more.
    :raises WeirError: source, log or sink cannot be read or written.
    """
    cuts, unit = operations.cuts_of(info.id), operations.unit_of(info.id)
    table = next((table for table in unit.tables if table.table_id == held.table_id), None) if unit else None
    if table is None or not table.key or info.sink_mode is not SinkMode.UPSERT:
        return 0
    spans = even_spans(table.table_id, cuts[table.table_id].spans if table.table_id in cuts else 1)
    async with data_plane.comparison(info, (table,), operations.head_of(info.id)) as snapshot:
        head = await _reached(operations, info, snapshot.ts)
        found = await data_plane.read_log(info, SOURCE, services.LogRead(head, held.ts, snapshot.ts))
        segments = tuple(item for item in found if table.table_id in item.tables)
        rows = await snapshot.read_back(table, spans, HeldLog(held.ts, snapshot.ts, segments))
    if rows:
        await operations.ask(jobs.ResumeTable("", info.id, table.table_id))
    return rows


async def _reached(operations: OwnerQueries, info: ChangefeedInfo, ts: Ts) -> LogHead:
    with anyio.move_on_after(_REACH_TIMEOUT_S):
        while True:
            head = operations.head_of(info.id)
            if head.resolved_ts >= ts:
                return head
            await anyio.sleep(_LOOK_S)
    raise JobRefusedError(f"the log of changefeed {info.id} has not reached {ts} in {_REACH_TIMEOUT_S:.0f} s")
