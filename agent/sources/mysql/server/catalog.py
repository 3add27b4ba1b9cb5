"""Catalog: reads table definitions from ``information_schema``, in the form of table maps with full metadata.

All columns in their order: row events also have generated columns, even virtual ones, and invisible ones. A column is a
key column if the server itself uses it as the primary key: without a declared one, this is the first unique key over
NOT NULL columns. The catalog also has what the binlog lacks: that a column is a uuid or an IP address.

A definition read here is the current one, unless a transaction that has accessed the table blocks changes.
"""

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Final, Protocol

from agent.errors import SourceConfigError, table_gone
from agent.rows.schema import Column, TableSchema, ZeroDates
from agent.sources.mysql.decode import type_names
from agent.sources.mysql.decode.table_ids import table_id
from agent.sources.mysql.decode.types import FieldType
from agent.sources.mysql.dialect import DIALECT
from agent.sources.mysql.server.sql import literal

SYSTEM_SCHEMAS: Final = frozenset({"mysql", "information_schema", "performance_schema", "sys"})

_COLUMNS_SQL: Final = """
SELECT table_schema, table_name, column_name, data_type, column_type, character_octet_length, numeric_precision,
       numeric_scale, datetime_precision, collation_name, column_key
  FROM information_schema.columns WHERE {tables} ORDER BY table_schema, table_name, ordinal_position
"""
_DEFAULTS_SQL: Final = """
SELECT table_schema, table_name, table_collation FROM information_schema.tables
 WHERE {tables} AND table_type IN ('BASE TABLE', 'SYSTEM VERSIONED')
"""
_DATABASES_SQL: Final = "SELECT schema_name, default_collation_name FROM information_schema.schemata"

_PLAIN: Final = {
    "tinyint": (FieldType.TINY, 0),
    "smallint": (FieldType.SHORT, 0),
    "mediumint": (FieldType.INT24, 0),
    "int": (FieldType.LONG, 0),
    "bigint": (FieldType.LONGLONG, 0),
    "float": (FieldType.FLOAT, 4),
    "double": (FieldType.DOUBLE, 8),
    "year": (FieldType.YEAR, 0),
    "date": (FieldType.DATE, 0),
    "json": (FieldType.JSON, 4),
    "vector": (FieldType.VECTOR, 4),
    # MariaDB types that are logged as fixed-length binary strings
    "uuid": (FieldType.STRING, 16),
    "inet6": (FieldType.STRING, 16),
    "inet4": (FieldType.STRING, 4),
}
_TEMPORAL: Final = {
    "time": (FieldType.TIME, FieldType.TIME2),
    "datetime": (FieldType.DATETIME, FieldType.DATETIME2),
    "timestamp": (FieldType.TIMESTAMP, FieldType.TIMESTAMP2),
}
_STRINGS: Final = {
    "char": FieldType.STRING,
    "binary": FieldType.STRING,
    "varchar": FieldType.VARCHAR,
    "varbinary": FieldType.VARCHAR,
}
#: by the number of bytes of a value's length
_BLOBS: Final = {
    f"{size}{kind}": width for kind in ("text", "blob") for width, size in enumerate(("tiny", "", "medium", "long"), 1)
}
_GEOMETRIES: Final = frozenset(
    {
        "geometry",
        "point",
        "linestring",
        "polygon",
        "multipoint",
        "multilinestring",
        "multipolygon",
        "geometrycollection",
        "geomcollection",
    }
)
_NAMED: Final = frozenset({"uuid", "inet4", "inet6"})
_BINARY_COLLATION: Final = 63
_MEMBER: Final = re.compile(r"'((?:[^']|'')*)'")
#: escapes in ENUM and SET members as the server writes them, regardless of the SQL mode
_ESCAPE: Final = re.compile(r"''|\\(.)", re.DOTALL)
_ESCAPED: Final = {"0": "\0", "n": "\n", "r": "\r"}


class Queries(Protocol):
    """The part of ``connection.Connection`` that this module uses."""

    @property
    def is_mariadb(self) -> bool: ...

    def query(self, sql: str) -> Sequence[Sequence[Any]]: ...


