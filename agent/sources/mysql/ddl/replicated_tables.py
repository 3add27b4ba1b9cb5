"""Replicated tables: the tables replicated at one place of the binlog, and what the binlog does not say about them.

A table map with full metadata describes its table except for two things: its id in Weir (a renamed table keeps the id
of its first name), and that a binary string is a uuid or an IP address. A table map with less metadata is completed
from the known definition; if that does not fit, the column names are unknown, and reading ends.

What the log says of a table must agree with what its statements have made of it: else a statement was not logged
(``sql_log_bin = 0``), or was of a temporary table, and what became of older rows is unknown.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Final

from agent.errors import DecodeError, is_of_table
from agent.rows.schema import Column, TableSchema, ZeroDates
from agent.rows.schema_change import KnownTable
from agent.sources.mysql.ddl.copies.memory import Memory
from agent.sources.mysql.decode.charsets import charset_of
from agent.sources.mysql.decode.table_ids import table_id
from agent.sources.mysql.decode.table_map import TableMap, parse_table_map
from agent.sources.mysql.decode.table_name import parse_table_name
from agent.sources.mysql.decode.types import arrow_schema
from reactor.ids import MAX_TS, Ts
from reactor.records.tables.table import TableRecord

#: MariaDB's hidden columns for unique keys that are too long for an index
_HIDDEN: Final = "DB_ROW_HASH_"
_UNLOGGED: Final = "a change with sql_log_bin = 0 is in no log"


class TableUnknownError(Exception):
    """The columns of a table at this place are unknown."""

    def __init__(self, table: tuple[str, str], reason: str) -> None:
        super().__init__(f"{'.'.join(table)}: {reason}")
        self.table = table
        self.reason = reason


class KnownTables:
    """Tables by schema and name; the stream reads them, the interpreter of definitions writes them. ``begin``: where
    the stream begins."""

    def __init__(
        self, tables: Iterable[KnownTable], *, zero_dates: ZeroDates, is_mariadb: bool, begin: Ts = MAX_TS
    ) -> None:
        #: grows with whatever changes ``memory``
        self.version = 0
        self._zero_dates = zero_dates
        self._is_mariadb = is_mariadb
        self._tables = {_name(table): _with_collation(table) for table in tables}
        #: ids of tables that certainly have no rows
        self._empty: set[int] = set()
        #: tables that are not replicated, and had rows in the log
        self._unreplicated: set[tuple[str, str]] = set()
        #: names that no table has: the id of the table that had it
        self._gone: dict[tuple[str, str], int] = {}
        #: names that the log has given to a table, which may not be replicated
        self._made: set[tuple[str, str]] = set()
        #: ids of tables that may have had rows since the server showed their key; another stream may have read them
        self._had_rows = {table.record.table_id for table in self._tables.values() if table.record.shown_ts}
        #: tables that this stream has had rows of
        self._declared: set[int] = set()
        #: ids of tables whose events have said the character sets of texts
        self._telling: set[int] = set()
        #: ids of tables whose definition here may be that of a later place
        self._early = {table.record.table_id for table in self._tables.values() if _latest(table.record) > begin}

    def remember(self, memory: Memory) -> None:
        """Take over what an earlier stream has learnt."""
        self._empty |= memory.empty
        self._had_rows -= memory.unread
        self._unreplicated |= memory.filled
        self._gone |= memory.gone
        self._made |= memory.made
        self.version += 1

    def memory(self) -> Memory:
        """Return what the next stream cannot know by the tables."""
        ids = {table.record.table_id: name for name, table in self._tables.items()}
        shown = {table.record.table_id for table in self._tables.values() if table.record.shown_ts}
        return Memory(
            empty=frozenset(self._empty & ids.keys()),
            unread=frozenset(shown - self._had_rows),
            gone={name: number for name, number in self._gone.items() if number in ids},
            made=frozenset(name for name in self._made if ids.get(table_id(*name), name) != name),
        )

    def is_met(self, name: tuple[str, str]) -> bool:
        """Return whether this stream has had a statement or rows of the table."""
        return name in self._made or self._tables[name].record.table_id in self._declared

    def with_id(self, table_id: int) -> KnownTable | None:
        return next((table for table in self._tables.values() if table.record.table_id == table_id), None)

    @property
    def by_name(self) -> Mapping[tuple[str, str], KnownTable]:
        return self._tables

    def put(self, table: KnownTable) -> None:
        """Add a table, or replace its definition."""
        before = [name for name, other in self._tables.items() if _is_same(other, table)]
        for name in before:
            self.drop(*name)
        self._tables[_name(table)] = table
        self.version += 1
        self.note_made(_name(table))
        if not table.record.to_copy:
            self._early.discard(table.record.table_id)

    def ask_collation(self, name: tuple[str, str], look: Callable[[tuple[str, str]], TableSchema | None]) -> None:
        """Query a table's collation if its record lacks it (records of v0.1.0): its new texts have that."""
        table = self._tables.get(name)
        if table is None or table.schema is None or table.schema.collation:
            return
        if found := look(name):
            schema = replace(table.schema, collation=found.collation)
            self.put(replace(table, record=table.record.with_(collation=found.collation), schema=schema))

    def drop(self, schema_name: str, name: str) -> None:
        table = self._tables.pop((schema_name, name), None)
        if table is not None:
            self._gone[schema_name, name] = table.record.table_id
            self.version += 1

    def note_made(self, name: tuple[str, str]) -> None:
        """Note that a table was created or renamed, so that it has this name."""
        self._gone.pop(name, None)
        self._made.add(name)
        self.version += 1

    def is_gone(self, name: tuple[str, str]) -> bool:
        """Return whether this stream has read that a table gave up this name, and none got it."""
        return name in self._gone

    def left(self, name: tuple[str, str]) -> KnownTable | None:
        """Return the table that had a name that no table should have now. From before the stream began only first
        names are known, by which ids are made."""
        number = self._gone.get(name, 0 if name in self._made else table_id(*name))
        return self.with_id(number)

    def put_new(self, table: KnownTable) -> None:
        """Add a table without rows."""
        self.put(table)
        self._empty.add(table.record.table_id)
        self._had_rows.discard(table.record.table_id)
        self.version += 1

    def is_empty(self, table_id: int) -> bool:
        """Return whether the log has the table's creation, and no event of its rows yet."""
        return table_id in self._empty

    def note_shown(self, table: KnownTable) -> None:
        """Note that a table has just got the key that the server shows."""
        self._had_rows.discard(table.record.table_id)
        self.version += 1

    def note_copied(self, table: KnownTable) -> None:
        """Note that a table, which is to be copied, has the columns that the server shows."""
        self._early.add(table.record.table_id)

    def tells_charsets(self, name: tuple[str, str]) -> bool:
        """Return whether this stream has had rows of the table by which the character sets of its texts are known."""
        return name in self._tables and self._tables[name].record.table_id in self._telling

    def note_defined(self, table: KnownTable) -> None:
        """Note that the columns are those of the log again."""
        self._early.discard(table.record.table_id)

    def is_keyed_early(self, table: KnownTable, ts: Ts) -> bool:
        """Return whether rows may have come under a key of a statement at ``ts`` or later: the server was ahead of the
        log."""
        return table.record.shown_ts >= ts and table.record.table_id in self._had_rows

    def note_unreplicated(self, name: tuple[str, str]) -> None:
        """Note that a table was created that is not replicated."""
        self._unreplicated.discard(name)
        self.version += 1

    def had_rows(self, name: tuple[str, str]) -> bool:
        """Return whether the log has had rows of this table, which is not replicated."""
        return name in self._unreplicated

    def is_wanted(self, schema_name: str, name: str) -> bool:
        """Return whether the rows of this table are replicated.

        :raises TableUnknownError: the log has no statement that gave a table this name.
        """
        at = schema_name, name
        table = self._tables.get(at)
        if at in self._gone or (table is None and at not in self._unreplicated and self.left(at) is not None):
            raise TableUnknownError(at, "no statement in the log has made a table of this name")
        if table is None and at not in self._unreplicated:
            self._unreplicated.add(at)
            self.version += 1
        return table is not None and not table.is_held

    def schema_of(self, schema_name: str, name: str) -> TableSchema | None:
        table = self._tables.get((schema_name, name))
        return table.schema if table and not table.is_held else None

    def describe(self, body: bytes) -> TableSchema:
        """Return the schema that a table map of a replicated table declares.

        :raises TableUnknownError: it lacks what is not otherwise known for certain, or cannot be parsed.
        """
        try:
            return self._described(body)
        except TableUnknownError:
            raise
        except Exception as error:
            if not is_of_table(error):
                raise
            cause = str(error) if isinstance(error, DecodeError) else f"{type(error).__name__}: {error}"
            raise TableUnknownError(parse_table_name(body), cause) from error

    def _described(self, body: bytes) -> TableSchema:
        declared = parse_table_map(body, is_mariadb=self._is_mariadb)
        table = self._tables[declared.schema.schema_name, declared.schema.name]
        self._note_rows(table.record)
        schema = _completed(declared, table.schema)
        if any(column.collation for column in declared.schema.columns):
            self._telling.add(table.record.table_id)
        if table.record.table_id not in self._early:
            _check(schema, table, zero_dates=self._zero_dates)
        return replace(schema, table_id=table.record.table_id, zero_dates=self._zero_dates)

    def _note_rows(self, table: TableRecord) -> None:
        number = table.table_id
        self._declared.add(number)
        if number in self._empty or (table.shown_ts and number not in self._had_rows):
            self._empty.discard(number)
            self._had_rows |= {number} if table.shown_ts else set()
            self.version += 1


