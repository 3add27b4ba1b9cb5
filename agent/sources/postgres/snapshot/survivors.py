"""Survivors of a retyping: reads rows that have not changed since PostgreSQL gave their columns another type.

Every rewrite of a table gives the table and its indexes new rows in ``pg_class``, in the transaction that is the
``xmin`` of the table's rows. So a row whose ``xmin`` is later than the older of these two has been changed since, and
its new values are in the stream; every other row is the result of the rewrite.

A table of up to 16 MiB is read as a whole. Of a larger one only its first and last pages, and pages spread over it (the
same ones each time), are read, a few MiB in total: an expression that differs from the plain conversion in none of
these rows goes undetected.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa

from agent.errors import RESYNC, SourceError, TableHeldError
from agent.rows.schema import Column, TableSchema
from agent.rows.survivors import Survivors
from agent.sources.postgres.decode import types
from agent.sources.postgres.publication.rewrites import keeps
from agent.sources.postgres.server.catalog import leaves_sql, read_schemas, rows_of
from agent.sources.postgres.server.connection import Connection
from agent.sources.postgres.server.sql import identifier
from agent.sources.postgres.server.terms import AllTerms, PublishedTerms
from agent.sources.postgres.server.uri import Target
from agent.sources.postgres.snapshot.chunks import WHOLE_TABLE, Chunk, PlanKind
from agent.sources.postgres.snapshot.rewritten import rewritten
from agent.sources.postgres.snapshot.rows import copy_rows, session

_WHOLE_BYTES: Final = 16 << 20
#: number of pages at the start and end of a larger table (up to 64 of them may still be empty), and in between
_EDGE_PAGES: Final = 128
_SPREAD_PAGES: Final = 512
#: values longer than this are read only if there are no others
_SHORT_BYTES: Final = 8_192
_FEW_ROWS: Final = 200
#: how often the rows are read, if the table is rewritten meanwhile
_TRIES: Final = 3
#: updates may omit values that are stored out of line
_APART_BYTES: Final = 1_000
#: timeout to find a row, or that there is none
_SEARCH_MS: Final = 60_000
#: ``after`` says which columns are sent
_ALL_STORED: Final = AllTerms(PublishedTerms(sends_stored=True))
#: from this version on, scans of a ctid range read only its pages
_TID_RANGE_VERSION: Final = 14

_SIZE_SQL: Final = (
    "SELECT count(*), coalesce(sum(pg_catalog.pg_table_size(relid)), 0)::int8, "
    "coalesce(sum(pg_catalog.pg_relation_size(relid)), 0)::int8 / current_setting('block_size')::int8 "
    "FROM {leaves} leaves(relid)"
)
#: per leaf, a lower bound of the age of its last rewrite; of all leaves the youngest
_AGE_SQL: Final = (
    "SELECT min(oldest) FROM (SELECT max(pg_catalog.age(c.xmin)) AS oldest FROM {leaves} leaves(relid) "
    "JOIN pg_catalog.pg_class c ON c.oid = relid "
    "OR c.oid IN (SELECT indexrelid FROM pg_catalog.pg_index WHERE indrelid = relid) GROUP BY relid) ages"
)
#: the command by which the rewrite wrote its rows: its transaction's first; a locked row does not show it
_COMMAND_SQL: Final = "SELECT min(cmin::text::int8) FROM {rows} WHERE pg_catalog.age(xmin) = {age} AND xmax::text = '0'"


def read(
    source: str | Target,
    before: TableSchema,
    after: TableSchema,
    origins: Mapping[str, str],
    key: Sequence[str],
    rows: str,
) -> Survivors | None:
    """Return rows of the table as it became ``after``; None if the server itself changes no value, or there are no
    rows. If the key got another type, no rows mean that all have been changed since: the stream has them by keys that
    the sink may not have. Where the type of one column makes the server rewrite the table, all columns with another
    type are read.

    ``origins``: new column name → old one. ``rows``: the condition under which the table's rows are published.

    :raises TableHeldError: the values cannot be determined.
    """
    for _ in range(_TRIES):
        with session(source, None) as connection:
            found = _read(connection, before, after, origins, key, rows)
            if not rewritten(connection, [after.table_id]):
                return found
    raise _unknown(after, "the table is rewritten all the time")


def _read(
    connection: Connection,
    before: TableSchema,
    after: TableSchema,
    origins: Mapping[str, str],
    key: Sequence[str],
    rows: str,
) -> Survivors | None:
    """As ``read``, in the connection's transaction."""
    old, new = _by_name(before), _by_name(after)
    retyped = [name for name, origin in origins.items() if _kind(old[origin]) != _kind(new[name])]
    kept = [name for name in retyped if keeps(connection, _kind(old[origins[name]]), _kind(new[name]))]
    if not retyped or not connection.query(f"SELECT FROM pg_catalog.pg_class WHERE oid = {after.table_id}"):
        return None
    if len(kept) == len(retyped) and not _has_company(connection, after, kept):
        return None
    today = read_schemas(connection, [after.table_id], _ALL_STORED)[after.table_id]
    now = _as_now(today, after)
    if any(name in now and _kind(now[name]) != _kind(new[name]) for name in kept):
        raise _unknown(after, "the table was altered again before its rows were compared")
    # a column retyped again, or dropped, is judged with that later change
    retyped = [name for name in retyped if name in now and _kind(now[name]) == _kind(new[name])]
    names = list(key) or [name for name in new if name in now]
    if any(name not in now or _kind(now[name]) != _kind(new[name]) for name in names):
        raise _unknown(after, "the table was altered again before its rows were compared")
    after = replace(after, schema_name=today.schema_name, name=today.name)
    table = _Table(connection, after, {name: now[name] for name in [*names, *retyped]}, tuple(retyped))
    if not retyped:
        return None
    found, is_whole = table.survivors(rows)
    moves_key = not set(key).isdisjoint(retyped)
    if not (found.num_rows or moves_key):
        return None
    all_keys = table.keys(names) if moves_key and is_whole else None
    return Survivors(found, tuple(names), tuple(retyped), bool(key) and not moves_key, moves_key, all_keys)


