"""Blocks: reads blocks of bytes from a socket, and rows from blocks, for all sources.

Memory is bounded by one block and one batch, however much is read: a batch ends when it has the maximum number of rows,
or the block is full. A single larger row makes the block grow.
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


class Line(Protocol):
    """The part of a socket that this module uses."""

    def settimeout(self, value: float, /) -> None: ...

    def recv_into(self, buffer: memoryview, /) -> int: ...


def receive(line: Line, view: memoryview, *, timeout_s: float) -> int:
    """Receive available bytes into ``view``; return their number, 0 if none arrived in time.

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


def receive_all(line: Line, view: memoryview, *, timeout_s: float) -> int:
    """Like ``receive``. TLS returns at most one record (16 KiB) per call: further received ones are read too."""
    count = receive(line, view, timeout_s=timeout_s)
    if count and isinstance(line, ssl.SSLSocket):
        line.settimeout(0.0)
        with contextlib.suppress(ssl.SSLWantReadError, BlockingIOError):
            while count < len(view) and (received := line.recv_into(view[count:])):
                count += received
    return count


class Sender(Protocol):
    """The part of a source's connection that this module uses."""

    @property
    def socket(self) -> socket.socket: ...

    @property
    def target(self) -> object: ...


class RowsReader(ABC):
    """Reads the rows of one result as Arrow batches of at most ``rows_max``."""

    def __init__(
        self, connection: Sender, schema: TableSchema, arrow: pa.Schema, *, rows_max: int, block_bytes: int
    ) -> None:
        self._connection = connection
        self._schema = schema
        self._arrow = arrow
        self._rows_max = rows_max
        self._block: Bytes = np.empty(block_bytes, np.uint8)
        #: bytes in the block; number of those that are processed; number of located rows
        self._filled = self._located = self._rows = 0
        self._is_done = False

    @abstractmethod
    def _locate(self) -> None:
        """Scan all received bytes from ``_located`` on: count rows, and detect the end."""

    @abstractmethod
    def _build(self, i: int) -> pa.Array:
        """Return column ``i`` of the located rows."""

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield all batches."""
        while self._fill():
            yield self._take()

    def _fill(self) -> bool:
        """Read until a batch is complete; return False if there is nothing more to read."""
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
        """Return the located rows as a batch, and move the remaining bytes to the front of the block."""
        arrays = [self._build(i) for i in range(len(self._schema.columns))]
        self._compact()
        return pa.RecordBatch.from_arrays(arrays, schema=self._arrow)

    def _skip(self) -> None:
        """Read to the end without building batches."""
        self._compact()
        while self._fill():
            self._compact()

    def _compact(self) -> None:
        rest = self._filled - self._located
        self._block[:rest] = self._block[self._located : self._filled].copy()
        self._filled, self._located, self._rows = rest, 0, 0

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
