"""Current rows: chunks of a table as Arrow batches, and the whole source at one moment.

A chunk read by ``read_chunk`` is of the moment at which it is opened. Whoever needs a moment that it can name reads
under ``consistency.open_readers``.
"""

from collections.abc import Generator, Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Final, Self

import pyarrow as pa

from agent.filter.expression_sql import SqlWords, in_sql
from agent.filter.expressions import parse
from agent.ports.checksums import ALL_KEYS, KeyRange, NoChecksums, SourceChecksums
from agent.ports.source import BEGIN, Position
from agent.rows.schema import TableSchema, ZeroDates
from agent.sources.common.key_constants import ConstantWords, key_conditions
from agent.sources.mysql.position.consistency import Place, Table, open_reader, open_readers
from agent.sources.mysql.position.resume import epoch_of
from agent.sources.mysql.server.catalog import read_schemas
from agent.sources.mysql.server.connection import Connection
from agent.sources.mysql.server.sql import identifier, literal, qualified
from agent.sources.mysql.server.uri import Target, parse_uri
from agent.sources.mysql.snapshot.checksums import checksums
from agent.sources.mysql.snapshot.chunks import WHOLE_TABLE, Chunk
from agent.sources.mysql.snapshot.replaced import hold, states_of
from agent.sources.mysql.snapshot.rows_text import read_rows, select_list
from reactor.ids import Ts
from reactor.records.tables.table import TableRecord

_WORDS: Final = SqlWords(identifier, literal, same="<=>", matches="RLIKE")
_CONSTANTS: Final = ConstantWords(identifier, literal, binary=lambda value: f"X'{value.hex()}'", zone="")


def read_chunk(target: Target, schema: TableSchema, chunk: Chunk) -> Iterator[pa.RecordBatch]:
    """The chunk's rows of this moment, in batches of ``types.arrow_schema(schema)``.

    :raises SourceError: the source refused or failed.
    :raises DecodeError: a value that is not of its column's type.
    """
    with open_reader(target) as connection:
        yield from select_rows(connection, schema, chunk)


def select_rows(connection: Connection, schema: TableSchema, chunk: Chunk) -> Generator[pa.RecordBatch, None, None]:
    """As ``read_chunk``, in the connection's transaction. The connection is of use again only after the last batch, or
    when this is closed."""
    table = qualified(schema.schema_name, schema.name)
    return read_rows(connection, schema, f"SELECT {select_list(schema.columns)} FROM {table} WHERE {chunk.predicate}")


class ChunkReader:
    """Reads chunks one after another over one session, or over another one after an error."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._stack = ExitStack()
        #: None: the next chunk opens one
        self._connection: Connection | None = None

    def read(self, schema: TableSchema, chunk: Chunk) -> Iterator[pa.RecordBatch]:
        """As ``read_chunk``."""
        connection, self._connection = self._connection, None
        if connection is None:
            self.close()
            connection = self._stack.enter_context(open_reader(self._target))
        yield from select_rows(connection, schema, chunk)
        self._connection = connection

    def close(self) -> None:
        self._stack.close()


class MysqlSnapshot:
    """``agent.ports.source.ComparisonSnapshot`` over one session, so only one table at a time can be read.

    ``place`` is exact; ``ts`` is the last one before it, in the epoch of the changefeed's log.
    """

    def __init__(
        self,
        source: str | Target,
        tables: list[Table],
        log: Position = BEGIN,
        *,
        zero_dates: ZeroDates = ZeroDates.NULL,
    ) -> None:
        """:raises SourceError: the source cannot be reached, is not the one whose binlog the log has, or has no exact
        moment for us (``open_readers``)."""
        target = parse_uri(source) if isinstance(source, str) else source
        self._states = states_of(target, tables)
        self._held: set[Table] = set()
        with ExitStack() as stack:
            readers = stack.enter_context(open_readers(target, 1, tables))
            self._connection = readers.connections[0]
            self.place: Place = readers.place
            self.ts: Ts = readers.place.ts(epoch_of(self._connection, log.text))
            self._stack = stack.pop_all()
        self._zero_dates = zero_dates

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def schema(self, table: TableRecord) -> TableSchema:
        name = table.schema_name, table.name
        [found] = read_schemas(self._connection, [name], zero_dates=self._zero_dates).values()
        return replace(found, table_id=table.table_id)

    def read(self, schema: TableSchema) -> Iterator[pa.RecordBatch]:
        return self.read_range(schema, ALL_KEYS)

    def read_range(self, schema: TableSchema, keys: KeyRange) -> Iterator[pa.RecordBatch]:
        chunk = Chunk(0, " AND ".join(keys.conditions(identifier(keys.column))) or WHOLE_TABLE.predicate)
        return self._rows(schema, chunk)

    def read_where(self, schema: TableSchema, condition: str) -> Iterator[pa.RecordBatch]:
        names = [column.name for column in schema.columns]
        return self._rows(schema, Chunk(0, in_sql(parse(condition), names, _WORDS)))

    def read_keys(self, schema: TableSchema, keys: pa.Table) -> Iterator[pa.RecordBatch]:
        for condition in key_conditions(keys, _CONSTANTS):
            yield from self._rows(schema, Chunk(0, condition))

    def checksums(self, schema: TableSchema) -> SourceChecksums | NoChecksums:
        self._hold(schema)
        return checksums(self._connection, schema)

    def _rows(self, schema: TableSchema, chunk: Chunk) -> Iterator[pa.RecordBatch]:
        self._hold(schema)
        return select_rows(self._connection, schema, chunk)

    def _hold(self, schema: TableSchema) -> None:
        """:raises TableAlteredError: the table is not the one that the snapshot has."""
        table = schema.schema_name, schema.name
        if table not in self._held:
            hold(self._connection, table, self._states.get(table))
            self._held.add(table)

    def close(self) -> None:
        self._stack.close()