@dataclass(frozen=True, slots=True)
class _Table:
    """A table in one transaction. ``after``: under its current name. ``columns``: the current ones, by their names in
    ``after``."""

    connection: Connection
    after: TableSchema
    columns: Mapping[str, Column]
    retyped: tuple[str, ...]

    def keys(self, names: Sequence[str]) -> pa.Table:
        """Return the keys of all rows."""
        return replace(self, columns={name: self.columns[name] for name in names})._read("true")

    def survivors(self, condition: str) -> tuple[pa.Table, bool]:
        """Return unchanged rows, and whether the table is read as a whole."""
        leaves = leaves_sql(self.after.table_id)
        [[parts, size, pages]] = self.connection.query(_SIZE_SQL.format(leaves=leaves))
        [[age]] = self.connection.query(_AGE_SQL.format(leaves=leaves))
        is_whole = int(size or 0) <= _WHOLE_BYTES
        sample = "" if is_whole else _sample(int(pages or 0))
        rows = rows_of(self.connection, self.after) + sample
        [[command]] = self.connection.query(_COMMAND_SQL.format(rows=rows, age=int(age or 0)))
        is_old = f"({condition}) AND pg_catalog.age(xmin) >= {int(age or 0)}"
        if command is not None:  # later writes of the same transaction are in the stream
            is_old += f" AND NOT (pg_catalog.age(xmin) = {int(age or 0)} AND cmin::text::int8 > {int(command)})"
        found = self._read(is_old) if is_whole else self._spread(is_old, int(pages or 0), is_single=parts == "1")
        if not found.num_rows or is_whole:
            self._refuse_left_out(f"({condition}) AND pg_catalog.age(xmin) < {int(age or 0)}")
        return found, is_whole

    def _spread(self, condition: str, pages: int, *, is_single: bool) -> pa.Table:
        """Return rows of some pages; if these have none, of any page."""
        short = "".join(f" AND pg_catalog.pg_column_size({name}) <= {_SHORT_BYTES}" for name in self._long())
        parts = [self._read(condition + short, _sample(pages))]
        if is_single and self.connection.server_version >= _TID_RANGE_VERSION:
            for low, high in ((0, _EDGE_PAGES), (max(pages - _EDGE_PAGES, _EDGE_PAGES), pages + 1)):
                parts.append(self._read(condition + short, chunk=Chunk(0, PlanKind.BLOCKS, low=low, high=high)))
        found = pa.concat_tables(parts)
        return found if found.num_rows else self._searched(condition)

    def _searched(self, condition: str) -> pa.Table:
        try:
            self.connection.query(f"SET LOCAL statement_timeout = {_SEARCH_MS}")
            return self._read(condition, limit=_FEW_ROWS)
        except SourceError as error:
            raise _unknown(self.after, f"no unchanged row was found to compare ({error})") from error

    def _read(self, condition: str, sample: str = "", *, chunk: Chunk = WHOLE_TABLE, limit: int = 0) -> pa.Table:
        columns = tuple(self.columns.values())
        schema = replace(self.after, columns=columns)
        batches: Iterator[pa.RecordBatch] = copy_rows(
            self.connection, schema, chunk, rows=condition, sample=sample, limit=limit
        )
        read = pa.Table.from_batches(list(batches), types.arrow_schema(schema))
        return read.rename_columns(list(self.columns))

    def _refuse_left_out(self, condition: str) -> None:
        """Refuse updated rows whose long values the stream may lack.

        :raises TableHeldError: it does lack some.
        """
        long = " OR ".join(f"pg_catalog.pg_column_size({name}) > {_APART_BYTES}" for name in self._long())
        if long and self._read(f"{condition} AND ({long})", limit=1).num_rows:
            raise _unknown(self.after, "rows were updated since, without their long values")

    def _long(self) -> list[str]:
        """Return retyped columns whose values can be long."""
        columns = [self.columns[name] for name in self.retyped]
        arrow = {column.name: types.arrow_type(column) for column in columns}
        return [identifier(name) for name, kind in arrow.items() if _is_long(kind)]


