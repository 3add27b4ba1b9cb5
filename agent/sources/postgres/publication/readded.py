"""Columns that were dropped and added again under their name and type: finds them by their number.

The stream declares a table by its columns' names and types, so where no row comes between it declares the same table
again; but what the rows that were there hold in the new column (NULL, or its default) is not what they held before.

Where the new column was renamed since, names say nothing. But the stream declares a table again in front of its first
row behind a change of the table. So a declaration that has a column of a number whose column an older transaction has
dropped shows that its rows are of the new column. (The older transaction may still have committed later. Then the table
is held without need.) A transaction that is older than the one that drops, or the same one, may have written before
or after it; there it counts that the table was declared again, or that the two are one, and that a new column looks
alike.
"""

from collections.abc import Iterator, Mapping

from agent.rows.schema import Column, TableSchema
from agent.sources.postgres.decode import types
from agent.sources.postgres.publication.published import Catalog, Relation
from agent.sources.postgres.publication.sightings import Declaration, Sightings
from agent.sources.postgres.server import xids
from agent.sources.postgres.server.connection import Connection
from reactor.ids import Ts

#: types from here on are users', which may be domains over any other
_FIRST_USERS_OID = 16384
_DROPPED_SQL = (
    "SELECT attnum::int4, xmin::text FROM pg_catalog.pg_attribute "
    "WHERE attrelid = {table} AND attnum > 0 AND attisdropped"
)


class ReaddedColumns:
    """The columns of one stream's tables that the stream may take for old ones."""

    def __init__(self, sightings: Sightings) -> None:
        self._sightings = sightings
        #: tables with such a column, and where the log ended when that was seen
        self._since: dict[int, Ts] = {}
        #: tables with columns that the catalog does not have any more
        self._behind: set[int] = set()

    @property
    def waits(self) -> bool:
        """Return whether a table is judged at a later position."""
        return bool(self._since)

    def is_due(self, upto: Ts) -> bool:
        """Return whether the catalog must be read again, for a stream that is at ``upto``."""
        return bool(self._since) or bool(self._behind and self._sightings.declared_tables(upto) & self._behind)

    def find(
        self, connection: Connection, now: Catalog, schemas: Mapping[int, TableSchema], upto: Ts
    ) -> Iterator[tuple[int, str]]:
        """Yield the tables of ``schemas``, which are as the stream has them at ``upto``, that have such a column, and
        its name."""
        since, self._since = self._since, {}
        self._behind = {table for table, schema in schemas.items() if _is_behind(schema, now.tables[table])}
        found: dict[int, str] = {}
        for table, schema in schemas.items():
            if column := readded(schema, now.tables[table]):
                self._since[table] = since.get(table, now.end_ts)
                # at the end of the log a change without rows, which may rename it, is yet to be taken
                if self._since[table] < upto:
                    del self._since[table]
                    found[table] = column
        for declaration in self._sightings.declarations_of(schemas.keys() - found.keys(), upto=upto):
            table = declaration.schema.table_id
            if table not in found and _is_behind(declaration.schema, now.tables[table]):
                dropped = {
                    int(number or 0): int(xmin or 0)
                    for number, xmin in connection.query(_DROPPED_SQL.format(table=int(table)))
                }
                if column := _written_again(declaration, now.tables[table], dropped):
                    found[table] = column
        yield from found.items()


def readded(known: TableSchema, relation: Relation) -> str:
    """The first column that is another one than ``known`` says, though it looks alike; empty where there is none."""
    for column in known.columns:
        number = relation.numbers.get(column.name)
        is_new = number is not None and column.place not in (0, number) and column.place not in relation.columns
        if is_new and number is not None and _is_alike(column, relation.columns[number][:2]):
            return column.name
    return ""


def _written_again(declaration: Declaration, relation: Relation, dropped: Mapping[int, int]) -> str:
    """Return the column of the declaration whose rows may be those of another one; empty if there is none.
    ``dropped``: numbers of dropped columns, and the transactions that dropped them (32 bits)."""
    columns, xid = declaration.schema.columns, declaration.xid
    last = max(column.place for column in columns)
    new = [kind[:2] for number, kind in relation.columns.items() if number > last]
    gone = [(column, dropped[column.place]) for column in columns if column.place in dropped and new]
    certain = (column.name for column, dropped_by in gone if xids.is_older(dropped_by, xid))
    doubtful = (
        column.name
        for column, dropped_by in gone
        if (declaration.is_again or dropped_by == xid) and any(_is_alike(column, kind) for kind in new)
    )
    return next(certain, "") or next(doubtful, "")


def _is_behind(schema: TableSchema, relation: Relation) -> bool:
    """Return whether columns are gone and others have come."""
    places = {column.place for column in schema.columns}
    return bool(places - relation.columns.keys() - {0}) and bool(relation.columns.keys() - places)


def _is_alike(column: Column, kind: tuple[int, int]) -> bool:
    """The stream sees no difference; it tells of every other one itself."""
    type_id, modifier = kind
    if column.type_id == types.ENUM_OID:
        return column.modifier == type_id
    return (column.type_id, column.modifier) == (type_id, modifier) or type_id >= _FIRST_USERS_OID
