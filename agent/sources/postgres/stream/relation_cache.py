"""What becomes of the tables as the stream goes on: each Relation message is held against what is known of its table.

What differs is a change at the Ts of the transaction that it came in: rows of the table may lie on both sides of it
there. A transaction that changes a table twice makes one change of it. Relations of transactions that are in the log
already say nothing: what they changed is known.

A table that is not known but wanted is new from the moment at which the stream names it. Rows that it had before it was
published are not in the stream; published in the transaction that creates it, it has none.
"""

from collections.abc import Callable
from dataclasses import replace

import structlog

from agent.rows.schema import TableSchema
from agent.rows.schema_change import KnownTable
from agent.sources.common import schema_diff
from agent.sources.postgres.stream import column_numbers
from agent.sources.postgres.stream.catalog_lookup import Look
from reactor.ids import Ts
from reactor.records.changefeed import DdlRecord, TableChange, TableRecord

_log = structlog.get_logger()


class SchemaTracker:
    """``known`` is taken over and kept up to date. ``wants``: whether a new table is, by schema and name; ``takes``:
    whether it can be replicated. ``look`` asks the catalog."""

    def __init__(
        self,
        known: dict[int, KnownTable],
        *,
        wants: Callable[[str, str], bool],
        takes: Callable[[TableRecord], bool],
        look: Callable[[int], Look],
    ) -> None:
        self.known = known
        self._wants = wants
        self._takes = takes
        self._look = look
        self._refused: set[int] = set()
        #: tables as they were before the transaction that changes them, and what it has made of them
        self._before: dict[tuple[Ts, int], KnownTable | None] = {}
        self._changes: dict[Ts, dict[int, TableChange | None]] = {}

    def is_wanted(self, table_id: int) -> bool:
        return table_id in self.known

    def meet(self, declared: TableSchema, ts: Ts) -> None:
        """The stream names a table, at ``ts``; it may be one that nobody has heard of."""
        table_id = declared.table_id
        if table_id in self.known or table_id in self._refused or not self._wants(declared.schema_name, declared.name):
            return
        record = TableRecord(
            table_id=table_id,
            schema_name=declared.schema_name,
            name=declared.name,
            key=_key((), declared, self._look(table_id)),
            start_ts=Ts(ts - 1),
            consistent_ts=Ts(ts - 1),
        )
        if self._takes(record):
            self.known[table_id] = KnownTable(record, None)
            self._before[ts, table_id] = None
        else:
            self._refused.add(table_id)
            _log.warning("a new table has no key and is left out; set force_replicate", table=declared.qualified_name)

    def note(self, declared: TableSchema, ts: Ts) -> TableSchema:
        """A known table as the stream declares it at ``ts``, its types resolved; also with its columns' numbers."""
        table_id = declared.table_id
        known = self.known[table_id]
        if known.schema is None:
            after = KnownTable(
                known.record, column_numbers.placed(declared, declared, self._look(table_id).at(declared).places)
            )
        elif _is_same(known.schema, declared):
            after = KnownTable(known.record, column_numbers.placed(known.schema, declared, {}))
        else:
            return self._change(known, known.schema, declared, ts)
        self.known[table_id] = after
        if (ts, table_id) in self._before:
            self._settle(after, Look(), ts)
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
        look = self._look(declared.table_id).at(declared)
        after_schema = column_numbers.placed(schema, declared, look.places)
        record = known.record.with_(
            schema_name=declared.schema_name, name=declared.name, key=_key(known.record.key, declared, look)
        )
        after = KnownTable(record, after_schema)
        self._before.setdefault((ts, declared.table_id), known)
        self.known[declared.table_id] = after
        self._settle(after, look, ts)
        return after_schema

    def _settle(self, after: KnownTable, look: Look, ts: Ts) -> None:
        """What the transaction at ``ts`` has made of the table up to now."""
        table_id = after.record.table_id
        before = self._before[ts, table_id]
        self._changes.setdefault(ts, {})[table_id] = _change(before, after, look)


def _change(before: KnownTable | None, after: KnownTable, look: Look) -> TableChange | None:
    if before is None:
        return schema_diff.created(after)
    assert before.schema is not None
    assert after.schema is not None
    columns = column_numbers.matched(before.schema, after.schema, look.fills)
    if untold := sorted(look.untold & set(columns.added)):
        _log.warning(
            "what older rows hold in a new column is not in the stream; if there are any, load the table anew",
            table=after.schema.qualified_name,
            column=untold[0],
        )
    return schema_diff.compare(before, after, columns)


def _key(before: tuple[str, ...], declared: TableSchema, look: Look) -> tuple[str, ...]:
    """What the stream sends as the key; where it sends whole rows, the catalog's, if that is of the same time."""
    key = look.key if declared.replica_identity == "f" else declared.key
    if not set(key) <= {column.name for column in declared.columns}:
        key = ()
    return before if set(before) == set(key) else key


def _is_same(known: TableSchema, declared: TableSchema) -> bool:
    """But for how types are spelled."""
    plain = [
        replace(schema, columns=tuple(replace(c, type_name="") for c in schema.columns)) for schema in (known, declared)
    ]
    return plain[0] == plain[1]