def moved(table: KnownTable, name: tuple[str, str]) -> KnownTable:
    """Return a table under another name."""
    schema = None if table.schema is None else replace(table.schema, schema_name=name[0], name=name[1])
    return replace(table, record=table.record.named(*name), schema=schema)


def _name(table: KnownTable) -> tuple[str, str]:
    return table.record.schema_name, table.record.name


def _latest(table: TableRecord) -> Ts:
    """Return the last place whose definition this may be."""
    return max(table.start_ts, table.shown_ts) if table.to_copy else table.start_ts


def _with_collation(table: KnownTable) -> KnownTable:
    """Add the collation, which is missing in stored schemas, from the table's record."""
    if table.schema is None or table.schema.collation:
        return table
    return replace(table, schema=replace(table.schema, collation=table.record.collation))


def _is_same(one: KnownTable, other: KnownTable) -> bool:
    return one.record.table_id == other.record.table_id


def _completed(declared: TableMap, known: TableSchema | None) -> TableSchema:
    schema = declared.schema
    if any(column.name.startswith(_HIDDEN) for column in schema.columns):
        raise TableUnknownError(
            (schema.schema_name, schema.name), "it has a unique key by hash, with a hidden column in the log"
        )
    if declared.has_names and declared.has_members:
        names = {column.name: column for column in known.columns} if known else {}
        return replace(schema, columns=tuple(_named(column, names.get(column.name)) for column in schema.columns))
    if known is None or not _fits(declared, known):
        raise TableUnknownError(
            (schema.schema_name, schema.name),
            "the binlog does not name its columns, and they are not those that Weir knows"
            f"{_difference(declared, known)}; run: SET GLOBAL binlog_row_metadata = 'FULL'",
        )
    return known


