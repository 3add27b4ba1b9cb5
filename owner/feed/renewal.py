"""Renewal: a changefeed whose position is lost takes a new one, and has each of its tables copied again in place.

    position lost ──operator, or on-lost-position──► needs one ──sync unit──► has one ──a table at a time──► as before
                                                     (lost_ts: largest)       (lost_ts: where it begins)

All of it is in the unit's record (``UnitRecord.lost_ts``): tables that start below that Ts are *lost*. Nobody writes
them, so readers see them as they were; when the new position is there they are noted as held
(``owner.feed.holds.held``) and copied again as if somebody had asked for each (``owner.tables.resync``). The sync unit
takes the position (``agent.units.renewal``), so whatever is in the way is an error of that unit, and is tried again as
such.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from owner.errors import JobRefusedError
from owner.feed import retention
from owner.feed.clean_up import CleanUp
from owner.progress.units import SEQUENCES, SOURCE
from reactor import keys, patches
from reactor.errors import ConflictError, Scope
from reactor.ids import MAX_TS, Ts
from reactor.records.changefeed import CopyLimit, FeedState, RunningError, Unit, UnitRecord
from reactor.records.tables.held import HeldTable, HoldOrigin, HoldStage
from reactor.records.tables.resync import TableResync
from reactor.records.tables.table import TableRecord

if TYPE_CHECKING:
    from owner.progress.facts import Facts

#: code of a table, or a changefeed, whose log is gone
POSITION_LOST = "PositionLost"
#: code of a changefeed that takes a new position by itself
RENEWAL = "PositionRenewed"
#: code of a table that came with rows
COPY = "CameWithRows"
_LOST = frozenset({POSITION_LOST, "SnapshotLostByGC", retention.GC_TTL_EXCEEDED})
_ASKED_IN = frozenset({FeedState.STOPPED, FeedState.FAILED})


def asked(facts: "Facts", clean_up: CleanUp, *, cluster: str) -> tuple[patches.Patch, ...]:
    """What an operator's wish writes; nothing where a snapshot is still to come, which has a position of its own.

    :raises JobRefusedError: its state or its mode does not allow it, or what it had is still being released.
    """
    info = facts.info
    if info.state not in _ASKED_IN:
        raise JobRefusedError(f"changefeed {info.id} is {info.state}: pause it first, then resume it with --resync")
    if info.target_ts is not None:
        raise JobRefusedError(
            f"changefeed {info.id} ends at target {info.target_ts}, and copies of its tables would be of a later Ts; "
            "remove the target first (changefeed update --target-ts 0)"
        )
    if Unit.SYNC not in SEQUENCES[info.mode]:
        raise JobRefusedError(f"changefeed {info.id} follows no log in mode {info.mode}: it has no position to lose")
    if retention.is_released(info):
        if not clean_up.is_done:
            why = f" ({clean_up.error})" if clean_up.error else ""
            raise JobRefusedError(f"the slot of changefeed {info.id} is still being released{why}; try again soon")
        clean_up.begin_again()
    return _needed(facts, cluster)


def cured(
    facts: "Facts", errors: list[RunningError], *, cluster: str
) -> tuple[list[RunningError], tuple[patches.Patch, ...]]:
    """The errors that are left when a changefeed takes a new position by itself, and what that writes."""
    lost = next((error for error in errors if is_wanted(facts, error)), None)
    if lost is None:
        return errors, ()
    text = f"{lost.message} (on-lost-position is resync: that is done now)"
    return [lost.with_(code=RENEWAL, message=text, retryable=True)], _needed(facts, cluster)


def is_wanted(facts: "Facts", error: RunningError | None) -> bool:
    """It takes a new position by itself after ``error``."""
    is_lost = error is not None and error.code in _LOST and not error.is_of_table
    return is_lost and facts.info.config.on_lost_position == "resync" and facts.info.target_ts is None


def lost_table(table: TableRecord, checkpoint_ts: Ts, *, time: float) -> HeldTable:
    """A table whose rows are not in the log, until its copy is in its place."""
    text = "the changefeed's position was lost, and it has taken a new one: the table's rows are copied again"
    if table.to_copy:
        text = "it came with rows that are not in the log: they are copied (a changefeed with a target copies none)"
    error = RunningError(
        code=COPY if table.to_copy else POSITION_LOST,
        message=text,
        time=time,
        retryable=False,
        table_id=table.table_id,
        scope=Scope.TABLE,
    )
    return HeldTable(
        table_id=table.table_id,
        name=f"{table.schema_name}.{table.name}",
        ts=Ts(0) if table.to_copy else max(checkpoint_ts, table.start_ts),
        since=time,
        error=error,
        origin=HoldOrigin.RESYNC,
        stage=HoldStage.LOST,
    )


def copy_of(table: TableRecord, limits: Iterable[CopyLimit], *, time: float) -> TableResync:
    """Its resync, with the limit that was asked for."""
    name = f"{table.schema_name}.{table.name}"
    rate = next((rate for *of, rate in limits if of == [table.schema_name, table.name]), None)
    return TableResync(table_id=table.table_id, name=name, number=int(time * 1000), since=time, rows_per_second=rate)


def _needed(facts: "Facts", cluster: str) -> tuple[patches.Patch, ...]:
    if facts.record is None or facts.unit is Unit.DUMP or facts.needs_position:
        return ()

    def mark(old: UnitRecord | None) -> UnitRecord:
        if old is None:
            raise ConflictError("the source's record is gone; tick again")
        return old.with_(lost_ts=MAX_TS)

    key = keys.UnitKey(cluster, facts.info.namespace, facts.info.id, SOURCE)
    return (patches.patch_record(key, UnitRecord, mark),)
