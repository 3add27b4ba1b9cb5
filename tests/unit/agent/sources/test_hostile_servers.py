"""Whatever answers at a source's address: what it says is an error of the source, and takes bounded memory."""

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.errors import SourceError
from agent.sources.mysql.server import connection as mysql
from agent.sources.postgres.server import connection as postgres
from tests.example_counts import many
from tests.unit.agent.sources.test_clear_passwords import Impostor

_OK = b"\0\0\0\2\0\0\0"
Talk = Callable[[socket.socket], None]


def greet_postgres(peer: socket.socket) -> None:
    peer.recv(65536)
    peer.sendall(b"R" + struct.pack("!ii", 8, 0) + b"Z" + struct.pack("!i", 5) + b"I")


def greet_mysql(peer: socket.socket) -> None:
    flags = 0x0008_A208
    greeting = b"\x0a8.0.10\0" + struct.pack("<I", 7) + b"s" * 8 + b"\0" + struct.pack("<H", flags & 0xFFFF)
    greeting += b"\x2d" + struct.pack("<HH", 2, flags >> 16) + b"\x15" + b"\0" * 10 + b"s" * 12 + b"\0"
    Impostor.send(peer, 0, greeting + b"mysql_native_password\0")
    peer.recv(65536)
    Impostor.send(peer, 2, _OK)
    peer.recv(65536)
    Impostor.send(peer, 1, _OK)


@contextmanager
def server(*talks: Talk) -> Iterator[int]:
    """One that says all of it to each caller, and closes; its port."""

    def answer() -> None:
        with contextlib.suppress(OSError):
            while True:
                peer, _ = listener.accept()
                peer.settimeout(10)
                with peer, contextlib.suppress(OSError):
                    for talk in talks:
                        talk(peer)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=answer, daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


def ask_postgres(port: int) -> None:
    with postgres.connect(f"postgresql://u@127.0.0.1:{port}/d?sslmode=disable") as connection:
        connection.query("SELECT 1")


def ask_mysql(port: int) -> None:
    with mysql.connect(f"mysql://u:p@127.0.0.1:{port}/?ssl-mode=disabled") as connection:
        connection.query("SELECT 1")


def refusal(port: int, ask: Callable[[int], None]) -> str:
    """Return the error's line; empty: it is an answer, as far as it goes."""
    found = ""
    try:
        ask(port)
    except SourceError as error:
        found = str(error)
    assert "\n" not in found
    return found


def says(*messages: bytes) -> Talk:
    def talk(peer: socket.socket) -> None:
        peer.sendall(b"".join(messages))

    return talk


def hears(peer: socket.socket) -> None:
    peer.recv(65536)


_POSTGRES = st.builds(
    lambda kind, body, lie: kind + struct.pack("!i", len(body) + 4 + lie) + body,
    st.sampled_from([b"D", b"T", b"E", b"Z", b"C", b"R", b"S", b"K", b"G", b"x"]),
    st.binary(max_size=40),
    st.sampled_from([0, 0, 0, -5, 5, -(1 << 31) + 100, 1 << 30]),
)
_MYSQL = st.builds(
    lambda body, lie: (max(0, len(body) + lie), body),
    st.binary(max_size=40) | st.binary(max_size=8).map(lambda file: b"\xfb/etc/passwd" + file),
    st.sampled_from([0, 0, 0, -1, 7, 0xFFFF00]),
)


def packets(parts: list[tuple[int, bytes]], first: int) -> bytes:
    framed = (struct.pack("<I", size)[:3] + bytes([(first + at) % 256]) + body for at, (size, body) in enumerate(parts))
    return b"".join(framed)


@settings(max_examples=many(60))
@given(messages=st.lists(_POSTGRES, max_size=6))
def test_postgresql(messages: list[bytes]) -> None:
    with server(says(*messages)) as port:
        refusal(port, ask_postgres)
    with server(greet_postgres, hears, says(*messages)) as port:
        refusal(port, ask_postgres)


@settings(max_examples=many(60))
@given(parts=st.lists(_MYSQL, max_size=6))
def test_mysql(parts: list[tuple[int, bytes]]) -> None:
    with server(says(packets(parts, 0))) as port:
        refusal(port, ask_mysql)
    with server(greet_mysql, hears, says(packets(parts, 1))) as port:
        refusal(port, ask_mysql)


def test_answers_without_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (mysql, postgres):
        monkeypatch.setattr(module, "ANSWER_BYTES_MAX", 1 << 20)

    def rows_of_postgres(peer: socket.socket) -> None:
        row = struct.pack("!hi", 1, 1000) + b"x" * 1000
        while True:
            peer.sendall(b"D" + struct.pack("!i", len(row) + 4) + row)

    def packet_of_mysql(peer: socket.socket) -> None:
        for number in range(1, 256):
            Impostor.send(peer, number, b"\1" * 0xFFFFFF)

    with server(greet_postgres, hears, rows_of_postgres) as port:
        assert "answers a question without an end" in refusal(port, ask_postgres)
    with server(greet_mysql, hears, packet_of_mysql) as port:
        assert "or without an end" in refusal(port, ask_mysql)


def test_a_file_of_ours_is_not_sent_to_a_server_that_asks_for_it() -> None:
    heard = []
    with server(
        greet_mysql, hears, says(packets([(12, b"\xfb/etc/passwd")], 1)), lambda peer: heard.append(peer.recv(99))
    ) as port:
        assert "answers what MySQL and MariaDB do not" in refusal(port, ask_mysql)
    assert b"root" not in b"".join(heard)
