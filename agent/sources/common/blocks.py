"""Blocks of bytes off a socket, and rows out of blocks: what reading has in common, whatever server sends.

Memory is bounded by one block and one batch, however much is read: a batch ends when it has as many rows as there are
places for, or the block is full. A single row that is larger makes the block grow.
"""

import contextlib
import socket
import ssl
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Protocol

import numpy as np
import pyarrow as pa

from agent.errors import SourceUnreachableError
from agent.kernels.jit import Bytes
from agent.rows.schema import TableSchema

_READ_TIMEOUT_S = 600.0


def receive(line: socket.socket, view: memoryview, *, timeout_s: float) -> int:
    """How many bytes were there, and are in ``view`` now; 0 when none came in time.

    :raises OSError: the connection is lost.
    """
    line.settimeout(timeout_s)
    try:
        count = line.recv_into(view)
    except TimeoutError:
        return 0
    if count == 0:
        raise ConnectionResetError("the server closed the connection")
    return count


def receive_all(line: socket.socket, view: memoryview, *, timeout_s: float) -> int:
    """As ``receive``. TLS gives at most one record (16 KiB) a call: the others that have come are taken too."""
    count = receive(line, view, timeout_s=timeout_s)
    if count and isinstance(line, ssl.SSLSocket):
        line.settimeout(0.0)
        with contextlib.suppress(ssl.SSLWantReadError, BlockingIOError):
            while count < len(view) and (received := line.recv_into(view[count:])):
                count += received
    return count


class Sender(Protocol):
    """The part of a source's connection that is needed here."""

    @property
    def socket(self) -> socket.socket: ...

    @property
    def target(self) -> object: ...


class RowsReader(ABC):
    """The rows of one answer as Arrow batches. ``rows_max``: of one batch."""

    def __init__(
        self, connection: Sender, schema: TableSchema, arrow: pa.Schema, *, rows_max: int, block_bytes: int
    ) -> None:
        self._connection = connection
        self._schema = schema
        self._arrow = arrow
        self._rows_max = rows_max
        self._block: Bytes = np.empty(block_bytes, np.uint8)
        #: bytes in the block; of these, bytes that are done with; rows located
        self._filled = self._located = self._rows = 0
        self._is_done = False

    @abstractmethod
    def _locate(self) -> None:
        """Scan all received bytes from ``_located`` on: count rows, and detect the end."""

    @abstractmethod
    def _build(self, i: int) -> pa.Array:
        """Column ``i`` of the located rows."""

    def batches(self) -> Iterator[pa.RecordBatch]:
        """To the end."""
        while self._fill():
            yield self._take()

    def _fill(self) -> bool:
        """Read until a batch is due; False when there is nothing more to take."""
        while True:
            if not self._is_done:
                self._locate()
            is_stuck = self._filled == len(self._block) and not self._is_done
            if self._rows == self._rows_max or (self._rows and is_stuck):
                return True
            if self._is_done:
                return self._rows > 0
            if is_stuck:
                self._block = np.concatenate([self._block, np.empty_like(self._block)])
            self._receive()

    def _take(self) -> pa.RecordBatch:
        """The located rows as a batch; what was not located moves to the front of the block."""
        arrays = [self._build(i) for i in range(len(self._schema.columns))]
        rest = self._filled - self._located
        self._block[:rest] = self._block[self._located : self._filled].copy()
        self._filled, self._located, self._rows = rest, 0, 0
        return pa.RecordBatch.from_arrays(arrays, schema=self._arrow)

    def _receive(self) -> None:
        view = self._block[self._filled :].data
        try:
            count = receive(self._connection.socket, view, timeout_s=_READ_TIMEOUT_S)
        except OSError as error:
            raise SourceUnreachableError(self._lost("the connection broke")) from error
        if count == 0:
            raise SourceUnreachableError(self._lost(f"nothing came for {_READ_TIMEOUT_S:.0f} s"))
        self._filled += count

    def _lost(self, reason: str) -> str:
        table = self._schema.qualified_name
        return f"reading {table} from {self._connection.target} ended: {reason}; it is tried again"
