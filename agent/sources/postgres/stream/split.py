"""Stream splitter: kernels that find each row event of the replication stream, and the table it belongs to.

``split`` walks one arena of raw bytes (backend messages as received from the socket) and records place, table, commit
Ts and ordinal of every row event. It handles Begin, Commit and keepalives itself, so a million one-row transactions
cost no Python object. It stops at every control message (a Relation, a Truncate, an error of the server), which its
caller handles.

``agent.sources.postgres.stream.events`` interprets messages; ``...stream`` reads the socket and cuts chunks.

Message framing: ``'d' int32 length`` + ``'w' start end clock`` + a pgoutput message, or ``'k' end clock reply``.
"""

from typing import Any, Final

import numpy as np
from numba import types

from agent.kernels.jit import DATA, Bytes, Ints, kernel
from agent.sources.postgres.decode.wire import CLOCK_EPOCH, read_i32, read_i64

_INTS: Final = types.int64[::1]
_ROWS: Final = types.int64[:, ::1]

# Cells of the state that ``split`` carries from call to call; all positions count from the arena's start.
POS = 0  # the next message to look at
ROWS = 1  # row events recorded
IN_TXN = 2
COMMIT_TS = 3  # of the open transaction
COMMIT_TIME = 4  # of the open transaction, Unix microseconds
SEQ = 5  # ordinal of the next event in the open transaction
SKIPPING = 6  # the open transaction is at or below SKIP_UNTIL
SKIP_UNTIL = 7  # everything up to this Ts is in the log already
RESOLVED = 8
RESOLVED_TIME = 9
DONE_POS = 10  # nothing before it belongs to an open transaction
DONE_ROWS = 11
REPLY = 12  # the server wants an answer
RARE_POS = 13  # body of the message it stopped at, and its end
RARE_END = 14
RARE_KIND = 15
XID = 16  # of the open transaction, 32 bits
STATE_CELLS = 17

# What ``split`` stopped for.
NEED_MORE, RARE, ROWS_FULL, UNKNOWN_TABLE, MALFORMED, OUT_OF_ORDER = 0, 1, 2, 3, 4, 5

# Where a row event's table index is looked up: open addressing, keys are relation oids, 0 is free.
UNWANTED = -1
ABSENT = -2

_FRAME = 5
_XLOG_HEADER = 25
#: a message shorter than its fixed part is not looked into
_ROW_BYTES, _BEGIN_BYTES, _COMMIT_BYTES = 5, 21, 26


@kernel(types.int64(_INTS, _INTS, types.int64))
def find(keys: Ints, slots: Ints, relation: int) -> int:
    """Return the slot of a relation, ``UNWANTED``, or ``ABSENT`` if no Relation message has named it yet."""
    mask = len(keys) - 1
    at = (relation * 2654435761) & mask
    while keys[at] != 0:
        if keys[at] == relation:
            return int(slots[at])
        at = (at + 1) & mask
    return ABSENT


@kernel(types.int64(DATA, types.int64, _INTS))
def _begin(data: Bytes, body: int, state: Ints) -> int:
    commit_ts = read_i64(data, body + 1)
    skipping = commit_ts <= state[SKIP_UNTIL]
    if not skipping and commit_ts <= state[RESOLVED]:
        # we have promised everybody that nothing more comes at or below RESOLVED: continuing would lose this
        # transaction
        return OUT_OF_ORDER
    state[IN_TXN] = 1
    state[COMMIT_TS] = commit_ts
    state[COMMIT_TIME] = read_i64(data, body + 9) + CLOCK_EPOCH
    state[XID] = read_i32(data, body + 17) & 0xFFFFFFFF
    state[SEQ] = 0
    state[SKIPPING] = 1 if skipping else 0
    return 0


@kernel(types.void(DATA, types.int64, _INTS))
def _commit(data: Bytes, body: int, state: Ints) -> None:
    # 'C' flags commit_lsn end_lsn time: the next commit can only start at or behind end_lsn
    resolved = read_i64(data, body + 10) - 1
    if resolved > state[RESOLVED]:
        state[RESOLVED] = resolved
        state[RESOLVED_TIME] = read_i64(data, body + 18) + CLOCK_EPOCH
    state[IN_TXN] = 0
    state[SKIPPING] = 0


