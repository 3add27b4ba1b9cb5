"""Converting line: every text of a stream is converted, whatever its messages are cut into; nothing else changes."""

import socket
import struct
from collections.abc import Iterable
from contextlib import closing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.sources.postgres.stream.converting import Converter, ConvertingLine
from tests.unit.agent.stream_build import begin, commit, copy_data, keepalive, message

_TEXTS = st.binary(max_size=9) | st.sampled_from([b"", b"caf\xe9", b"\xff\x80", b"x" * 300 + b"\xe9"])
_NAMES = _TEXTS.map(lambda name: name.replace(b"\0", b"0"))
_VALUES = st.none() | st.just(b"u") | _TEXTS.map(lambda text: b"t" + text)
_IMAGES = st.lists(_VALUES, max_size=4)


class _Latin(Converter):
    """Says what a server of Latin-1 would."""

    def __init__(self) -> None:
        self.asked: list[bytes] = []

    def to_utf8(self, texts: Iterable[bytes]) -> dict[bytes, bytes]:
        self.asked += (texts := list(texts))
        return {text: text.decode("latin-1").encode() for text in texts}


def _image(letter: bytes, values: list[bytes | None], *, is_utf8: bool) -> bytes:
    out = letter + struct.pack("!h", len(values))
    for value in values:
        if value is None or value == b"u":
            out += value or b"n"
        else:
            text = _said(value[1:], is_utf8=is_utf8)
            out += b"t" + struct.pack("!i", len(text)) + text
    return out


def _said(text: bytes, *, is_utf8: bool) -> bytes:
    return text.decode("latin-1").encode() if is_utf8 else text


@st.composite
def _messages(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """Return what a server of Latin-1 sends without a conversion, and with it."""
    table = struct.pack("!I", draw(st.integers(0, 2**32 - 1)))
    other = draw(st.sampled_from([begin(2**63 - 1), commit(2**40 + 0x8E), keepalive(2**50 - 1), b"N\0\0\0\6\xe9\0"]))
    before, after = draw(_IMAGES), draw(_IMAGES)
    names = draw(st.lists(_NAMES, min_size=2, max_size=5))

    def all_kinds(is_utf8: bool) -> list[bytes]:
        old, new = _image(b"O", before, is_utf8=is_utf8), _image(b"N", after, is_utf8=is_utf8)
        schema, name, *columns = (_said(name, is_utf8=is_utf8) for name in names)
        declared = b"".join(b"\1" + column + b"\0" + struct.pack("!Ii", 0xE9E9E9E9, -1) for column in columns)
        relation = b"R" + table + schema + b"\0" + name + b"\0d" + struct.pack("!h", len(columns)) + declared
        rows = [b"I" + table + new, b"U" + table + old + new, b"U" + table + new, b"D" + table + old]
        return [other, *map(message, [*rows, relation])]

    at = draw(st.integers(0, 5))
    return all_kinds(is_utf8=False)[at], all_kinds(is_utf8=True)[at]


@given(st.lists(_messages(), min_size=1, max_size=6), st.data())
@settings(deadline=None)
def test_all_texts_are_converted_and_nothing_else(messages: list[tuple[bytes, bytes]], data: st.DataObject) -> None:
    sent, expected = (b"".join(side) for side in zip(*messages, strict=True))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(sent)), max_size=4)))
    left, right = socket.socketpair()
    with closing(left), closing(right):
        line, found = ConvertingLine(left, _Latin()), b""
        view = memoryview(bytearray(data.draw(st.integers(1, 40))))
        line.settimeout(0.001)
        for start, end in zip([0, *cuts], [*cuts, len(sent)], strict=True):
            right.sendall(sent[start:end])
            if start == end:
                continue
            try:
                while count := line.recv_into(view):
                    found += view[:count]
            except TimeoutError:
                pass
        assert found == expected


def test_what_is_ascii_is_not_asked_about() -> None:
    left, right = socket.socketpair()
    with closing(left), closing(right):
        latin = _Latin()
        line, row = ConvertingLine(left, latin), b"I\0\0\0\x90" + _image(b"N", [b"tabc", b"t"], is_utf8=False)
        right.sendall(message(row) + message(b"I\0\0\0\x90" + _image(b"N", [b"t\xe9", b"t\xe9"], is_utf8=False)))
        line.settimeout(1.0)
        line.recv_into(memoryview(bytearray(1000)))
        assert latin.asked == [b"\xe9"]


@pytest.mark.parametrize("body", [b"I\0\0\0", b"I\0\0\0\1N\0\2t\0\0\0\x90\xe9", b"R\0\0\0\1\xe9", b"", b"U\0\0\0\1N"])
def test_what_is_malformed_passes_unchanged(body: bytes) -> None:
    """``split`` refuses it."""
    left, right = socket.socketpair()
    with closing(left), closing(right):
        line, view = ConvertingLine(left, _Latin()), bytearray(1000)
        sent = message(body) + copy_data(body) + b"d\0\0\0\0"
        right.sendall(sent)
        line.settimeout(1.0)
        assert view[: line.recv_into(memoryview(view))] == sent
