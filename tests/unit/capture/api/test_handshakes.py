"""Connections to the TLS port of a real server that have no TLS yet."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from capture.api import handshakes
from capture.api.client import Client
from capture.security.certificate_files import CertificateFiles
from tests.patience import HANG_S
from tests.unit.capture.api.test_connections import answer, on_both_loops, served, wire
from tests.unit.capture.fakes import MemoryMember

_HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture
def certificates(tmp_path: Path) -> dict[str, Path]:
    files = CertificateFiles(tmp_path / "certs")
    files.init("default")
    files.issue("node-1", ["127.0.0.1"], days=9)
    certificate, key = files.files("node-1")
    return {"tls_ca_file": tmp_path / "certs" / "ca.pem", "tls_cert_file": certificate, "tls_key_file": key}


@asynccontextmanager
async def served_with_tls(directory: Path, certificates: dict[str, Path]) -> AsyncIterator[MemoryMember]:
    async with served(directory / "data", **certificates) as member:
        yield member
        assert await is_served(member, certificates), "it still answers others"


async def is_served(member: MemoryMember, certificates: dict[str, Path]) -> bool:
    def ask() -> bool:
        address = f"https://{member.settings.addr}"
        with Client(address, token=member.own_token.value, ca_file=str(certificates["tls_ca_file"])) as client:
            return client.list() == []

    return await anyio.to_thread.run_sync(ask)


@on_both_loops
async def test_those_that_send_nothing_cost_nobody_a_place(
    tmp_path: Path, certificates: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handshakes.Handshakes.__init__, "__kwdefaults__", {"timeout_s": 600.0, "limit": 5})
    async with served_with_tls(tmp_path, certificates) as member:
        idle = [wire(member) for _ in range(30)]
        assert await is_served(member, certificates)
        with anyio.fail_after(HANG_S):
            for one in idle[:20]:
                assert await anyio.to_thread.run_sync(answer, one) == b""
        for one in idle:
            one.close()


@pytest.mark.sample(0.2)
@pytest.mark.parametrize("sent", [b"", b"\x16\x03\x01", _HEALTH])
@on_both_loops
async def test_one_that_never_has_it_is_closed(
    tmp_path: Path, certificates: dict[str, Path], monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(handshakes.Handshakes.__init__, "__kwdefaults__", {"timeout_s": 0.3, "limit": 5})
    async with served(tmp_path / "data", **certificates) as member:
        with anyio.fail_after(HANG_S):
            assert b"HTTP" not in await anyio.to_thread.run_sync(answer, wire(member, sent))


@on_both_loops
async def test_a_request_that_comes_with_the_handshake_is_answered(
    tmp_path: Path, certificates: dict[str, Path]
) -> None:
    context = ssl.create_default_context(cafile=certificates["tls_ca_file"])

    def ask(member: MemoryMember) -> bytes:
        with context.wrap_socket(wire(member), server_hostname="127.0.0.1") as secure:
            secure.sendall(_HEALTH)
            return secure.recv(65536)

    async with served_with_tls(tmp_path, certificates) as member:
        for _ in range(20):
            assert b"HTTP/1.1 200" in await anyio.to_thread.run_sync(ask, member)


@on_both_loops
async def test_a_server_that_stops_waits_for_none(tmp_path: Path, certificates: dict[str, Path]) -> None:
    with anyio.fail_after(handshakes.HANDSHAKE_TIMEOUT_S - 2):
        async with served(tmp_path / "data", **certificates) as member:
            idle = wire(member)
            assert await is_served(member, certificates)
        assert await anyio.to_thread.run_sync(answer, idle) == b""


async def test_one_that_has_gone_before_it_was_accepted_delays_no_other(
    tmp_path: Path, certificates: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    accept, gone = loop.sock_accept, [ConnectionAbortedError()] * 3

    async def accept_late(listener: socket.socket) -> tuple[socket.socket, object]:
        if gone:
            raise gone.pop()
        return await accept(listener)

    monkeypatch.setattr(loop, "sock_accept", accept_late)
    monkeypatch.setattr(handshakes, "_PAUSE_S", 600.0)
    async with served_with_tls(tmp_path, certificates):
        pass
    assert not gone