@kernel(types.void(DATA, types.int64, _INTS))
def _keepalive(data: Bytes, body: int, state: Ints) -> None:
    if data[body + 17] != 0:
        state[REPLY] = 1
    resolved = read_i64(data, body + 1) - 1
    if state[IN_TXN] == 0 and resolved >= state[RESOLVED]:
        state[RESOLVED] = resolved
        state[RESOLVED_TIME] = read_i64(data, body + 9) + CLOCK_EPOCH


@kernel(types.int64(DATA, types.int64, types.int64, _INTS, _INTS, _INTS, _ROWS))
def _row(data: Bytes, body: int, end: int, state: Ints, keys: Ints, slots: Ints, rows: Ints) -> int:
    slot = find(keys, slots, read_i32(data, body + 1) & 0xFFFFFFFF)
    if slot == ABSENT:
        return UNKNOWN_TABLE
    if state[ROWS] == len(rows):
        return ROWS_FULL
    seq = state[SEQ]
    state[SEQ] = seq + 1
    if slot == UNWANTED or state[SKIPPING] != 0:
        return 0
    line = rows[state[ROWS]]
    line[0], line[1], line[2] = body, end - body, slot
    line[3], line[4], line[5] = state[COMMIT_TS], seq, state[COMMIT_TIME]
    state[ROWS] += 1
    return 0


@kernel(types.int64(DATA, types.int64, _INTS, _INTS, _INTS, _ROWS))
def split(data: Bytes, filled: int, state: Ints, keys: Ints, slots: Ints, rows: Ints) -> int:
    """Continue at ``state[POS]`` until the bytes end or a control message comes.

    ``rows`` has one line per event: offset, length, slot, commit Ts, ordinal, commit time. Return why it stopped; after
    ``RARE`` the caller handles the message and calls again.
    """
    while True:
        at = state[POS]
        if at + _FRAME > filled:
            return NEED_MORE
        length = read_i32(data, at + 1)
        if length < 4:
            return MALFORMED
        end = at + 1 + length
        if end > filled:
            return NEED_MORE
        body = at + _FRAME
        kind = data[at]
        if kind == 100 and end - body >= 18 and data[body] == 107:  # 'd', 'k'
            _keepalive(data, body, state)
        elif kind == 100 and end - body > _XLOG_HEADER and data[body] == 119:  # 'd', 'w'
            body += _XLOG_HEADER
            kind = data[body]
            outcome = 0
            size = end - body
            if kind == 73 or kind == 85 or kind == 68:  # I, U, D
                if size < _ROW_BYTES:
                    return MALFORMED
                outcome = _row(data, body, end, state, keys, slots, rows)
            elif kind == 66:  # B
                if size < _BEGIN_BYTES:
                    return MALFORMED
                outcome = _begin(data, body, state)
            elif kind == 67:  # C
                if size < _COMMIT_BYTES:
                    return MALFORMED
                _commit(data, body, state)
            elif kind == 82 or kind == 84:  # R, T
                state[RARE_POS], state[RARE_END], state[RARE_KIND] = body, end, kind
                state[POS] = end
                return RARE
            if outcome != 0:
                return outcome
        elif kind != 78 and kind != 83:  # N, S: notices and parameter changes say nothing to us
            state[RARE_POS], state[RARE_END], state[RARE_KIND] = body, end, 256 + kind
            state[POS] = end
            return RARE
        state[POS] = end
        if state[IN_TXN] == 0:
            state[DONE_POS] = end
            state[DONE_ROWS] = state[ROWS]


def new_state(*, resolved: int) -> Any:
    """Return the state of a reader that has everything up to ``resolved``."""
    state = np.zeros(STATE_CELLS, np.int64)
    state[RESOLVED] = state[SKIP_UNTIL] = resolved
    return state


def relation_at(data: Bytes, state: Ints) -> int:
    """Return the table of the row event at which ``split`` stopped with ``UNKNOWN_TABLE``."""
    return int(read_i32(data, int(state[POS]) + _FRAME + _XLOG_HEADER + 1)) & 0xFFFFFFFF


def pass_over(data: Bytes, state: Ints) -> None:
    """Skip the row event at which ``split`` stopped."""
    state[SEQ] += 1
    state[POS] += 1 + read_i32(data, int(state[POS]) + 1)
