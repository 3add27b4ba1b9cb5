"""The kernels that take a binlog apart: where each rows event lies, and to which table it belongs.

``split`` walks one arena of raw bytes (packets as they came off the socket) and records for every rows event its place,
table, commit Ts and ordinal. GTIDs, BEGIN, COMMIT, XID, heartbeats and table maps that it has seen before it
understands itself, so a million one-row transactions cost no Python object either. At anything rare (a table map it
does not know, a DDL, a rotation, an error of the server) it stops and lets its caller look.

*Checksums* are verified for what is used: events that open and close transactions, and the rows events of wanted
tables. Those of other tables are skipped by their header alone, whatever they hold; a table map that is byte for byte
the one that was verified before needs no checksum either.

What a rare event *means* is ``agent.sources.mysql.events``; who reads and who cuts is ``...stream``.

Packet framing: ``length (3 bytes) number (1) marker (1: 0 = an event follows)`` + event + checksum. With ``BARE``
events follow each other without packet and checksum: so they come out of a compressed transaction.
"""

from typing import Any, Final

import numpy as np
from numba import types

from agent.sources.kernel import DATA, Bytes, Ints, kernel
from agent.sources.mysql import wire
from agent.sources.mysql.crc import TABLES, crc32
from agent.sources.mysql.wire import read_u16, read_u24, read_u32, read_u48, read_u64

_BYTES: Final = types.uint8[::1]
_INTS: Final = types.int64[::1]
_LINES: Final = types.int64[:, ::1]

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
STATE_CELLS = 27

CLOSED, GROUP, BEGUN = 0, 1, 2
"""``IN_TXN``: no transaction is open; one is that ends with its next query; one that ends with XID or COMMIT."""

NO_GTID, MARIADB_GTID, MYSQL_GTID = 0, 1, 2

# What ``split`` stopped for.
DONE, NEED_MORE, RARE, ROWS_FULL, GTIDS_FULL, LONG_PACKET = 0, 1, 2, 3, 4, 5
UNKNOWN_TABLE, MALFORMED, OUT_OF_ORDER, BAD_CHECKSUM = 6, 7, 8, 9

# What ``find`` knows of a table map.
UNWANTED = -1
ABSENT = -2

#: cells of a line of ``maps``: id + 1 (0 is free), slot, where its bytes are kept, how many, last transaction with it
MAP_CELLS = 5
#: cells of a line of ``gtids``: domain, server, sequence | both halves of the UUID, first and last number
GTID_CELLS = 4
#: rows in one event share an ordinal's range
SEQ_SHIFT = 20

_FRAME, _LONGEST = 5, 0xFFFFFF
_MAP_HEAD, _QUERY_HEAD, _ROWS_HEAD = 8, 13, 8
_MARIADB_GTID_BYTES, _MYSQL_GTID_BYTES, _MYSQL_TIMED_BYTES = 13, 25, 49
_STANDALONE = 1
#: a rows event with this map id says only that a statement ended
_DUMMY_MAP = 0xFFFFFF
_OVERLONG = 1 << 32


@kernel(types.int64(_LINES, types.int64))
def find(maps: Ints, map_id: int) -> int:
    """The line of a table map, or of the free place where it belongs."""
    mask = len(maps) - 1
    at = (map_id * 2654435761) & mask
    while maps[at, 0] != 0 and maps[at, 0] != map_id + 1:
        at = (at + 1) & mask
    return at


@kernel(types.boolean(DATA, types.int64, DATA, types.int64, types.int64))
def _equal(data: Bytes, at: int, known: Bytes, known_at: int, length: int) -> bool:
    p, q = np.uint64(at), np.uint64(known_at)
    difference = np.uint8(0)
    for i in range(np.uint64(length)):
        difference |= data[p + i] ^ known[q + i]
    return difference == 0  # type: ignore[no-any-return]


@kernel(types.boolean(TABLES, DATA, types.int64, types.int64, _INTS))
def _is_sound(tables: Any, data: Bytes, start: int, end: int, state: Ints) -> bool:
    """Does the checksum behind ``end`` fit? Without checksums everything does."""
    is_unchecked = state[CHECKSUM] == 0 or state[BARE] != 0
    return is_unchecked or crc32(tables, data, start, end) == read_u32(data, end)  # type: ignore[no-any-return]


