"""Converting line: a stream in its database's own encoding, whose texts become UTF-8 on this side.

A server converts what it sends, and ends a stream at the first text that UTF-8 does not have, whichever table has it.
It sends a session that asks for the database's encoding the bytes as they are. So from such an end on, a stream is read
through this line, in text form: the server converts the texts of a block by a query, one of them after the other where
it refuses, and what it cannot convert arrives here as bytes that are no UTF-8. They hold their table when they are
decoded, as in a database that takes any bytes.

Only texts with other bytes than ASCII are asked about, each once for a block.
"""

import contextlib
import socket
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from agent.sources.common.blocks import receive_all
from agent.sources.postgres.server.connection import Connection
from agent.sources.postgres.server.refusals import UnconvertibleError
from agent.sources.postgres.server.sql import bytes_of, literal, text_of

#: what a server of any encoding never converts to
_NO_TEXT = b"\xff"
_BLOCK_BYTES = 1 << 20
#: the bytes in front of a message: those of a CopyData, and those of its part of the log
_FRAME, _HEADER = 5, 25
_INT, _SHORT = struct.Struct("!i"), struct.Struct("!h")
_TEXT = ord("t")


class Converter:
    """Has a server convert texts in its database's encoding, and back. ``connect``: opens the session for it."""

    def __init__(self, connect: Callable[[], Connection]) -> None:
        self._connect = connect
        self._session: Connection | None = None

    def close(self) -> None:
        """The next question opens a session again."""
        if self._session is not None:
            self._session.close()
            self._session = None

    def to_utf8(self, texts: Iterable[bytes]) -> dict[bytes, bytes]:
        """Return the UTF-8 of each text, or, where it has none, bytes that are no UTF-8.

        :raises SourceError: the server does not answer.
        """
        found: dict[bytes, bytes] = {}
        waiting = [list(texts)]
        while waiting:
            some = waiting.pop()
            try:
                found |= zip(some, map(bytes_of, self._query("convert_from(decode(x, 'hex'), {0})", some)), strict=True)
            except UnconvertibleError:
                half = len(some) // 2
                if half:
                    waiting += some[:half], some[half:]
                else:
                    found[some[0]] = _NO_TEXT + some[0]
        return found

    def from_utf8(self, names: Iterable[str]) -> list[str]:
        """Return the names as a session that sends the database's bytes has to spell them."""
        texts = self._query(
            "encode(convert_to(convert_from(decode(x, 'hex'), 'UTF8'), {0}), 'hex')", map(bytes_of, names)
        )
        return [text_of(bytes.fromhex(text)) for text in texts]

    def _query(self, expression: str, texts: Iterable[bytes]) -> list[str]:
        if self._session is None:
            self._session = self._connect()
        encoding = literal(self._session.server_encoding)
        values = ",".join(text.hex() for text in texts)
        rows = self._session.query(
            f"SET search_path = pg_catalog; SELECT {expression.format(encoding)} "
            f"FROM pg_catalog.unnest('{{{values}}}'::text[]) WITH ORDINALITY AS t (x, i) ORDER BY i"
        )
        return [str(row[0]) for row in rows]


class ConvertingLine:
    """A socket, as ``blocks.receive`` uses it, from which converted messages come."""

    def __init__(self, line: socket.socket, converter: Converter) -> None:
        self._line = line
        self._converter = converter
        self._timeout_s = 0.0
        self._block = bytearray(_BLOCK_BYTES)
        self._received = bytearray()
        #: converted, and not taken yet
        self._ready = memoryview(b"")

    def settimeout(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s

    def recv_into(self, view: memoryview) -> int:
        """:raises TimeoutError: no whole message came in time."""
        while not self._ready:
            count = receive_all(self._line, memoryview(self._block), timeout_s=self._timeout_s)
            if not count:
                raise TimeoutError
            self._received += memoryview(self._block)[:count]
            self._ready = memoryview(self._converted())
        count = min(len(view), len(self._ready))
        view[:count] = self._ready[:count]
        self._ready = self._ready[count:]
        return count

    def _converted(self) -> bytes:
        """Take the whole messages out of what was received."""
        received, messages, at = self._received, [], 0
        while at + _FRAME <= len(received):
            end = at + 1 + max(int(_INT.unpack_from(received, at + 1)[0]), _FRAME - 1)
            if end > len(received):
                break
            messages.append(bytes(received[at:end]))
            at = end
        del received[:at]
        found = [list(_texts(message)) for message in messages]
        texts = {message[start:end] for message, spans in zip(messages, found, strict=True) for start, end in spans}
        known = self._converter.to_utf8(texts) if texts else {}
        return b"".join(_rewritten(message, spans, known) for message, spans in zip(messages, found, strict=True))


def _rewritten(message: bytes, spans: Sequence[tuple[int, int]], known: Mapping[bytes, bytes]) -> bytes:
    if not spans:
        return message
    parts, at = [b""], _FRAME
    is_declaration = message[_FRAME + _HEADER : _FRAME + _HEADER + 1] == b"R"
    for start, end in spans:
        text = known[message[start:end]]
        parts += [message[at:start], text] if is_declaration else [message[at : start - 4], _INT.pack(len(text)), text]
        at = end
    body = b"".join([*parts, message[at:]])
    return message[:1] + _INT.pack(len(body) + 4) + body


def _texts(message: bytes) -> Iterator[tuple[int, int]]:
    """Yield start and end of each text that is not ASCII. What is malformed has none: ``split`` finds it."""
    at = _FRAME + _HEADER
    kind = message[at : at + 1] if message[:1] == b"d" and message[_FRAME : _FRAME + 1] == b"w" else b""
    spans = _of_row if kind in (b"I", b"U", b"D") else _of_declaration if kind == b"R" else None
    with contextlib.suppress(struct.error, ValueError, IndexError):
        for start, end in spans(message, at + 5) if spans else ():
            if end <= len(message) and not message[start:end].isascii():
                yield start, end


def _of_row(message: bytes, at: int) -> Iterator[tuple[int, int]]:
    """Each image is a letter, the number of columns, and for each a letter, and the value if it is sent."""
    while at < len(message):
        (count,) = _SHORT.unpack_from(message, at + 1)
        at += 3
        for _ in range(count):
            kind, at = message[at], at + 1
            if kind == _TEXT:
                start, at = at + 4, at + 4 + _INT.unpack_from(message, at)[0]
                yield start, at


def _of_declaration(message: bytes, at: int) -> Iterator[tuple[int, int]]:
    for _ in ("schema", "table"):
        end = message.index(0, at)
        yield at, end
        at = end + 1
    (columns,) = _SHORT.unpack_from(message, at + 1)
    at += 3
    for _ in range(columns):
        end = message.index(0, at + 1)
        yield at + 1, end
        at = end + 9
