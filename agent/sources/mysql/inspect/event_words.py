"""Event descriptions: describes the content of a binlog event in one line, except rows and table maps. Pure.

Functions may raise ``ValueError``, ``LookupError`` or ``struct.error`` if an event is damaged.
"""

import struct
from collections.abc import Callable, Mapping
from typing import Final
from uuid import UUID

from agent.sources.mysql.binlog import events
from agent.sources.mysql.decode import wire
from agent.sources.mysql.decode.json import numbers
from agent.sources.mysql.inspect.file import FileEvent, server_version

_RELAY_LOG: Final = 0x40
_TAGGED_SETS: Final = 1
_INTVARS: Final = {1: "last_insert_id", 2: "insert_id"}
#: types of a user variable's value
_REAL, _INTEGER, _DECIMAL = 1, 2, 4
_UNSIGNED: Final = 1
#: MariaDB's flags of a GTID event
_STANDALONE, _GROUP_COMMIT, _PREPARED_XA, _COMPLETED_XA = 1, 2, 64, 128
#: flags in its second byte
_EXTRA: Final = {2: "start alter", 4: "commit alter", 8: "rollback alter"}


def words(event: FileEvent) -> str:
    """Return the description; empty if there is nothing to describe."""
    if event.type == wire.FORMAT_DESCRIPTION:
        return server_version(event.body) + (" (relay log)" if event.flags & _RELAY_LOG else "")
    if event.type == wire.MARIADB_GTID:
        return _mariadb_gtid(event)
    say = _WORDS.get(event.type)
    return say(event.body) if say else ""


def _text(body: bytes) -> str:
    return body.decode(errors="replace")


def _query(body: bytes) -> str:
    query = events.parse_query(body)
    return f"USE {query.database}; {query.statement}" if query.database else query.statement


def _query_compressed(body: bytes) -> str:
    query = events.parse_query(body, is_compressed=True)
    return f"USE {query.database}; {query.statement}" if query.database else query.statement


def _rotate(body: bytes) -> str:
    (position,) = struct.unpack_from("<Q", body)
    return f"{_text(body[8:])}:{position}"


def _intvar(body: bytes) -> str:
    kind, value = struct.unpack_from("<BQ", body)
    return f"{_INTVARS.get(kind, f'variable {kind}')} = {value}"


def _rand(body: bytes) -> str:
    return "seeds {}, {}".format(*struct.unpack_from("<QQ", body))


def _user_variable(body: bytes) -> str:
    (length,) = struct.unpack_from("<I", body)
    name, at = _text(_exactly(body, 4, length)), 4 + length
    if body[at]:
        return f"@{name} = NULL"
    kind, _, size = struct.unpack_from("<BII", body, at + 1)
    value, flags = _exactly(body, at + 10, size), body[at + 10 + size :]
    return f"@{name} = {_value(kind, value, is_unsigned=bool(flags and flags[0] & _UNSIGNED))}"


def _value(kind: int, value: bytes, *, is_unsigned: bool) -> str:
    if kind == _REAL:
        return str(struct.unpack("<d", value)[0])
    if kind == _INTEGER:
        return str(int.from_bytes(value, "little", signed=not is_unsigned))
    return numbers.decimal_text(value) if kind == _DECIMAL else repr(_text(value))


def _file_block(body: bytes) -> str:
    (number,) = struct.unpack_from("<I", body)
    return f"file {number}, {len(body) - 4} bytes"


def _file_number(body: bytes) -> str:
    return f"file {struct.unpack_from('<I', body)[0]}"


def _execute_load(body: bytes) -> str:
    return events.parse_load(body).statement


def _xid(body: bytes) -> str:
    return str(struct.unpack_from("<Q", body)[0])


def _xa_prepare(body: bytes) -> str:
    commits, name = events.parse_xa_prepare(body)
    return f"{name} ONE PHASE" if commits else name


def _gtid(body: bytes) -> str:
    return f"{UUID(bytes=body[1:17])}:{struct.unpack_from('<q', body, 17)[0]}"


def _anonymous(body: bytes) -> str:
    return "ANONYMOUS"


def _tagged(body: bytes) -> str:
    found = events.parse_tagged_gtid(body)
    return f"{found.source}:{found.number}"


