"""Binlog splitter: kernels that find each rows event of a binlog, and the table it belongs to.

``split`` walks one arena of raw bytes (packets as received from the socket) and records place, table, commit Ts and
ordinal of every rows event. It handles GTIDs, BEGIN, COMMIT, XID, heartbeats and repeated table maps itself, so a
million one-row transactions cost no Python object. It stops at every other control event (an unknown table map, a DDL,
a rotation, an error of the server), which its caller handles.

*Checksums* are verified for what is used: events that open and close transactions, and the rows events of wanted
tables. Events of other tables are skipped by their header alone. A table map that equals the verified one byte for byte
needs no checksum either.

``agent.sources.mysql.binlog.events`` parses control events, ``...control_events`` handles them, and ``...stream`` reads
the socket and cuts chunks.

Packet framing: ``length (3 bytes) number (1) marker (1: 0 = an event follows)`` + event + checksum. With ``BARE``,
events follow each other without packet and checksum, as in a compressed transaction.
"""

from typing import Any, Final

import numpy as np
from numba import types

from agent.kernels.jit import DATA, Bytes, Ints, kernel
from agent.sources.mysql.binlog import txn
from agent.sources.mysql.binlog.crc import TABLES, crc32
from agent.sources.mysql.binlog.txn import INTS, LINES
from agent.sources.mysql.decode import wire
from agent.sources.mysql.decode.wire import read_u16, read_u24, read_u32, read_u48

_BYTES: Final = types.uint8[::1]

# What ``find`` knows of a table map.
UNWANTED = -1
ABSENT = -2

#: cells of a line of ``maps``: id + 1 (0 is free), slot, where its bytes are kept, how many, last transaction with it
MAP_CELLS = 5
#: rows in one event share an ordinal's range, or those of several: see ``_ordinals``
SEQ_SHIFT = 20
#: zlib makes a byte of so many at most, to the power of two above
_INFLATION_SHIFT = 11

_FRAME, _LONGEST = 5, 0xFFFFFF
_MAP_HEAD, _QUERY_HEAD, _ROWS_HEAD = 8, 13, 8


@kernel(types.int64(LINES, types.int64))
def find(maps: Ints, map_id: int) -> int:
    """Return the line of a table map, or the free line where it belongs."""
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


@kernel(types.boolean(TABLES, DATA, types.int64, types.int64, INTS))
def _is_sound(tables: Any, data: Bytes, start: int, end: int, state: Ints) -> bool:
    """Return whether the checksum behind ``end`` is correct; always true without checksums."""
    is_unchecked = state[txn.CHECKSUM] == 0 or state[txn.BARE] != 0
    return is_unchecked or crc32(tables, data, start, end) == read_u32(data, end)  # type: ignore[no-any-return]


@kernel(types.void(DATA, types.int64, types.int64, INTS))
def _advance(data: Bytes, start: int, event: int, state: Ints) -> None:
    """Store the position of the event's end in its file; the header has only its low 32 bits, or none."""
    low = read_u32(data, start + wire.POSITION_AT)
    if low == 0 or read_u16(data, start + wire.FLAGS_AT) & wire.FLAG_ARTIFICIAL != 0 or event == wire.HEARTBEAT:
        return
    position = (state[txn.POSITION] & ~0xFFFFFFFF) | low
    if state[txn.IN_TXN] == txn.CLOSED:
        position = low
    elif position < state[txn.POSITION]:
        position += txn.OVERLONG  # only a transaction makes a file this long
    state[txn.POSITION] = position


@kernel(types.int64(DATA, types.int64, types.int64))
def _keyword(data: Bytes, start: int, end: int) -> int:
    """Return 1 if the statement of a query event is BEGIN, 2 if it is COMMIT, else 0."""
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


