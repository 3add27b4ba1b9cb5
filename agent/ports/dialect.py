"""Dialect port: how the columns and events of one kind of source are read, on captures and on executors.

Methods import the kernels they need when they are called: loading kernels is slow, and not every process needs them.
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
        """Decode a batch of the change log into row changes, in log order. ``key``: the columns that identify a row.

        :raises DecodeError: an event does not match the schema (the error names table, column and log position), or two
            different key values of the source would become one Arrow value.
        """
        ...

    def arrow_schema(self, schema: TableSchema) -> pa.Schema:
        """Return the Arrow types of the table's columns."""
        ...

    def fill_value(self, schema: TableSchema, name: str, text: str) -> pa.Scalar:
        """Parse ``text``, the source's default for the new column ``name``, as the value that existing rows have in it.

        :raises DecodeError: the text is not a value of the column.
        """
        ...

    def conversions(
        self, before: TableSchema, after: TableSchema, origins: Mapping[str, str], context: Mapping[str, str]
    ) -> Mapping[str, WrittenConversion]:
        """Return, by new column name, how the source converted the values of the columns that it kept.

        ``origins`` maps new to old column names; ``context`` is that of the ``TableChange``. Whoever holds the values
        casts the columns that the result omits.
        """
        ...

    def read_chunks(self, fields: dict[str, Any]) -> Chunks:
        """Read a chunk plan that ``Chunks.to_fields`` has written."""
        ...

    def plain_statement(self, statement: str) -> str:
        """Return the schema change's statement without comments."""
        ...

    def place_name(self, at: Position) -> str:
        """Return a log position as the source's own tools write it; empty if it cannot be parsed."""
        ...
