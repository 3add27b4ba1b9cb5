"""Current rows: COPY in its binary form from a raw socket, through the stream's own kernels, into Arrow batches.

Columns of types without a supported binary form are read as their type's output function writes them, like in the
stream: a cast to text may be another function, PostgreSQL's own (``inet``) or a user's. The caller chooses the snapshot
(``begin``); with the same one, all chunks together are the table at one moment.
"""

from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa

from agent.errors import DecodeError, SourceUnreachableError, StatementRefusedError
from agent.kernels.columns import BadValueError
from agent.rows.columnless import columnless
from agent.rows.schema import Column, TableSchema
from agent.sources.common.blocks import RowsReader
from agent.sources.postgres.decode import columns, locate, types
from agent.sources.postgres.decode.wire import read_i32
from agent.sources.postgres.server.catalog import rows_of
from agent.sources.postgres.server.connection import Connection, connect
from agent.sources.postgres.server.refusals import ErrorFields, parse_error, refusal
from agent.sources.postgres.server.session_settings import QUALIFIED_NAMES_SQL
from agent.sources.postgres.server.sql import identifier, literal, output_text
from agent.sources.postgres.server.terms import ALL_ROWS
from agent.sources.postgres.server.uri import Target
from agent.sources.postgres.snapshot.chunks import Chunk

BATCH_ROWS: Final = 65_536
_BLOCK_BYTES: Final = 8 << 20
#: positions per batch: at most 32 MiB, which tables with very many columns would exceed
_POSITIONS_MAX: Final = 4 << 20
_READ_TIMEOUT_S: Final = 600.0
#: SQLSTATE of a text that has no UTF-8
_UNTRANSLATABLE: Final = "22P05"


