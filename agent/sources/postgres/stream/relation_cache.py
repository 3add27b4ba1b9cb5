"""Relation cache: compares each Relation message with the known table, and records what changed.

A difference is a change at the Ts of its transaction: rows of the table may be on both sides of it there. If a
transaction changes a table twice, that is one change. Relations of transactions that are already in the log are
ignored: their changes are known.

An unknown table that the rules match is new from the moment at which the stream names it. Rows from before it was
published are not in the stream; if it is published in the transaction that creates it, there are none.
"""

import traceback
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace

import structlog

from agent.errors import RESYNC, cause_of, is_of_table
from agent.rows.schema import TableSchema
from agent.rows.schema_change import KnownTable
from agent.sources.common import schema_diff
from agent.sources.postgres.publication.newcomers import keyless
from agent.sources.postgres.server.sql import is_text, shown
from agent.sources.postgres.stream import column_numbers
from agent.sources.postgres.stream.catalog_lookup import CatalogTable, Guess
from agent.sources.postgres.stream.column_numbers import Numbers
from agent.sources.postgres.stream.partition_keys import PartitionKeys
from reactor.ids import Ts
from reactor.records.tables.schema_change import DdlRecord, SchemaChangeKind, TableChange
from reactor.records.tables.table import TableRecord

_log = structlog.get_logger()

#: schema and name
Path = tuple[str, str]


