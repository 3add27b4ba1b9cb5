"""Frames: bytes between captures, without I/O: ``encode(frame) -> bytes``, ``Decoder.feed(bytes) -> frames``.

    ┌────────────┬─────────┬──────────────────────────────────┐
    │ length: u32│ 1: u8   │ msgpack array: kind, fields …    │     length counts the array only; big endian
    └────────────┴─────────┴──────────────────────────────────┘

    client                                server
      Hello(sender, receiver, connection, stream, nonce) ──►
                      ◄── Challenge(nonce, proof)  where there is no TLS
      Proof(proof) ──►
                      ◄── Welcome(window)  or  Refuse(reason, text)
      Data(topic, seq, message) ──►
                      ◄── Ack(topic, seq)          everything of the topic up to seq has been handled
      Ping ──►        ◄── Pong

The byte behind the length is the version of this framing. The version of the protocol is in Hello and Welcome, whose
first fields never change, so that a peer that is too old or too new is refused with a reason and not with garbage.
A frame or a body of an unknown kind is skipped (``Skipped``), anything malformed is a ``FrameError``; after one, the
decoder cannot be used again, as it does not know where the next frame begins.

This is the only module that knows msgpack; what is inside a message is ``capture.messaging.codec``'s. What the frames
are good for (order, acknowledgement, resending) is decided in ``capture.messaging.flow_control``, and who is let in in
``capture.messaging.handshake``.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import msgpack

from capture.errors import FrameError, FrameTooLargeError
from capture.messaging import codec
from reactor.ids import CaptureId
from reactor.messages import Message

#: adjacent minor versions understand each other; major versions do not
PROTOCOL_MAJOR = 1
PROTOCOL_MINOR = 1
FRAME_BYTES_MAX = 16 * 1024 * 1024
#: maximum size of frames before the sender is authenticated
GREETING_BYTES_MAX = 4 * 1024

_FRAMING = 1
_PREFIX = struct.Struct(">IB")


class Reason(IntEnum):
    """The reason why a connection is refused."""

    WRONG_RECEIVER = 1
    WRONG_VERSION = 2
    STALE = 3
    DUPLICATE = 4
    CONGESTED = 5
    BROKEN = 6
    UNPROVED = 7
    UNKNOWN_TOPIC = 8


@dataclass(frozen=True, slots=True)
class Hello:
    """``connection`` grows with each connection of a sender; ``stream`` changes when its outboxes were lost.

    ``nonce`` and ``key_id`` were added in 1.1: with them the sender offers to prove that it holds the cluster's key.
    """

    sender: CaptureId
    receiver: CaptureId
    connection: int
    stream: int
    major: int = PROTOCOL_MAJOR
    minor: int = PROTOCOL_MINOR
    nonce: bytes = b""
    key_id: bytes = b""


@dataclass(frozen=True, slots=True)
class Challenge:
    """The server's proof, and the nonce for the client's."""

    nonce: bytes
    proof: bytes


@dataclass(frozen=True, slots=True)
class Proof:
    proof: bytes


@dataclass(frozen=True, slots=True)
class Welcome:
    """``window``: how many unhandled messages of one topic the server accepts."""

    window: int
    major: int = PROTOCOL_MAJOR
    minor: int = PROTOCOL_MINOR


@dataclass(frozen=True, slots=True)
class Refuse:
    reason: Reason
    text: str


@dataclass(frozen=True, slots=True)
class Data:
    """``size``: bytes of the frame that contained it."""

    topic: str
    seq: int
    message: Message
    size: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Ack:
    topic: str
    seq: int


@dataclass(frozen=True, slots=True)
class Ping:
    pass


@dataclass(frozen=True, slots=True)
class Pong:
    pass


@dataclass(frozen=True, slots=True)
class Skipped:
    """A frame of a newer version. With a topic: it has a number in the topic's order, and counts as handled."""

    kind: int
    topic: str = ""
    seq: int = 0


Frame = Hello | Challenge | Proof | Welcome | Refuse | Data | Ack | Ping | Pong


def encode(frame: Frame, *, bytes_max: int = FRAME_BYTES_MAX) -> bytes:
    """Serialise one frame.

    :raises FrameTooLargeError: it exceeds the readers' limit.
    """
    kind, row_of = _WRITERS[type(frame)]
    payload: bytes = msgpack.packb((kind, *row_of(frame)))
    if len(payload) > bytes_max:
        raise FrameTooLargeError(f"a frame of {len(payload)} bytes is over the limit of {bytes_max}; send less at once")
    return _PREFIX.pack(len(payload), _FRAMING) + payload


def version_problem(peer: Hello | Welcome) -> str:
    """Return why this version cannot talk to the peer's, in one line; empty if it can."""
    if peer.major == PROTOCOL_MAJOR and abs(peer.minor - PROTOCOL_MINOR) <= 1:
        return ""
    return (
        f"protocol {peer.major}.{peer.minor} of the peer is too far from {PROTOCOL_MAJOR}.{PROTOCOL_MINOR} of this "
        "capture; upgrade captures one minor version at a time"
    )


