"""Connection faults of a real etcd: it dies, hangs, asks for passwords, speaks TLS, and one of several is down."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from anyio.streams.buffered import BufferedByteReceiveStream

from capture.embedded import EmbeddedEtcd
from capture.embedded.etcd import binary
from reactor.errors import (
    RevisionsLostError,
    SessionDoneError,
    StoreAuthError,
    StoreError,
    StoreFullError,
    StoreUnreachableError,
)
from reactor.membership.session import open_session
from reactor.settings import TlsFiles
from reactor.store.etcd import connect, watching
from reactor.store.etcd.client import GrpcEtcdClient
from reactor.store.etcd.connection import EtcdConnection
from reactor.store.etcd.endpoints import Endpoints
from reactor.store.port import MetaStore, Put
from tests.patience import HANG_S, patient

NOBODY = "http://127.0.0.1:1"


@asynccontextmanager
async def client_of(
    *endpoints: str, timeout_s: float = 5.0, user: str | None = None, password: str | None = None
) -> AsyncIterator[GrpcEtcdClient]:
    client = await connect(endpoints, timeout_s=timeout_s, user=user, password=password)
    try:
        yield client
    finally:
        await client.close()


def stop(pid: int) -> None:
    """Returns when all threads of our child stand still."""
    os.kill(pid, signal.SIGSTOP)
    os.waitid(os.P_PID, pid, os.WSTOPPED)


async def test_an_etcd_that_is_not_there_is_named_in_one_line() -> None:
    with pytest.raises(StoreUnreachableError) as caught:
        await connect([NOBODY, "http://127.0.0.1:2"], user="root", password="secret", timeout_s=0.5)
    assert "http://127.0.0.1:1, http://127.0.0.1:2" in str(caught.value)
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)


async def test_no_endpoint_is_an_error_too() -> None:
    with pytest.raises(StoreError, match="no etcd endpoint"):
        await connect([])


async def test_endpoints_that_are_down_are_passed_over(etcd_url: str) -> None:
    async with client_of(NOBODY, etcd_url, "http://127.0.0.1:2") as client:
        await client.put("/door/passed-over", b"1")
        start = anyio.current_time()
        for _ in range(50):
            await client.get("/door/passed-over")
        assert anyio.current_time() - start < patient(2)


async def test_a_closed_client_reports_it(etcd_url: str) -> None:
    async with client_of(etcd_url) as client:
        pass
    with pytest.raises(StoreUnreachableError, match="closed"):
        await client.get("/a")


async def test_a_watch_loses_no_event_while_etcd_is_killed_and_started(tmp_path: Path) -> None:
    seen: list[bytes] = []

    async def watch(client: MetaStore, start: int, *, until: int) -> None:
        async with client.watch_prefix("/w/", start_revision=start) as batches:
            async for batch in batches:
                seen.extend(event.value or b"" for event in batch.events)
                if len(seen) >= until:
                    return

    async def put(client: MetaStore, number: int) -> None:
        """Until it is known to be there once: a lost answer may mean that it is."""
        while True:
            try:
                item = await client.get("/w/key")
                if item is None or item.value != b"%d" % number:
                    await client.put("/w/key", b"%d" % number)
                return
            except StoreUnreachableError:
                await anyio.sleep(0.05)

    with EmbeddedEtcd(tmp_path) as etcd:  # without fsync, each kill may lose a page of its log
        async with client_of(etcd.url) as client, client_of(etcd.url) as writer:
            start = (await client.get_prefix("/w/")).revision + 1
            with anyio.fail_after(HANG_S):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(lambda: watch(client, start, until=90))
                    for number in range(90):
                        if number % 30 == 15:
                            tasks.start_soon(anyio.to_thread.run_sync, etcd.kill)
                            await anyio.sleep(0.1)
                            await anyio.to_thread.run_sync(etcd.start)
                        await put(writer, number)
    assert seen == [b"%d" % number for number in range(90)]


class SmallEtcd(EmbeddedEtcd):
    """Its database is full after some large values."""

    def _command(self) -> list[str | Path]:
        return [*super()._command(), "--quota-backend-bytes", str(4 << 20)]

    def make_room(self) -> None:
        """As an operator does: compact, defragment, disarm the alarm."""
        control = [str(binary().with_name("etcdctl")), "--endpoints", self.url]
        shown = subprocess.run([*control, "endpoint", "status", "-w", "json"], capture_output=True, check=True).stdout
        revision = json.loads(shown)[0]["Status"]["header"]["revision"]
        for words in (["compact", str(revision)], ["defrag"], ["alarm", "disarm"]):
            subprocess.run([*control, *words], capture_output=True, check=True)


async def fill(client: MetaStore) -> None:
    for _ in range(100):
        await client.put("/w/large", bytes(400_000))


async def test_an_etcd_that_is_full_is_read_and_keeps_sessions_until_there_is_room(tmp_path: Path) -> None:
    with SmallEtcd(tmp_path) as etcd:
        async with client_of(etcd.url) as client, open_session(client, ttl_s=2) as session:
            with pytest.raises(StoreFullError, match="etcd's database is full; compact and defragment it"):
                await fill(client)
            assert await client.get("/w/large") is not None
            for write in (client.grant(5), client.txn([], [Put("/w/small", b"")])):
                with pytest.raises(StoreFullError):
                    await write
            await anyio.sleep(3)
            session.check()
            await client.delete("/w/large")
            await anyio.to_thread.run_sync(etcd.make_room)
            await client.put("/w/small", b"there is room")


@pytest.mark.sample(0.1)
@pytest.mark.parametrize("call", ["get", "get_prefix", "put", "txn", "watch"])
async def test_an_older_copy_of_etcd_is_noticed(tmp_path: Path, call: str) -> None:
    """Its next revisions have been given out before. A worker waited for them, and took them for its own commits."""
    data, copy = tmp_path / "data", tmp_path / "copy"
    calls: dict[str, Callable[[MetaStore], Awaitable[object]]] = {
        "get": lambda client: client.get("/old/key"),
        "get_prefix": lambda client: client.get_prefix("/old/"),
        "put": lambda client: client.put("/old/key", b"new"),
        "txn": lambda client: client.txn([], [Put("/old/key", b"new")]),
    }
    with EmbeddedEtcd(tmp_path) as etcd:
        async with client_of(etcd.url) as client:
            await client.put("/old/key", b"copied")
            await anyio.to_thread.run_sync(etcd.stop)
            shutil.copytree(data, copy)
            await anyio.to_thread.run_sync(etcd.start)
            start = 1 + await client.put("/old/key", b"lost")

            async def watch(client: MetaStore) -> None:
                async with client.watch_prefix("/old/", start_revision=start) as batches:
                    async for _ in batches:
                        pass

            await anyio.to_thread.run_sync(etcd.stop)
            shutil.rmtree(data)
            copy.rename(data)
            await anyio.to_thread.run_sync(etcd.start)
            with anyio.fail_after(patient(10)), pytest.raises(RevisionsLostError, match="an older copy was restored"):
                await (watch if call == "watch" else calls[call])(client)
        async with client_of(etcd.url) as fresh:
            assert await fresh.get("/old/key") is not None


@pytest.mark.matrix
async def test_a_hanging_etcd_is_given_up_in_time_and_the_session_ends(tmp_path: Path) -> None:
    with EmbeddedEtcd(tmp_path, unsafe_no_fsync=True) as etcd:
        async with client_of(etcd.url, timeout_s=1.0) as client, open_session(client, ttl_s=5) as session:
            stop(etcd.pid)
            try:
                start = anyio.current_time()
                with pytest.raises(StoreUnreachableError):
                    await client.txn([], [Put("/a", b"")])
                with pytest.raises(StoreUnreachableError):
                    await client.get("/a")
                assert 1.9 < anyio.current_time() - start < patient(3)
                with anyio.fail_after(patient(6)), pytest.raises(SessionDoneError):
                    await session.run(anyio.sleep_forever)
            finally:
                os.kill(etcd.pid, signal.SIGCONT)


@pytest.mark.matrix
async def test_whatever_a_renewal_is_doing_when_etcd_dies_it_may_be_tried_again(tmp_path: Path) -> None:
    """On a connection that is just breaking, grpc calls a write an internal error. It ended captures."""
    errors: list[StoreError] = []
    renewed = anyio.Event()

    async def renew(client: MetaStore, lease: int) -> None:
        try:
            while True:
                await client.keep_alive(lease)
                renewed.set()
        except StoreError as error:
            errors.append(error)

    with EmbeddedEtcd(tmp_path, unsafe_no_fsync=True) as etcd:
        async with client_of(etcd.url) as client:
            lease = await client.grant(60)
            async with anyio.create_task_group() as tasks:
                for _ in range(100):
                    tasks.start_soon(renew, client, lease)
                await renewed.wait()
                await anyio.to_thread.run_sync(etcd.kill)
    assert {type(error) for error in errors} == {StoreUnreachableError}
    assert len(errors) == 100


async def test_reads_continue_with_another_endpoint_when_one_hangs(etcd_url: str, tmp_path: Path) -> None:
    with EmbeddedEtcd(tmp_path, unsafe_no_fsync=True) as hanging:
        async with client_of(hanging.url, etcd_url, timeout_s=4.0) as client:
            stop(hanging.pid)
            try:
                start = anyio.current_time()
                await client.get("/a")
                assert anyio.current_time() - start < patient(3)
            finally:
                os.kill(hanging.pid, signal.SIGCONT)


async def test_a_quiet_watch_is_asked_how_far_it_is(etcd_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "PROGRESS_INTERVAL_S", 0.05)
    async with client_of(etcd_url) as client:
        start = (await client.get_prefix("/quiet/")).revision + 1
        async with client.watch_prefix("/quiet/", start_revision=start) as batches:
            with anyio.fail_after(HANG_S):
                assert (await anext(batches)).is_progress
                assert (await anext(batches)).is_progress


async def test_a_silent_watch_is_opened_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "PROGRESS_INTERVAL_S", 0.1)
    monkeypatch.setattr(watching, "SILENCE_S_MAX", 0.4)
    opened: list[str] = []
    with EmbeddedEtcd(tmp_path, unsafe_no_fsync=True) as etcd:
        async with client_of(etcd.url) as client:
            connection = client._endpoints._connections[0]
            open_watch = connection.open_watch

            def counted() -> Awaitable[object]:
                opened.append("stream")
                return open_watch()

            monkeypatch.setattr(connection, "open_watch", counted)
            start = (await client.get_prefix("/w/")).revision + 1

            async def go_on_later() -> None:
                await anyio.sleep(1.5)
                os.kill(etcd.pid, signal.SIGCONT)
                await client.put("/w/a", b"1")

            async with (
                client.watch_prefix("/w/", start_revision=start) as batches,
                anyio.create_task_group() as tasks,
            ):
                assert (await anext(batches)).is_progress
                stop(etcd.pid)
                tasks.start_soon(go_on_later)
                with anyio.fail_after(HANG_S):
                    async for batch in batches:
                        if batch.events:
                            break
    assert [event.value for event in batch.events] == [b"1"]
    assert len(opened) >= 2


async def _enable_auth(url: str) -> None:
    connection = EtcdConnection(url, tls=None, user=None, password=None, timeout_s=5.0)
    try:
        assert await connection.is_ready()
        await connection.user_add("root", "secret")
        await connection.role_add("root")
        await connection.user_grant_role("root", "root")
        await connection.user_add("nobody", "secret")
        await connection.auth_enable()
    finally:
        await connection.close()


@pytest.mark.matrix
async def test_user_and_password(tmp_path: Path) -> None:
    with EmbeddedEtcd(tmp_path, unsafe_no_fsync=True) as etcd:
        await _enable_auth(etcd.url)
        for user, password in (("root", "wrong"), ("who", "secret"), (None, None)):
            with pytest.raises(StoreAuthError) as caught:
                await connect([etcd.url], user=user, password=password)
            assert "secret" not in str(caught.value)
            assert "wrong" not in str(caught.value)
        with pytest.raises(StoreAuthError, match="may not do this"):
            await connect([etcd.url], user="nobody", password="secret")
        async with (
            client_of(etcd.url, user="root", password="secret") as client,
            open_session(client, ttl_s=60) as session,
        ):
            await client.put("/a", b"1", lease=session.lease)
            # etcd forgets its simple tokens at a restart; each kind of call must find a new one by itself
            await anyio.to_thread.run_sync(etcd.restart)
            assert await client.keep_alive(session.lease) == 60
            await anyio.to_thread.run_sync(etcd.restart)
            assert (await client.txn([], [Put("/b", b"2")])).succeeded
            await anyio.to_thread.run_sync(etcd.restart)
            with anyio.fail_after(HANG_S):
                async with client.watch_prefix("/", start_revision=1) as batches:
                    async for batch in batches:
                        if any(event.key == "/b" for event in batch.events):
                            break


async def test_a_user_who_may_not_watch_gets_an_error(tmp_path: Path) -> None:
    with EmbeddedEtcd(tmp_path, unsafe_no_fsync=True) as etcd:
        await _enable_auth(etcd.url)
        nobody = EtcdConnection(etcd.url, tls=None, user="nobody", password="secret", timeout_s=5.0)
        client = GrpcEtcdClient(Endpoints([nobody], timeout_s=2))
        try:
            async with client.watch_prefix("/", start_revision=1) as batches:
                with pytest.raises(StoreAuthError), anyio.fail_after(HANG_S):
                    await anext(batches)
        finally:
            await client.close()


async def test_a_user_given_to_an_etcd_without_users(etcd_url: str) -> None:
    with pytest.raises(StoreAuthError, match="leave user and password out"):
        await connect([etcd_url], user="root", password="secret")


async def test_a_tls_file_that_is_not_there() -> None:
    with pytest.raises(StoreError, match=r"cannot read the TLS file /nowhere/ca\.pem"):
        await connect(["https://127.0.0.1:1"], tls=TlsFiles("/nowhere/ca.pem"))


_SLEEPER = """
import sys, anyio, structlog
from reactor.store.etcd import connect
from reactor.membership.session import open_session

structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))

async def main(url):
    client = await connect([url])
    async with open_session(client, ttl_s=5) as session:
        was = anyio.current_time()
        print("open", flush=True)
        while True:
            await anyio.sleep(0.05)
            now = anyio.current_time()
            if now - was > 3:
                # the very first thing this process does after it was woken up
                print("done" if session.is_done else "alive", flush=True)
                return
            was = now

anyio.run(main, sys.argv[1])
"""


async def test_a_process_stopped_past_its_lease_knows_as_it_wakes_up(etcd_url: str) -> None:
    async with await anyio.open_process([sys.executable, "-c", _SLEEPER, etcd_url], stderr=None) as process:
        assert process.stdout is not None
        output = BufferedByteReceiveStream(process.stdout)
        with anyio.fail_after(HANG_S):
            assert await output.receive_until(b"\n", 100) == b"open"
            process.send_signal(signal.SIGSTOP)
            await anyio.sleep(6)
            process.send_signal(signal.SIGCONT)
            assert await output.receive_until(b"\n", 100) == b"done"


_QUIET_PROCESS = """
import asyncio, sys
from reactor.store.etcd import connect

async def main():
    client = await connect([sys.argv[1]])
    await client.close()

asyncio.run(main())
"""


def test_grpc_says_nothing_on_stderr(etcd_url: str) -> None:
    """It does of a switch that it does not know (``reactor.store.etcd.engine``)."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GRPC_")}
    command = [sys.executable, "-c", _QUIET_PROCESS, etcd_url]
    assert subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stderr == ""
