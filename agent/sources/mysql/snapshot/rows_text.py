"""Rows of a ``SELECT`` as Arrow batches: raw blocks from the socket, split and converted by kernels.

The server sends text, which it converts itself: every string is UTF-8 whatever its column's character set. What text
would blur is asked for in another way (``select_list``): a FLOAT is shown with six digits only, so it is sent as the
DOUBLE of the same value; bits are sent as a number, MariaDB's years of two digits with four, long decimals without the
zeros of ZEROFILL. What no text shows is the sign of zero: a FLOAT's -0 becomes 0.
"""

from collections.abc import Generator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
from pymysql.constants import COMMAND

from agent.errors import DecodeError, SourceError, SourceUnreachableError
from agent.kernels.columns import BadValueError, Texts
from agent.kernels.jit import Ints
from agent.rows.schema import Column, TableSchema, ZeroDates
from agent.sources.common.blocks import RowsReader
from agent.sources.mysql.decode import types
from agent.sources.mysql.decode.types import FieldType
from agent.sources.mysql.server.connection import Connection, connect
from agent.sources.mysql.server.refusals import refusal
from agent.sources.mysql.server.sql import identifier
from agent.sources.mysql.snapshot import kernels_text, text_columns

BATCH_ROWS: Final = 16_384
_BLOCK_BYTES: Final = 4 << 20
#: places of one batch: 32 MiB at most, which a table of very many columns would pass
_PLACES_MAX: Final = 2 << 20
_HEADER_BYTES: Final = 4
#: what the server has before a geometry's WKB
_SRID_BYTES: Final = 4


def select_list(columns: Sequence[Column]) -> str:
    """What follows SELECT, in the spelling that ``text_columns`` reads."""
    return ", ".join(_expression(column) for column in columns)


def _expression(column: Column) -> str:
    name = identifier(column.name)
    if column.type_id in (FieldType.FLOAT, FieldType.DOUBLE):
        return f"{name} * 1e0"
    if column.type_id == FieldType.YEAR:
        # year() has four digits, and 1900, which no column holds, for 0000
        return f"IF(length({name}) = 2, year({name}) * (year({name}) <> 1900), {name})"
    if column.type_id == FieldType.DECIMAL and types.arrow_type(column) == pa.string():
        precision, scale = types.decimal_bounds(column.modifier)
        return f"CAST({name} AS DECIMAL({precision}, {scale}))"  # the log has no zeros of ZEROFILL
    return f"{name} + 0" if column.type_id == FieldType.BIT else name


def read_rows(connection: Connection, schema: TableSchema, sql: str) -> Generator[pa.RecordBatch, None, None]:
    """The rows of ``sql``, whose columns are ``select_list(schema.columns)``, as ``types.arrow_schema(schema)``.

    The connection is of use again only after the last batch, or when this is closed.

    :raises SourceError: the server refused the statement, or failed.
    :raises DecodeError: a value that is not of its column's type.
    """
    connection.send_command(COMMAND.COM_QUERY, sql.encode())
    reader = _TextRows(connection, schema)
    try:
        reader.take_header()
        yield from reader.batches()
    except SourceUnreachableError:
        connection.abort()
        raise
    finally:
        reader.give_up()


class _TextRows(RowsReader):
    """The places of the located rows' values in the block."""

    def __init__(self, connection: Connection, schema: TableSchema) -> None:
        width = len(schema.columns)
        rows_max = min(BATCH_ROWS, max(_PLACES_MAX // width, 1))
        super().__init__(connection, schema, types.arrow_schema(schema), rows_max=rows_max, block_bytes=_BLOCK_BYTES)
        self._target = connection.target
        self._starts: Ints = np.empty((width, rows_max), np.int64)
        self._lengths: Ints = np.empty((width, rows_max), np.int64)
        self._is_strict = schema.zero_dates is ZeroDates.STRICT
        self._session = connection

    def take_header(self) -> None:
        """Everything before the first row: a count, one packet for each column, and their end."""
        while (packet := self._next_packet()) is None or not _is_end(packet):
            if packet is None:
                self._receive()

    def give_up(self) -> None:
        """Let the server end its answer, and take the rest of that: the session, and what it sees, stay of use."""
        if self._is_done or self._session.is_aborted:
            return
        try:
            with connect(self._target) as other:
                other.execute(f"KILL QUERY {self._session.thread_id}")
            self._skip()
        except (SourceError, DecodeError):
            if not self._is_done:
                self._session.abort()

    def _build(self, i: int) -> pa.Array:
        values = Texts(kernels_text.TEXT, self._block, self._starts[i, : self._rows], self._lengths[i, : self._rows])
        try:
            column = self._schema.columns[i]
            skip = _SRID_BYTES if column.type_id == FieldType.GEOMETRY else 0
            return text_columns.build(
                self._arrow.field(i).type, values, skip=skip, is_strict=self._is_strict, is_key=column.is_key
            )
        except BadValueError as error:
            raise DecodeError(
                f"{self._schema.qualified_name}: column {self._schema.columns[i].name} cannot be read: {error.reason}, "
                "in its snapshot; report this with the table's definition"
            ) from None

    def _locate(self) -> None:
        self._rows, self._located, outcome = kernels_text.locate_rows(
            self._block, self._located, self._filled, self._rows, self._starts, self._lengths
        )
        if outcome == kernels_text.MALFORMED:
            raise DecodeError(f"{self._schema.qualified_name}: {self._target} sent a row that cannot be read")
        if outcome == kernels_text.OTHER_PACKET:
            packet = self._next_packet()
            assert packet is not None, "the kernel saw all of it"
            self._is_done = _is_end(packet)

    def _next_packet(self) -> bytes | None:
        """The next packet if all of it is there. :raises SourceError: it is a refusal."""
        end, following = kernels_text.join_packets(self._block, self._located, self._filled)
        if end < 0:
            return None
        packet = self._block[self._located + _HEADER_BYTES : end].tobytes()
        self._located = following
        if packet[:1] == b"\xff":
            self._is_done = True
            code, message = int.from_bytes(packet[1:3], "little"), packet[3:].decode(errors="replace")
            raise refusal(code, message[6:] if message[:1] == "#" else message, self._target)
        return packet


def _is_end(packet: bytes) -> bool:
    """Whether it ends the columns, or the rows."""
    return packet[:1] == b"\xfe" and len(packet) < 9
