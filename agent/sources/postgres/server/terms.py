"""Publication terms: the columns and rows of a table that a publication sends, for code that reads the table itself.

Snapshot, comparison and stream have to agree. Without a column list all columns are sent except generated ones; stored
ones are too if the publication says so (PostgreSQL 18), virtual ones never are: their values are not in the log.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from json import loads
from typing import Final

from agent.errors import SourceConfigError
from agent.filter.events import rules_for
from agent.rows.schema import Column, TableSchema
from agent.sources.postgres.server.connection import Connection
from agent.sources.postgres.server.sql import literal
from reactor.records.changefeed import FilterConfig
from reactor.records.tables.table import TableRecord

#: schemas, row filters and column lists in publications
TERMS_VERSION: Final = 15
GENERATED_VERSION: Final = 18
#: every row
ALL_ROWS: Final = "true"

#: it locks the table
_ROWS_SQL: Final = "pg_catalog.pg_get_expr(r.prqual, r.prrelid)"
_TERMS_SQL: Final = (
    "SELECT r.prrelid::int8, {rows}, CASE WHEN r.prattrs IS NOT NULL THEN "
    "pg_catalog.to_json(ARRAY(SELECT a.attname FROM pg_catalog.pg_attribute a WHERE a.attrelid = r.prrelid "
    "AND a.attnum = ANY (r.prattrs::int2[])))::text END FROM pg_catalog.pg_publication_rel r "
    "JOIN pg_catalog.pg_publication p ON p.oid = r.prpubid JOIN pg_catalog.pg_class c ON c.oid = r.prrelid "
    "WHERE p.pubname IN ({names}) AND (r.prqual IS NOT NULL OR r.prattrs IS NOT NULL) AND NOT EXISTS "
    "(SELECT FROM pg_catalog.pg_publication_namespace n WHERE n.pnpubid = p.oid AND n.pnnspid = c.relnamespace)"
)
_GENERATED_SQL: Final = (
    "SELECT a.attrelid::int8, a.attname, a.attgenerated FROM pg_catalog.pg_attribute a "
    "WHERE a.attrelid IN ({ids}) AND a.attgenerated <> '' AND NOT a.attisdropped"
)


@dataclass(frozen=True, slots=True)
class PublishedTerms:
    """``columns``: None if there is no column list. ``rows``: a condition in the source's SQL."""

    columns: frozenset[str] | None = None
    rows: str = ALL_ROWS
    sends_stored: bool = False

    def sends(self, column: str, generated: str) -> bool:
        """Return whether a column is sent. ``generated``: PostgreSQL's letter, empty for a plain column."""
        if self.columns is not None:
            return column in self.columns
        return not generated or (generated == "s" and self.sends_stored)


@dataclass(frozen=True, slots=True)
class AllTerms:
    """Terms of all tables of some publications."""

    default: PublishedTerms = PublishedTerms()
    special: tuple[tuple[int, PublishedTerms], ...] = ()

    def of(self, table_id: int) -> PublishedTerms:
        return dict(self.special).get(table_id, self.default)


def read_terms(connection: Connection, publications: Iterable[str], *, with_rows: bool = True) -> AllTerms:
    """Return the terms. Publications that do not exist yet will be created by us, and send all they can.
    ``with_rows``: which rows, too; that waits for those who change the tables."""
    names = ", ".join(literal(name) for name in publications) or "NULL"
    version = connection.server_version
    if version < TERMS_VERSION:
        return AllTerms()
    stored = "bool_or(pubgencols = 's')" if version >= GENERATED_VERSION else "false"
    [[is_there, sends]] = connection.query(
        f"SELECT count(*) > 0, {stored} FROM pg_catalog.pg_publication WHERE pubname IN ({names})"
    )
    sends_stored = sends == "t" if is_there == "t" else version >= GENERATED_VERSION
    special = (
        (
            int(table or 0),
            PublishedTerms(None if columns is None else frozenset(loads(columns)), rows or ALL_ROWS, sends_stored),
        )
        for table, rows, columns in connection.query(
            _TERMS_SQL.format(names=names, rows=_ROWS_SQL if with_rows else "NULL")
        )
    )
    return AllTerms(PublishedTerms(sends_stored=sends_stored), tuple(special))


def refuse_unsent(
    connection: Connection, terms: AllTerms, tables: Collection[TableRecord], filter: FilterConfig
) -> None:
    """Check that generated columns are either sent, or excluded explicitly.

    :raises SourceConfigError: a column is neither.
    """
    ids = ", ".join(str(table.table_id) for table in tables) or "0"
    named = {table.table_id: table for table in tables}
    unsent: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for oid, column, kind in connection.query(_GENERATED_SQL.format(ids=ids)):
        table, name = named[int(oid or 0)], str(column)
        own = terms.of(table.table_id)
        if own.columns is None and not own.sends(name, str(kind)) and _is_selected(table, name, filter):
            unsent[f"{table.schema_name}.{table.name}"].append((name, str(kind)))
    if unsent:
        raise SourceConfigError(_unsent(unsent, connection.server_version))


def _is_selected(table: TableRecord, column: str, filter: FilterConfig) -> bool:
    key = tuple(Column(name, 0, -1) for name in table.key)
    schema = TableSchema(table.table_id, table.schema_name, table.name, (*key, Column(column, 0, -1)))
    selected = rules_for(filter, table.schema_name, table.name).select(schema)
    return column in {one.name for one in selected.columns}


def _unsent(tables: Mapping[str, Sequence[tuple[str, str]]], version: int) -> str:
    """``tables``: the name and PostgreSQL's letter of such columns, by table."""
    columns = [(table, name, kind) for table, found in tables.items() for name, kind in found]
    words = {"s": "stored", "v": "virtual"}
    what = ", ".join(f"table {table} has the {words[kind]} generated column {name}" for table, name, kind in columns)
    publish = ""
    if version >= GENERATED_VERSION and any(kind == "s" for *_, kind in columns):
        publish = "let the publication send stored ones (SET (publish_generated_columns = stored)), or "
    it = "it out by a column selector" if len(columns) == 1 else "them out by column selectors"
    selectors = "; ".join(_leaving_out(table, [name for name, _ in found]) for table, found in tables.items())
    return f"{what}, whose values the source does not send; {publish}leave {it}: {selectors}"


def _leaving_out(table: str, columns: Sequence[str]) -> str:
    """Return a column selector as it is written in a changefeed's file."""
    listed = ", ".join(f'"{name}"' for name in ("*", *(f"!{column}" for column in columns)))
    return f'matcher = ["{table}"], columns = [{listed}]'
