"""Compressed payload: decompresses a MySQL transaction piece by piece into events without packet headers.

However large it is decompressed, only what fits into the arena is in memory at a time, besides the compressed bytes.
"""

import io
from typing import Protocol

import zstandard

from agent.errors import DecodeError, SourceConfigError
from agent.sources.mysql.binlog import events


class _Reader(Protocol):
    def readinto(self, view: memoryview) -> int: ...


class Payload:
    """Reader of the payload event with this ``body``."""

    def __init__(self, body: bytes) -> None:
        """:raises SourceConfigError: an unknown compression algorithm."""
        compression, at = events.parse_payload(body)
        self._reader = _open(compression, body[at:])

    def read_into(self, view: memoryview) -> int:
        """Read bytes into ``view``; return their number, 0 at the end.

        :raises DecodeError: the data is damaged.
        """
        try:
            return self._reader.readinto(view)
        except zstandard.ZstdError as error:
            raise DecodeError(
                f"a compressed transaction cannot be inflated ({error}); check the binlog file"
            ) from error


def _open(compression: int, data: bytes) -> _Reader:
    if compression == events.ZSTD:
        return zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True)
    if compression == events.UNCOMPRESSED:
        return io.BytesIO(data)
    raise SourceConfigError(
        f"a transaction is compressed in the unknown way {compression}; set binlog_transaction_compression=OFF"
    )