@kernel(types.void(DATA, types.int64, types.int64, _INTS))
def _advance(data: Bytes, start: int, event: int, state: Ints) -> None:
    """Keep the end of the event in its file: the header has 32 bits of it, or none."""
    low = read_u32(data, start + wire.POSITION_AT)
    if low == 0 or read_u16(data, start + wire.FLAGS_AT) & wire.FLAG_ARTIFICIAL != 0 or event == wire.HEARTBEAT:
        return
    position = (state[POSITION] & ~0xFFFFFFFF) | low
    if state[IN_TXN] == CLOSED:
        position = low
    elif position < state[POSITION]:
        position += _OVERLONG  # only a transaction makes a file this long
    state[POSITION] = position


@kernel(types.int64(types.int64, types.int64, _INTS))
def begin(length: int, time_us: int, state: Ints) -> int:
    """A transaction opens with the event that ends at ``POSITION`` and has ``length`` bytes."""
    commit_ts = (state[FILE] << 32) + state[POSITION] - length
    skipping = commit_ts <= state[SKIP_UNTIL]
    if state[IN_TXN] != CLOSED or (not skipping and commit_ts <= state[RESOLVED]):
        # we have told everybody that nothing more comes at or below RESOLVED: going on would lose this transaction
        return OUT_OF_ORDER
    state[IN_TXN] = GROUP
    state[COMMIT_TS] = commit_ts
    state[COMMIT_TIME] = time_us
    state[SEQ] = 0
    state[SKIPPING] = 1 if skipping else 0
    state[GTID_KIND] = NO_GTID
    state[TXNS] += 1
    return DONE


@kernel(types.void(types.int64, types.int64, _INTS))
def resolve(position: int, time_us: int, state: Ints) -> None:
    """No transaction that comes later begins before ``position``."""
    resolved = (state[FILE] << 32) + min(position, _OVERLONG) - 1
    if resolved >= state[RESOLVED]:
        state[RESOLVED] = resolved
        state[RESOLVED_TIME] = max(time_us, state[RESOLVED_TIME])


@kernel(types.boolean(_INTS, _LINES))
def _keep_gtid(state: Ints, gtids: Ints) -> bool:
    """Note the open transaction's GTID; False when there is no room."""
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


@kernel(types.int64(_INTS, _LINES))
def finish(state: Ints, gtids: Ints) -> int:
    """The open transaction is over, and so is everything up to ``POSITION``."""
    if not _keep_gtid(state, gtids):
        return GTIDS_FULL
    state[IN_TXN] = CLOSED
    state[SKIPPING] = 0
    state[GTID_KIND] = NO_GTID
    resolve(state[POSITION], state[COMMIT_TIME], state)
    return DONE


@kernel(types.int64(DATA, types.int64, types.int64, _INTS))
def _mariadb_gtid(data: Bytes, start: int, end: int, state: Ints) -> int:
    body = start + wire.HEADER_BYTES
    if end - body < _MARIADB_GTID_BYTES:
        return MALFORMED
    time_us = read_u32(data, start) * 1_000_000
    outcome = begin(read_u32(data, start + wire.LENGTH_AT), time_us, state)
    if outcome != DONE:
        return outcome  # type: ignore[no-any-return]
    if data[body + 12] & _STANDALONE == 0:
        state[IN_TXN] = BEGUN
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


@kernel(types.int64(DATA, types.int64, types.int64, _INTS))
def _mysql_gtid(data: Bytes, start: int, end: int, state: Ints) -> int:
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


@kernel(types.int64(DATA, types.int64, types.int64))
def _keyword(data: Bytes, start: int, end: int) -> int:
    """1 where the statement of a query event is BEGIN, 2 where it is COMMIT, else 0."""
    body = start + wire.HEADER_BYTES
    if end - body < _QUERY_HEAD:
        return 0
    at = body + _QUERY_HEAD + read_u16(data, body + 11) + np.int64(data[body + 8]) + 1
    word = np.int64(0)
    if end - at == 5 or end - at == 6:
        for i in range(at, end):
            word = (word << 8) | np.int64(data[i])
    if word == 0x424547494E:
        return 1
    return 2 if word == 0x434F4D4D4954 else 0