@kernel(types.int64(DATA, types.int64, types.int64, INTS, LINES))
def _query(data: Bytes, start: int, end: int, state: Ints, gtids: Ints) -> int:
    keyword = _keyword(data, start, end)
    if keyword == 1:
        if state[txn.IN_TXN] == txn.CLOSED:  # a server that writes no GTIDs
            outcome = txn.begin(read_u32(data, start + wire.LENGTH_AT), read_u32(data, start) * 1_000_000, state)
            if outcome != txn.DONE:
                return outcome  # type: ignore[no-any-return]
        state[txn.IN_TXN] = txn.BEGUN
        return txn.DONE
    if keyword == 2 and state[txn.IN_TXN] == txn.BEGUN:
        return txn.finish(state, gtids)  # type: ignore[no-any-return]
    return txn.RARE


@kernel(types.int64(DATA, types.int64, types.int64, INTS, LINES, DATA))
def _table_map(data: Bytes, start: int, end: int, state: Ints, maps: Ints, bodies: Bytes) -> int:
    body = start + wire.HEADER_BYTES
    if end - body < _MAP_HEAD:
        return txn.MALFORMED
    line = maps[find(maps, read_u48(data, body))]
    if line[0] == 0 or line[3] != end - body or not _equal(data, body, bodies, line[2], end - body):
        return txn.RARE
    line[4] = state[txn.TXNS]
    return txn.DONE


@kernel(types.int64(types.int64, types.int64))
def _ordinals(length: int, event: int) -> int:
    """Return the number of ordinals that an event takes, so that each row has its own: a row has at least one byte."""
    is_compressed = wire.WRITE_COMPRESSED_V1 <= event <= wire.DELETE_COMPRESSED
    return 1 + (length >> (SEQ_SHIFT - _INFLATION_SHIFT if is_compressed else SEQ_SHIFT))


@kernel(types.int64(TABLES, _BYTES, types.int64, types.int64, INTS, LINES, LINES))
def _rows(tables: Any, data: Bytes, start: int, end: int, state: Ints, maps: Ints, rows: Ints) -> int:
    body = start + wire.HEADER_BYTES
    if end - body < _ROWS_HEAD or state[txn.IN_TXN] == txn.CLOSED:
        return txn.MALFORMED
    map_id = read_u48(data, body)
    line = maps[find(maps, map_id)]
    if line[0] == 0:
        return txn.DONE if map_id == wire.DUMMY_MAP else txn.UNKNOWN_TABLE
    if state[txn.ROWS] == len(rows):
        return txn.ROWS_FULL
    seq = state[txn.SEQ]
    state[txn.SEQ] = seq + _ordinals(end - body, np.int64(data[start + wire.TYPE_AT]))
    if line[1] == UNWANTED or state[txn.SKIPPING] != 0:
        return txn.DONE
    if state[txn.COMMIT_TS] == state[txn.DROP_TS] and state[txn.DROP_FIRST] <= seq < state[txn.DROP_UNTIL]:
        return txn.DONE
    if not _is_sound(tables, data, start, end, state):
        return txn.BAD_CHECKSUM
    # the type moves to the byte before the body: together they are what the log keeps
    data[body - 1] = data[start + wire.TYPE_AT]
    found = rows[state[txn.ROWS]]
    found[0], found[1], found[2] = body - 1, end - body + 1, line[1]
    found[3], found[4], found[5] = state[txn.COMMIT_TS], seq << SEQ_SHIFT, state[txn.COMMIT_TIME]
    state[txn.ROWS] += 1
    return txn.DONE


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
    """Return whether the event can be ignored: comments, the server's bookkeeping, parts of statements that are handled
    as a whole."""
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


