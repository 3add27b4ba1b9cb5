"""A password never goes in clear to whoever answers without TLS, whatever it asks for."""

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from agent.errors import SourceAuthError
from agent.sources.mysql.server import connection as mysql
from agent.sources.postgres.server import connection as postgres
from reactor.errors import StoreAuthError
from reactor.store.sql.postgres import PostgresDatabase

PASSWORD = "open-sesame"
#: what PostgreSQL asks for: nothing, the password itself, its digest, a proof of it
_NOTHING, _CLEAR, _MD5 = struct.pack("!i", 0), struct.pack("!i", 3), struct.pack("!i4s", 5, b"salt")
_SCRAM = struct.pack("!i", 10) + b"SCRAM-SHA-256\0\0"


class Impostor:
    """Answers on a port of this machine, and keeps all that it is sent."""

    def __init__(self) -> None:
        self.heard = b""
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]

    def read(self, peer: socket.socket) -> bytes:
        data = peer.recv(65536)
        self.heard += data
        return data

    def postgres(self, peer: socket.socket, asked: bytes) -> None:
        if self.read(peer)[4:8] == struct.pack("!i", 80877103):
            peer.sendall(b"N")  # no TLS
            self.read(peer)
        peer.sendall(b"R" + struct.pack("!i", 4 + len(asked)) + asked)
        self.read(peer)

    def mysql(self, peer: socket.socket, plugin: bytes, question: bytes) -> None:
        flags = 0x0008_A208  # protocol 4.1, secure connection, plugin auth; no TLS
        greeting = b"\x0a8.0.30\0" + struct.pack("<I", 7) + b"s" * 8 + b"\0" + struct.pack("<H", flags & 0xFFFF)
        greeting += b"\x2d" + struct.pack("<HH", 2, flags >> 16) + b"\x15" + b"\0" * 10 + b"s" * 12 + b"\0"
        greeting += b"mysql_native_password\0"
        self.send(peer, 0, greeting)
        self.read(peer)
        self.send(peer, 2, b"\xfe" + plugin + b"\0" + question)
        self.read(peer)
        if plugin == b"caching_sha2_password":
            self.send(peer, 4, b"\x01\x04")  # the whole password, please
            self.read(peer)

    @staticmethod
    def send(peer: socket.socket, number: int, payload: bytes) -> None:
        peer.sendall(struct.pack("<I", len(payload))[:3] + bytes([number]) + payload)


@contextmanager
def impostor(*, plugin: bytes = b"", question: bytes = b"", asked: bytes = _CLEAR) -> Iterator[Impostor]:
    found = Impostor()

    def answer() -> None:
        peer, _ = found.listener.accept()
        peer.settimeout(10)
        with peer:
            found.mysql(peer, plugin, question) if plugin else found.postgres(peer, asked)

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    with found.listener:
        yield found
        thread.join(10)


@pytest.mark.parametrize("mode", ["disable", "allow", "prefer"])
@pytest.mark.parametrize("replication", [False, True])
def test_postgresql(mode: str, *, replication: bool) -> None:
    with impostor() as found:
        uri = f"postgresql://weir:{PASSWORD}@127.0.0.1:{found.port}/shop?sslmode={mode}"
        with pytest.raises(SourceAuthError, match=r"asks for the password in clear, without TLS; use sslmode=require"):
            postgres.connect(uri, replication=replication)
    assert b"weir" in found.heard
    assert PASSWORD.encode() not in found.heard


@pytest.mark.parametrize(
    "asked", [_NOTHING, _CLEAR, _MD5, _SCRAM, _SCRAM.replace(b"\0\0", b"\0SCRAM-SHA-256-PLUS\0\0")]
)
def test_nothing_is_answered_to_who_does_not_bind_the_password_to_the_tls_session(asked: bytes) -> None:
    with impostor(asked=asked) as found:
        uri = f"postgresql://weir:{PASSWORD}@127.0.0.1:{found.port}/shop?channel_binding=require"
        with pytest.raises(SourceAuthError, match="does not bind the password to the TLS session"):
            postgres.connect(uri)
    assert found.heard.endswith(b"\0") or found.heard.endswith(b"X\0\0\0\x04")
    assert b"SCRAM" not in found.heard
    assert b"md5" not in found.heard
    assert PASSWORD.encode() not in found.heard


@pytest.mark.parametrize("mode", ["", "disable", "allow", "prefer"])
def test_postgresql_as_store(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PGSSLMODE", raising=False)
    with impostor() as found:
        uri = f"postgresql://weir:{PASSWORD}@127.0.0.1:{found.port}/store{mode and f'?sslmode={mode}'}"
        with pytest.raises(StoreAuthError, match=r"asks for the password in clear, without TLS; use sslmode=require"):
            PostgresDatabase(uri, timeout_s=10.0)
    assert b"weir" in found.heard
    assert PASSWORD.encode() not in found.heard


@pytest.mark.parametrize("mode", ["disabled", "preferred"])
@pytest.mark.parametrize(
    ("plugin", "question"), [(b"mysql_clear_password", b""), (b"dialog", b"\x04Password: "), (b"dialog", b"\x02Name: ")]
)
def test_mysql_and_mariadb(plugin: bytes, question: bytes, mode: str) -> None:
    with impostor(plugin=plugin, question=question) as found:
        uri = f"mysql://weir:{PASSWORD}@127.0.0.1:{found.port}/?ssl-mode={mode}"
        with pytest.raises(SourceAuthError, match=r"asks for the password in clear, without TLS; use ssl-mode"):
            mysql.connect(uri)
    assert b"weir" in found.heard
    assert PASSWORD.encode() not in found.heard


def test_a_key_that_whoever_answers_has_made_is_not_asked_for() -> None:
    """What is encrypted with it he can read, unless the operator says that the line needs no TLS."""
    refused = pytest.raises(SourceAuthError, match=r"asks for the password in clear, without TLS")
    with impostor(plugin=b"caching_sha2_password", question=b"s" * 20) as found, refused:
        mysql.connect(f"mysql://weir:{PASSWORD}@127.0.0.1:{found.port}/")
    assert not found.heard.endswith(b"\x02"), "it asks for the key"
