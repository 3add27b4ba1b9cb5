"""Span records: compares the Ts that a table records for a span with what a flush or a repair has to write there."""

from typing import Final

from agent.errors import RESYNC, SET_BACK, SinkFencedError, TableForeignError
from agent.ports.sink import FeedContext, FlushTask, RowRepair
from reactor.ids import MAX_TS, TableSpan, Ts
from reactor.records.changefeed import SinkMode
from reactor.records.tables.table import TableRecord

#: the record of a span that its table no longer has: no writer ever reaches this Ts
RETIRED: Final = MAX_TS


def is_written(recorded: Ts | None, task: FlushTask) -> bool:
    """Return whether the task's end is recorded: written by an earlier attempt whose answer was lost.

    :raises SinkFencedError: the record is past the task's begin, and not its end.
    :raises TableForeignError: there is no record, or one that is behind what was written.
    """
    refuse_retired(recorded, task.table, task.span)
    name = f"{task.table.schema_name}.{task.table.name}"
    if recorded is None:
        raise TableForeignError(
            f"the sink has no record of {name}: its table was replaced; bring it back with its history and resume the "
            f"changefeed, or move it away: {RESYNC}"
        )
    if recorded == task.to_ts:
        return True
    if recorded < task.from_ts:
        raise TableForeignError(
            f"the sink's table {name} was set back: it records {recorded}, and {task.from_ts} was written; {SET_BACK}"
        )
    if recorded != task.from_ts:
        raise SinkFencedError(
            f"the sink records {recorded} for span {task.span} of {name}, "
            f"this writer expects {task.from_ts}: it is stale and stops"
        )
    return False


def refuse_retired(recorded: Ts | None, table: TableRecord, span: TableSpan) -> None:
    """:raises SinkFencedError: the table has other spans."""
    if recorded == RETIRED:
        raise SinkFencedError(
            f"{table.schema_name}.{table.name} has other spans than {span}: this writer is stale and stops"
        )


def refuse_past(recorded: Ts | None, order: RowRepair, span: TableSpan) -> None:
    """:raises SinkFencedError: the span is past the repair's Ts, or the table has other spans."""
    refuse_retired(recorded, order.table, span)
    if recorded is None or recorded > order.ts:
        raise SinkFencedError(
            f"the sink records {recorded} for span {span} of {order.table.schema_name}.{order.table.name}, and the "
            f"repair is of {order.ts}; ask for it again"
        )


def repair_task(order: RowRepair, changefeed: str, recorded: Ts) -> FlushTask:
    """Return a repair as a flush that leaves the record of the first span, ``recorded``, as it is.

    Nothing fences two repairs of one Ts, so the table may have a row that is inserted. It is searched for it, as in a
    flush below ``consistent_ts``.
    """
    table = order.table.with_(consistent_ts=Ts(order.ts + 1))
    return FlushTask(FeedContext(changefeed, "", SinkMode.UPSERT), order.spans[0], table, (), recorded, recorded)
