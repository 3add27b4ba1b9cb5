"""Relation cache: compares each Relation message with what is known of its table, and records what changed.

What differs is a change at the Ts of the transaction that it came in: rows of the table may lie on both sides of it
there. A transaction that changes a table twice makes one change of it. Relations of transactions that are in the log
already are ignored: what they changed is known.

A table that is not known but wanted is new from the moment at which the stream names it. Rows that it had before it was
published are not in the stream; published in the transaction that creates it, it has none.
"""

from collections.abc import Callable, Collection
from dataclasses import replace

import structlog

from agent.rows.schema import TableSchema
from agent.rows.schema_change import KnownTable
from agent.sources.common import schema_diff
from agent.sources.postgres.stream import column_numbers
from agent.sources.postgres.stream.catalog_lookup import CatalogTable
from reactor.ids import Ts
from reactor.records.changefeed import DdlRecord, SchemaChangeKind, TableChange, TableRecord

_log = structlog.get_logger()


class SchemaTracker:
    """``known`` is taken over and kept up to date. ``wants``: whether a new table is, by schema and name; ``takes``:
    whether it can be replicated. ``look_up`` asks the catalog, ``has_unknown_fills`` the table, what older rows hold in
    new columns."""

    def __init__(
        self,
        known: dict[int, KnownTable],
        *,
        wants: Callable[[str, str], bool],
        takes: Callable[[TableRecord], bool],
        look_up: Callable[[int], CatalogTable],
        has_unknown_fills: Callable[[int, Collection[str]], bool],
    ) -> None:
        self.known = known
        self._wants = wants
        self._takes = takes
        self._look_up = look_up
        self._has_unknown_fills = has_unknown_fills
        self._refused: set[int] = set()
        #: tables as they were before the transaction that changes them, and what it has made of them
        self._before: dict[tuple[Ts, int], KnownTable | None] = {}
        self._changes: dict[Ts, dict[int, TableChange | None]] = {}

    def is_wanted(self, table_id: int) -> bool:
        return table_id in self.known

    def awaits(self, declared: TableSchema) -> bool:
        """The stream names a table that is taken in with its first row. Of a partition whose rows are sent as another
        table's there is none."""
        is_new = declared.table_id not in self.known and declared.table_id not in self._refused
        return is_new and self._wants(declared.schema_name, declared.name)

    def meet(self, declared: TableSchema, ts: Ts) -> None:
        """The first row of a table that nobody has heard of comes at ``ts``."""
        table_id = declared.table_id
        assert self.awaits(declared), "it is met once"
        record = TableRecord(
            table_id=table_id,
            schema_name=declared.schema_name,
            name=declared.name,
            key=_key((), declared, self._look_up(table_id)),
            start_ts=Ts(ts - 1),
            consistent_ts=Ts(ts - 1),
        )
        if self._takes(record):
            self._displace(declared, ts)
            self.known[table_id] = KnownTable(record, None)
            self._before[ts, table_id] = None
        else:
            self._refused.add(table_id)
            _log.warning(
                "a new table has no key and is left out; set force-replicate = true", table=declared.qualified_name
            )

    def _displace(self, declared: TableSchema, ts: Ts) -> None:
        """The table that had a new one's name up to now is gone, or has another name, also if no row of it says so."""
        name = (declared.schema_name, declared.name)
        for table_id, known in list(self.known.items()):
            record = known.record
            if table_id == declared.table_id or (record.schema_name, record.name) != name:
                continue
            found = self._look_up(table_id)
            self._before.setdefault((ts, table_id), known)
            if not found.is_there:
                del self.known[table_id]
                self._changes.setdefault(ts, {})[table_id] = schema_diff.dropped(known)
            elif (found.schema_name, found.name) != name and known.schema is not None:
                renamed = replace(known.schema, schema_name=found.schema_name, name=found.name)
                after = KnownTable(record.with_(schema_name=found.schema_name, name=found.name), renamed)
                self.known[table_id] = after
                self._settle(after, CatalogTable(), ts)

    def note(self, declared: TableSchema, ts: Ts) -> TableSchema:
        """A known table as the stream declares it at ``ts``, its types resolved; also with its columns' numbers."""
        table_id = declared.table_id
        known = self.known[table_id]
        if known.schema is None:
            after = KnownTable(
                known.record, column_numbers.placed(declared, declared, self._look_up(table_id).at(declared).places)
            )
        elif _is_same(known.schema, declared):
            after = KnownTable(known.record, column_numbers.placed(known.schema, declared, {}))
        else:
            return self._change(known, known.schema, declared, ts)
        self.known[table_id] = after
        if (ts, table_id) in self._before:
            self._settle(after, CatalogTable(), ts)
        assert after.schema is not None
        return after.schema

    def take(self, upto: Ts) -> tuple[DdlRecord, ...]:
        """The changes of the transactions that end at or below ``upto``, once."""
        done = [ts for ts in sorted(self._changes) if ts <= upto]
        taken = [(ts, self._changes.pop(ts)) for ts in done]
        self._before = {key: before for key, before in self._before.items() if key[0] > upto}
        found = ((ts, tuple(change for change in changes.values() if change is not None)) for ts, changes in taken)
        return tuple(DdlRecord(ts=ts, changes=changes) for ts, changes in found if changes)

    def _change(self, known: KnownTable, schema: TableSchema, declared: TableSchema, ts: Ts) -> TableSchema:
        found = self._look_up(declared.table_id).at(declared)
        after_schema = column_numbers.placed(schema, declared, found.places)
        record = known.record.with_(
            schema_name=declared.schema_name, name=declared.name, key=_key(known.record.key, declared, found)
        )
        after = KnownTable(record, after_schema)
        self._before.setdefault((ts, declared.table_id), known)
        self.known[declared.table_id] = after
        self._settle(after, found, ts)
        return after_schema

    def _settle(self, after: KnownTable, found: CatalogTable, ts: Ts) -> None:
        """What the transaction at ``ts`` has made of the table up to now."""
        table_id = after.record.table_id
        before = self._before[ts, table_id]
        change = _change(before, after, found)
        if before is not None and change is not None:
            unknown_fills = sorted(found.unknown_fills & set(change.added))
            if unknown_fills and self._has_unknown_fills(table_id, unknown_fills):
                change = _hold(before.record, unknown_fills[0])
        self._changes.setdefault(ts, {})[table_id] = change