class Decoder:
    """Splits a stream of bytes into frames, however the bytes were chunked."""

    def __init__(self, *, bytes_max: int = FRAME_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._buffer = bytearray()
        self._error: FrameError | None = None

    def allow(self, bytes_max: int) -> None:
        """Set the maximum frame size from now on."""
        self._bytes_max = bytes_max

    def feed(self, data: bytes) -> list[Frame | Skipped]:
        """Return every frame that is complete.

        :raises FrameError: the bytes are not of this protocol. The frames before them are lost with the connection, and
            sent again on the next.
        """
        if self._error is not None:
            raise self._error
        self._buffer += data
        try:
            return self._cut()
        except FrameError as error:
            self._error, self._buffer = error, bytearray()
            raise

    def _cut(self) -> list[Frame | Skipped]:
        frames: list[Frame | Skipped] = []
        at, end = 0, len(self._buffer)
        with memoryview(self._buffer) as view:
            while end - at >= _PREFIX.size:
                length, framing = _PREFIX.unpack_from(view, at)
                self._check_prefix(length, framing)
                start = at + _PREFIX.size
                if end - start < length:
                    break
                at = start + length
                frames.append(_frame(view[start:at]))
        del self._buffer[:at]
        return frames

    def _check_prefix(self, length: int, framing: int) -> None:
        if framing != _FRAMING:
            raise FrameError(f"not Weir's framing {_FRAMING} (got {framing}); is this a port of captures?")
        if length > self._bytes_max:
            raise FrameError(f"a frame of {length} bytes is over the limit of {self._bytes_max}")


def _frame(payload: memoryview) -> Frame | Skipped:
    try:
        row = msgpack.unpackb(payload)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise FrameError(f"a frame is not msgpack: {type(error).__name__}") from None
    kind = codec.integer(codec.fields(row, 1)[0])
    if kind == _DATA:
        return _data(row, len(payload))
    reader = _READERS.get(kind)
    return Skipped(kind) if reader is None else reader(row)


def _hello_row(frame: Hello) -> tuple[object, ...]:
    names = frame.sender, frame.receiver
    return *names, frame.connection, frame.stream, frame.major, frame.minor, frame.nonce, frame.key_id


def _hello(row: list[Any]) -> Hello:
    _, sender, receiver, connection, stream, major, minor, nonce, key_id = codec.fields(row, 7, b"", b"")
    return Hello(
        sender=CaptureId(codec.text(sender)),
        receiver=CaptureId(codec.text(receiver)),
        connection=codec.integer(connection),
        stream=codec.integer(stream),
        major=codec.integer(major),
        minor=codec.integer(minor),
        nonce=codec.binary(nonce),
        key_id=codec.binary(key_id),
    )


def _challenge(row: list[Any]) -> Challenge:
    _, nonce, proof = codec.fields(row, 3)
    return Challenge(codec.binary(nonce), codec.binary(proof))


def _proof(row: list[Any]) -> Proof:
    return Proof(codec.binary(codec.fields(row, 2)[1]))


def _welcome(row: list[Any]) -> Welcome:
    _, window, major, minor = codec.fields(row, 4)
    return Welcome(codec.integer(window), codec.integer(major), codec.integer(minor))


def _refuse(row: list[Any]) -> Refuse:
    _, reason, text = codec.fields(row, 3)
    try:
        return Refuse(Reason(codec.integer(reason)), codec.text(text))
    except ValueError:
        return Refuse(Reason.BROKEN, codec.text(text))  # a reason of a newer version


def _data(row: list[Any], size: int) -> Data | Skipped:
    _, topic, seq, message = codec.fields(row, 4)
    try:
        return Data(codec.text(topic), codec.integer(seq), codec.message_of(message), size)
    except codec.UnknownBodyError as error:
        return Skipped(error.tag, topic, seq)


def _ack(row: list[Any]) -> Ack:
    _, topic, seq = codec.fields(row, 3)
    return Ack(codec.text(topic), codec.integer(seq))


_DATA = 4
#: numbers are permanent: a removed frame's number is never reused
_WRITERS: dict[type, tuple[int, Callable[[Any], tuple[object, ...]]]] = {
    Hello: (1, _hello_row),
    Welcome: (2, lambda frame: (frame.window, frame.major, frame.minor)),
    Refuse: (3, lambda frame: (frame.reason, frame.text)),
    Data: (_DATA, lambda frame: (frame.topic, frame.seq, codec.message_row(frame.message))),
    Ack: (5, lambda frame: (frame.topic, frame.seq)),
    Ping: (6, lambda _: ()),
    Pong: (7, lambda _: ()),
    Challenge: (8, lambda frame: (frame.nonce, frame.proof)),
    Proof: (9, lambda frame: (frame.proof,)),
}
_READERS: dict[int, Callable[[list[Any]], Frame | Skipped]] = {
    1: _hello,
    2: _welcome,
    3: _refuse,
    5: _ack,
    6: lambda _: Ping(),
    7: lambda _: Pong(),
    8: _challenge,
    9: _proof,
}