class SchemaTracker:
    """Keeps ``known`` up to date. ``wants``: whether a new table is selected, by schema and name; ``takes``: whether it
    can be replicated; ``needs_columns``: the sink has no table without any. ``look_up`` queries the catalog about one
    table, ``names_of`` about the names of many at one moment; ``verified`` queries the table for the values of new
    columns in older rows, see there."""

    def __init__(
        self,
        known: dict[int, KnownTable],
        *,
        wants: Callable[[str, str], bool],
        takes: Callable[[TableRecord], bool],
        look_up: Callable[[int], CatalogTable],
        names_of: Callable[[Iterable[int]], Mapping[int, Path]],
        verified: Callable[[int, Mapping[str, Guess]], tuple[dict[str, str], list[str]]],
        needs_columns: bool = False,
    ) -> None:
        self.known = known
        self._wants = wants
        self._takes = takes
        self._look_up = look_up
        self._names_of = names_of
        self._verified = verified
        self._needs_columns = needs_columns
        self._refused: set[int] = set()
        #: tables before the transaction that changes them, and its changes so far
        self._before: dict[tuple[Ts, int], KnownTable | None] = {}
        #: new tables, as the transaction that brought their first rows declared them first
        self._first: dict[tuple[Ts, int], TableSchema] = {}
        self._changes: dict[Ts, dict[int, TableChange | None]] = {}
        self._partitions = PartitionKeys()

    @property
    def changed_ts(self) -> Ts:
        """Where the last change is that was not taken."""
        return max(self._partitions.last_ts, max(self._changes, default=Ts(0)))

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
        before = self._before.get((ts, table_id))
        if before is not None and not self._is_taken(declared, self._names_beside(declared)):
            # the catalog, which is ahead, has it dropped; here it has only lost its name to another table
            self.known[table_id] = before
            del self._before[ts, table_id], self._changes[ts][table_id]
            return
        record = self._new_record(declared, ts)
        reason = _columnless(record) if self._lacks_columns(declared) else keyless(record)
        reason = reason if _is_text(declared) else _unnameable(record)
        if self._takes(record) and not self._lacks_columns(declared) and _is_text(declared):
            self._take_in(record, ts)
        else:
            self._refused.add(table_id)
            self._changes.setdefault(ts, {})[table_id] = _hold(record, reason)
            _log.warning("a new table is not taken in", table=declared.qualified_name, reason=reason)
        if table_id in self.known:
            self._partitions.judge(self.known[table_id].record, ts)

    def note_partition(self, root: int, partition: TableSchema, ts: Ts, *, is_in_log: bool) -> None:
        """Note a partition whose rows from ``ts`` on are sent as those of ``root``. ``is_in_log``: it was declared in
        front of rows that are in the log already."""
        known = self.known.get(root)
        if is_in_log:
            self._partitions.withdraw([partition.table_id], ts)
        self._partitions.note(root, known.record if known else None, partition, ts)

    def note_truncate(self, table_ids: Collection[int], ts: Ts) -> None:
        """Tables that one TRUNCATE names are declared in a row, too, and are no partitions of each other."""
        self._partitions.withdraw(table_ids, ts)

    def _new_record(self, declared: TableSchema, ts: Ts) -> TableRecord:
        return TableRecord.new(
            declared.table_id,
            declared.schema_name,
            declared.name,
            key=_key((), declared, self._look_up(declared.table_id)),
            start_ts=Ts(ts - 1),
            consistent_ts=Ts(ts - 1),
        )

    def _take_in(self, record: TableRecord, ts: Ts) -> None:
        """Take a new table in, under its name, or under that of today where another table has its name again."""
        table_id, names = record.table_id, self._names_beside(record)
        if self._is_taken(record, names):
            if table_id not in names:
                self._refused.add(table_id)
                _log.warning("a table came and went while it had another's name", table=".".join(_path(record)))
                return
            record = record.named(*names[table_id])
        self._displace(record, ts, names)
        self.known[table_id] = KnownTable(record, None)
        self._before[ts, table_id] = None

    def _lacks_columns(self, declared: TableSchema) -> bool:
        return self._needs_columns and not declared.columns

    def _displace(self, table: TableSchema | TableRecord, ts: Ts, names: Mapping[int, Path]) -> None:
        """Remove a table's new name from the table that had it: that is dropped or renamed, even if none of its rows
        shows it. So tables that swap names do it in one record. ``names``: those of today."""
        for table_id, known in list(self.known.items()):
            record = known.record
            if table_id == table.table_id or _path(record) != _path(table):
                continue
            path = names.get(table_id)
            if path is None:
                self._before.setdefault((ts, table_id), known)
                del self.known[table_id]
                self._changes.setdefault(ts, {})[table_id] = schema_diff.dropped(known)
            elif path != _path(table) and known.schema is not None:
                self._before.setdefault((ts, table_id), known)
                renamed = replace(known.schema, schema_name=path[0], name=path[1])
                after = KnownTable(record.named(*path), renamed)
                self.known[table_id] = after
                self._settle(after, self._look_up(table_id).at(renamed), ts)
                self._displace(renamed, ts, names)

    def _names_beside(self, table: TableSchema | TableRecord) -> Mapping[int, Path]:
        """Return the names of today of this table and all known ones, if one of those is known by this one's name. They
        are of one moment, behind the declaration: of several moments, two tables might have had one name."""
        return self._names_of({table.table_id, *self.known}) if self._others_of_name(table) else {}

    def _others_of_name(self, table: TableSchema | TableRecord) -> list[int]:
        return [
            number
            for number, known in self.known.items()
            if number != table.table_id and _path(known.record) == _path(table)
        ]

    def _is_taken(self, table: TableSchema | TableRecord, names: Mapping[int, Path]) -> bool:
        """Return whether another known table has this one's name today: names have been exchanged since. It need not be
        the one that is known by the name: that one's name of today may be a third one's, which has gone on to this."""
        return any(names.get(number) == _path(table) for number in self.known if number != table.table_id)

    def note(self, declared: TableSchema, ts: Ts, xid: int, *, is_first: bool = False) -> TableSchema:
        """Note a known table as the stream declares it in the transaction ``xid`` (32 bits), which ends at ``ts``;
        return it with resolved types and column numbers. ``is_first``: no event of the transaction is before it."""
        table_id = declared.table_id
        known = self.known[table_id]
        if not _is_text(declared) and (known.schema is None or not _is_same(known.schema, declared)):
            return self._lose_names(known, declared, ts)
        if known.schema is None:
            declared = replace(declared, schema_name=known.record.schema_name, name=known.record.name)
            numbers = self._look_up(table_id).numbers(declared, xid)
            after = KnownTable(known.record, column_numbers.placed(None, declared, numbers))
        elif _is_same(known.schema, declared):
            after = KnownTable(known.record, column_numbers.placed(known.schema, declared, Numbers()))
        else:
            return self._change(known, known.schema, declared, ts, xid, is_first=is_first)
        self.known[table_id] = after
        assert after.schema is not None
        if (ts, table_id) in self._before and table_id not in self._changes.get(ts, {}):
            self._first[ts, table_id] = after.schema
            self._settle(after, CatalogTable(), ts)
        return after.schema

    def _lose_names(self, known: KnownTable, declared: TableSchema, ts: Ts) -> TableSchema:
        """Hold a table that has got a name which is not UTF-8."""
        self._before.setdefault((ts, declared.table_id), known)
        self.known[declared.table_id] = KnownTable(known.record, declared)
        self._changes.setdefault(ts, {})[declared.table_id] = _hold(known.record, _unnameable(known.record))
        return declared

    def note_quiet(self, declared: TableSchema, ts: Ts, xid: int) -> None:
        """Note a table as the catalog had it when the transaction ``xid`` (32 bits) had not begun; it has no row since.

        Without a key the table has none that the stream could send; it may have one again by its next row, unless a
        column of its key is gone.
        """
        known = self.known.get(declared.table_id)
        if known is None or known.schema is None or _is_same(known.schema, declared):
            return
        if declared.key or not known.record.key or _lacks_key_column(known.record, known.schema, declared):
            self.note(declared, ts, xid)

    def take(self, upto: Ts) -> tuple[DdlRecord, ...]:
        """Return, and forget, the changes of transactions that end at or below ``upto``."""
        for ts, record, reason in self._partitions.take(upto):
            self._changes.setdefault(ts, {})[record.table_id] = _hold(record, reason)
        done = [ts for ts in sorted(self._changes) if ts <= upto]
        taken = [(ts, self._changes.pop(ts)) for ts in done]
        self._before = {key: before for key, before in self._before.items() if key[0] > upto}
        self._first = {key: schema for key, schema in self._first.items() if key[0] > upto}
        found = ((ts, tuple(change for change in changes.values() if change is not None)) for ts, changes in taken)
        return tuple(DdlRecord(ts=ts, changes=changes) for ts, changes in found if changes)

    def _change(
        self, known: KnownTable, schema: TableSchema, declared: TableSchema, ts: Ts, xid: int, *, is_first: bool
    ) -> TableSchema:
        found = self._look_up(declared.table_id)
        is_renamed = _path(known.record) != _path(declared)
        names = self._names_beside(declared) if is_renamed else {}
        if self._is_taken(declared, names):
            path = names.get(declared.table_id, _path(known.record))
            declared = replace(declared, schema_name=path[0], name=path[1])
        after_schema = column_numbers.placed(schema, declared, found.numbers(declared, xid))
        found = found.at(after_schema)
        named = known.record.named(declared.schema_name, declared.name)
        record = named.with_(key=_key(known.record.key, declared, found))
        after = KnownTable(record, after_schema)
        # behind another change of the transaction there may be rows of it, which had no such column
        is_alone = (ts, declared.table_id) not in self._before
        empty_at = found.empty_at(xid, is_first=is_first) if is_alone else frozenset[str]()
        self._before.setdefault((ts, declared.table_id), known)
        self.known[declared.table_id] = after
        self._settle(after, found, ts, empty_at)
        # behind a new primary key, the server declares each partition again in front of its next row
        if record.key != known.record.key and declared.replica_identity == "i":
            self._partitions.judge(record, ts)
        if is_renamed:
            self._displace(after_schema, ts, names)
        return after_schema

    def _settle(self, after: KnownTable, found: CatalogTable, ts: Ts, empty_at: frozenset[str] = frozenset()) -> None:
        """Record what the transaction at ``ts`` has changed of the table so far. An error in it holds the table.
        ``empty_at``: if one of these columns is new, the table had no row when it was added."""
        table_id = after.record.table_id
        try:
            change = self._compared(after, found, ts, empty_at)
        except Exception as error:
            if not is_of_table(error):
                raise
            change = _hold((self._before[ts, table_id] or after).record, _uninterpreted(after.record, error))
            trace = "".join(traceback.format_exception(error, limit=-3))
            _log.error("a change of a table cannot be interpreted, and it is held", reason=change.reason, trace=trace)
        self._changes.setdefault(ts, {})[table_id] = change

    def _compared(self, after: KnownTable, found: CatalogTable, ts: Ts, empty_at: frozenset[str]) -> TableChange | None:
        """Return the change. Rows that its transaction wrote before it added a column to a new table are filled as
        those of an old one."""
        table_id = after.record.table_id
        assert after.schema is not None
        before, first = self._before[ts, table_id], self._first.get((ts, table_id), after.schema)
        columns = column_numbers.matched(first if before is None else _schema(before), after.schema, found.fills)
        if before is None:
            change: TableChange | None = schema_diff.created(after).with_(fills=dict(columns.fills))
        else:
            change = schema_diff.compare(before, after, columns)
        was_empty = not empty_at.isdisjoint(columns.added)
        guesses = {name: guess for name, guess in found.guesses.items() if name in columns.added and not was_empty}
        if change is not None and guesses:
            fills, unknown = self._verified(table_id, guesses)
            change = change.with_(fills={**change.fills, **fills})
            # rows that are gone by now are not gone yet at the sink, where later events name them by these values
            known = change.fills.keys()
            keys = {*after.record.key, *found.key}  # that of today may have named them already
            unknown += [
                name for name in sorted(guesses) if name not in known and (name in keys or not after.record.key)
            ]
            change = _hold((before or after).record, _computed(after.record, unknown[0])) if unknown else change
        if change is not None and not is_text(*change.fills.values()):
            change = _hold((before or after).record, _unreadable(after.record))
        if self._lacks_columns(after.schema):
            change = _hold((before or after).record, _columnless(after.record))
        return change


