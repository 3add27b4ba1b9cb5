"""The HTTP port of a real server under attack by raw sockets, and over TLS with a certificate that changes."""

import contextlib
import os
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from inspect import Parameter, Signature, signature
from pathlib import Path

import anyio
import h11
import httpx
import psutil
import pytest

from capture import server
from capture.api.client import Client
from capture.api.connections import LimitedConnection, limit_waiting
from capture.config import load_server_settings
from capture.errors import ServerUnreachableError
from capture.security.certificate_files import CertificateFiles
from capture.server import running
from tests.patience import HANG_S
from tests.unit.capture.fakes import MemoryMember

_BUNDLE = b"GET /static-offline-docs/swagger-ui-bundle.js HTTP/1.1\r\nHost: localhost\r\n"
_REQUEST = b"GET /api/v2/changefeeds HTTP/1.1\r\nHost: localhost\r\n"


_LOOPS = [pytest.param(False, id="asyncio", marks=pytest.mark.matrix), pytest.param(True, id="uvloop")]


def on_both_loops(story: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run a test on asyncio's loop and on uvloop, which captures run on."""

    def test(*, is_uvloop: bool, **named: object) -> None:
        anyio.run(partial(story, **named), backend_options={"use_uvloop": is_uvloop})

    named = [parameter.replace(kind=Parameter.KEYWORD_ONLY) for parameter in signature(story).parameters.values()]
    own = Parameter("is_uvloop", Parameter.KEYWORD_ONLY, annotation=bool)
    test.__signature__ = Signature([*named, own])  # type: ignore[attr-defined]
    test.__name__ = story.__name__
    marked: Callable[..., None] = pytest.mark.parametrize("is_uvloop", _LOOPS)(test)
    return marked


@asynccontextmanager
async def served(directory: Path, **settings: object) -> AsyncIterator[MemoryMember]:
    given = {"etcd": "http://127.0.0.1:1", "addr": "127.0.0.1:0", "data_dir": directory} | settings
    async with running(load_server_settings(**given), new_member=MemoryMember) as member:
        assert isinstance(member, MemoryMember)
        yield member


def wire(member: MemoryMember, sent: bytes = b"") -> socket.socket:
    host, _, port = member.settings.addr.rpartition(":")
    one = socket.create_connection((host, int(port)), timeout=20)
    one.sendall(sent)
    return one


def answer(one: socket.socket) -> bytes:
    """All until the server closes."""
    data = b""
    with one, contextlib.suppress(ConnectionError):
        while part := one.recv(65536):
            data += part
    return data


async def is_served(member: MemoryMember) -> bool:
    def ask() -> bool:
        with Client(member.settings.addr, token=member.own_token.value) as client:
            return client.list() == []

    return await anyio.to_thread.run_sync(ask)


async def may_be_served(member: MemoryMember) -> bool:
    try:
        return await is_served(member)
    except ServerUnreachableError:
        return False


@pytest.fixture(autouse=True)
def _few_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LimitedConnection, "connections_max", 20)