def _mariadb_gtid(event: FileEvent) -> str:
    sequence, domain, flags = struct.unpack_from("<QIB", event.body)
    at = 13 + (8 if flags & _GROUP_COMMIT else 0)
    said = [f"{domain}-{event.server_id}-{sequence}"]
    if flags & (_PREPARED_XA | _COMPLETED_XA):
        kind, first, second = struct.unpack_from("<IBB", event.body, at)
        name = _exactly(event.body, at + 6, first + second).hex()
        word = "XA PREPARE" if flags & _PREPARED_XA else "XA"
        said.append(f"{word} X'{name[: 2 * first]}',X'{name[2 * first :]}',{kind}".upper())
        at += 6 + first + second
    extra = event.body[at] if flags & _STANDALONE and at < len(event.body) else 0
    return " ".join([*said, *(word for bit, word in _EXTRA.items() if extra & bit)])


def _gtid_list(body: bytes) -> str:
    (count,) = struct.unpack_from("<I", body)
    lines = struct.iter_unpack("<IIQ", _exactly(body, 4, 16 * (count & 0x0FFFFFFF)))
    return ", ".join(f"{domain}-{server}-{sequence}" for domain, server, sequence in lines)


def _previous_gtids(body: bytes) -> str:
    """Format a set like MySQL: plain sets have a count of 8 bytes, those with tags are marked in its first and last
    byte."""
    (count,) = struct.unpack_from("<Q", body)
    at, is_tagged, said = 8, body[7] == _TAGGED_SETS, []
    for _ in range(count >> 8 & 0xFFFFFFFFFFFF if is_tagged else count):
        source, at = str(UUID(bytes=_exactly(body, at, 16))), at + 16
        if is_tagged:
            length = body[at] >> 1
            tag, at = _exactly(body, at + 1, length).decode(), at + 1 + length
            source = f"{source}:{tag}" if tag else source
        (intervals,) = struct.unpack_from("<Q", body, at)
        pairs = struct.iter_unpack("<QQ", _exactly(body, at + 8, 16 * intervals))
        said.append(":".join([source, *(str(a) if b - a == 1 else f"{a}-{b - 1}" for a, b in pairs)]))
        at += 8 + 16 * intervals
    return ", ".join(said)


def _heartbeat_v2(body: bytes) -> str:
    position = events.parse_heartbeat_v2(body)
    return f"at {position}" if position else ""


def _view_change(body: bytes) -> str:
    view = body[:40].rstrip(b"\0")
    return f"view {_text(view)}"


def _transaction_context(body: bytes) -> str:
    return f"server {_text(_exactly(body, 18, body[0]))}"


def _checkpoint(body: bytes) -> str:
    (length,) = struct.unpack_from("<I", body)
    return _text(_exactly(body, 4, length))


def _payload(body: bytes) -> str:
    compression, at = events.parse_payload(body)
    named = {events.ZSTD: "zstd", events.UNCOMPRESSED: "not compressed"}.get(compression, f"way {compression}")
    return f"{named}, {len(body) - at} bytes"


def _start_encryption(body: bytes) -> str:
    return "all that follows is encrypted; mariadb-binlog --read-from-remote-server has the server decrypt it"


def _exactly(body: bytes, at: int, count: int) -> bytes:
    if at + count > len(body):
        raise ValueError("it ends too early")
    return body[at : at + count]


_WORDS: Final[Mapping[int, Callable[[bytes], str]]] = {
    wire.QUERY: _query,
    wire.QUERY_COMPRESSED: _query_compressed,
    wire.ROTATE: _rotate,
    wire.INTVAR: _intvar,
    wire.RAND: _rand,
    wire.USER_VAR: _user_variable,
    wire.BEGIN_LOAD: _file_block,
    wire.APPEND_BLOCK: _file_block,
    wire.EXEC_LOAD: _file_number,
    wire.DELETE_FILE: _file_number,
    wire.EXECUTE_LOAD: _execute_load,
    wire.XID: _xid,
    wire.XA_PREPARE: _xa_prepare,
    wire.GTID: _gtid,
    wire.ANONYMOUS_GTID: _anonymous,
    wire.TAGGED_GTID: _tagged,
    wire.PREVIOUS_GTIDS: _previous_gtids,
    wire.GTID_LIST: _gtid_list,
    wire.HEARTBEAT: _text,
    wire.HEARTBEAT_V2: _heartbeat_v2,
    wire.VIEW_CHANGE: _view_change,
    wire.TRANSACTION_CONTEXT: _transaction_context,
    wire.TRANSACTION_PAYLOAD: _payload,
    wire.CHECKPOINT: _checkpoint,
    wire.ANNOTATE: _text,
    wire.ROWS_QUERY: lambda body: _text(body[1:]),
    wire.INCIDENT: events.parse_incident,
    wire.START_ENCRYPTION: _start_encryption,
}