@kernel(types.int64(TABLES, DATA, types.int64, types.int64, types.int64, INTS, LINES))
def _control(tables: Any, data: Bytes, start: int, end: int, event: int, state: Ints, gtids: Ints) -> int:
    """Handle an event that opens or closes a transaction; the others are control events."""
    if event == wire.HEARTBEAT:
        low = read_u32(data, start + wire.POSITION_AT)
        if state[txn.IN_TXN] == txn.CLOSED and low != 0:
            txn.resolve(low, state[txn.NOW], state)
        return txn.DONE
    is_gtid = event == wire.MARIADB_GTID or event == wire.GTID or event == wire.ANONYMOUS_GTID
    if not is_gtid and event != wire.XID and event != wire.QUERY:
        return txn.RARE
    if not _is_sound(tables, data, start, end, state):
        return txn.BAD_CHECKSUM
    if event == wire.XID:
        return txn.finish(state, gtids) if state[txn.IN_TXN] == txn.BEGUN else txn.MALFORMED
    if event == wire.QUERY:
        return _query(data, start, end, state, gtids)  # type: ignore[no-any-return]
    if event == wire.MARIADB_GTID:
        return txn.begin_mariadb(data, start, end, state)  # type: ignore[no-any-return]
    return txn.begin_mysql(data, start, end, state)  # type: ignore[no-any-return]


@kernel(types.int64(DATA, types.int64, INTS))
def _packet_bytes(data: Bytes, filled: int, state: Ints) -> int:
    """Return the bytes of the next event at ``POS`` with its frame; 0 if they are not complete, -1 if it is spread over
    several packets."""
    at = state[txn.POS]
    if state[txn.BARE] != 0:
        head, size = at + wire.HEADER_BYTES, 0
        if head <= filled:
            size = read_u32(data, at + wire.LENGTH_AT)
            # a length below the header's would never advance: one that is refused comes out instead
            size = max(size, 1)
    elif state[txn.LONG] != 0:
        size = 4 + state[txn.LONG]
    else:
        head, size = at + _FRAME, 0
        if head <= filled:
            size = 4 + read_u24(data, at)
            if size == 4 + _LONGEST:
                return -1
    return size if at + size <= filled else 0


@kernel(types.int64(TABLES, _BYTES, types.int64, INTS, LINES, DATA, LINES, LINES))
def split(
    tables: Any, data: Bytes, filled: int, state: Ints, maps: Ints, bodies: Bytes, gtids: Ints, rows: Ints
) -> int:
    """Continue at ``state[txn.POS]`` until the bytes end or a control event comes.

    ``rows`` has one line per event: offset, length, slot, commit Ts, ordinal, commit time. Returns what it stopped for;
    after ``RARE`` the caller deals with the event and calls again.
    """
    while True:
        size = _packet_bytes(data, filled, state)
        if size <= 0:
            return txn.LONG_PACKET if size < 0 else txn.NEED_MORE
        next_pos = state[txn.POS] + size
        start, end = state[txn.POS], next_pos
        state[txn.RARE_POS], state[txn.RARE_END] = start, end
        if state[txn.BARE] == 0:
            start += _FRAME
            state[txn.RARE_POS] = start
            if start <= end and data[start - 1] != 0:
                state[txn.RARE_TYPE] = 256 + data[start - 1]
                state[txn.POS], state[txn.LONG] = next_pos, 0
                return txn.RARE
            end -= state[txn.CHECKSUM]
        if end - start < wire.HEADER_BYTES or read_u32(data, start + wire.LENGTH_AT) != state[txn.RARE_END] - start:
            return txn.MALFORMED
        event = np.int64(data[start + wire.TYPE_AT])
        position = state[txn.POSITION]
        if state[txn.BARE] == 0:
            _advance(data, start, event, state)
        if _is_rows(event):
            outcome = _rows(tables, data, start, end, state, maps, rows)
        elif event == wire.TABLE_MAP:
            outcome = _table_map(data, start, end, state, maps, bodies)
        elif _is_idle(event):
            outcome = txn.DONE
        else:
            outcome = _control(tables, data, start, end, event, state, gtids)
        if outcome == txn.RARE:
            state[txn.RARE_END], state[txn.RARE_TYPE] = end, event
        elif outcome != txn.DONE:
            state[txn.POSITION] = position  # it is looked at again
            return outcome  # type: ignore[no-any-return]
        state[txn.POS], state[txn.LONG] = next_pos, 0
        if outcome == txn.RARE:
            return txn.RARE
        if state[txn.IN_TXN] == txn.CLOSED:
            state[txn.DONE_POS] = next_pos
            state[txn.DONE_ROWS] = state[txn.ROWS]