def _has_company(connection: Connection, after: TableSchema, kept: Sequence[str]) -> bool:
    """Return whether a transaction that altered one of these columns also altered one that is not replicated, so that
    the server may have rewritten the table, and with it columns whose types alone are no reason to."""
    places = {column.name: column.place for column in after.columns}
    known, asked = (
        ", ".join(map(str, sorted(numbers))) for numbers in (places.values(), map(places.__getitem__, kept))
    )
    found = connection.query(
        "SELECT FROM pg_catalog.pg_attribute k JOIN pg_catalog.pg_attribute o ON o.attrelid = k.attrelid "
        f"AND o.xmin::text = k.xmin::text WHERE k.attrelid = {after.table_id} AND k.attnum IN ({asked}) "
        f"AND o.attnum > 0 AND o.attnum NOT IN ({known}) LIMIT 1"
    )
    return bool(found)


def _sample(pages: int) -> str:
    percent = min(100 * _SPREAD_PAGES / max(pages, 1), 100)
    return f" TABLESAMPLE SYSTEM ({percent:.6f}) REPEATABLE (0)"


def _is_long(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind) or pa.types.is_nested(kind))


def _as_now(now: TableSchema, after: TableSchema) -> dict[str, Column]:
    """Return the current columns, by their names in ``after``."""
    by_place = {column.place: column for column in now.columns}
    by_name = _by_name(now)
    found = {
        column.name: by_place.get(column.place) if column.place else by_name.get(column.name)
        for column in after.columns
    }
    return {name: column for name, column in found.items() if column is not None}


def _by_name(schema: TableSchema) -> dict[str, Column]:
    return {column.name: column for column in schema.columns}


def _kind(column: Column) -> tuple[int, int]:
    return column.type_id, column.modifier


def _unknown(after: TableSchema, reason: str) -> TableHeldError:
    return TableHeldError(
        f"table {after.qualified_name} has columns of another type, and whether their values are what the type alone "
        f"makes of them cannot be seen: {reason}; {RESYNC}"
    )
