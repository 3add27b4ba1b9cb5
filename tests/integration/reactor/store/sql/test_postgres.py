"""The store in PostgreSQL while its server restarts or stands still, a client does, or an older server takes over."""

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import anyio
import psycopg
import pytest
from anyio import to_thread

from capture.embedded import EmbeddedPostgres
from reactor.errors import RevisionsLostError, StoreAuthError, StoreError, StoreUnreachableError
from reactor.membership.session import open_session
from reactor.store import sql
from reactor.store.port import Compare, Put, Target
from reactor.store.sql.client import SqlClient
from tests.patience import patient


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedPostgres]:
    """One that tests may restart."""
    with EmbeddedPostgres(tmp_path_factory.mktemp("store"), wal_level="replica") as part:
        yield part


def swap(data: Path, other: Path) -> None:
    """Put another data directory in the place of a stopped server's."""
    aside = data.with_name(f"aside-{uuid4().hex}")
    data.rename(aside)
    shutil.move(other, data)
    owner = aside.stat()
    for each in (data, *data.rglob("*")):
        shutil.chown(each, owner.st_uid, owner.st_gid)


async def answer(client: SqlClient, key: str) -> bytes | None:
    """What the store answers once it answers."""
    with anyio.fail_after(patient(20)):
        while True:
            try:
                item = await client.get(key)
            except StoreUnreachableError:
                continue
            return item.value if item else None


async def test_a_restart_of_the_server_loses_nothing_and_ends_no_session_early(server: EmbeddedPostgres) -> None:
    client = await sql.connect(server.uri())
    lease = await client.grant(4)
    await client.put("/r/leased", b"1", lease=lease)
    start = await client.put("/r/free", b"2")
    keys = list[tuple[str, bytes | None]]()
    async with anyio.create_task_group() as tasks:

        async def watch() -> None:
            async with client.watch_prefix("/r/", start_revision=start) as batches:
                async for batch in batches:
                    keys.extend((event.key, event.value) for event in batch.events)
                    if ("/r/leased", None) in keys:
                        tasks.cancel_scope.cancel()

        tasks.start_soon(watch)
        await to_thread.run_sync(server.stop)
        with pytest.raises(StoreUnreachableError):
            await client.put("/r/free", b"3")
        await anyio.sleep(1)
        await to_thread.run_sync(server.start)
        asked = time.monotonic()
        assert await answer(client, "/r/leased") == b"1"
        await client.put("/r/after", b"4")
        await anyio.sleep(patient(15))
    assert keys == [("/r/free", b"2"), ("/r/after", b"4"), ("/r/leased", None)]
    assert time.monotonic() - asked > 3, "the lease had its whole time once more"
    await client.close()


async def test_a_client_that_stands_still_in_its_transaction_is_ended_by_the_server(server: EmbeddedPostgres) -> None:
    client = await sql.connect(server.uri(), timeout_s=1)
    await client.put("/s", b"")
    with psycopg.connect(server.dsn(), options="-c idle_in_transaction_session_timeout=1500") as stopped:
        stopped.execute("UPDATE weir_store SET revision = 99999 WHERE id = 1")
        with pytest.raises(StoreUnreachableError):
            await client.put("/s", b"1")
        absent = Compare("/s/new", Target.MOD_REVISION, 0)
        with anyio.fail_after(patient(5)):
            while True:
                try:
                    assert (await client.txn([absent], [Put("/s/new", b"")])).revision < 99999
                    break
                except StoreUnreachableError:
                    continue
        stopped.close()
    await client.close()


async def test_a_server_that_stands_still_is_given_up_in_time(server: EmbeddedPostgres) -> None:
    client = await sql.connect(server.uri(), timeout_s=1)
    await client.put("/f", b"1")
    server.execute("CREATE EXTENSION IF NOT EXISTS plpgsql")
    with psycopg.connect(server.dsn()) as locked:
        locked.execute("LOCK TABLE weir_key IN ACCESS EXCLUSIVE MODE")
        started = time.monotonic()
        with pytest.raises(StoreUnreachableError):
            await client.get("/f")
        assert time.monotonic() - started < patient(1.5)
    assert await answer(client, "/f") == b"1"
    await client.close()


async def test_sessions_live_on_it(server: EmbeddedPostgres) -> None:
    client, other = await sql.connect(server.uri()), await sql.connect(server.uri())
    async with open_session(client, ttl_s=5) as session:
        await client.put("/l", b"", lease=session.lease)
        await anyio.sleep(6)
        session.check()
        assert await other.get("/l") is not None
    assert await other.get("/l") is None
    await client.close()
    await other.close()


async def test_other_clients_hear_of_a_commit_at_once(server: EmbeddedPostgres) -> None:
    writing, reading = await sql.connect(server.uri()), await sql.connect(server.uri())
    start, delays = await writing.put("/n", b""), list[float]()
    async with reading.watch_prefix("/n", start_revision=start) as watch:
        await anext(watch)
        for number in range(50):
            sent = time.monotonic()
            await writing.put("/n", b"%d" % number)
            await anext(watch)
            delays.append(time.monotonic() - sent)
    assert sorted(delays)[25] < patient(0.05)
    await writing.close()
    await reading.close()


@pytest.mark.parametrize("is_forgotten", [False, True])
async def test_a_server_that_lacks_revisions_stops_its_clients(
    server: EmbeddedPostgres, tmp_path: Path, *, is_forgotten: bool
) -> None:
    """An older copy answers at the address, as a standby that had not received everything would."""
    first = await sql.connect(server.uri())
    await first.put("/g", b"1")
    await first.close()
    await to_thread.run_sync(server.stop)
    data = server.data_directory
    await to_thread.run_sync(lambda: shutil.copytree(data, tmp_path / "old"))
    await to_thread.run_sync(server.start)
    client = await sql.connect(server.uri())
    await client.put("/g", b"2")
    await to_thread.run_sync(server.stop)
    await to_thread.run_sync(swap, data, tmp_path / "old")
    await to_thread.run_sync(server.start)
    other = await sql.connect(server.uri())  # has seen nothing, and writes: the number of revisions is no sign
    last = 0
    for number in range(5):
        last = await other.put("/g", b"other %d" % number)
    if is_forgotten:
        await other.compact(last)
    with pytest.raises(RevisionsLostError, match="a standby took over"):
        await answer(client, "/g")
    with pytest.raises(StoreUnreachableError):
        await client.put("/g", b"3")  # over the connection to the server that has gone
    with pytest.raises(RevisionsLostError):
        await client.put("/g", b"3")
    await client.close()
    await other.close()


async def test_what_the_server_refuses_is_explained_in_one_line_without_secrets(server: EmbeddedPostgres) -> None:
    server.execute("CREATE ROLE poor LOGIN PASSWORD 'geheim'")
    server.create_database("empty")
    server.execute("REVOKE CREATE ON SCHEMA public FROM PUBLIC", database="empty")
    place = f"127.0.0.1:{server.port}"
    for url, kind, text in (
        (f"postgresql://postgres:geheim@{place}/postgres", StoreAuthError, "password"),
        (f"postgresql://poor:geheim@{place}/empty", StoreAuthError, "let it create"),
        (server.uri("nowhere"), StoreError, "no such database"),
        ("postgresql://weir:geheim@127.0.0.1:1/db", StoreUnreachableError, "does not answer"),
        ("postgresql://weir:geheim@h:x:y/db?geheim", StoreError, "malformed"),
    ):
        with pytest.raises(kind, match=text) as caught:
            await sql.connect(url)
        assert "\n" not in str(caught.value)
        assert "geheim" not in str(caught.value)
