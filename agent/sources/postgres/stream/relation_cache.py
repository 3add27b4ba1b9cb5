"""Relation cache: compares each Relation message with the known table, and records what changed.

A difference is a change at the Ts of its transaction: rows of the table may be on both sides of it there. If a
transaction changes a table twice, that is one change. Relations of transactions that are already in the log are
ignored: their changes are known.

An unknown table that the rules match is new from the moment at which the stream names it. Rows from before it was
published are not in the stream; if it is published in the transaction that creates it, there are none.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

import structlog

from agent.rows.schema import TableSchema
from agent.rows.schema_change import KnownTable
from agent.sources.common import schema_diff
from agent.sources.postgres.publication.newcomers import keyless
from agent.sources.postgres.stream import column_numbers
from agent.sources.postgres.stream.catalog_lookup import CatalogTable, Guess
from reactor.ids import Ts
from reactor.records.changefeed import DdlRecord, SchemaChangeKind, TableChange, TableRecord

_log = structlog.get_logger()


class SchemaTracker:
    """Keeps ``known`` up to date. ``wants``: whether a new table is selected, by schema and name; ``takes``: whether it
    can be replicated. ``look_up`` queries the catalog; ``verified`` queries the table for the values of new columns
    in older rows, see there."""

    def __init__(
        self,
        known: dict[int, KnownTable],
        *,
        wants: Callable[[str, str], bool],
        takes: Callable[[TableRecord], bool],
        look_up: Callable[[int], CatalogTable],
        verified: Callable[[int, Mapping[str, Guess]], tuple[dict[str, str], list[str]]],
    ) -> None:
        self.known = known
        self._wants = wants
        self._takes = takes
        self._look_up = look_up
        self._verified = verified
        self._refused: set[int] = set()
        #: tables before the transaction that changes them, and its changes so far
        self._before: dict[tuple[Ts, int], KnownTable | None] = {}
        self._changes: dict[Ts, dict[int, TableChange | None]] = {}

    def is_wanted(self, table_id: int) -> bool:
        return table_id in self.known

    def awaits(self, declared: TableSchema) -> bool:
        """Return whether the stream names a new table, which is added with its first row. A partition whose rows are
        sent as its root's has none."""
        is_new = declared.table_id not in self.known and declared.table_id not in self._refused
        return is_new and self._wants(declared.schema_name, declared.name)

    def meet(self, declared: TableSchema, ts: Ts) -> None:
        """Handle the first row of an unknown table, at ``ts``."""
        table_id = declared.table_id
        assert self.awaits(declared), "the table is already known"
        record = TableRecord.new(
            table_id,
            declared.schema_name,
            declared.name,
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
            self._changes.setdefault(ts, {})[table_id] = TableChange(
                kind=SchemaChangeKind.HOLD, table_id=table_id, table=record, reason=keyless(record)
            )
            _log.warning("a new table has no key to upsert by", table=declared.qualified_name)

    def _displace(self, declared: TableSchema, ts: Ts) -> None:
        """Remove a new table's name from the table that had it: that is dropped or renamed, even if none of its rows
        shows it."""
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
                after = KnownTable(record.named(found.schema_name, found.name), renamed)
                self.known[table_id] = after
                self._settle(after, CatalogTable(), ts)

    def note(self, declared: TableSchema, ts: Ts) -> TableSchema:
        """Note a known table as the stream declares it at ``ts``; return it with resolved types and column numbers."""
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
        """Return, and forget, the changes of transactions that end at or below ``upto``."""
        done = [ts for ts in sorted(self._changes) if ts <= upto]
        taken = [(ts, self._changes.pop(ts)) for ts in done]
        self._before = {key: before for key, before in self._before.items() if key[0] > upto}
        found = ((ts, tuple(change for change in changes.values() if change is not None)) for ts, changes in taken)
        return tuple(DdlRecord(ts=ts, changes=changes) for ts, changes in found if changes)

    def _change(self, known: KnownTable, schema: TableSchema, declared: TableSchema, ts: Ts) -> TableSchema:
        found = self._look_up(declared.table_id).at(declared)
        after_schema = column_numbers.placed(schema, declared, found.places)
        named = known.record.named(declared.schema_name, declared.name)
        record = named.with_(key=_key(known.record.key, declared, found))
        after = KnownTable(record, after_schema)
        self._before.setdefault((ts, declared.table_id), known)
        self.known[declared.table_id] = after
        self._settle(after, found, ts)
        return after_schema

    def _settle(self, after: KnownTable, found: CatalogTable, ts: Ts) -> None:
        """Record what the transaction at ``ts`` has changed of the table so far."""
        table_id = after.record.table_id
        before = self._before[ts, table_id]
        change = _change(before, after, found)
        added = () if before is None or change is None else change.added
        guesses = {name: guess for name, guess in found.guesses.items() if name in added}
        if before is not None and change is not None and guesses:
            fills, unknown = self._verified(table_id, guesses)
            change = change.with_(fills={**change.fills, **fills})
            change = _hold(before.record, unknown[0]) if unknown else change
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
    """Return the key that the stream sends; if it sends whole rows, the catalog's, if that is of the same time."""
    key = found.key if declared.replica_identity == "f" else declared.key
    if not set(key) <= {column.name for column in declared.columns}:
        key = ()
    return before if set(before) == set(key) else key


def _is_same(known: TableSchema, declared: TableSchema) -> bool:
    """Compare two definitions, ignoring the spelling of types."""
    plain = [
        replace(schema, columns=tuple(replace(c, type_name="") for c in schema.columns)) for schema in (known, declared)
    ]
    return plain[0] == plain[1]
