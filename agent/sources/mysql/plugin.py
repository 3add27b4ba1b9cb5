"""MySQL plugin: MySQL and MariaDB sources, which read the binlog."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent.errors import SourceError
from agent.ports.log_files import LogFiles, LoggedEvent
from agent.ports.plugin import SourcePlugin
from agent.sources.mysql.dialect import DIALECT
from agent.sources.mysql.settings import MysqlSettings

if TYPE_CHECKING:
    import pyarrow as pa

    from agent.ports.snapshot import Chunks
    from agent.ports.source import Position, Scope, Source
    from agent.rows.changes import Changes
    from agent.rows.schema import TableSchema
    from agent.rows.schema_change import Conversion


class MysqlDialect:
    """Implements ``agent.ports.dialect.Dialect`` for MySQL and MariaDB tables."""

    def decode(self, schema: TableSchema, batch: pa.RecordBatch, key: Collection[str]) -> Changes:
        from agent.sources.mysql.decode.decode import decode

        return decode(schema, batch)

    def arrow_schema(self, schema: TableSchema) -> pa.Schema:
        from agent.sources.mysql.decode.types import arrow_schema

        return arrow_schema(schema)

    def fill_value(self, schema: TableSchema, name: str, text: str) -> pa.Scalar:
        from agent.sources.mysql.values.fills import fill_value

        return fill_value(schema, name, text)

    def conversions(
        self, before: TableSchema, after: TableSchema, origins: Mapping[str, str], context: Mapping[str, str]
    ) -> dict[str, Conversion]:
        from agent.sources.mysql.retyping.retyping import conversions

        return conversions(before, after, origins, context)

    def read_chunks(self, fields: dict[str, Any]) -> Chunks:
        from agent.sources.mysql.snapshot.chunks import ChunkPlan

        return ChunkPlan.from_fields(fields)

    def plain_statement(self, statement: str) -> str:
        from agent.sources.mysql.ddl.parser.sql_text import plain

        return plain(statement)

    def place_name(self, at: Position) -> str:
        from agent.sources.mysql.position.positions import SourcePosition

        try:
            return str(SourcePosition.from_json(at.text).needed)
        except SourceError:
            return ""  # the error is reported when the changefeed resumes there


def _open(uri: str, scope: Scope) -> Source:
    from agent.sources.mysql.source import MysqlSource

    return MysqlSource(uri, scope)


def _read_events(path: Path, *, skip: int = 0) -> Iterator[LoggedEvent]:
    from agent.sources.mysql.inspect.report import read_events

    return read_events(path, skip=skip)


BINLOG = LogFiles(
    name="a binlog file",
    magic=b"\xfebin",
    read=_read_events,
    unreadable={
        b"\xfdbin": "is an encrypted binlog file; its server decrypts it: mysqlbinlog --read-from-remote-server"
    },
)

PLUGIN = SourcePlugin(
    summary="MySQL and MariaDB, by the binlog",
    schemes=("mysql", "mariadb"),
    dialect=DIALECT,
    open=_open,
    settings=MysqlSettings,
    reader=MysqlDialect,
    log_files=BINLOG,
    preload=("agent.sources.mysql.decode.decode",),  # with its kernels, which each worker would load in 0.3 s
)
