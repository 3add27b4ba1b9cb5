"""Catalog lookup: finds what the stream does not say of a changed table (column numbers, key, new columns' values).

``ADD COLUMN … DEFAULT`` writes no row: what the existing rows now hold is in the catalog alone, until something
rewrites the table. From then on the default, or that of the column's domain, is a guess: it may not be one value for
all rows (``random()``, a sequence), it may have been set to another one since, and a column that may be NULL may have
got it later than its rows. So the rows themselves are asked, those that are as old as the column (``verified``).
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import structlog

from agent.errors import SourceError, StatementRefusedError
from agent.rows.schema import Column, TableSchema
from agent.sources.postgres.decode import types
from agent.sources.postgres.publication.published import one_moment
from agent.sources.postgres.server import xids
from agent.sources.postgres.server.catalog import ALL_COLUMNS, leaves_sql, rows_of
from agent.sources.postgres.server.connection import Connection
from agent.sources.postgres.server.keys import key_of
from agent.sources.postgres.server.rewriters import writers_sql, written_sql
from agent.sources.postgres.server.session_settings import QUALIFIED_NAMES_SQL
from agent.sources.postgres.server.sql import identifier, literal, output_text
from agent.sources.postgres.server.terms import AllTerms
from agent.sources.postgres.server.xids import older_sql
from agent.sources.postgres.stream.column_numbers import Numbers

#: from a commit's place in the log until others see it are microseconds
_LOCK_MS: Final = 2_000
#: a table in which there is something is known at once
_SCAN_MS: Final = 10_000
#: how often a table's rows are read, if it is altered meanwhile
_TRIES: Final = 3

_log = structlog.get_logger()

#: the command by which a rewrite wrote the rows: the first of its transaction; a locked row does not show it
_COMMAND_SQL: Final = "SELECT min(cmin::text::int8) FROM {rows} WHERE xmin::text = '{xmin}' AND xmax::text = '0'"
#: the transaction that gave a table its file, and its last command that did; of several partitions the youngest
_REWRITER_SQL: Final = (
    "SELECT xmin, command FROM (SELECT DISTINCT ON (relid) * FROM {writers} writers ORDER BY relid, age DESC) oldest "
    "ORDER BY age LIMIT 1"
)
_XMINS_SQL: Final = (
    "SELECT attnum::int4, attname, xmin::text FROM pg_catalog.pg_attribute "
    "WHERE attrelid = {table} AND attnum > 0 AND NOT attisdropped"
)
_NAMES_SQL: Final = (
    "SELECT c.oid::int8, n.nspname, c.relname FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n "
    "ON n.oid = c.relnamespace WHERE c.oid = ANY ('{{{tables}}}'::oid[])"
)
#: ``pg_get_expr`` locks the table that it is given, which it needs only for an expression with columns
_COLUMNS_SQL: Final = """
SELECT a.attname, a.attnum::int4, a.atthasmissing, pg_catalog.array_to_string(a.attmissingval, ''),
       a.attnotnull, CASE WHEN d.adbin::text LIKE '%{{VAR %' THEN 'columns' ELSE pg_catalog.pg_get_expr(d.adbin, 0) END,
       pg_catalog.format_type(a.atttypid, a.atttypmod),
       a.atttypid::int8, t.typnotnull, pg_catalog.pg_get_expr(t.typdefaultbin, 0), a.attgenerated
  FROM pg_catalog.pg_attribute a
  JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
  LEFT JOIN pg_catalog.pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
 WHERE a.attrelid = {table} AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated IN ('', 's')
"""


#: an index keeps what its build has counted until the next VACUUM or ANALYZE; from version 14 on, -1 is none
_BUILT_EMPTY_SQL: Final = (
    "SELECT a.attname, a.xmin::text FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_index i "
    "ON i.indrelid = a.attrelid AND a.attnum = ANY (i.indkey::int2[]) AND i.indpred IS NULL "
    "JOIN pg_catalog.pg_class c ON c.oid = i.indexrelid AND c.relkind = 'i' AND c.reltuples = -1 "
    "AND c.xmin::text = a.xmin::text JOIN pg_catalog.pg_am m ON m.oid = c.relam AND m.amname = 'btree' "
    "WHERE a.attrelid = {table} AND NOT a.attisdropped"
)
_GONE_SQL: Final = (
    "SELECT attnum::int4, xmin::text FROM pg_catalog.pg_attribute "
    "WHERE attrelid = {table} AND attnum > 0 AND attisdropped"
)
#: as ``pg_get_expr`` writes a constant: a literal, and what it is cast to
_CONSTANT: Final = re.compile(
    r"""(?:'(?:[^']|'')*'|\(?[-+]?\d+(?:\.\d*)?(?:e[-+]?\d+)?\)?|true|false)(?:::[\w ."\[\](),]+)?""", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Guess:
    """The values that rows from before the column of this number may hold in it: ``value``, if its default is one for
    all rows."""

    number: int
    value: str | None
    is_required: bool