@contextlib.contextmanager
def in_haste() -> Iterator[None]:
    """Who asks for something in it may be too slow, so nothing but connections to be closed is made in it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LimitedConnection, "header_timeout_s", 0.3)
        yield


async def test_a_server_makes_its_token_and_lets_nobody_in_without(tmp_path: Path) -> None:
    async with served(tmp_path) as member:
        assert (tmp_path / "api-token").read_text().strip() == member.own_token.value
        refused = await anyio.to_thread.run_sync(answer, wire(member, _REQUEST + b"\r\n"))
        assert refused.startswith(b"HTTP/1.1 401")
        assert b"uvicorn" not in refused.lower()
        assert await is_served(member)


@pytest.mark.parametrize("begun", [b"", b"GET /", _REQUEST, _REQUEST + b"X: " + b"y" * 1000])
async def test_a_request_that_never_ends_is_closed(begun: bytes, tmp_path: Path) -> None:
    async with served(tmp_path) as member:
        with anyio.fail_after(HANG_S), in_haste():
            assert await anyio.to_thread.run_sync(answer, wire(member, begun)) == b""
        assert await is_served(member)


async def test_a_connection_is_closed_between_two_requests_too(tmp_path: Path) -> None:
    async with served(tmp_path) as member:
        health = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
        one = wire(member, health)
        assert b"HTTP/1.1 200" in await anyio.to_thread.run_sync(one.recv, 65536)
        with anyio.fail_after(HANG_S), in_haste():
            one.sendall(b"GET /hea")
            await anyio.to_thread.run_sync(answer, one)


async def test_idle_connections_cost_nobody_a_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LimitedConnection, "header_timeout_s", 600)
    async with served(tmp_path) as member:
        idle = [wire(member) for _ in range(200)]
        assert await is_served(member)
        with anyio.fail_after(HANG_S):
            for one in idle[:150]:
                assert await anyio.to_thread.run_sync(answer, one) == b""
        for one in idle:
            one.close()


async def test_headers_and_bodies_without_end_take_little_memory(tmp_path: Path) -> None:
    async with served(tmp_path) as member:
        before = psutil.Process(os.getpid()).memory_info().rss
        for begun in (
            _REQUEST + b"X: ",
            b"POST /api/v2/changefeeds HTTP/1.1\r\nHost: localhost\r\nContent-Length: 900000000\r\n\r\n",
        ):
            one = wire(member, begun)

            def flood(one: socket.socket = one) -> None:
                with one, contextlib.suppress(OSError):
                    for _ in range(3200):
                        one.sendall(b"a" * 65536)

            await anyio.to_thread.run_sync(flood)
        assert await is_served(member)
        assert psutil.Process(os.getpid()).memory_info().rss - before < 64 << 20


@pytest.mark.parametrize("begun", [b"GET /health HTTP/1.1\r\nHost: localhost\r\n", b"\0", b"GET / HTTP/9\r\n"])
@on_both_loops
async def test_what_follows_a_refused_beginning_is_no_error(
    begun: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with served(tmp_path) as member:
        sent = begun + b"".join(b"a%d: b\r\n" % number for number in range(9000))
        refused = await anyio.to_thread.run_sync(answer, wire(member, sent))
        assert refused == b"" or refused.startswith(b"HTTP/1.1 400")
        assert await is_served(member)
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []


@pytest.mark.matrix
async def test_over_tls_with_a_certificate_that_changes(tmp_path: Path) -> None:
    files = CertificateFiles(tmp_path / "certs")
    files.init("default")
    files.issue("node-1", ["127.0.0.1"], days=9)
    certificate, key = files.files("node-1")
    ca = tmp_path / "certs" / "ca.pem"
    tls = {"tls_ca_file": ca, "tls_cert_file": certificate, "tls_key_file": key}
    async with served(tmp_path / "data", **tls) as member:
        url, token = f"https://{member.settings.addr}", member.own_token.value

        def ask(server: str = url, **more: str) -> bool:
            with Client(server, **({"token": token, "ca_file": str(ca)} | more)) as client:  # type: ignore[arg-type]
                return client.list() == []

        def served_key() -> bytes:
            context = ssl.create_default_context(cafile=ca)
            with wire(member) as plain, context.wrap_socket(plain, server_hostname="127.0.0.1") as secure:
                return secure.getpeercert(binary_form=True) or b""

        assert await anyio.to_thread.run_sync(ask)
        assert await anyio.to_thread.run_sync(lambda: ask(node="node-1"))
        with pytest.raises(Exception, match=r"certificate|CERTIFICATE"):
            await anyio.to_thread.run_sync(lambda: ask(node="node-2"))
        assert b"HTTP" not in await anyio.to_thread.run_sync(answer, wire(member, _REQUEST + b"\r\n"))
        before = await anyio.to_thread.run_sync(served_key)
        files.renew("node-1", days=9)
        with anyio.fail_after(HANG_S):
            while await anyio.to_thread.run_sync(served_key) == before:  # noqa: ASYNC110 - files are looked at
                await anyio.sleep(0.1)
        assert await anyio.to_thread.run_sync(ask)

        def found() -> bool:
            with Client(member.settings.addr) as client:
                return client.list() == []

        assert await anyio.to_thread.run_sync(found), "its user's command line finds address, token and authority"


async def test_settings_that_cannot_be_used_end_the_start(tmp_path: Path) -> None:
    none = tmp_path / "none"
    with pytest.raises(Exception, match="check tls-cert-file and tls-key-file"):
        async with served(tmp_path / "data", tls_ca_file=none, tls_cert_file=none, tls_key_file=none):
            raise AssertionError("it runs")


async def test_answers_close_what_was_refused(tmp_path: Path) -> None:
    async with served(tmp_path) as member, httpx.AsyncClient() as client:
        refused = await client.get(f"http://{member.settings.addr}/api/v2/status", headers={"host": "evil.example"})
        assert (refused.status_code, refused.headers["connection"]) == (403, "close")


def stubborn(member: MemoryMember, request: bytes) -> socket.socket:
    """Return the connection of a caller that reads nothing of its answer."""
    host, _, port = member.settings.addr.rpartition(":")
    one = socket.socket()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    one.connect((host, int(port)))
    one.sendall(request)
    return one


def connections_to(port: int) -> int:
    """Return how many the server, which is this process, has accepted."""
    found = psutil.Process().net_connections("tcp")
    return sum(one.laddr.port == port and bool(one.raddr) for one in found)


@pytest.mark.sample(0.2)
@pytest.mark.parametrize("end", [b"\r\n", b"Connection: close\r\n\r\n"], ids=["kept", "closing"])
@on_both_loops
async def test_answers_that_nobody_reads_cost_nobody_a_place(end: bytes, tmp_path: Path) -> None:
    async with served(tmp_path) as member:
        with contextlib.ExitStack() as callers:
            for _ in range(40):
                callers.enter_context(stubborn(member, _BUNDLE + end))
            with anyio.fail_after(HANG_S):
                while not await may_be_served(member):  # while their answers are begun
                    pass


async def test_a_server_ends_though_an_answer_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_LAST_ANSWERS_S", 1)
    with contextlib.ExitStack() as callers, anyio.fail_after(HANG_S):
        async with served(tmp_path) as member:
            port = int(member.settings.addr.rpartition(":")[2])
            callers.enter_context(stubborn(member, _BUNDLE + b"\r\n"))
            while not connections_to(port):  # noqa: ASYNC110 - the kernel tells nobody
                await anyio.sleep(0.05)


@on_both_loops
async def test_an_answer_of_which_nothing_is_read_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "limit_waiting", partial(limit_waiting, timeout_s=0.5))
    async with served(tmp_path) as member:
        port = int(member.settings.addr.rpartition(":")[2])
        with stubborn(member, _BUNDLE + b"\r\n") as one, anyio.fail_after(HANG_S):
            while not connections_to(port):  # noqa: ASYNC110 - the kernel tells nobody
                await anyio.sleep(0.05)
            while connections_to(port):  # noqa: ASYNC110
                await anyio.sleep(0.05)
            assert one.fileno() >= 0, "its caller has not closed it"


@on_both_loops
async def test_a_request_that_turns_out_malformed_is_answered_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    head = b"POST /api/v2/changefeeds HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with served(tmp_path) as member:
        for chunk in (b"zz\r\n", b"0x5\r\nabcde\r\n"):
            refused = await anyio.to_thread.run_sync(answer, wire(member, head + chunk))
            assert (refused[:12], refused.count(b"HTTP/1.1")) == (b"HTTP/1.1 400", 1)
        assert await is_served(member)
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []


@on_both_loops
async def test_chunks_are_refused_and_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed = 0
    receive = h11.Connection.receive_data

    def count(connection: h11.Connection, data: bytes) -> None:
        nonlocal parsed
        parsed += len(data) * (connection.our_role is h11.SERVER)
        receive(connection, data)

    monkeypatch.setattr(h11.Connection, "receive_data", count)
    async with served(tmp_path) as member:
        before = parsed
        for more in (b"", b"Content-Length: 4\r\n"):
            head = b"POST /api/v2/changefeeds HTTP/1.1\r\nHost: localhost\r\n" + more
            one = wire(member, head + b"Transfer-Encoding: chunked\r\n\r\n")
            with contextlib.suppress(OSError):
                await anyio.to_thread.run_sync(one.sendall, b"1\r\na\r\n" * 100_000)
            refused = await anyio.to_thread.run_sync(answer, one)
            assert refused.startswith(b"HTTP/1.1 411"), refused
        assert parsed - before < 64 * 1024
        assert await is_served(member)


async def test_what_is_no_request_is_not_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with served(tmp_path) as member:
        for sent in (b"\0\1\2\r\n\r\n", _REQUEST + b"Connection: upgrade\r\nUpgrade: websocket\r\n\r\n"):
            assert await anyio.to_thread.run_sync(answer, wire(member, sent))
    assert not caplog.records
