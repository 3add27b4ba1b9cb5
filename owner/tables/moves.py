"""Table moves: tables that join and leave a running changefeed with a new filter, and the records that this changes."""

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from owner.errors import JobRefusedError
from owner.jobs import Update
from owner.progress.units import SOURCE
from owner.tables import resync_requests
from owner.tables.departures import left_with
from reactor import keys, patches
from reactor.effects import Commit, Effect, Log
from reactor.errors import ConflictError
from reactor.records.changefeed import CopyLimit, UnitRecord
from reactor.records.tables.partitioning import LEFT_MAX, LeftTable
from reactor.records.tables.schema_change import DdlRecord, SchemaChangeKind
from reactor.records.tables.table import TableRecord

if TYPE_CHECKING:
    from owner.progress.facts import Facts

#: records that one transaction changes
_MOVES_MAX = 100


def table_moves(facts: "Facts", change: Update, *, cluster: str, wall: float) -> tuple[patches.Patch, ...]:
    """Return what another filter changes of the tables and their copies: those that leave are noted, and stay as they
    are at the sink; those that join are left to the sync unit, which knows from which position on it reads them.

    :raises JobRefusedError: it is too much for one transaction.
    """
    copies = resync_requests.filtered_otherwise(facts, change, cluster=cluster, wall=wall)
    if change.joining is None:
        return _bounded(facts, change, copies)
    place, names = (cluster, facts.info.namespace, facts.info.id), set(change.joining)
    gone = set(change.leaving) | _left_out_before(facts, names)
    left = left_with(facts, frozenset(change.leaving), wall=wall)
    unit = patches.patch_record(keys.UnitKey(*place, SOURCE), UnitRecord, lambda old: _with_moves(old, change, left))
    found = [
        unit,
        *(patches.delete_record(keys.HeldKey(*place, id), facts.held[id]) for id in sorted(gone & facts.held.keys())),
        *(patches.delete(keys.PartitioningKey(*place, id)) for id in sorted(gone & facts.partitionings.keys())),
        *(
            without(keys.DdlKey(*place, at), record, gone)
            for at, record in facts.ddl.items()
            if record.table_ids & gone
        ),
    ]
    return _bounded(facts, change, [*found, *copies])


def _bounded(facts: "Facts", change: Update, found: Sequence[patches.Patch]) -> tuple[patches.Patch, ...]:
    """:raises JobRefusedError: it is too much for one transaction."""
    if len(found) > _MOVES_MAX:
        raise JobRefusedError(
            f"{len(change.leaving)} tables leave changefeed {facts.info.id} and {len(change.copied)} are copied again, "
            f"with {len(found)} records, more than one transaction takes ({_MOVES_MAX}); let fewer leave at a time, or "
            "copy them one by one (weir table resync)"
        )
    return tuple(found)


def _left_out_before(facts: "Facts", names: set[tuple[str, str]]) -> set[int]:
    """Return tables that the source could not follow from the beginning: they begin again with their copies. Each has
    the name that it got last: another table may have its earlier ones, and be the one that is to join."""
    last = {
        change.table_id: change.table
        for _, record in sorted(facts.ddl.items())
        for change in record.holds
        if change.table is not None and change.table_id not in facts.table_ids
    }
    return {id for id, table in last.items() if (table.schema_name, table.name) in names}


def _with_moves(unit: UnitRecord | None, change: Update, left: Sequence[LeftTable]) -> UnitRecord:
    """:raises ConflictError: the source's record is gone, or another one than the request was made of."""
    basis = change.basis
    if unit is None or (basis is not None and unit.joining != basis.joining):
        raise ConflictError("the source's record has changed; tick again")
    kept = tuple(table for table in unit.tables if table.table_id not in change.leaving)
    limits = unit.copy_limits if change.copy_limits is None else change.copy_limits
    after = unit.with_(
        tables=kept, joining=change.joining or (), copy_limits=limits, left=(*unit.left, *left)[-LEFT_MAX:]
    )
    return after.with_(copy_limits=limits_of(after, {*after.joining, *((one.schema_name, one.name) for one in kept)}))


def limits_of(unit: UnitRecord, names: Collection[tuple[str, str]]) -> tuple[CopyLimit, ...]:
    """Return the limits of these tables, by schema and name."""
    return tuple(limit for limit in unit.copy_limits if limit[:2] in names)


def changed(unit: UnitRecord | None, record: DdlRecord) -> UnitRecord:
    """Return a source's record with its tables after ``record``.

    :raises ConflictError: the record no longer exists.
    """
    if unit is None:
        raise ConflictError("the source's record is gone; tick again")
    tables = {table.table_id: table for table in unit.tables}
    for change in record.alterations:
        if change.table is None:
            tables.pop(change.table_id, None)
        elif (before := tables.get(change.table_id)) is not None:
            tables[change.table_id] = _continued(before, change.table)
        elif change.kind is SchemaChangeKind.CREATE:  # any other is of a table that has left
            tables[change.table_id] = change.table
    there = {(table.schema_name, table.name) for table in tables.values()}
    joining = tuple(name for name in unit.joining if name not in there)
    limits = limits_of(unit, {*joining, *there})
    return unit.with_(tables=tuple(tables.values()), joining=joining, copy_limits=limits)


def _continued(before: TableRecord, after: TableRecord) -> TableRecord:
    """Whoever reads the source does not hear that a table was copied again since."""
    start_ts, consistent_ts = max(before.start_ts, after.start_ts), max(before.consistent_ts, after.consistent_ts)
    return after.keeping(before).with_(
        start_ts=start_ts, consistent_ts=consistent_ts, to_copy=before.to_copy, skipped_ts=before.skipped_ts
    )


def given_up(facts: "Facts", *, cluster: str) -> list[Effect]:
    """Take note of the first record of tables that are gone before they have joined: nobody waits for them."""
    record = facts.ddl.unjoined
    if record is None:
        return []
    place, names = (cluster, facts.info.namespace, facts.info.id), set(record.never_joined)

    def left(unit: UnitRecord | None) -> UnitRecord:
        if unit is None:
            raise ConflictError("the source's record is gone; tick again")
        joining = tuple(name for name in unit.joining if name not in names)
        limits = tuple(limit for limit in unit.copy_limits if limit[:2] not in names)
        return unit.with_(joining=joining, copy_limits=limits)

    key, after = keys.DdlKey(*place, record.ts), record.with_(never_joined=())
    change = patches.replace_record(key, record, after) if record.changes else patches.delete_record(key, record)
    group = patches.group([change, patches.patch_record(keys.UnitKey(*place, SOURCE), UnitRecord, left)])
    tables = ", ".join(f"{schema}.{name}" for schema, name in record.never_joined)
    fields = (("changefeed", facts.info.id), ("tables", tables))
    return [Commit(group), Log("warning", "tables that were to join are gone from the source", fields)]


def without(key: keys.DdlKey, record: DdlRecord, gone: Collection[int]) -> patches.Patch:
    """Return a patch that takes tables out of a schema change."""
    changes = tuple(change for change in record.changes if change.table_id not in gone)
    if not changes:
        return patches.delete_record(key, record)
    left = tuple(table for table in record.left if table not in gone)
    return patches.replace_record(key, record, record.with_(changes=changes, left=left))