@dataclass(frozen=True, slots=True)
class CatalogTable:
    """A table in the catalog of today, and its name; ``is_there`` False when it is gone.

    ``fills``: column → what rows without a value of it hold, in text. ``guesses``: of columns that perhaps are not NULL
    in them. ``key``: what upserts go by. ``types``: as ``types.resolve_column`` has them. ``unsent``: columns that the
    publications leave out. ``dropped``: numbers of dropped columns, and who dropped them (32 bits). ``built_empty``:
    columns on which the transaction (32 bits) that made or altered them last has built an index of no row, so that the
    table had none.
    """

    is_there: bool = False
    schema_name: str = ""
    name: str = ""
    places: dict[str, int] = field(default_factory=dict)
    fills: dict[str, str] = field(default_factory=dict)
    guesses: dict[str, Guess] = field(default_factory=dict)
    key: tuple[str, ...] = ()
    types: dict[str, int] = field(default_factory=dict)
    unsent: frozenset[str] = frozenset()
    dropped: tuple[tuple[int, int], ...] = ()
    built_empty: dict[str, int] = field(default_factory=dict)

    @property
    def path(self) -> tuple[str, str]:
        return self.schema_name, self.name

    def numbers(self, declared: TableSchema, since: int) -> Numbers:
        """Return the columns' numbers, without those of names that have another type by now: that may be another
        column. ``since``: the transaction (32 bits) that declares the table."""
        by_name = {
            column.name: self.places[column.name]
            for column in declared.columns
            if self.types.get(column.name) == column.type_id
        }
        there = sorted(number for name, number in self.places.items() if name not in self.unsent)
        gone = sorted(number for number, dropped_by in self.dropped if not xids.is_older(dropped_by, since))
        gone_since = [number for number, dropped_by in self.dropped if xids.is_older(since, dropped_by)]
        return Numbers(by_name, tuple(there), tuple(gone), tuple(sorted(gone_since)))

    def empty_at(self, since: int, *, is_first: bool) -> frozenset[str]:
        """Return the columns of ``built_empty`` that are as old as the transaction ``since`` (32 bits), which declares
        the table. ``is_first``: no event of that is before its declaration."""
        return frozenset(
            name
            for name, xmin in self.built_empty.items()
            if xids.is_older(xmin, since) or (is_first and xmin == since)
        )

    def at(self, declared: TableSchema) -> "CatalogTable":
        """Return it with the names of ``declared``, whose columns have their numbers. Of columns that have another type
        by now it says nothing but that rows may hold something in them."""
        names = {number: name for name, number in self.places.items()}
        found = {names[column.place]: column for column in declared.columns if column.place in names}
        renamed = {name: column.name for name, column in found.items() if self.types.get(name) == column.type_id}
        retyped = {
            column.name: Guess(column.place, None, is_required=False)
            for name, column in found.items()
            if name not in renamed
        }
        return replace(
            self,
            places={renamed[name]: place for name, place in self.places.items() if name in renamed},
            fills={renamed[name]: value for name, value in self.fills.items() if name in renamed},
            guesses={renamed[name]: guess for name, guess in self.guesses.items() if name in renamed} | retyped,
            key=tuple(found[name].name if name in found else name for name in self.key),
            built_empty={renamed[name]: xmin for name, xmin in self.built_empty.items() if name in renamed},
        )


