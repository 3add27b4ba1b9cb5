"""Rows of a ``SELECT`` as Arrow batches: raw blocks from the socket, split and converted by kernels.

The server sends text, which it converts itself: every string is UTF-8 whatever its column's character set. What text
would blur is asked for in another way (``select_list``): a FLOAT is shown with six digits only, so it is sent as the
DOUBLE of the same value; bits are sent as a number. What no text shows is the sign of zero: a FLOAT's -0 becomes 0.

Memory is bounded by one block of bytes and one batch, however large the result: a batch ends when it has
``BATCH_ROWS`` rows or the block is full. A single row that is larger makes the block grow.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
from pymysql.constants import COMMAND

from agent.errors import DecodeError, SourceUnreachableError
from agent.schema import Column, TableSchema, ZeroDates
from agent.sources.kernel import Bytes, Ints
from agent.sources.mysql import kernels_text, text_columns, types
from agent.sources.mysql.connection import Connection
from agent.sources.mysql.refusals import refusal
from agent.sources.mysql.sql import identifier
from agent.sources.mysql.types import FieldType

BATCH_ROWS: Final = 16_384
_BLOCK_BYTES: Final = 4 << 20
#: places of one batch: 32 MiB at most, which a table of very many columns would pass
_PLACES_MAX: Final = 2 << 20
_READ_TIMEOUT_S: Final = 600.0
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
    return f"{name} + 0" if column.type_id == FieldType.BIT else name


def read_rows(connection: Connection, schema: TableSchema, sql: str) -> Iterator[pa.RecordBatch]:
    """The rows of ``sql``, whose columns are ``select_list(schema.columns)``, as ``types.arrow_schema(schema)``.

    The connection is of use again only after the last batch.

    :raises SourceError: the server refused the statement, or failed.
    :raises DecodeError: a value that is not of its column's type.
    """
    connection.send_command(COMMAND.COM_QUERY, sql.encode())
    reader = _RowsReader(connection, schema)
    reader.take_header()
    while reader.fill():
        yield reader.take()


class _RowsReader:
    """A block of bytes that is filled from the socket, and where the values of its rows lie."""

    def __init__(self, connection: Connection, schema: TableSchema) -> None:
        self._connection = connection
        self._schema = schema
        self._arrow = types.arrow_schema(schema)
        width = len(schema.columns)
        shape = (width, min(BATCH_ROWS, max(_PLACES_MAX // width, 1)))
        self._starts: Ints = np.empty(shape, np.int64)
        self._lengths: Ints = np.empty(shape, np.int64)
        self._block: Bytes = np.empty(_BLOCK_BYTES, np.uint8)
        #: bytes in the block; of these, bytes whose packets are done with; rows located
        self._filled = self._located = self._rows = 0
        self._is_done = False
        self._is_strict = schema.zero_dates is ZeroDates.STRICT

    def take_header(self) -> None:
        """Everything before the first row: a count, one packet for each column, and their end."""
        while (packet := self._next_packet()) is None or not _is_end(packet):
            if packet is None:
                self._receive()

    def fill(self) -> bool:
        """Read until a batch is due; False when there is nothing more to take."""
        while True:
            self._locate()
            is_stuck = self._filled == len(self._block) and not self._is_done
            if self._rows == self._starts.shape[1] or (self._rows and is_stuck):
                return True
            if self._is_done:
                return self._rows > 0
            if is_stuck:
                self._block = np.concatenate([self._block, np.empty_like(self._block)])
            self._receive()

    def take(self) -> pa.RecordBatch:
        """The located rows as a batch; what was not located moves to the front of the block."""
        arrays = [self._build(i) for i in range(len(self._schema.columns))]
        rest = self._filled - self._located
        self._block[:rest] = self._block[self._located : self._filled].copy()
        self._filled, self._located, self._rows = rest, 0, 0
        return pa.RecordBatch.from_arrays(arrays, schema=self._arrow)

    def _build(self, i: int) -> pa.Array:
        values = text_columns.Values(self._block, self._starts[i, : self._rows], self._lengths[i, : self._rows])
        try:
            skip = _SRID_BYTES if self._schema.columns[i].type_id == FieldType.GEOMETRY else 0
            return text_columns.build(self._arrow.field(i).type, values, skip=skip, is_strict=self._is_strict)
        except text_columns.BadTextError as error:
            raise DecodeError(
                f"{self._schema.qualified_name}: column {self._schema.columns[i].name} cannot be read: {error.reason}, "
                "in its snapshot; report this with the table's definition"
            ) from None

    def _locate(self) -> None:
        if self._is_done:
            return
        self._rows, self._located, outcome = kernels_text.locate_rows(
            self._block, self._located, self._filled, self._rows, self._starts, self._lengths
        )
        if outcome == kernels_text.MALFORMED:
            raise DecodeError(
                f"{self._schema.qualified_name}: {self._connection.target} sent a row that cannot be read"
            )
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
            code, message = int.from_bytes(packet[1:3], "little"), packet[3:].decode(errors="replace")
            raise refusal(code, message[6:] if message[:1] == "#" else message, self._connection.target)
        return packet

    def _receive(self) -> None:
        connection = self._connection
        try:
            connection.socket.settimeout(_READ_TIMEOUT_S)
            count = connection.socket.recv_into(self._block[self._filled :].data)
        except TimeoutError as error:
            raise SourceUnreachableError(self._lost(f"nothing came for {_READ_TIMEOUT_S:.0f} s")) from error
        except OSError as error:
            raise SourceUnreachableError(self._lost("the connection broke")) from error
        if count == 0:
            raise SourceUnreachableError(self._lost("the server closed the connection"))
        self._filled += count

    def _lost(self, reason: str) -> str:
        return (
            f"reading {self._schema.qualified_name} from {self._connection.target} ended: {reason}; it is tried again"
        )


def _is_end(packet: bytes) -> bool:
    """Whether it ends the columns, or the rows."""
    return packet[:1] == b"\xfe" and len(packet) < 9
