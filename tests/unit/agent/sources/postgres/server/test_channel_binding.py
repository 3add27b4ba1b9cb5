"""``channel_binding=require``: a server that proves for this TLS session that it knows the password, and ones that
leave steps of the proof out."""

import socket
import ssl
import struct
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import scramp

from agent.errors import SourceAuthError, SourceError
from agent.sources.postgres.server.connection import connect

_OK, _SASL, _CONTINUE, _FINAL = 0, 10, 11, 12
_PLUS = scramp.ScramMechanism("SCRAM-SHA-256-PLUS")
_STEPS = 3


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two servers' own; their keys lie beside them."""
    directory = tmp_path_factory.mktemp("tls")
    found = [directory / "one.pem", directory / "other.pem"]
    for path in found:
        command = ["openssl", "req", "-new", "-x509", "-days", "2", "-nodes", "-subj", "/CN=localhost"]
        subprocess.run([*command, "-out", path, "-keyout", path.with_suffix(".key")], check=True, capture_output=True)
    return found


def ask(peer: ssl.SSLSocket, step: int, text: str) -> None:
    peer.sendall(b"R" + struct.pack("!ii", 8 + len(text), step) + text.encode())


def answer(peer: ssl.SSLSocket) -> bytes:
    return peer.recv(65536)[5:]


def authenticate(peer: ssl.SSLSocket, bound_to: Path, steps: int) -> None:
    known = _PLUS.make_auth_info("sesame")
    proof = _PLUS.make_server(lambda _: known, channel_binding=("tls-server-end-point", bound_to.read_text()))
    if steps >= 1:
        ask(peer, _SASL, "SCRAM-SHA-256-PLUS\0\0")
        proof.set_client_first(answer(peer).partition(b"\0")[2][4:].decode())
    if steps >= 2:
        ask(peer, _CONTINUE, proof.get_server_first())
        proof.set_client_final(answer(peer).decode())
    if steps >= _STEPS:
        ask(peer, _FINAL, proof.get_server_final())


@contextmanager
def server(certificate: Path, bound_to: Path, steps: int) -> Iterator[str]:
    """Answer one client up to its session. The URI to it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, certificate.with_suffix(".key"))
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        raw, _ = listener.accept()
        raw.settimeout(10)
        raw.recv(8)
        raw.sendall(b"S")
        with context.wrap_socket(raw, server_side=True) as peer, suppress(OSError, scramp.ScramException):
            answer(peer)
            authenticate(peer, bound_to, steps)
            ask(peer, _OK, "")
            peer.sendall(b"Z" + struct.pack("!i", 5) + b"I")
            answer(peer)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    with listener:
        yield f"postgresql://weir:sesame@127.0.0.1:{listener.getsockname()[1]}/shop?channel_binding=require"
        thread.join(10)


def test_a_server_that_proves_it_is_let_in(certificates: list[Path]) -> None:
    with server(certificates[0], certificates[0], _STEPS) as uri:
        connect(uri).close()


@pytest.mark.parametrize("steps", range(_STEPS))
def test_a_server_that_ends_before_its_proof_is_refused(certificates: list[Path], steps: int) -> None:
    refused = pytest.raises(SourceAuthError, match="does not bind the password to the TLS session")
    with server(certificates[0], certificates[0], steps) as uri, refused:
        connect(uri)


def test_a_proof_for_another_session_is_none(certificates: list[Path]) -> None:
    """Somebody between the two passes on what they say, under a certificate of his own."""
    refused = pytest.raises(SourceError, match="ended the TLS session while connecting")
    with server(certificates[0], certificates[1], _STEPS) as uri, refused:
        connect(uri)
