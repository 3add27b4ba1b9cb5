"""Holding: operators' requests to pause a table, to retry it, or to continue it without some changes.

A *paused* table is held (``owner.feed.holds.held``) until an operator resumes it, or copies it again. A table that
*skips* to a Ts leaves out the changes of its rows up to there. The table's record keeps that Ts, so the changes stay
out after crashes and rewinds; the sink's own position continues with the next changes. Schema changes in between are
not left out.
"""

from typing import TYPE_CHECKING

from owner.errors import JobRefusedError
from reactor.errors import ConflictError, Scope
from reactor.ids import Ts
from reactor.records.changefeed import FeedState, RunningError, UnitRecord
from reactor.records.tables.held import HeldTable, HoldOrigin, HoldStage
from reactor.records.tables.table import TableRecord

if TYPE_CHECKING:
    from owner.progress.facts import Facts

#: code of a table that an operator holds
PAUSED = "Paused"


def paused(facts: "Facts", table_id: int, *, wall: float) -> HeldTable:
    """Return the record of a table that is to be held from now on.

    :raises JobRefusedError: it is held by an operator already, or its rows are being copied.
    """
    table, held = _table(facts, table_id), facts.held.get(table_id)
    name = f"{table.schema_name}.{table.name}"
    _refuse_copied(facts, table_id, name)
    if held is not None and held.stage is HoldStage.LOST:
        raise JobRefusedError(f"{name} is not written, its position is lost; `weir table resync` copies it again")
    if held is not None and held.stage is HoldStage.HELD and held.is_paused:
        raise JobRefusedError(f"{name} is paused already; `weir table resume` lets it continue")
    before = f"; it was held before ({held.error.code}: {held.error.message})" if held and not held.is_paused else ""
    text = f"an operator has paused it, `weir table resume -c {facts.info.id} --table {name}` continues it{before}"
    error = RunningError(code=PAUSED, message=text, time=wall, retryable=False, table_id=table_id, scope=Scope.TABLE)
    return HeldTable(
        table_id=table_id,
        name=name,
        ts=held.ts if held else max(facts.status.checkpoint_ts, table.start_ts),
        since=held.since if held else wall,
        error=error,
        origin=HoldOrigin.PAUSE,
    )


def resumed(facts: "Facts", table_id: int, *, wall: float) -> HeldTable:
    """Return the record of a held table that is to be tried at once.

    :raises JobRefusedError: it is not held, or has no position to continue from.
    """
    table, held = _table(facts, table_id), facts.held.get(table_id)
    name = f"{table.schema_name}.{table.name}"
    _refuse_copied(facts, table_id, name)
    if held is None:
        raise JobRefusedError(f"{name} is not held: there is nothing to resume")
    if held.stage is HoldStage.TRIED:
        raise JobRefusedError(f"{name} is tried again already; `weir tables -c {facts.info.id}` shows how far it is")
    if held.stage is HoldStage.LOST:
        raise JobRefusedError(f"{name} has lost its position: `weir table resync` copies it again")
    return held.with_(retry_at=wall, tries=0)


def skipped(facts: "Facts", table_id: int, ts: Ts, *, wall: float) -> HeldTable:
    """Return the record of a held table that is to continue from ``ts``.

    :raises JobRefusedError: it is not held, ``ts`` is not ahead of it, or not in the log, or would not help.
    """
    table, held, head = _table(facts, table_id), facts.held.get(table_id), facts.head
    name = f"{table.schema_name}.{table.name}"
    _refuse_copied(facts, table_id, name)
    if held is None or head is None:
        raise JobRefusedError(f"{name} is not held, and misses no change; `weir table pause` holds it first")
    if ts <= held.ts:
        raise JobRefusedError(f"{name} is at {held.ts}: {ts} leaves out nothing; give a larger Ts")
    if ts > head.resolved_ts:
        raise JobRefusedError(f"the change log reaches up to {head.resolved_ts}, and not to {ts}; give a smaller Ts")
    if ts < head.removed_ts:
        raise JobRefusedError(f"the change log reaches back to {head.removed_ts} only, not to {ts}; give a larger Ts")
    waiting = [record for record in facts.pending_ddl if record.ts <= ts and table_id in record.pending_ids]
    if held.origin is HoldOrigin.SOURCE or any(
        change.table_id == table_id for record in waiting for change in record.holds
    ):
        raise JobRefusedError(f"{name} cannot skip what its source cannot follow ({held.error.message})")
    if waiting and (held.origin is HoldOrigin.SCHEMA or held.stage is HoldStage.LOST):
        raise JobRefusedError(
            f"{name} cannot skip its schema change at {waiting[0].ts}, which the sink lacks; `weir table resync` "
            "copies the table again"
        )
    return held.with_(ts=held.ts if waiting else ts, stage=HoldStage.HELD, retry_at=wall, tries=0)


def leaving_out(unit: UnitRecord | None, table_id: int, ts: Ts) -> UnitRecord:
    """Return the source's record with a table whose rows' changes up to ``ts`` are left out.

    :raises ConflictError: the source's record, or the table in it, is gone.
    """
    if unit is None or all(known.table_id != table_id for known in unit.tables):
        raise ConflictError("the table's record is gone; tick again")
    tables = (known.with_(skipped_ts=ts) if known.table_id == table_id else known for known in unit.tables)
    return unit.with_(tables=tuple(tables))


def _table(facts: "Facts", table_id: int) -> TableRecord:
    """:raises JobRefusedError: there is none, or it will not be written any more."""
    info = facts.info
    if info.state in (FeedState.FINISHED, FeedState.REMOVED):
        raise JobRefusedError(f"changefeed {info.id} is {info.state}: its tables are not written any more")
    table = next((table for table in facts.tables or () if table.table_id == table_id), None)
    if table is None:
        why = f"has no table {table_id}" if facts.tables else "is not replicating yet, its tables are being copied"
        raise JobRefusedError(f"changefeed {info.id} {why}; see `weir tables -c {info.id}`")
    return table


def _refuse_copied(facts: "Facts", table_id: int, name: str) -> None:
    resync = facts.resyncs.get(table_id)
    if table_id in facts.lost or (resync is not None and resync.is_wanted):
        raise JobRefusedError(
            f"{name} is being copied again; wait until it flows, or give that up first (weir table resync --cancel)"
        )
