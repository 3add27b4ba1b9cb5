"""PostgreSQL plugin: PostgreSQL, by logical replication."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from agent.ports.plugin import SourcePlugin
from agent.sources.postgres.settings import PostgresSettings

if TYPE_CHECKING:
    import pyarrow as pa

    from agent.ports.snapshot import Chunks
    from agent.ports.source import Position, Scope, Source
    from agent.rows.changes import Changes
    from agent.rows.schema import TableSchema
    from agent.rows.schema_change import WrittenConversion


class PostgresDialect:
    """``agent.ports.dialect.Dialect`` of PostgreSQL's tables."""

    def decode(self, schema: TableSchema, batch: pa.RecordBatch, key: Collection[str]) -> Changes:
        from agent.sources.postgres.decode.decode import decode

        return decode(schema, batch, key)

    def arrow_schema(self, schema: TableSchema) -> pa.Schema:
        from agent.sources.postgres.decode.types import arrow_schema

        return arrow_schema(schema)

    def fill_value(self, schema: TableSchema, name: str, text: str) -> pa.Scalar:
        from agent.sources.postgres.decode.fills import fill_value

        return fill_value(schema, name, text)

    def conversions(
        self, before: TableSchema, after: TableSchema, origins: Mapping[str, str], context: Mapping[str, str]
    ) -> dict[str, WrittenConversion]:
        from agent.sources.postgres.retyping.retyping import conversions

        return conversions(before, after, origins, context)

    def read_chunks(self, fields: dict[str, Any]) -> Chunks:
        from agent.sources.postgres.snapshot.chunks import ChunkPlan

        return ChunkPlan.from_fields(fields)

    def plain_statement(self, statement: str) -> str:
        return statement  # the log has none

    def place_name(self, at: Position) -> str:
        from agent.sources.postgres.server.lsn import format_lsn

        return format_lsn(at.ts)


def _open(uri: str, scope: Scope) -> Source:
    from agent.sources.postgres.source import PostgresSource

    return PostgresSource(uri, scope)


PLUGIN = SourcePlugin(
    summary="PostgreSQL, by logical replication",
    schemes=("postgresql", "postgres"),
    dialect="postgresql",
    open=_open,
    settings=PostgresSettings,
    reader=PostgresDialect,
    preload=("agent.sources.postgres.decode.decode",),
)