@contextmanager
def session(source: str | Target, snapshot: str | None, *, lock_timeout_ms: int = 0) -> Iterator[Connection]:
    """A connection in a read-only transaction, under an exported snapshot or its own. ``lock_timeout_ms``: how long it
    waits for a table's lock; 0: without end.

    :raises SourceError: the snapshot is gone (its exporter's connection ended), or the source failed.
    """
    with connect(source) as connection:
        connection.unlimit()
        connection.query(f"SET lock_timeout = {lock_timeout_ms}; {QUALIFIED_NAMES_SQL}")
        connection.query("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        if snapshot is not None:
            _join(connection, snapshot)
        yield connection


def _join(connection: Connection, snapshot: str) -> None:
    try:
        connection.query(f"SET TRANSACTION SNAPSHOT {literal(snapshot)}")
    except StatementRefusedError as error:
        raise SourceUnreachableError(
            f"the snapshot under which tables are read is gone ({error}): the session that exported it has ended; try "
            "again"
        ) from error


def read_chunk(
    source: str | Target,
    snapshot: str | None,
    schema: TableSchema,
    chunk: Chunk,
    key: Collection[str] = (),
    *,
    rows: str = ALL_ROWS,
    lock_timeout_ms: int = 0,
) -> Iterator[pa.RecordBatch]:
    """The chunk's rows, in batches of ``types.arrow_schema(schema)``. ``key``: columns that tell rows apart.
    ``rows``: a condition (see ``terms``). ``lock_timeout_ms``: as for ``session``.

    :raises SourceError: the source refused or failed, or the snapshot is gone.
    :raises DecodeError: a value that is not of its column's type, or as a part of a key could be taken for another one.
    """
    with session(source, snapshot, lock_timeout_ms=lock_timeout_ms) as connection:
        yield from copy_rows(connection, schema, chunk, key, rows=rows)


class ChunkReader:
    """Reads chunks one after another over one ``session``, or over another one after an error."""

    def __init__(self, source: str | Target, snapshot: str | None, *, lock_timeout_ms: int = 0) -> None:
        self._open = partial(session, source, snapshot, lock_timeout_ms=lock_timeout_ms)
        self._stack = ExitStack()
        #: None: the next chunk opens one
        self._connection: Connection | None = None

    def read(
        self, schema: TableSchema, chunk: Chunk, key: Collection[str] = (), *, rows: str = ALL_ROWS
    ) -> Iterator[pa.RecordBatch]:
        """As ``read_chunk``."""
        connection, self._connection = self._connection, None
        if connection is None:
            self.close()
            connection = self._stack.enter_context(self._open())
        yield from copy_rows(connection, schema, chunk, key, rows=rows)
        self._connection = connection

    def close(self) -> None:
        self._stack.close()


def copy_rows(
    connection: Connection,
    schema: TableSchema,
    chunk: Chunk,
    key: Collection[str] = (),
    *,
    rows: str = ALL_ROWS,
    sample: str = "",
    limit: int = 0,
) -> Iterator[pa.RecordBatch]:
    """Like ``read_chunk``, in the connection's transaction. The connection is usable again only after the last batch.
    ``sample``: a TABLESAMPLE clause. ``limit``: maximum number of rows, 0 for all."""
    table = rows_of(connection, schema) + sample
    if not schema.columns:
        yield _without_columns(connection, _selection(schema, chunk, table, rows, limit))
        return
    connection.start_copy(copy_statement(schema, chunk, table, rows, limit), timeout_s=_READ_TIMEOUT_S)
    yield from _CopyRows(connection, schema, key).batches()


def _without_columns(connection: Connection, selection: str) -> pa.RecordBatch:
    [[count]] = connection.query(f"SELECT count(*) FROM ({selection}) AS selected")
    return columnless(int(count or 0))


def copy_statement(schema: TableSchema, chunk: Chunk, table: str, rows: str = ALL_ROWS, limit: int = 0) -> str:
    """Return the COPY statement. ``table``: the FROM item (see ``catalog.rows_of``)."""
    return f"COPY ({_selection(schema, chunk, table, rows, limit)}) TO STDOUT (FORMAT binary)"


def _selection(schema: TableSchema, chunk: Chunk, table: str, rows: str, limit: int) -> str:
    names = ", ".join(_expression(column) for column in schema.columns)
    end = f" LIMIT {limit}" if limit else ""
    return f"SELECT {names} FROM {table} WHERE {chunk.predicate} AND ({rows}){end}"


def _expression(column: Column) -> str:
    name = identifier(column.name)
    return name if types.is_known(column) else output_text(name)


class _CopyRows(RowsReader):
    """Positions of the located rows' values in the block."""

    def __init__(self, connection: Connection, schema: TableSchema, key: Collection[str] = ()) -> None:
        width = len(schema.columns)
        rows_max = min(BATCH_ROWS, max(_POSITIONS_MAX // width, 1))
        super().__init__(connection, schema, types.arrow_schema(schema), rows_max=rows_max, block_bytes=_BLOCK_BYTES)
        self._target = connection.target
        self._key = key
        self._positions = np.empty((width, rows_max), np.int64)
        self._failure: ErrorFields | None = None

    def _build(self, i: int) -> pa.Array:
        column, rows = self._schema.columns[i], self._rows
        form = {"texts": 0, "binaries": rows} if types.is_known(column) else {"texts": rows, "binaries": 0}
        try:
            is_key = column.name in self._key
            return columns.build(column, self._block, self._positions[i, :rows], **form, is_key=is_key)
        except columns.BentKeyError as error:
            raise DecodeError(columns.bent_key(self._schema, column, error, "in its snapshot")) from None
        except BadValueError as error:
            raise DecodeError(
                f"{self._schema.qualified_name}: column {column.name} cannot be read: {error.reason}, in its snapshot; "
                "report this with the table's definition"
            ) from None

    def _locate(self) -> None:
        """Process all complete messages."""
        while not self._is_done:
            self._rows, at = locate.locate_copy_rows(
                self._block, self._located, self._filled, self._rows, self._positions
            )
            if at == locate.COPY_MALFORMED:
                raise DecodeError(
                    f"{self._schema.qualified_name}: a copied row has other columns than the table had; "
                    "the table was changed while it was read: start the changefeed again"
                )
            self._located = at
            if self._rows == self._positions.shape[1] or not self._take_other_message():
                return

    def _take_other_message(self) -> bool:
        """Handle the current message if it is complete and not a row; return False if more bytes are needed."""
        at = self._located
        if self._filled - at < 5 or self._block[at] == ord("d"):
            return False
        end = at + 1 + read_i32(self._block, at + 1)
        if end > self._filled:
            return False
        kind, body = bytes(self._block[at : at + 1]), self._block[at + 5 : end].tobytes()
        self._located = end
        if kind == b"E":
            self._failure = parse_error(body)
        elif kind == b"Z":
            self._is_done = True
            if self._failure is not None and self._failure.get("C") == _UNTRANSLATABLE:
                raise DecodeError(
                    f"{self._schema.qualified_name}: {self._failure.get('M')}, in its snapshot; correct the value at "
                    "the source, or leave the column out"
                )
            if self._failure is not None:
                raise refusal(self._failure, self._target)
        return True