@kernel(types.int64(DATA, types.int64, types.int64, _INTS, _LINES))
def _query(data: Bytes, start: int, end: int, state: Ints, gtids: Ints) -> int:
    keyword = _keyword(data, start, end)
    if keyword == 1:
        if state[IN_TXN] == CLOSED:  # a server that writes no GTIDs
            outcome = begin(read_u32(data, start + wire.LENGTH_AT), read_u32(data, start) * 1_000_000, state)
            if outcome != DONE:
                return outcome  # type: ignore[no-any-return]
        state[IN_TXN] = BEGUN
        return DONE
    if keyword == 2 and state[IN_TXN] == BEGUN:
        return finish(state, gtids)  # type: ignore[no-any-return]
    return RARE


@kernel(types.int64(DATA, types.int64, types.int64, _INTS, _LINES, DATA))
def _table_map(data: Bytes, start: int, end: int, state: Ints, maps: Ints, bodies: Bytes) -> int:
    body = start + wire.HEADER_BYTES
    if end - body < _MAP_HEAD:
        return MALFORMED
    line = maps[find(maps, read_u48(data, body))]
    if line[0] == 0 or line[3] != end - body or not _equal(data, body, bodies, line[2], end - body):
        return RARE
    line[4] = state[TXNS]
    return DONE


@kernel(types.int64(TABLES, _BYTES, types.int64, types.int64, _INTS, _LINES, _LINES))
def _rows(tables: Any, data: Bytes, start: int, end: int, state: Ints, maps: Ints, rows: Ints) -> int:
    body = start + wire.HEADER_BYTES
    if end - body < _ROWS_HEAD or state[IN_TXN] == CLOSED:
        return MALFORMED
    map_id = read_u48(data, body)
    line = maps[find(maps, map_id)]
    if line[0] == 0:
        return DONE if map_id == _DUMMY_MAP else UNKNOWN_TABLE
    if state[ROWS] == len(rows):
        return ROWS_FULL
    seq = state[SEQ]
    state[SEQ] = seq + 1
    if line[1] == UNWANTED or state[SKIPPING] != 0:
        return DONE
    if not _is_sound(tables, data, start, end, state):
        return BAD_CHECKSUM
    # the type moves to the byte before the body: together they are what the log keeps
    data[body - 1] = data[start + wire.TYPE_AT]
    found = rows[state[ROWS]]
    found[0], found[1], found[2] = body - 1, end - body + 1, line[1]
    found[3], found[4], found[5] = state[COMMIT_TS], seq << SEQ_SHIFT, state[COMMIT_TIME]
    state[ROWS] += 1
    return DONE


@kernel(types.boolean(types.int64))
def _is_rows(event: int) -> bool:
    return (
        wire.WRITE_V1 <= event <= wire.DELETE_V1
        or wire.WRITE_V2 <= event <= wire.DELETE_V2
        or wire.WRITE_COMPRESSED_V1 <= event <= wire.DELETE_COMPRESSED
        or event == wire.PARTIAL_UPDATE
    )


@kernel(types.boolean(types.int64))
def _is_idle(event: int) -> bool:
    """Says nothing to us: comments, bookkeeping of the server, parts of statements that are looked at as a whole."""
    return (
        event == wire.ANNOTATE
        or event == wire.ROWS_QUERY
        or event == wire.CHECKPOINT
        or event == wire.GTID_LIST
        or event == wire.PREVIOUS_GTIDS
        or event == wire.TRANSACTION_CONTEXT
        or event == wire.VIEW_CHANGE
        or event == wire.IGNORABLE
        or event == wire.STOP
        or event == wire.START_ENCRYPTION  # the server decrypts what it sends
        or event == wire.INTVAR
        or event == wire.RAND
        or event == wire.USER_VAR
    )