def _check(declared: TableSchema, table: KnownTable, *, zero_dates: ZeroDates) -> None:
    """Check columns, their types at a sink, and the key.

    :raises TableUnknownError: they are others than those that Weir knows.
    """
    name, known = (declared.schema_name, declared.name), table.schema
    if known is None:
        return
    reason = f"it has another definition in the log than its statements gave it ({{}}); {_UNLOGGED}"
    one, other = (
        {item.name: item.type for item in arrow_schema(replace(schema, zero_dates=zero_dates))}
        for schema in (declared, known)
    )
    if odd := sorted(one.keys() ^ other.keys()):
        there = "has" if odd[0] in one else "lacks"
        raise TableUnknownError(name, reason.format(f"it {there} column {odd[0]}"))
    if odd := sorted(column for column in one if one[column] != other[column]):
        raise TableUnknownError(name, reason.format(f"column {odd[0]} is {one[odd[0]]}, not {other[odd[0]]}"))
    if declared.key and {*declared.key} != {*(table.record.key or declared.key)}:
        raise TableUnknownError(name, reason.format(f"its key is ({', '.join(declared.key)})"))


def _fits(declared: TableMap, known: TableSchema) -> bool:
    """Return whether there are as many columns, and each is as the log says, as far as that goes."""
    columns = declared.schema.columns
    is_equal = (_fits_column(declared, *pair) for pair in zip(columns, known.columns, strict=False))
    return len(columns) == len(known.columns) and all(is_equal)


def _fits_column(declared: TableMap, column: Column, known: Column) -> bool:
    is_same = (column.type_id, column.modifier) == (known.type_id, known.modifier)
    if declared.has_signs:
        is_same = is_same and column.is_unsigned == known.is_unsigned
    if column.collation and known.collation:
        is_same = is_same and charset_of(column.collation) == charset_of(known.collation)
    return is_same


def _difference(declared: TableMap, known: TableSchema | None) -> str:
    if known is None:
        return ""
    columns = declared.schema.columns
    if len(columns) != len(known.columns):
        return f" ({len(columns)} of them, and Weir knows {len(known.columns)})"
    pairs = zip(columns, known.columns, strict=True)
    one, other = next(pair for pair in pairs if not _fits_column(declared, *pair))
    return f" ({other.name} is {other.type_name}, and is {one.type_name} in the log)"


def _named(declared: Column, known: Column | None) -> Column:
    """Take over the type's name if the same column had one."""
    if known is None or (declared.type_id, declared.modifier) != (known.type_id, known.modifier):
        return declared
    return replace(declared, type_name=known.type_name)
