"""Row repair of a Delta table: makes rows what the source has at a Ts, in one commit, without moving any record.

The table's spans are at that Ts by their records and their writers' reports; the repair refuses a record that is past
it. A concurrent writer loses nothing: of the two commits, the second is repeated on top of the first, and the writer's
changes have a later Ts.

What others did to the table does not matter any more: what differs is repaired, and the table is followed from our
commit. An upserted table gets the rows by a MERGE. A changelog keeps its rows: those of the repair are appended, with
the Ts and numbers above all those of a transaction, so that folding the changelog gives the repaired rows.
"""

from uuid import uuid4

from deltalake import DeltaTable

from agent.ports.sink import FlushTask, RowRepair
from agent.rows.fold import net_changes
from agent.rows.versions import versions
from agent.sinks.common import changelog
from agent.sinks.common.span_records import refuse_past, repair_task
from agent.sinks.delta.table import commit, disk
from agent.sinks.delta.table import files as delta_files
from agent.sinks.delta.table import place as delta_table
from agent.sinks.delta.table.place import TableOwner, TablePlace
from agent.sinks.delta.table.schema import FORMS
from agent.sinks.delta.upsert import history, merge
from reactor.ids import TableSpan
from reactor.records.changefeed import SinkMode


def repair(place: TablePlace, owner: TableOwner, order: RowRepair) -> None:
    """See ``agent.ports.sink.Repairs``. What others did to the rows of a history is for a copy to repair."""
    if owner.mode is SinkMode.HISTORY:
        table = place.opened()
        owner.refuse_foreign(table, place)
        _refuse_past(table, owner.changefeed, order)
        history.repair(place, _task(table, owner, order), versions([order.changes], key=order.table.key))
        return

    def attempt(table: DeltaTable) -> None:
        first = table.version() + 1
        owner.refuse_foreign(table, place)
        _refuse_past(table, owner.changefeed, order)
        if owner.mode is SinkMode.CHANGELOG:
            _append(table, place, order)
        else:
            _merge(table, owner, order)
        disk.sync_commits(place, first)

    commit.on_newest(place, place.opened, attempt)


def _refuse_past(table: DeltaTable, changefeed: str, order: RowRepair) -> None:
    for span in order.spans:
        refuse_past(delta_table.committed_ts(table, changefeed, span), order, span)


def _append(table: DeltaTable, place: TablePlace, order: RowRepair) -> None:
    span = TableSpan(order.table.table_id)
    rows = changelog.changelog_rows(order.changes, span, key=order.table.key, forms=FORMS)

    def name() -> str:
        return f"changes-{order.ts:x}-repair-{uuid4().hex[:8]}.parquet"

    files = list(delta_files.write_files(place, name, [rows], layout=delta_table.layout(table)))
    commit.commit_to(place, table, files, {})


def _merge(table: DeltaTable, owner: TableOwner, order: RowRepair) -> None:
    task = _task(table, owner, order)
    net = net_changes([order.changes], key=order.table.key, keeps_deleted=owner.marks.soft_delete)
    merge.replace_rows(table, task, net, owner.marks)


def _task(table: DeltaTable, owner: TableOwner, order: RowRepair) -> FlushTask:
    recorded = delta_table.committed_ts(table, owner.changefeed, order.spans[0])
    assert recorded is not None, "looked at before"
    return repair_task(order, owner.changefeed, recorded)
