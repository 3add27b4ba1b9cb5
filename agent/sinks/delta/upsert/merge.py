"""Merge: writes net changes into a Delta table that equals its source, data and record in one commit.

Only ``_replace`` decides how the rows of the changed keys are found and replaced: by a MERGE, which rewrites the files
it touches; or by ``by_vectors``, if the table is small or uses deletion vectors. ``write`` above it is independent of
that.

Two cases need no search. After a TRUNCATE the span has no rows (those of other spans are kept: ``truncate``). And if
every key of the range begins with an INSERT, the source guarantees (its key is unique, and the sink is exactly at the
begin of the range) that the table has none of them: they are appended. This holds from ``TableRecord.consistent_ts``
on; before it, and after a rewind, the range may repeat changes that the sink has, so it is merged. So it is if a filter
has kept rows that the source has deleted.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, Schema

from agent.ports.sink import FlushResult, FlushTask
from agent.rows.changes import Changes
from agent.rows.fold import NetChanges, net_changes
from agent.sinks.common import left_out
from agent.sinks.common.row_marks import DELETED, NO_MARKS, Marks, without_deleted
from agent.sinks.delta.table import commit
from agent.sinks.delta.table import log as delta_log
from agent.sinks.delta.table import partitions as delta_partitions
from agent.sinks.delta.table import place as delta_table
from agent.sinks.delta.table import schema as delta_schema
from agent.sinks.delta.table.place import TablePlace
from agent.sinks.delta.upsert import by_vectors, large, truncate
from reactor.records.tables.table import TableRecord

_GONE = "gone"


def write(place: TablePlace, task: FlushTask, changes: Iterable[Changes], *, marks: Marks = NO_MARKS) -> FlushResult:
    """Bring the table from ``task.from_ts`` to ``task.to_ts``.

    :raises SinkFencedError: the table is not at ``from_ts``.
    :raises SinkConflictError: other commits were faster, repeatedly.
    :raises LeftOutValueError: an update left out values that the table does not have.
    """
    with delta_log.borrowed(place) as log:
        if delta_table.is_written(log or place.opened(), task):
            return task.result(committed=True)
        parts = large.write(place, log, task, changes, marks)
        if isinstance(parts, FlushResult):
            return parts
        net = net_changes(parts, key=task.table.key, keeps_deleted=marks.soft_delete)
        left_out.refuse_lost(net, task)
        rows, commit_time = sum(len(part) for part in parts), max((part.commit_time for part in parts), default=0.0)
        source = parts[-1].after.schema if parts else None
        parts.clear()  # written rows are copies
        committed = False
        if log is not None and len(net) and by_vectors.can_apply(log, net, task, marks):
            committed = commit.on_newest(
                place, log.refreshed, lambda newest: by_vectors.apply(newest, place, task, net, marks)
            )
        elif source is not None and (len(net) or net.is_truncated):
            committed = commit.with_retries(place, lambda table: _apply(table, place, task, net, source, marks))
    return task.result(
        committed=committed,
        rows=rows,
        bytes=net.upserts.nbytes + net.deletes.nbytes,
        commit_time=commit_time,
    )


def _apply(
    table: DeltaTable, place: TablePlace, task: FlushTask, net: NetChanges, source: pa.Schema, marks: Marks
) -> bool:
    """Write the changes. Return whether the table now records ``to_ts``; it does not if there was nothing to change."""
    if delta_table.is_written(table, task):
        return True
    name = f"{task.table.schema_name}.{task.table.name}"
    marks.refuse_left(delta_table.arrow_schema(table).names, table=name)
    upserts = marks.stored(net, forms=delta_schema.FORMS)
    commit.add_fields(place, table, Schema.from_arrow(upserts.schema), name=name)
    if net.is_truncated or by_vectors.is_new(net, task):
        files = truncate.in_front(table, place, task, source, marks, upserts) if net.is_truncated else []
        files += by_vectors.write_rows(place, task, upserts.schema, [upserts], delta_table.layout(table))
        commit.commit_to(place, table, files, delta_table.new_records([task]), key=task.table.key)
        return True
    _replace(table, task, net, upserts)
    return delta_table.committed_ts(table, task.feed.changefeed, task.span) == task.to_ts


def replace_rows(table: DeltaTable, task: FlushTask, net: NetChanges, marks: Marks) -> None:
    """Make the rows of some keys what ``net`` says, on top of ``table``, with the record of ``task``'s end.

    :raises CommitFailedError: another commit was faster.
    """
    _replace(table, task, net, marks.stored(net, forms=delta_schema.FORMS))


def _replace(table: DeltaTable, task: FlushTask, net: NetChanges, upserts: pa.Table) -> None:
    """Find the rows of the changed keys, and replace them by the new ones."""
    key = task.table.key
    if net.origin is not None:
        net, upserts = _fetch_moved(table, net, upserts, task.table)
    elif net.needed is not None:
        _refuse_missing(table, net, upserts, task.table)
    source = _merge_source(net, upserts, key)
    delta_partitions.refuse_unfit(upserts, delta_table.partitions(table))
    column = {name: f"s.c{at}" for at, name in enumerate(upserts.schema.names)}
    values = {
        f"t.{_quoted(name)}": (
            f"CASE WHEN s.k{at} THEN t.{_quoted(name)} ELSE {column[name]} END" if name in net.kept else column[name]
        )
        for at, name in enumerate(upserts.schema.names)
    }
    new_values = {f"t.{_quoted(name)}": column[name] for name in upserts.schema.names}
    merger = table.merge(
        source,
        " AND ".join(f"t.{_quoted(name)} = {column[name]}" for name in key),
        source_alias="s",
        target_alias="t",
        streamed_exec=False,  # so that the range of the source's keys prunes files
        writer_properties=delta_table.writer_properties(table),
        commit_properties=delta_table.commit_properties(table, delta_table.new_records([task])),
    )
    merger = merger.when_matched_update(values, predicate=f"NOT s.{_GONE}")
    merger = merger.when_matched_delete(predicate=f"s.{_GONE}")
    merger.when_not_matched_insert(new_values, predicate=f"NOT s.{_GONE}").execute()


def _merge_source(net: NetChanges, upserts: pa.Table, key: Sequence[str]) -> pa.Table:
    """Return upserts, then deletes with only their key. Columns are named by position, since a source may use any
    name."""
    deletes = delta_schema.delta_table(net.deletes)
    count = deletes.num_rows
    columns, names = [], []
    for at, name in enumerate(upserts.schema.names):
        column = upserts.column(name)
        gone = deletes.column(name).chunks if name in key else [pa.nulls(count, column.type)]
        columns.append(pa.chunked_array([*column.chunks, *gone], type=column.type))
        names.append(f"c{at}")
        if name in net.kept:
            columns.append(pa.chunked_array([pa.array(net.kept[name]), pa.repeat(pa.scalar(value=False), count)]))
            names.append(f"k{at}")
    columns.append(
        pa.chunked_array([pa.repeat(pa.scalar(value=False), upserts.num_rows), pa.repeat(pa.scalar(True), count)])
    )
    return pa.table(columns, names=[*names, _GONE]).combine_chunks()


def _fetch_moved(
    table: DeltaTable, net: NetChanges, upserts: pa.Table, record: TableRecord
) -> tuple[NetChanges, pa.Table]:
    """Read values that only the sink has, of rows that changed their key, under the old key."""
    assert net.origin is not None
    key = record.key
    origin = delta_schema.delta_table(net.origin)
    stored = _stored_rows(table, origin, [*key, *net.kept], key)
    place = pa.array(range(origin.num_rows), pa.int64())
    found = origin.append_column("place", place).join(stored, keys=list(key), join_type="inner")
    at = pc.index_in(place, value_set=found.column("place").combine_chunks())
    if net.needed is not None:
        is_missing = net.needed & at.is_null().to_numpy(zero_copy_only=False)
        left_out.refuse_missing(upserts, net.kept, is_missing, record)
    kept = {}
    for name, mask in net.kept.items():
        values = found.column(name).combine_chunks().take(at)
        is_fetched = pc.and_(pa.array(mask), at.is_valid())
        column = pc.if_else(is_fetched, values, upserts.column(name))
        upserts = upserts.set_column(upserts.schema.get_field_index(name), upserts.schema.field(name), column)
        rest = mask & ~is_fetched.to_numpy(zero_copy_only=False)
        if rest.any():
            kept[name] = rest
    return NetChanges(net.upserts, net.deletes, kept), upserts


def _refuse_missing(table: DeltaTable, net: NetChanges, upserts: pa.Table, record: TableRecord) -> None:
    """Check for missing rows beforehand: a MERGE would insert them, with NULL for values that an update left out.

    :raises LeftOutValueError: a row is missing.
    """
    assert net.needed is not None
    (at,) = np.nonzero(net.needed)
    wanted = upserts.select(list(record.key)).take(pa.array(at))
    which = left_out.match(wanted, _stored_rows(table, wanted, list(record.key), record.key))
    is_missing = net.needed.copy()
    is_missing[at[which[which >= 0]]] = False
    left_out.refuse_missing(upserts, net.kept, is_missing, record)


def _stored_rows(table: DeltaTable, keys: pa.Table, columns: list[str], key: Sequence[str]) -> pa.Table:
    """Return the stored rows whose first key column is among ``keys``, without deleted ones; rarely needed, so the
    table is simply scanned."""
    wanted = keys.column(key[0]).combine_chunks()
    plain = delta_table.plain_schema(table.schema())
    read = [*columns, *([DELETED] if DELETED in plain.names else [])]
    schema = pa.schema([keys.schema.field(name) if name in key else plain.field(name) for name in read])
    kept = [schema.empty_table().select(columns)]
    for batch in pa.RecordBatchReader.from_stream(table.scan(columns=read)):
        rows = pa.table([batch.column(name) for name in read], names=read).cast(schema)
        kept.append(without_deleted(rows.filter(pc.is_in(rows.column(key[0]), value_set=wanted))))
    return pa.concat_tables(kept)


def _quoted(name: str) -> str:
    return f"`{name}`"