def look_up(connection: Connection, table_id: int, terms: AllTerms = ALL_COLUMNS) -> CatalogTable:
    """:raises SourceError: the catalog cannot be read."""
    own, table = terms.of(table_id), int(table_id)
    _wait_until_visible(connection, table_id)
    connection.query(QUALIFIED_NAMES_SQL)
    with one_moment(connection):
        path = names_of(connection, [table]).get(table)
        rows = connection.query(_COLUMNS_SQL.format(table=table))
        key = key_of(connection, table_id)
        gone = connection.query(_GONE_SQL.format(table=table))
        found_types = _types(connection, {str(row[0]): int(row[7] or 0) for row in rows})
        built_empty = connection.query(_BUILT_EMPTY_SQL.format(table=table))
    if path is None:
        return CatalogTable()
    fills = {str(row[0]): row[3] for row in rows if row[2] == "t" and row[3] is not None}
    defaults = {str(row[0]): (row[5] or row[9] or "", str(row[6])) for row in rows if str(row[0]) not in fills}
    required = {str(row[0]) for row in rows if "t" in (row[4], row[8])}
    constants = _constants(connection, defaults)
    places = {str(row[0]): int(row[1] or 0) for row in rows}
    guesses = {
        column: Guess(places[column], constants.get(column), column in required)
        for column, (default, _) in defaults.items()
        if default or column in required
    }
    return CatalogTable(
        is_there=True,
        schema_name=path[0],
        name=path[1],
        places=places,
        fills=fills,
        guesses=guesses,
        key=key,
        unsent=frozenset(str(row[0]) for row in rows if not own.sends(str(row[0]), str(row[10]))),
        dropped=tuple((int(number or 0), int(xmin or 0)) for number, xmin in gone),
        types=found_types,
        built_empty={str(name): int(xmin or 0) for name, xmin in built_empty},
    )


def names_of(connection: Connection, table_ids: Iterable[int]) -> dict[int, tuple[str, str]]:
    """Return schema and name of those of the tables that are there, all at one moment: no two are the same.

    :raises SourceError: the catalog cannot be read.
    """
    rows = connection.query(_NAMES_SQL.format(tables=",".join(str(int(table)) for table in table_ids)))
    return {int(table or 0): (str(schema_name), str(name)) for table, schema_name, name in rows}


def verified(connection: Connection, table_id: int, guesses: Mapping[str, Guess]) -> tuple[dict[str, str], list[str]]:
    """Return the values of these columns in older rows, which the stream sent without them (a column that is not named
    is NULL), and the columns whose values are unknown.

    Rows that are as old as a column, or not newer than its last change, are queried, by the name that the column has by
    now; so are those of a later rewrite, by the server or by another program: they were there before. If that takes too
    long, or the table is altered all the time, only the default of a NOT NULL column is trusted.
    """
    try:
        connection.query(f"SET lock_timeout = {_LOCK_MS}; SET statement_timeout = {_SCAN_MS}")
        connection.query(QUALIFIED_NAMES_SQL)
        state = _state(connection, table_id)
        for _ in range(_TRIES):
            if state is None:
                return {}, []
            found = _verified_in(connection, state, guesses)
            before, state = state, _state(connection, table_id)
            if state == before:
                return found
        _log.info("a table is altered while its older rows are read", table_id=table_id)
    except SourceError as error:
        _log.info("older rows could not be read", table_id=table_id, reason=str(error))
    trusted = _trusted(guesses)
    return trusted, sorted(guesses.keys() - trusted.keys())


@dataclass(frozen=True, slots=True)
class _State:
    """State of a table on which the queries for its older rows rest. ``columns``: number → name and last change.
    ``of_rewrite``: a condition of rows that the last rewrite wrote, or that are older; it follows another one."""

    rows: str
    columns: dict[int, tuple[str, int]]
    of_rewrite: str


def _state(connection: Connection, table_id: int) -> _State | None:
    path = names_of(connection, [table_id]).get(table_id)
    if path is None:
        return None
    rows = rows_of(connection, TableSchema(table_id, *path, ()))
    found = connection.query(_XMINS_SQL.format(table=int(table_id)))
    columns = {int(number or 0): (str(name), int(xmin or 0)) for number, name, xmin in found}
    return _State(rows, columns, _of_rewrite(connection, table_id))


def _trusted(guesses: Mapping[str, Guess]) -> dict[str, str]:
    return {name: guess.value for name, guess in guesses.items() if guess.value is not None and guess.is_required}


