"""Catalog lookup: finds what the stream does not say of a changed table (column numbers, key, new columns' values).

``ADD COLUMN … DEFAULT`` writes no row: what the existing rows now hold is in the catalog alone, until something
rewrites the table. From then on it is known only from the default, if that is a constant (and was not set to another
one since) and the column is NOT NULL: a nullable one may have got its default later than its rows. Where the default is
not one value for all rows (``random()``, a sequence), what they hold is written nowhere: ``unknown_fills`` has those
columns, and nullable ones, which hold their default or NULL.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import structlog

from agent.errors import SourceError
from agent.rows.schema import Column, TableSchema
from agent.sources.postgres.decode import types
from agent.sources.postgres.publication.xids import older_sql
from agent.sources.postgres.server.catalog import rows_of
from agent.sources.postgres.server.connection import QUALIFIED_NAMES_SQL, Connection
from agent.sources.postgres.server.keys import key_of
from agent.sources.postgres.server.sql import identifier, output_text

#: from a commit's place in the log until others see it are microseconds
_LOCK_MS: Final = 2_000
#: a table in which there is something is known at once
_SCAN_MS: Final = 10_000

_log = structlog.get_logger()

_XMINS_SQL: Final = (
    "SELECT attname, xmin::text FROM pg_catalog.pg_attribute "
    "WHERE attrelid = {table} AND attnum > 0 AND NOT attisdropped"
)
_NAME_SQL: Final = (
    "SELECT n.nspname, c.relname FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n "
    "ON n.oid = c.relnamespace WHERE c.oid = {table}"
)
_COLUMNS_SQL: Final = """
SELECT a.attname, a.attnum::int4, a.atthasmissing, (a.attmissingval::text::text[])[1],
       a.attnotnull, pg_catalog.pg_get_expr(d.adbin, d.adrelid), pg_catalog.format_type(a.atttypid, a.atttypmod),
       a.atttypid::int8
  FROM pg_catalog.pg_attribute a
  LEFT JOIN pg_catalog.pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
 WHERE a.attrelid = {table} AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated IN ('', 's')
"""


#: as ``pg_get_expr`` writes a constant: a literal, and what it is cast to
_CONSTANT: Final = re.compile(
    r"""(?:'(?:[^']|'')*'|\(?[-+]?\d+(?:\.\d*)?(?:e[-+]?\d+)?\)?|true|false)(?:::[\w ."\[\](),]+)?""", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class CatalogTable:
    """A table in the catalog of today, and its name; ``is_there`` False when it is gone.

    ``fills``: column → what rows without a value of it hold, in text. ``unknown_fills``: perhaps not NULL in them, but
    not known. ``key``: what upserts go by. ``types``: as ``types.resolve_column`` has them.
    """

    is_there: bool = False
    schema_name: str = ""
    name: str = ""
    places: dict[str, int] = field(default_factory=dict)
    fills: dict[str, str] = field(default_factory=dict)
    unknown_fills: frozenset[str] = frozenset()
    key: tuple[str, ...] = ()
    types: dict[str, int] = field(default_factory=dict)

    def at(self, declared: TableSchema) -> "CatalogTable":
        """Without what it says of columns that have another type by now: that may be another column of the name."""
        alike = {column.name for column in declared.columns if self.types.get(column.name) == column.type_id}
        return replace(
            self,
            places={name: place for name, place in self.places.items() if name in alike},
            fills={name: value for name, value in self.fills.items() if name in alike},
            unknown_fills=self.unknown_fills & alike,
        )


def look_up(connection: Connection, table_id: int) -> CatalogTable:
    """:raises SourceError: the catalog cannot be read."""
    _wait_until_visible(connection, table_id)
    connection.query(QUALIFIED_NAMES_SQL)
    rows = connection.query(_COLUMNS_SQL.format(table=int(table_id)))
    names = connection.query(_NAME_SQL.format(table=int(table_id)))
    if not names:
        return CatalogTable()
    [(schema_name, name)] = names
    fills = {str(row[0]): row[3] for row in rows if row[2] == "t" and row[3] is not None}
    rewritten = {str(row[0]): (row[5] or "", str(row[6])) for row in rows if row[2] != "t" and row[4] == "t"}
    fills |= _constants(connection, rewritten)
    return CatalogTable(
        is_there=True,
        schema_name=str(schema_name),
        name=str(name),
        places={str(row[0]): int(row[1] or 0) for row in rows},
        fills=fills,
        unknown_fills=frozenset(str(row[0]) for row in rows if (row[4] == "t" or row[5]) and str(row[0]) not in fills),
        key=key_of(connection, table_id),
        types=_types(connection, {str(row[0]): int(row[7] or 0) for row in rows}),
    )


def has_unknown_fills(connection: Connection, table_id: int, columns: Collection[str]) -> bool:
    """Whether rows that are in the stream without these columns may hold something in them: rows that are as old as the
    columns, or not younger than what has last changed those. Also where that cannot be seen in time."""
    connection.query(f"SET lock_timeout = {_LOCK_MS}; SET statement_timeout = {_SCAN_MS}")
    try:
        names = connection.query(_NAME_SQL.format(table=int(table_id)))
        if not names:
            return False
        table = TableSchema(table_id, str(names[0][0]), str(names[0][1]), ())
        xmins = {str(name): int(xmin or 0) for name, xmin in connection.query(_XMINS_SQL.format(table=int(table_id)))}
        old = (
            f"({identifier(name)} IS NOT NULL AND {older_sql(xmins[name], '>=')})" for name in columns if name in xmins
        )
        condition = " OR ".join(old) or "false"
        return bool(connection.query(f"SELECT 1 FROM {rows_of(connection, table)} WHERE {condition} LIMIT 1"))
    except SourceError as error:
        _log.info("older rows could not be looked at", table_id=table_id, reason=str(error))
        return True


def _wait_until_visible(connection: Connection, table_id: int) -> None:
    """A commit is sent as soon as it is in the log, which is before other sessions see it. What changes a table holds
    its lock until they do, and asking for its size waits for that lock. Somebody else's later change may hold it for
    longer, and is not waited for."""
    connection.query(f"SET lock_timeout = {_LOCK_MS}")
    try:
        connection.query(f"SELECT pg_catalog.pg_relation_size({int(table_id)}::pg_catalog.oid::pg_catalog.regclass)")
    except SourceError as error:
        _log.info("a table is looked at while it is locked", table_id=table_id, reason=str(error))


def _types(connection: Connection, found: Mapping[str, int]) -> dict[str, int]:
    user_types = types.read_user_types(connection.query(types.USER_TYPES_SQL))
    return {name: types.resolve_column(Column(name, oid, -1), user_types).type_id for name, oid in found.items()}


def _constants(connection: Connection, defaults: Mapping[str, tuple[str, str]]) -> dict[str, str]:
    """The values of those that are constants, as a row would have them. ``defaults``: expression and column's type."""
    constants = {name: default for name, default in defaults.items() if _CONSTANT.fullmatch(default[0])}
    if not constants:
        return {}
    sent = (output_text(f"({text})::{type_name}") for text, type_name in constants.values())
    [values] = connection.query("SELECT " + ", ".join(sent))
    return {name: value for name, value in zip(constants, values, strict=True) if value is not None}
