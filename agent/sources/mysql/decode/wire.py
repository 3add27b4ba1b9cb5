"""Little-endian reads for the kernels, and the names of binlog events.

Offsets are unsigned inside the reads: numba then leaves out its negative-index handling, and LLVM turns byte loads into
one word.
"""

from typing import Any, Final

import numpy as np
from numba import types

from agent.kernels.jit import DATA, PAIR, kernel

#: bytes of the header that every event begins with: timestamp, type, server id, length, end position, flags
HEADER_BYTES: Final = 19
TYPE_AT, SERVER_AT, LENGTH_AT, POSITION_AT, FLAGS_AT = 4, 5, 9, 13, 17

# Event types, as both servers number them.
START_V3, LOAD, SLAVE, CREATE_FILE, APPEND_BLOCK, EXEC_LOAD, DELETE_FILE, NEW_LOAD = 1, 6, 7, 8, 9, 10, 11, 12
STOP, ROTATE, INTVAR, RAND, USER_VAR, FORMAT_DESCRIPTION, XID = 3, 4, 5, 13, 14, 15, 16
QUERY, BEGIN_LOAD, EXECUTE_LOAD, TABLE_MAP = 2, 17, 18, 19
WRITE_V0, UPDATE_V0, DELETE_V0 = 20, 21, 22  # of 5.1 before its release
WRITE_V1, UPDATE_V1, DELETE_V1, WRITE_V2, UPDATE_V2, DELETE_V2 = 23, 24, 25, 30, 31, 32
INCIDENT, HEARTBEAT, IGNORABLE, ROWS_QUERY = 26, 27, 28, 29
# MySQL's own
GTID, ANONYMOUS_GTID, PREVIOUS_GTIDS, TRANSACTION_CONTEXT, VIEW_CHANGE = 33, 34, 35, 36, 37
XA_PREPARE, PARTIAL_UPDATE, TRANSACTION_PAYLOAD, HEARTBEAT_V2, TAGGED_GTID = 38, 39, 40, 41, 42
# MariaDB's own
ANNOTATE, CHECKPOINT, MARIADB_GTID, GTID_LIST, START_ENCRYPTION, QUERY_COMPRESSED = 160, 161, 162, 163, 164, 165
WRITE_COMPRESSED_V1, UPDATE_COMPRESSED_V1, DELETE_COMPRESSED_V1 = 166, 167, 168
WRITE_COMPRESSED, UPDATE_COMPRESSED, DELETE_COMPRESSED = 169, 170, 171

#: changes of rows
ROWS: Final = frozenset(
    {
        *range(WRITE_V1, DELETE_V1 + 1),
        *range(WRITE_V2, DELETE_V2 + 1),
        *range(WRITE_COMPRESSED_V1, DELETE_COMPRESSED + 1),
        PARTIAL_UPDATE,
    }
)

#: a rows event with this number of a table map says only that a statement ended
DUMMY_MAP: Final = 0xFFFFFF

#: Weir's own: a line of the change log that says the table was emptied
TRUNCATED: Final = 0xFE

# Flags of an event's header.
#: thread specific: the statement uses a temporary table of its session
FLAG_THREAD_SPECIFIC, FLAG_ARTIFICIAL, FLAG_IGNORABLE = 0x4, 0x20, 0x80


@kernel(types.int64(DATA, types.int64))
def read_u16(data: Any, at: int) -> int:
    p = np.uint64(at)
    return np.int64(np.uint16(data[p]) | (np.uint16(data[p + np.uint64(1)]) << np.uint16(8)))  # type: ignore[return-value]


@kernel(types.int64(DATA, types.int64))
def read_u24(data: Any, at: int) -> int:
    p = np.uint64(at)
    low = np.uint32(data[p]) | (np.uint32(data[p + np.uint64(1)]) << np.uint32(8))
    return np.int64(low | (np.uint32(data[p + np.uint64(2)]) << np.uint32(16)))  # type: ignore[return-value]


@kernel(types.int64(DATA, types.int64))
def read_u32(data: Any, at: int) -> int:
    p = np.uint64(at)
    word = (
        np.uint32(data[p])
        | (np.uint32(data[p + np.uint64(1)]) << np.uint32(8))
        | (np.uint32(data[p + np.uint64(2)]) << np.uint32(16))
        | (np.uint32(data[p + np.uint64(3)]) << np.uint32(24))
    )
    return np.int64(word)  # type: ignore[return-value]


@kernel(types.int64(DATA, types.int64))
def read_u48(data: Any, at: int) -> int:
    return read_u32(data, at) | (read_u16(data, at + 4) << 32)  # type: ignore[no-any-return]


@kernel(types.uint64(DATA, types.int64))
def read_u64(data: Any, at: int) -> Any:
    p = np.uint64(at)
    word = np.uint64(0)
    for i in range(7, -1, -1):
        word = (word << np.uint64(8)) | np.uint64(data[p + np.uint64(i)])
    return word


@kernel(PAIR(DATA, types.int64))
def read_lenenc(data: Any, at: int) -> tuple[int, int]:
    """Return a length-encoded integer and the offset behind it; the first is -1 for NULL (0xFB)."""
    first = np.int64(data[np.uint64(at)])
    if first < 0xFB:
        return first, at + 1  # type: ignore[return-value]
    if first == 0xFC:
        return read_u16(data, at + 1), at + 3
    if first == 0xFD:
        return read_u24(data, at + 1), at + 4
    if first == 0xFE:
        return np.int64(read_u64(data, at + 1)), at + 9  # type: ignore[return-value]
    return -1, at + 1
