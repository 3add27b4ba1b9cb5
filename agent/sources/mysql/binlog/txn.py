"""Transaction state: the cells that the kernels carry through a binlog, and how transactions open and close.

One array of integers: the reader's place in its arena and in the server's file, the open transaction, and the resolved
position. The kernel ``split`` walks over events; between two walks, Python uses the same cells through the same
functions (``stream``, ``control_events``, ``progress``).
"""

from typing import Any, Final

import numpy as np
from numba import types

from agent.kernels.jit import DATA, Bytes, Ints, kernel
from agent.sources.mysql.decode import wire
from agent.sources.mysql.decode.wire import read_u32, read_u64

INTS: Final = types.int64[::1]
LINES: Final = types.int64[:, ::1]

# Cells of the state that ``split`` carries from call to call; all places count from the arena's start.
POS = 0  # the next event to look at
ROWS = 1  # rows events recorded
IN_TXN = 2  # CLOSED, GROUP or BEGUN
COMMIT_TS = 3  # of the open transaction
COMMIT_TIME = 4  # of the open transaction, Unix microseconds
SEQ = 5  # ordinal of the next rows event in the open transaction
SKIPPING = 6  # the open transaction is at or below SKIP_UNTIL
SKIP_UNTIL = 7  # everything up to this Ts is in the log already
RESOLVED = 8
RESOLVED_TIME = 9
DONE_POS = 10  # nothing before it belongs to an open transaction
DONE_ROWS = 11
RARE_POS = 12  # header of the event it stopped at, and the end of its body
RARE_END = 13
RARE_TYPE = 14  # its type, or 256 + the marker of a packet without an event
FILE = 15  # server epoch and number of the binlog file: the upper half of a Ts
POSITION = 16  # end of the last event in its file; past 2^32 in an overlong one
CHECKSUM = 17  # bytes of checksum behind every event
BARE = 18
LONG = 19  # bytes of an event that came in several packets and has been joined, else 0
NOW = 20  # the server's clock, Unix microseconds: set by the caller
GTID_KIND = 21  # of the open transaction's GTID: none, MariaDB's or MySQL's
GTID_A = 22  # domain | upper half of the UUID
GTID_B = 23  # server | lower half
GTID_C = 24  # sequence number
GTIDS = 25  # lines used of ``gtids``
TXNS = 26  # transactions begun
IS_VOID = 27  # what the open group says is not done, or not yet
DROP_TS = 28  # rows events of this transaction, from one ordinal to before another, were rolled back
DROP_FIRST = 29
DROP_UNTIL = 30
PREPARES = 31  # the open transaction ends with an XA PREPARE, as far as is known
STATE_CELLS = 32

CLOSED, GROUP, BEGUN = 0, 1, 2
"""``IN_TXN``: no transaction is open; one is that ends with its next query; one that ends with XID or COMMIT."""

NO_GTID, MARIADB_GTID, MYSQL_GTID = 0, 1, 2

# What ``split`` stopped for.
DONE, NEED_MORE, RARE, ROWS_FULL, GTIDS_FULL, LONG_PACKET = 0, 1, 2, 3, 4, 5
UNKNOWN_TABLE, MALFORMED, OUT_OF_ORDER, BAD_CHECKSUM = 6, 7, 8, 9

#: cells of a line of ``gtids``: domain, server, sequence | both halves of the UUID, first and last number
GTID_CELLS = 4
#: positions have so many bits; a file that is longer is followed by another at once
OVERLONG = 1 << 32

_MARIADB_GTID_BYTES, _MYSQL_GTID_BYTES, _MYSQL_TIMED_BYTES = 13, 25, 49
# MariaDB's flags of a GTID event, and of the second byte of flags that newer servers write behind what the first name.
_STANDALONE, _HAS_COMMIT_ID, _PREPARED_XA, _COMPLETED_XA = 1, 2, 64, 128
_HAS_XID = _PREPARED_XA | _COMPLETED_XA
_START_ALTER, _ROLLBACK_ALTER = 2, 8


@kernel(types.int64(types.int64, types.int64, INTS))
def begin(length: int, time_us: int, state: Ints) -> int:
    """Open a transaction with the event that ends at ``POSITION`` and has ``length`` bytes."""
    commit_ts = (state[FILE] << 32) + state[POSITION] - length
    skipping = commit_ts <= state[SKIP_UNTIL]
    if state[IN_TXN] != CLOSED or (not skipping and commit_ts <= state[RESOLVED]):
        # we have promised everybody that nothing more comes at or below RESOLVED: continuing would lose this
        # transaction
        return OUT_OF_ORDER
    state[IN_TXN] = GROUP
    state[COMMIT_TS] = commit_ts
    state[COMMIT_TIME] = time_us
    state[SEQ] = 0
    state[SKIPPING] = 1 if skipping else 0
    state[IS_VOID] = 0
    state[PREPARES] = 0
    state[GTID_KIND] = NO_GTID
    state[TXNS] += 1
    return DONE


