"""Row repair of an Iceberg table: makes rows what the source has at a Ts, in one commit, without moving any record.

The table's spans are at that Ts by their records and their writers' reports; the repair refuses a record that is past
it. A concurrent writer loses nothing: of the two commits, the second is made again on top of the first, and the
writer's changes have a later Ts.

What others did to the table does not matter any more: what differs is repaired, and the table is followed from our
commit. A changelog keeps its rows: those of the repair are appended, with the Ts and numbers above all those of a
transaction, so that folding the changelog gives the repaired rows.
"""

from pyiceberg.table import Table

from agent.ports.sink import RowRepair
from agent.rows.fold import net_changes
from agent.rows.versions import versions
from agent.sinks.common import changelog
from agent.sinks.common.span_records import refuse_past, repair_task
from agent.sinks.iceberg.append import append_files
from agent.sinks.iceberg.table import commit, compact, files
from agent.sinks.iceberg.table import schema as iceberg_schema
from agent.sinks.iceberg.table.catalogs.lake import TablePlace
from agent.sinks.iceberg.table.layout import Layout
from agent.sinks.iceberg.table.schema import FORMS
from agent.sinks.iceberg.table.state import State, TableOwner
from agent.sinks.iceberg.upsert import merge
from reactor.ids import TableSpan, Ts


def repair(place: TablePlace, owner: TableOwner, order: RowRepair) -> None:
    """See ``agent.ports.sink.Repairs``."""

    def attempt(table: Table) -> None:
        owner.refuse_foreign(table, place)
        for span in order.spans:
            refuse_past(State.of(table).recorded_ts(span), order, span)
        if owner.is_changelog:
            _append(table, order)
        else:
            _merge(table, owner, order)

    commit.on_newest(place, attempt, is_checked=False)


def _append(table: Table, order: RowRepair) -> None:
    span = TableSpan(order.table.table_id)
    rows = changelog.changelog_rows(order.changes, span, key=order.table.key, forms=FORMS)
    last = table.metadata.last_column_id
    schema = iceberg_schema.new_schema(rows.schema, known=table.schema(), last_id=last)
    directory = compact.data_directory(table)
    label, layout = f"changes-{order.ts:x}-repair", Layout.of(table)
    made = list(files.write_files(table.io, directory, label, [rows], schema, layout=layout))
    append_files(table, made, State.of(table), name=f"{order.table.schema_name}.{order.table.name}")


def _merge(table: Table, owner: TableOwner, order: RowRepair) -> None:
    task = repair_task(order, owner.changefeed, State.of(table).recorded_ts(order.spans[0]) or Ts(0))
    if owner.is_history:
        step = merge.replace_versions(table, task, versions([order.changes], key=order.table.key), owner.marks)
        if step is not None:
            commit.commit_or_remove(table, step)
        return
    net = net_changes([order.changes], key=order.table.key, keeps_deleted=owner.marks.soft_delete)
    step = merge.replace_rows(table, task, net, owner.marks)
    if step is not None:
        commit.commit_or_remove(table, step)
