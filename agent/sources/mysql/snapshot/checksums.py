"""Checksums in MySQL and MariaDB: sums of row hashes by key range, in the session of a snapshot.

A row's hash is the square of the CRC-32 of its text: values with a bar between them, NULL empty, and before each text
its length, so that no two rows have the same one. A type whose text depends on the server, or is not what Weir stores,
is none of them: tables with such a column are compared by rows.
"""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from agent.ports.checksums import ChecksumSession, KeyRange, NoChecksums, RangeSum
from agent.rows.row_forms import Form, RowForm, RowHash
from agent.rows.schema import Column, TableSchema, ZeroDates
from agent.sources.mysql.decode import types
from agent.sources.mysql.decode.types import CALENDAR, FieldType, Kind
from agent.sources.mysql.server.connection import Connection
from agent.sources.mysql.server.sql import identifier, literal, qualified

_TIMEOUT_S: Final = 3600.0
_WRAP: Final = 1 << 64
_NO_LIMIT: Final = _WRAP - 1

_NUMBERS: Final = frozenset(
    {Kind.INT8, Kind.INT16, Kind.INT24, Kind.INT32, Kind.INT64, Kind.DECIMAL, Kind.YEAR}
    | {Kind.UINT8, Kind.UINT16, Kind.UINT24, Kind.UINT32, Kind.UINT64}
)
_OTHER_CHARSETS: Final = frozenset({Kind.TEXT_SINGLE, Kind.TEXT_CODEC, Kind.ENUM, Kind.SET})


@dataclass(frozen=True, slots=True)
class MysqlChecksums:
    """``agent.ports.checksums.SourceChecksums``. Only the snapshot's own session sees what it shows."""

    connection: Connection
    schema: TableSchema
    form: RowForm
    row: str
    sessions: int = 1

    @contextmanager
    def open(self) -> Iterator[ChecksumSession]:
        yield self

    def has_more_rows(self, count: int) -> bool:
        beginning = f"SELECT 1 FROM {self._table} LIMIT {count + 1}"
        [(found,)] = self.connection.query(f"SELECT count(*) FROM ({beginning}) AS beginning", timeout_s=_TIMEOUT_S)
        return int(found or 0) > count

    def bounds(self, column: str) -> tuple[int, int] | None:
        name = identifier(column)
        # a bit is sent as bytes, unless it is a number
        [(low, high)] = self.connection.query(f"SELECT min({name}) + 0, max({name}) + 0 FROM {self._table}")
        return None if low is None or high is None else (int(low), int(high))

    def sum(self, keys: KeyRange) -> RangeSum:
        condition = " AND ".join(keys.conditions(identifier(keys.column))) or "true"
        # without the limit the server merges both queries, and computes each hash twice
        hashes = f"SELECT crc32({self.row}) AS h FROM {self._table} WHERE {condition} LIMIT {_NO_LIMIT}"
        sql = f"SELECT count(*), sum(h * h) FROM ({hashes}) AS hashed"
        [(count, total)] = self.connection.query(sql, timeout_s=_TIMEOUT_S)
        return RangeSum(int(count or 0), int(total or 0) % _WRAP)

    @property
    def _table(self) -> str:
        return qualified(self.schema.schema_name, self.schema.name)


def checksums(connection: Connection, schema: TableSchema) -> MysqlChecksums | NoChecksums:
    """Return the checksums of a table's selected columns, or why there are none."""
    nullable = _nullable(connection, schema)
    columns, values = [], []
    for column in schema.columns:
        form, value = _form(column, is_mariadb=connection.is_mariadb, zero_dates=schema.zero_dates)
        if form is None:
            return NoChecksums(f"column {column.name} is a {column.type_name or types.kind_of(column).name.lower()}")
        columns.append((column.name, form))
        parts = [f"length({value})", value] if form is Form.SIZED else [value]
        values += [f"ifnull({part}, '')" if column.name in nullable else part for part in parts]
    if not values:
        return NoChecksums("it has no columns")
    row = f"concat_ws('|', {', '.join(values)})"
    return MysqlChecksums(connection, schema, RowForm(RowHash.CRC_SQUARE, tuple(columns)), row)


def _nullable(connection: Connection, schema: TableSchema) -> Collection[str]:
    rows = connection.query(
        "SELECT column_name FROM information_schema.columns WHERE is_nullable <> 'NO' "
        f"AND table_schema = {literal(schema.schema_name)} AND table_name = {literal(schema.name)}"
    )
    return {str(name) for (name,) in rows}


def _form(column: Column, *, is_mariadb: bool, zero_dates: ZeroDates) -> tuple[Form | None, str]:
    """None: its text is not the same on both sides."""
    name, kind = identifier(column.name), types.kind_of(column)
    if kind in _NUMBERS:
        return Form.PLAIN, f"{name} + 0" if "zerofill" in column.type_name else name
    if kind in (Kind.BOOL, Kind.BITS):
        return Form.PLAIN, f"{name} + 0"
    if kind in CALENDAR:
        is_text = zero_dates is ZeroDates.STRING or kind is Kind.DATE
        return Form.PLAIN, name if is_text else f"cast({name} AS datetime(6))"
    if kind in (Kind.TIME, Kind.TIME_OLD):
        return Form.PLAIN, name
    if column.type_id == FieldType.VECTOR:
        return Form.SIZED, f"unhex(hex({name}))"  # the server puts no vector together with texts
    if kind in (Kind.BLOB, Kind.BINARY):
        return Form.SIZED, name
    if kind is Kind.TEXT or (kind is Kind.JSON and is_mariadb):
        return Form.SIZED, name
    if kind in _OTHER_CHARSETS:
        return Form.SIZED, f"convert({name} USING utf8mb4)"
    return None, ""