def _verified_in(
    connection: Connection, state: _State, guesses: Mapping[str, Guess]
) -> tuple[dict[str, str], list[str]]:
    trusted = _trusted(guesses)
    fills: dict[str, str] = {}
    unknown: list[str] = []
    for name, guess in sorted(guesses.items()):
        if guess.number not in state.columns:
            continue  # dropped since: the stream says so
        try:
            name_now, xmin = state.columns[guess.number]
            is_old = f"({older_sql(xmin, '>=')}{state.of_rewrite})"
            value = _verified(connection, state.rows, guess, name_now, xmin, is_old)
        except _NotOneValue:
            unknown.append(name)
        except SourceError as error:
            _log.info("older rows could not be read", column=name, rows=state.rows, reason=str(error))
            if name in trusted:
                fills[name] = trusted[name]
            else:
                unknown.append(name)
        else:
            if value is not None:
                fills[name] = value
    return fills, unknown


class _NotOneValue(Exception):
    """Rows from before a column hold different values in it."""


def _of_rewrite(connection: Connection, table_id: int) -> str:
    found = connection.query(_REWRITER_SQL.format(writers=writers_sql(leaves_sql(table_id))))
    if not found:
        return ""
    xid, command = (int(number or 0) for number in found[0])
    return f" OR {older_sql(xid)} OR {written_sql(xid, command)}"


def _verified(connection: Connection, rows: str, guess: Guess, name: str, xmin: int, is_old: str) -> str | None:
    """Return what all older rows hold in the column of this name. ``xmin``: its last change.

    :raises _NotOneValue: they hold something else than NULL or the guess.
    :raises SourceError: they cannot be read in time.
    """
    column = identifier(name)

    def has_rows(condition: str) -> bool:
        return bool(connection.query(f"SELECT 1 FROM {rows} WHERE {is_old} AND ({condition}) LIMIT 1"))

    if not has_rows("true"):
        return guess.value
    if not guess.is_required and not has_rows(f"{column} IS DISTINCT FROM NULL"):
        return None
    if guess.value is None:
        raise _NotOneValue
    [[command]] = connection.query(_COMMAND_SQL.format(rows=rows, xmin=xmin))
    if command is not None:  # later writes of the same transaction are in the stream
        is_old += f" AND NOT (xmin::text = '{xmin}' AND cmin::text::int8 > {int(command)})"
    if has_rows(f"{output_text(column)} IS DISTINCT FROM {literal(guess.value)}"):
        raise _NotOneValue
    return guess.value


def _wait_until_visible(connection: Connection, table_id: int) -> None:
    """Wait until other sessions see the commit: it is sent as soon as it is in the log. The transaction holds its lock
    on a changed table until it is visible, and reading the table's size waits for that lock. A later change of another
    session may hold the lock for longer, and is not waited for."""
    connection.query(f"SET lock_timeout = {_LOCK_MS}")
    try:
        connection.query(f"SELECT pg_catalog.pg_relation_size({int(table_id)}::pg_catalog.oid::pg_catalog.regclass)")
    except SourceError as error:
        _log.info("table is read while it is locked", table_id=table_id, reason=str(error))


def _types(connection: Connection, found: Mapping[str, int]) -> dict[str, int]:
    user_types = types.read_user_types(connection.query(types.USER_TYPES_SQL))
    return {name: types.resolve_column(Column(name, oid, -1), user_types).type_id for name, oid in found.items()}


def _constants(connection: Connection, defaults: Mapping[str, tuple[str, str]]) -> dict[str, str]:
    """Return the values of constant defaults, in a row's form. ``defaults``: expression and column's type."""
    constants = {name: default for name, default in defaults.items() if _CONSTANT.fullmatch(default[0])}
    if not constants:
        return {}
    sent = {name: output_text(f"({text})::{type_name}") for name, (text, type_name) in constants.items()}
    try:
        [values] = connection.query("SELECT " + ", ".join(sent.values()))
    except StatementRefusedError as error:
        if len(constants) > 1:
            return {
                key: value
                for name in constants
                for key, value in _constants(connection, {name: defaults[name]}).items()
            }
        # no row has a default that does not fit its column's type, which is possible after ALTER TYPE
        _log.info("a default does not fit its column", column=next(iter(constants)), reason=str(error))
        return {}
    return {name: value for name, value in zip(constants, values, strict=True) if value is not None}