def read_schemas(
    connection: Queries, tables: Iterable[tuple[str, str]], *, zero_dates: ZeroDates = ZeroDates.NULL
) -> dict[int, TableSchema]:
    """Return the definitions of the tables (schema, name), by id; views and sequences are none.

    :raises TableGoneError: a table is gone.
    :raises SourceConfigError: a column is of an unknown type.
    """
    wanted = sorted(set(tables))
    schemas = present_schemas(connection, wanted, zero_dates=zero_dates)
    for schema_name, name in wanted:
        if table_id(schema_name, name) not in schemas:
            raise table_gone(f"table {schema_name}.{name}")
    return schemas


def present_schemas(
    connection: Queries, tables: Iterable[tuple[str, str]], *, zero_dates: ZeroDates = ZeroDates.NULL
) -> dict[int, TableSchema]:
    """As ``read_schemas``, without tables that are gone.

    :raises SourceConfigError: a column is of an unknown type.
    """
    found: dict[tuple[str, str], tuple[str, Sequence[Sequence[Any]]]] = {}
    for schema_name, group in groupby(sorted(set(tables)), key=lambda table: table[0]):
        names = {name for _, name in group}
        defaults = {_table_of(row): str(row[2]) for row in connection.query(_asking(_DEFAULTS_SQL, schema_name, names))}
        for table, lines in groupby(_column_rows(connection, schema_name, names), key=_table_of):
            if table[0] == schema_name and table[1] in names and table in defaults:
                found[table] = defaults[table], [row[2:] for row in lines]
    named = {name for collation, rows in found.values() for name in (collation, *(str(row[-2]) for row in rows))}
    collations = read_collations(connection, named)
    schemas = {}
    for (schema_name, name), (collation, rows) in found.items():
        columns = tuple(_column(row, collations, f"{schema_name}.{name}") for row in rows)
        number = table_id(schema_name, name)
        schemas[number] = TableSchema(
            number,
            schema_name,
            name,
            columns,
            dialect=DIALECT,
            zero_dates=zero_dates,
            collation=collations.get(collation, 0),
        )
    return schemas


def database_collations(connection: Queries) -> dict[str, int]:
    """Return the default collations of all databases; 0 if one is not known."""
    found = {str(name): str(collation) for name, collation in connection.query(_DATABASES_SQL)}
    numbers = read_collations(connection, {*found.values()})
    return {name: numbers.get(collation, 0) for name, collation in found.items()}


def _column_rows(connection: Queries, schema_name: str, names: Collection[str]) -> Sequence[Sequence[Any]]:
    return connection.query(_asking(_COLUMNS_SQL, schema_name, names))


def _asking(sql: str, schema_name: str, names: Collection[str]) -> str:
    # compare a single name by =: the server then opens only that table
    listed = ", ".join(literal(name) for name in sorted(names))
    which = f"table_name = {listed}" if len(names) == 1 else f"table_name IN ({listed})"
    return sql.format(tables=f"table_schema = {literal(schema_name)} AND {which}")


def _table_of(row: Sequence[Any]) -> tuple[str, str]:
    return str(row[0]), str(row[1])


def read_collations(connection: Queries, names: Collection[str]) -> dict[str, int]:
    """Return the numbers of some collations by name; a server has hundreds. Some MariaDB collations have one per
    character set, only in this table."""
    if not names:
        return {}
    table, column = "information_schema.collations", "collation_name"
    if connection.is_mariadb:
        columns = connection.query(
            "SELECT 1 FROM information_schema.columns WHERE table_schema = 'information_schema' "
            "AND table_name = 'COLLATION_CHARACTER_SET_APPLICABILITY' AND column_name = 'FULL_COLLATION_NAME'"
        )
        if columns:
            table, column = "information_schema.collation_character_set_applicability", "full_collation_name"
    wanted = ", ".join(map(literal, sorted(names)))
    rows = connection.query(f"SELECT {column}, id FROM {table} WHERE id IS NOT NULL AND {column} IN ({wanted})")
    return {str(name): int(number) for name, number in rows}