@kernel(types.int64(TABLES, DATA, types.int64, types.int64, types.int64, _INTS, _LINES))
def _control(tables: Any, data: Bytes, start: int, end: int, event: int, state: Ints, gtids: Ints) -> int:
    """Whatever opens and closes transactions; the rest is rare."""
    if event == wire.HEARTBEAT:
        low = read_u32(data, start + wire.POSITION_AT)
        if state[IN_TXN] == CLOSED and low != 0:
            resolve(low, state[NOW], state)
        return DONE
    is_gtid = event == wire.MARIADB_GTID or event == wire.GTID or event == wire.ANONYMOUS_GTID
    if not is_gtid and event != wire.XID and event != wire.QUERY:
        return RARE
    if not _is_sound(tables, data, start, end, state):
        return BAD_CHECKSUM
    if event == wire.XID:
        return finish(state, gtids) if state[IN_TXN] == BEGUN else MALFORMED
    if event == wire.QUERY:
        return _query(data, start, end, state, gtids)  # type: ignore[no-any-return]
    if event == wire.MARIADB_GTID:
        return _mariadb_gtid(data, start, end, state)  # type: ignore[no-any-return]
    return _mysql_gtid(data, start, end, state)  # type: ignore[no-any-return]


@kernel(types.int64(DATA, types.int64, _INTS))
def _packet_bytes(data: Bytes, filled: int, state: Ints) -> int:
    """How many bytes from ``POS`` on the next event takes with its frame; 0 when they are not all there, and -1 when it
    is spread over several packets."""
    at = state[POS]
    if state[BARE] != 0:
        head, size = at + wire.HEADER_BYTES, 0
        if head <= filled:
            size = read_u32(data, at + wire.LENGTH_AT)
            # a length below the header's would stand still: one that is refused comes out instead
            size = max(size, 1)
    elif state[LONG] != 0:
        size = 4 + state[LONG]
    else:
        head, size = at + _FRAME, 0
        if head <= filled:
            size = 4 + read_u24(data, at)
            if size == 4 + _LONGEST:
                return -1
    return size if at + size <= filled else 0


@kernel(types.int64(TABLES, _BYTES, types.int64, _INTS, _LINES, DATA, _LINES, _LINES))
def split(
    tables: Any, data: Bytes, filled: int, state: Ints, maps: Ints, bodies: Bytes, gtids: Ints, rows: Ints
) -> int:
    """Go on at ``state[POS]`` until the bytes end or something rare comes.

    ``rows`` has one line per event: offset, length, slot, commit Ts, ordinal, commit time. Returns what it stopped for;
    after ``RARE`` the caller deals with the event and calls again.
    """
    while True:
        size = _packet_bytes(data, filled, state)
        if size <= 0:
            return LONG_PACKET if size < 0 else NEED_MORE
        next_pos = state[POS] + size
        start, end = state[POS], next_pos
        state[RARE_POS], state[RARE_END] = start, end
        if state[BARE] == 0:
            start += _FRAME
            state[RARE_POS] = start
            if start <= end and data[start - 1] != 0:
                state[RARE_TYPE] = 256 + data[start - 1]
                state[POS], state[LONG] = next_pos, 0
                return RARE
            end -= state[CHECKSUM]
        if end - start < wire.HEADER_BYTES or read_u32(data, start + wire.LENGTH_AT) != state[RARE_END] - start:
            return MALFORMED
        event = np.int64(data[start + wire.TYPE_AT])
        position = state[POSITION]
        if state[BARE] == 0:
            _advance(data, start, event, state)
        if _is_rows(event):
            outcome = _rows(tables, data, start, end, state, maps, rows)
        elif event == wire.TABLE_MAP:
            outcome = _table_map(data, start, end, state, maps, bodies)
        elif _is_idle(event):
            outcome = DONE
        else:
            outcome = _control(tables, data, start, end, event, state, gtids)
        if outcome == RARE:
            state[RARE_END], state[RARE_TYPE] = end, event
        elif outcome != DONE:
            state[POSITION] = position  # it is looked at again
            return outcome  # type: ignore[no-any-return]
        state[POS], state[LONG] = next_pos, 0
        if outcome == RARE:
            return RARE
        if state[IN_TXN] == CLOSED:
            state[DONE_POS] = next_pos
            state[DONE_ROWS] = state[ROWS]


def new_state(*, resolved: int) -> Any:
    """A state that has seen everything up to ``resolved``."""
    state = np.zeros(STATE_CELLS, np.int64)
    state[RESOLVED] = state[SKIP_UNTIL] = resolved
    return state