@kernel(types.void(types.int64, types.int64, INTS))
def resolve(position: int, time_us: int, state: Ints) -> None:
    """Note that no later transaction begins before ``position``."""
    resolved = (state[FILE] << 32) + min(position, OVERLONG) - 1
    if resolved >= state[RESOLVED]:
        state[RESOLVED] = resolved
        state[RESOLVED_TIME] = max(time_us, state[RESOLVED_TIME])


@kernel(types.boolean(INTS, LINES))
def _keep_gtid(state: Ints, gtids: Ints) -> bool:
    """Store the open transaction's GTID; return False if there is no room."""
    kind, a, b, c = state[GTID_KIND], state[GTID_A], state[GTID_B], state[GTID_C]
    if kind == NO_GTID:
        return True
    used = state[GTIDS]
    for i in range(used - 1, -1, -1):
        line = gtids[i]
        if kind == MARIADB_GTID and line[0] == a:
            line[1], line[2] = b, c
            return True
        if kind == MYSQL_GTID and line[0] == a and line[1] == b and line[3] == c - 1:
            line[3] = c
            return True
    if used == len(gtids):
        return False
    gtids[used, 0], gtids[used, 1], gtids[used, 2], gtids[used, 3] = a, b, c, c
    state[GTIDS] = used + 1
    return True


@kernel(types.int64(INTS, LINES))
def finish(state: Ints, gtids: Ints) -> int:
    """Close the open transaction; everything up to ``POSITION`` is complete."""
    if not _keep_gtid(state, gtids):
        return GTIDS_FULL
    state[IN_TXN] = CLOSED
    state[SKIPPING] = 0
    state[GTID_KIND] = NO_GTID
    resolve(state[POSITION], state[COMMIT_TIME], state)
    return DONE


@kernel(types.int64(DATA, types.int64, types.int64))
def _is_void(data: Bytes, body: int, end: int) -> int:
    """MariaDB with ``binlog_alter_two_phase`` logs an ALTER when it begins, and again when it is done or given up."""
    flags, at = data[body + 12], np.int64(body + _MARIADB_GTID_BYTES)
    if flags & _HAS_COMMIT_ID != 0:
        at += 8
    if flags & _HAS_XID != 0 and at + 6 <= end:
        at += 6 + np.int64(data[at + 4]) + np.int64(data[at + 5])
    return 1 if at < end and data[at] & (_START_ALTER | _ROLLBACK_ALTER) != 0 else 0


@kernel(types.int64(DATA, types.int64, types.int64, INTS))
def begin_mariadb(data: Bytes, start: int, end: int, state: Ints) -> int:
    body = start + wire.HEADER_BYTES
    if end - body < _MARIADB_GTID_BYTES:
        return MALFORMED
    time_us = read_u32(data, start) * 1_000_000
    outcome = begin(read_u32(data, start + wire.LENGTH_AT), time_us, state)
    if outcome != DONE:
        return outcome  # type: ignore[no-any-return]
    if data[body + 12] & _STANDALONE == 0:
        state[IN_TXN] = BEGUN
        state[PREPARES] = data[body + 12] & _PREPARED_XA
    else:
        state[IS_VOID] = _is_void(data, body, end)
    state[GTID_KIND] = MARIADB_GTID
    state[GTID_A], state[GTID_B] = read_u32(data, body + 8), read_u32(data, start + wire.SERVER_AT)
    state[GTID_C] = np.int64(read_u64(data, body))
    return DONE


@kernel(types.int64(DATA, types.int64))
def _uuid_half(data: Bytes, at: int) -> int:
    word = np.uint64(0)
    for i in range(8):
        word = (word << np.uint64(8)) | np.uint64(data[at + i])
    return np.int64(word)  # type: ignore[return-value]


@kernel(types.int64(DATA, types.int64, types.int64, INTS))
def begin_mysql(data: Bytes, start: int, end: int, state: Ints) -> int:
    body = start + wire.HEADER_BYTES
    if end - body < _MYSQL_GTID_BYTES:
        return MALFORMED
    time_us = read_u32(data, start) * 1_000_000
    if end - body >= _MYSQL_TIMED_BYTES:
        # 8.0 and later: when it was committed here, seven bytes; the uppermost bit says that the origin's time follows
        time_us = np.int64(read_u64(data, body + 41) >> np.uint64(8)) & ((1 << 55) - 1)
    outcome = begin(read_u32(data, start + wire.LENGTH_AT), time_us, state)
    if outcome != DONE:
        return outcome  # type: ignore[no-any-return]
    if data[start + wire.TYPE_AT] == wire.GTID:
        state[GTID_KIND] = MYSQL_GTID
        state[GTID_A], state[GTID_B] = _uuid_half(data, body + 1), _uuid_half(data, body + 9)
        state[GTID_C] = np.int64(read_u64(data, body + 17))
    return DONE


def new_state(*, resolved: int) -> Any:
    """Return the state of a reader that has everything up to ``resolved``."""
    state = np.zeros(STATE_CELLS, np.int64)
    state[RESOLVED] = state[SKIP_UNTIL] = resolved
    state[DROP_TS] = -1
    return state