def _path(table: TableRecord | TableSchema) -> Path:
    return table.schema_name, table.name


def _schema(table: KnownTable) -> TableSchema:
    assert table.schema is not None
    return table.schema


def _hold(record: TableRecord, reason: str) -> TableChange:
    return TableChange(kind=SchemaChangeKind.HOLD, table_id=record.table_id, table=record, reason=shown(reason))


def _is_text(declared: TableSchema) -> bool:
    return is_text(declared.schema_name, declared.name, *(column.name for column in declared.columns))


def _unnameable(record: TableRecord) -> str:
    return (
        f"table {record.schema_name}.{record.name} has a name that is not UTF-8, its own or a column's; rename that, "
        f"and {RESYNC}; or leave it out by a filter rule"
    )


def _computed(record: TableRecord, column: str) -> str:
    return (
        f"what rows of table {record.schema_name}.{record.name} hold in its new column {column} is in no stream (it "
        f"was computed when the column was added); {RESYNC}, or leave it out by a filter rule"
    )


def _unreadable(record: TableRecord) -> str:
    return (
        f"table {record.schema_name}.{record.name} has a new column whose value in existing rows is not UTF-8; set the "
        f"database's encoding, and {RESYNC}; or leave it out by a filter rule"
    )


def _uninterpreted(record: TableRecord, error: Exception) -> str:
    return (
        f"what has changed of table {record.schema_name}.{record.name} cannot be interpreted ({cause_of(error)}); "
        f"{RESYNC}, or leave it out by a filter rule"
    )


def _columnless(record: TableRecord) -> str:
    return (
        f"table {record.schema_name}.{record.name} has no columns, so there is nothing to write; add one and create "
        "the changefeed again, leave it out by a filter rule, or use sink mode changelog"
    )


def _lacks_key_column(record: TableRecord, known: TableSchema, declared: TableSchema) -> bool:
    """Return whether a column of the table's key is gone, by its number."""
    left = {column.place for column in declared.columns}
    places = (column.place for column in known.columns if column.name in record.key)
    return 0 not in left and any(place and place not in left for place in places)


def _key(before: tuple[str, ...], declared: TableSchema, found: CatalogTable) -> tuple[str, ...]:
    """Return the key that the stream sends; if it sends whole rows, the catalog's, if that is of the same time."""
    key = found.key if declared.replica_identity == "f" else declared.key
    if not set(key) <= {column.name for column in declared.columns} or not is_text(*key):
        key = ()
    return before if set(before) == set(key) else key


def _is_same(known: TableSchema, declared: TableSchema) -> bool:
    """Compare two definitions, ignoring the spelling of types."""
    plain = [
        replace(schema, columns=tuple(replace(c, type_name="") for c in schema.columns)) for schema in (known, declared)
    ]
    return plain[0] == plain[1]
