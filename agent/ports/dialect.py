"""Dialect port: how the columns and events of one kind of source are read, on captures and on executors alike.

A method imports what it needs when it is called: kernels take a while to load, and not every process needs them.
"""

from collections.abc import Collection, Mapping
from typing import Any, Protocol

import pyarrow as pa

from agent.ports.snapshot import Chunks
from agent.ports.source import Position
from agent.rows.changes import Changes
from agent.rows.schema import TableSchema
from agent.rows.schema_change import WrittenConversion


class Dialect(Protocol):
    def decode(self, schema: TableSchema, batch: pa.RecordBatch, key: Collection[str]) -> Changes:
        """A batch of the change log as row changes, in their order. ``key``: columns that tell rows apart.

        :raises DecodeError: an event that is not what the schema says, named by table, column and position in the log;
            or a key value that its column's Arrow type cannot tell from another one.
        """
        ...

    def arrow_schema(self, schema: TableSchema) -> pa.Schema:
        """The Arrow types of the table's columns."""
        ...

    def fill_value(self, schema: TableSchema, name: str, text: str) -> pa.Scalar:
        """What existing rows hold in the new column ``name``, given in text by the source.

        :raises DecodeError: it is no value of the column.
        """
        ...

    def conversions(
        self, before: TableSchema, after: TableSchema, origins: Mapping[str, str], context: Mapping[str, str]
    ) -> Mapping[str, WrittenConversion]:
        """What the source has made of the values of columns that stay: by new name. ``origins``: new name → old name.

        ``context``: that of the ``TableChange``. A column that is not in the answer is cast by whoever holds its
        values.
        """
        ...

    def read_chunks(self, fields: dict[str, Any]) -> Chunks:
        """A chunk plan as ``Chunks.to_fields`` wrote it."""
        ...

    def plain_statement(self, statement: str) -> str:
        """A schema change's statement without what is not part of it, such as comments."""
        ...

    def place_name(self, at: Position) -> str:
        """A place in the source's log as its own tools write it; empty where it cannot be read."""
        ...
