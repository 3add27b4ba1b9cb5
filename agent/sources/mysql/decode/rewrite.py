"""Event rewriting: converts compressed events and partial JSON updates to plain events before they are decoded.

MariaDB compresses the rows of an event (``log_bin_compress``); they are decompressed here, event by event. MySQL may
log only an update's changes inside of a JSON document (``binlog_row_value_options=PARTIAL_JSON``); the new document is
computed from the old one, and the event becomes an ordinary update. Batches without either are passed through.
"""

import zlib
from typing import Final

import numpy as np

from agent.kernels.jit import Bytes, Ints
from agent.rows.schema import TableSchema
from agent.sources.mysql.decode import wire
from agent.sources.mysql.decode.inflating import inflate
from agent.sources.mysql.decode.json import partial
from agent.sources.mysql.decode.row_parts import bitmaps_at

_COMPRESSED: Final = {
    wire.WRITE_COMPRESSED_V1: wire.WRITE_V1,
    wire.UPDATE_COMPRESSED_V1: wire.UPDATE_V1,
    wire.DELETE_COMPRESSED_V1: wire.DELETE_V1,
    wire.WRITE_COMPRESSED: wire.WRITE_V2,
    wire.UPDATE_COMPRESSED: wire.UPDATE_V2,
    wire.DELETE_COMPRESSED: wire.DELETE_V2,
}
_RARE: Final = np.array([*_COMPRESSED, wire.PARTIAL_UPDATE], np.uint8)
_UPDATES: Final = frozenset({wire.UPDATE_COMPRESSED_V1, wire.UPDATE_COMPRESSED})
#: low bits of the first byte of compressed data: the number of length bytes
_LENGTH_BITS = 0x07


class BadEventError(Exception):
    """An event that cannot be decoded; ``event``: its index in the batch."""

    def __init__(self, event: int, what: str) -> None:
        super().__init__(what)
        self.event = event
        self.what = what


def plain_events(schema: TableSchema, data: Bytes, offsets: Ints) -> tuple[Bytes, Ints]:
    """Return the same events, all in a form that ``locate`` supports.

    :raises BadEventError: an event cannot be converted.
    """
    starts, ends = offsets[:-1], offsets[1:]
    if not len(starts) or bool((ends <= starts).any()):
        return data, offsets
    rare = np.isin(data[starts], _RARE)
    if not rare.any():
        return data, offsets
    parts = [data[start:end].tobytes() for start, end in zip(starts, ends, strict=True)]
    for event in np.flatnonzero(rare):
        parts[event] = _plain(schema, parts[event], int(event))
    new_offsets = np.zeros(len(offsets), np.int64)
    np.cumsum([len(part) for part in parts], out=new_offsets[1:])
    return np.frombuffer(b"".join(parts), np.uint8), new_offsets


def _plain(schema: TableSchema, event: bytes, number: int) -> bytes:
    try:
        if event[0] == wire.PARTIAL_UPDATE:
            return partial.whole_update(schema, event)
        return inflated(event)
    except (ValueError, IndexError, zlib.error) as error:
        raise BadEventError(number, str(error) or "an event is not a row change of its schema") from None


def inflated(event: bytes) -> bytes:
    """Return a compressed event as an ordinary one.

    :raises ValueError: it is damaged. (Also IndexError, zlib.error.)
    """
    kind = event[0]
    columns, at = bitmaps_at(event, _COMPRESSED[kind])
    at += (columns + 7) // 8 * (2 if kind in _UPDATES else 1)
    length_bytes = event[at] & _LENGTH_BITS
    length = int.from_bytes(event[at + 1 : at + 1 + length_bytes])
    rows = inflate(event[at + 1 + length_bytes :], length)
    return bytes([_COMPRESSED[kind]]) + event[1:at] + rows
