"""Readable log: the part of a changefeed's log that readers of one of its tables can have."""

from collections.abc import Sequence
from dataclasses import dataclass

from agent.rows.batches import SegmentRef
from capture.errors import PositionGoneError, TableNotFoundError
from owner.progress.units import SOURCE
from reactor.ids import MAX_TS, Ts
from reactor.records.changefeed import ChangefeedInfo, UnitRecord
from reactor.records.log_head import LogHead
from reactor.records.tables.schema_change import pending_tables
from reactor.records.tables.table import TableRecord
from reactor.state import ChangefeedState


@dataclass(frozen=True, slots=True)
class ReadableLog:
    """A table, and the part of the log that has its changes: those in ``(first_ts, end_ts]`` can be read."""

    info: ChangefeedInfo
    head: LogHead
    table: TableRecord
    first_ts: Ts
    end_ts: Ts
    #: the table as the changes leave it that have yet to reach the sink
    at_source: TableRecord
    #: why no later change can be read, if that does not pass
    stopped: str = ""

    @property
    def name(self) -> str:
        return _name(self.table)

    def adds_to(self, seen: LogHead | None) -> bool:
        """Return whether there may be segments that were not read when all up to the end of ``seen`` was."""
        if seen is None or seen.complete_seq != seen.last_seq:
            return True
        return (self.head.last_seq, self.head.eras) != (seen.last_seq, seen.eras)

    def check(self, ts: int) -> None:
        """:raises PositionGoneError: changes behind ``ts`` are missing."""
        if ts < self.first_ts:
            raise PositionGoneError(
                f"the log does not have all changes of {self.name} behind {ts}: it begins at {self.first_ts} (older "
                "segments were removed, or the table was copied again); read the sink's table again and begin there: a "
                'Spark query with startingVersion="snapshot" and another checkpoint directory'
            )
        self.check_reached(ts)

    def check_reached(self, ts: int) -> None:
        """:raises PositionGoneError: nobody can have the changes up to ``ts``."""
        if ts > self.head.resolved_ts:
            raise PositionGoneError(
                f"{ts} is past the end of the log ({self.head.resolved_ts}); begin at a Ts that it has reached"
            )


def of(feed: ChangefeedState, name: str, table_id: int | None = None) -> ReadableLog:
    """Return the log of a table, known by its id or its name.

    :raises TableNotFoundError: the changefeed has no such table.
    """
    info, unit = info_of(feed), feed.units.get(SOURCE)
    head = feed.heads.get(SOURCE, LogHead())
    tables = unit.tables if unit else ()
    if table_id is not None:
        found = next((one for one in tables if one.table_id == table_id), None)
    else:
        found = _called([one for one in tables if _name(one) == name], feed)
    if found is None or unit is None:
        known = ", ".join(sorted(map(_name, tables))[:20]) or "none yet"
        raise TableNotFoundError(f"changefeed {feed.id} has no table {name}; it has {known}")
    limit, reason = _limit(feed, found.table_id)
    return ReadableLog(
        info,
        head,
        found,
        first_ts=_first_ts(unit, found, head),
        end_ts=min(head.resolved_ts, limit),
        at_source=pending_tables(feed.ddl.pending).get(found.table_id) or found,
        stopped=f"changes of {name} behind {limit} cannot be read: {reason}" if reason else "",
    )


def refuse_successor(feed: ChangefeedState, log: ReadableLog, name: str) -> None:
    """A reader that is at the end of ``log``, of a table that it opened as ``name``, would wait there while another
    table of that name changes.

    :raises PositionGoneError: another table has the name by now.
    """
    unit = feed.units.get(SOURCE)
    if _name(log.at_source) == name or unit is None:
        return
    pending = pending_tables(feed.ddl.pending)
    for table in unit.tables:
        if table.table_id != log.table.table_id and _name(pending.get(table.table_id) or table) == name:
            raise PositionGoneError(
                f"{name} is another table now, and the one that was read is {_name(log.at_source)}, as after an online "
                "schema change; read the sink's table again and begin there: a Spark query with "
                'startingVersion="snapshot" and another checkpoint directory'
            )


def _limit(feed: ChangefeedState, table_id: int) -> tuple[Ts, str]:
    """Return up to where the source can follow a table, and why not further. Changes that only the sink waits for do
    not hold up readers: they decode each change by the columns of its time."""
    for record in feed.ddl.pending:
        for change in record.holds if table_id in record.pending_ids else ():
            if change.table_id == table_id:
                return record.barrier_ts, change.reason
    return MAX_TS, ""


def _called(tables: Sequence[TableRecord], feed: ChangefeedState) -> TableRecord | None:
    """Return which of the tables of one name has it at the source: another one may wait to be renamed, or dropped."""
    if len(tables) < 2:
        return next(iter(tables), None)
    pending = pending_tables(feed.ddl.pending)

    def has_lost_name(table: TableRecord) -> bool:
        after = pending.get(table.table_id, table)
        return after is None or _name(after) != _name(table)

    return min(tables, key=has_lost_name)


def _first_ts(unit: UnitRecord, table: TableRecord, head: LogHead) -> Ts:
    """Return the Ts behind which the log has every change of the table."""
    return max(head.removed_ts, table.start_ts, unit.lost_ts)


def limited(
    segments: Sequence[SegmentRef], after: Ts, to_ts: Ts, max_bytes: int | None
) -> tuple[Sequence[SegmentRef], Ts]:
    """Return the first segments of about ``max_bytes``, and how far they reach: no transaction is divided."""
    size = 0
    for number, item in enumerate(segments):
        size += item.bytes
        if max_bytes is not None and size >= max_bytes and after < item.resolved_ts < to_ts:
            return segments[: number + 1], item.resolved_ts
    return segments, to_ts


def info_of(feed: ChangefeedState) -> ChangefeedInfo:
    assert feed.info is not None, "the querier returns no other ones"
    return feed.info


def _name(table: TableRecord) -> str:
    return f"{table.schema_name}.{table.name}"
