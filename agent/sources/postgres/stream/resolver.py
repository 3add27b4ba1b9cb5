"""Type resolver: resolves a declared table's types by the catalog's enums, domains and names.

A Relation message has only oids. The catalog is read when a stream is opened, and again when the stream declares a type
that was created since. A type that is still unknown can only be sent as text, which applies to the stream as a whole:
``TextFormNeeded`` ends a stream that was opened in binary form.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from agent.rows.schema import Column, TableSchema
from agent.sources.postgres.decode import types
from agent.sources.postgres.server import catalog
from agent.sources.postgres.server.connection import Connection
from agent.sources.postgres.server.sql import shown
from agent.sources.postgres.server.terms import read_terms

_NAMES_SQL = "SELECT oid::int8, typname FROM pg_catalog.pg_type"


class TextFormNeeded(Exception):
    """A column's type has no supported binary form. Not a failure: the stream is opened again in text form."""


class TypeResolver:
    """``connect`` opens a session for catalog queries, which the stream's own connection cannot run."""

    def __init__(
        self, connect: Callable[[], Connection], table_ids: Sequence[int], publications: Sequence[str] = ()
    ) -> None:
        self._connect = connect
        self._publications = publications
        self._table_ids = table_ids
        self._user_types: dict[int, types.UserType] = {}
        self._names: dict[int, str] = {}
        self._schemas: dict[int, TableSchema] = {}
        self.refresh()

    @property
    def needs_text(self) -> bool:
        """Return whether, in the current catalog, some column has no binary form that Weir reads."""
        return any(not types.is_known(column) for schema in self._schemas.values() for column in schema.columns)

    def refresh(self) -> None:
        """:raises SourceError: the catalog cannot be read."""
        with self._connect() as connection:
            self._user_types = types.read_user_types(connection.query(types.USER_TYPES_SQL))
            self._names = {int(oid or 0): shown(str(name)) for oid, name in connection.query(_NAMES_SQL)}
            self._schemas = catalog.read_schemas(
                connection,
                _existing(connection, self._table_ids),
                read_terms(connection, self._publications, with_rows=False),
            )

    def resolve(self, declared: TableSchema, *, binary: bool) -> TableSchema:
        """Return the table with resolved types.

        :raises TextFormNeeded: it has a type that cannot be read from a stream in ``binary`` form.
        """
        if any(column.type_id not in self._names for column in declared.columns):
            self.refresh()
        columns = tuple(self._resolve_column(declared.table_id, column) for column in declared.columns)
        if binary and not all(types.is_known(column) for column in columns):
            raise TextFormNeeded(declared.qualified_name)
        return replace(declared, columns=columns)

    def _resolve_column(self, table_id: int, column: Column) -> Column:
        resolved = types.resolve_column(column, self._user_types)
        known = self._known(table_id, resolved)
        if known is None:
            return replace(resolved, type_name=self._names.get(column.type_id, ""))
        return replace(resolved, type_name=known.type_name, place=known.place)

    def _known(self, table_id: int, column: Column) -> Column | None:
        """Return the catalog's column if it is still the same, so that both ways to read a table agree."""
        schema = self._schemas.get(table_id)
        for known in schema.columns if schema else ():
            if (known.name, known.type_id, known.modifier) == (column.name, column.type_id, column.modifier):
                return known
        return None


def _existing(connection: Connection, table_ids: Sequence[int]) -> list[int]:
    """Omit tables that have been dropped: their earlier changes are still to be read."""
    ids = ", ".join(str(table) for table in table_ids) or "0"
    rows = connection.query(f"SELECT oid::int8 FROM pg_catalog.pg_class WHERE oid IN ({ids})")
    return [int(row[0] or 0) for row in rows]