@dataclass(frozen=True, slots=True)
class _Described:
    """A row of ``information_schema.columns``, without the table's name."""

    name: str
    data_type: str
    column_type: str
    octets: int
    precision: int
    scale: int
    fraction: int
    collation: str
    key: str

    @classmethod
    def of(cls, row: Sequence[Any]) -> "_Described":
        name, data_type, column_type, *numbers, collation, key = row
        octets, precision, scale, fraction = (int(value or 0) for value in numbers)
        return cls(
            str(name),
            str(data_type).lower(),
            str(column_type),
            octets,
            precision,
            scale,
            fraction,
            str(collation or ""),
            str(key),
        )

    @property
    def is_old(self) -> bool:
        """Whether it is a date in the format of before MySQL 5.6, which a server keeps until the table is rebuilt."""
        return "mariadb-5.3" in self.column_type

    @property
    def is_compressed(self) -> bool:
        return "COMPRESSED" in self.column_type

    def name_of(self, column: Column) -> str:
        """Return the type's name, with attributes that the log lacks."""
        display = self.column_type.partition("(")[2].partition(")")[0]
        is_zerofill = "zerofill" in self.column_type.split()
        return type_names.name_of(column, f"({display})" if display else "", is_zerofill=is_zerofill)

    @property
    def members(self) -> tuple[str, ...]:
        return tuple(_ESCAPE.sub(_unescaped, found) for found in _MEMBER.findall(self.column_type))


def _column(row: Sequence[Any], collations: dict[str, int], table: str) -> Column:
    line = _Described.of(row)
    layout = _layout(line)
    if layout is None:
        raise SourceConfigError(
            f"{table}: column {line.name} has the type {line.data_type}, which Weir does not know; "
            f"leave the table out by a filter rule !{table}"
        )
    type_id, modifier = layout
    column = Column(
        line.name,
        int(type_id),
        modifier,
        is_key=line.key == "PRI",
        is_unsigned="unsigned" in line.column_type.split(),
        collation=_collation(line, type_id, collations),
        members=line.members if type_id in (FieldType.ENUM, FieldType.SET) else (),
    )
    return replace(column, type_name=line.data_type if line.data_type in _NAMED else line.name_of(column))


def _unescaped(found: re.Match[str]) -> str:
    return _ESCAPED.get(found[1], found[1]) if found[1] else "'"


def _collation(line: _Described, type_id: int, collations: dict[str, int]) -> int:
    if line.collation:
        return collations.get(line.collation, 0)
    is_bytes = type_id in (FieldType.STRING, FieldType.VARCHAR, FieldType.VARCHAR_COMPRESSED)
    is_blob = type_id in (FieldType.BLOB, FieldType.BLOB_COMPRESSED)
    return _BINARY_COLLATION if is_bytes or is_blob else 0


def _layout(line: _Described) -> tuple[int, int] | None:
    """Return field type and modifier, as ``types`` has them."""
    kind = line.data_type
    if kind in _PLAIN:
        return _PLAIN[kind]
    if kind in _TEMPORAL:
        old, new = _TEMPORAL[kind]
        return (old, 0) if line.is_old else (new, line.fraction)
    if kind in _STRINGS:
        is_compressed = line.is_compressed
        return FieldType.VARCHAR_COMPRESSED if is_compressed else _STRINGS[kind], line.octets + is_compressed
    if kind in _BLOBS:
        return FieldType.BLOB_COMPRESSED if line.is_compressed else FieldType.BLOB, _BLOBS[kind]
    if kind in _GEOMETRIES:
        return FieldType.GEOMETRY, 4
    match kind:
        case "decimal":
            return FieldType.DECIMAL, line.precision << 8 | line.scale
        case "bit":
            return FieldType.BIT, line.precision
        case "enum":
            return FieldType.ENUM, 1 if len(line.members) < 256 else 2
        case "set":
            width = (len(line.members) + 7) // 8
            return FieldType.SET, width if width <= 4 else 8
    return None