def _change(before: KnownTable | None, after: KnownTable, found: CatalogTable) -> TableChange | None:
    if before is None:
        return schema_diff.created(after)
    assert before.schema is not None
    assert after.schema is not None
    columns = column_numbers.matched(before.schema, after.schema, found.fills)
    return schema_diff.compare(before, after, columns)


def _hold(record: TableRecord, column: str) -> TableChange:
    name = f"{record.schema_name}.{record.name}"
    return TableChange(
        kind=SchemaChangeKind.HOLD,
        table_id=record.table_id,
        table=record,
        reason=f"what rows of table {name} hold in its new column {column} is in no stream (it was computed when the "
        "column was added); for its rows to be copied again create the changefeed again, or leave it out by a filter "
        "rule",
    )


def _key(before: tuple[str, ...], declared: TableSchema, found: CatalogTable) -> tuple[str, ...]:
    """What the stream sends as the key; where it sends whole rows, the catalog's, if that is of the same time."""
    key = found.key if declared.replica_identity == "f" else declared.key
    if not set(key) <= {column.name for column in declared.columns}:
        key = ()
    return before if set(before) == set(key) else key


def _is_same(known: TableSchema, declared: TableSchema) -> bool:
    """But for how types are spelled."""
    plain = [
        replace(schema, columns=tuple(replace(c, type_name="") for c in schema.columns)) for schema in (known, declared)
    ]
    return plain[0] == plain[1]
