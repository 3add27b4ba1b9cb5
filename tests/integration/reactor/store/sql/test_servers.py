"""Stores on servers: restarts and pauses of the server, a paused client, fail-over to an older server, on each kind."""

import shutil
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, closing, contextmanager
from pathlib import Path
from uuid import uuid4

import anyio
import psycopg
import pytest
from anyio import to_thread

from capture.embedded import EmbeddedMariaDB, EmbeddedPostgres
from reactor.errors import RevisionsLostError, StoreUnreachableError
from reactor.membership.session import open_session
from reactor.store import sql
from reactor.store.port import Compare, Put, Target
from reactor.store.sql.client import SqlClient
from tests.contracts.store_bed import DURABLE
from tests.mysql_package import why_not
from tests.mysql_server import EmbeddedMysql
from tests.patience import HANG_S, patient

DATABASE = "weir"
_MYSQL = pytest.param(EmbeddedMysql, marks=pytest.mark.matrix)


@pytest.fixture(
    scope="module", params=[EmbeddedPostgres, EmbeddedMariaDB, _MYSQL], ids=["postgres", "mariadb", "mysql"]
)
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[EmbeddedPostgres | EmbeddedMariaDB]:
    """One that tests may restart and change."""
    if request.param is EmbeddedMysql and (reason := why_not()):
        pytest.skip(reason)
    place = tmp_path_factory.mktemp("store")
    settings = {"wal_level": "replica"} if request.param is EmbeddedPostgres else {"settings": DURABLE}
    with request.param(place, **settings) as part:
        part.create_database(DATABASE)
        yield part


@asynccontextmanager
async def connected(url: str, *, timeout_s: float = 5.0) -> AsyncIterator[SqlClient]:
    client = await sql.connect(url, timeout_s=timeout_s)
    try:
        yield client
    finally:
        await client.close()


async def answer(client: SqlClient, key: str) -> bytes | None:
    """Return what the store answers once it answers."""
    with anyio.fail_after(HANG_S):
        while True:
            try:
                item = await client.get(key)
            except StoreUnreachableError:
                continue
            return item.value if item else None


async def created(client: SqlClient, key: str) -> int:
    """Return the revision in which it creates the key, as soon as it can."""
    absent = Compare(key, Target.MOD_REVISION, 0)
    with anyio.fail_after(HANG_S):
        while True:
            try:
                return (await client.txn([absent], [Put(key, b"")])).revision
            except StoreUnreachableError:
                continue


@contextmanager
def locked(server: EmbeddedPostgres | EmbeddedMariaDB) -> Iterator[None]:
    """Nobody else reads or writes keys."""
    if isinstance(server, EmbeddedPostgres):
        with psycopg.connect(server.dsn(DATABASE)) as connection:
            connection.execute("LOCK TABLE weir_key IN ACCESS EXCLUSIVE MODE")
            yield
    else:
        with closing(server.connect(DATABASE)) as session, session.cursor() as cursor:
            cursor.execute("LOCK TABLES weir_key WRITE")
            yield


def swap(data: Path, other: Path) -> None:
    """Put another data directory in the place of a stopped server's."""
    aside = data.with_name(f"aside-{uuid4().hex}")
    data.rename(aside)
    shutil.move(other, data)
    owner = aside.stat()
    for each in (data, *data.rglob("*")):
        shutil.chown(each, owner.st_uid, owner.st_gid)


@pytest.mark.sample(0.25)
async def test_a_killed_server_loses_nothing_and_ends_no_session_early(
    server: EmbeddedPostgres | EmbeddedMariaDB,
) -> None:
    async with connected(server.uri(DATABASE)) as client:
        lease = await client.grant(8)
        await client.put("/r/leased", b"1", lease=lease)
        start = await client.put("/r/free", b"2")
        seen = list[tuple[str, bytes | None]]()
        is_over = anyio.Event()

        async def watch() -> None:
            async with client.watch_prefix("/r/", start_revision=start) as batches:
                async for batch in batches:
                    seen.extend((event.key, event.value) for event in batch.events)
                    if ("/r/leased", None) in seen:
                        return is_over.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watch)
            await to_thread.run_sync(server.kill)
            with pytest.raises(StoreUnreachableError):
                await client.put("/r/free", b"3")
            await to_thread.run_sync(server.start)
            started = time.monotonic()
            assert await answer(client, "/r/leased") == b"1"
            await client.put("/r/after", b"4")
            with anyio.fail_after(HANG_S):
                await is_over.wait()
    assert seen == [("/r/free", b"2"), ("/r/after", b"4"), ("/r/leased", None)]
    assert time.monotonic() - started > 7, "the lease had its whole time once more"


@pytest.mark.matrix
async def test_a_client_that_pauses_in_its_transaction_is_ended_by_the_server(
    server: EmbeddedPostgres | EmbeddedMariaDB,
) -> None:
    """As a process that is stopped between the two round trips of a commit."""
    paused = await sql.connect(server.uri(DATABASE), timeout_s=1)
    await paused.put("/s", b"")
    database = paused._writes._database
    assert database is not None
    created_in = 0
    with ExitStack() as stopped:
        stopped.enter_context(pytest.raises(StoreUnreachableError))
        statements = stopped.enter_context(database.writing(lambda: False))
        statements.write("UPDATE weir_store SET revision = ? WHERE id = ?", [[99999, 1]])
        statements.read()
        async with connected(server.uri(DATABASE), timeout_s=1) as client:
            created_in = await created(client, "/s/new")
    assert 0 < created_in < 99999, "the lock was released, and what was begun is undone"
    await paused.close()


@pytest.mark.matrix
async def test_a_server_that_does_not_answer_is_given_up_in_time(server: EmbeddedPostgres | EmbeddedMariaDB) -> None:
    async with connected(server.uri(DATABASE), timeout_s=1) as client:
        await client.put("/f", b"1")
        with locked(server):
            started = time.monotonic()
            with pytest.raises(StoreUnreachableError):
                await client.get("/f")
            assert time.monotonic() - started < patient(1.5)
        assert await answer(client, "/f") == b"1"


@pytest.mark.matrix
async def test_sessions_live_on_it(server: EmbeddedPostgres | EmbeddedMariaDB) -> None:
    async with connected(server.uri(DATABASE)) as client, connected(server.uri(DATABASE)) as other:
        async with open_session(client, ttl_s=5) as session:
            await client.put("/l", b"", lease=session.lease)
            await anyio.sleep(6)
            session.check()
            assert await other.get("/l") is not None
        assert await other.get("/l") is None


@pytest.mark.matrix
@pytest.mark.parametrize("is_forgotten", [False, pytest.param(True, marks=pytest.mark.matrix)])
async def test_a_server_that_lacks_revisions_stops_its_clients(
    server: EmbeddedPostgres | EmbeddedMariaDB, tmp_path: Path, *, is_forgotten: bool
) -> None:
    """An older copy answers at the address, as a standby that had not received everything would."""
    async with connected(server.uri(DATABASE)) as first:
        await first.put("/g", b"1")
    await to_thread.run_sync(server.kill)
    data = server.data_directory
    await to_thread.run_sync(lambda: shutil.copytree(data, tmp_path / "old"))
    await to_thread.run_sync(server.start)
    async with connected(server.uri(DATABASE)) as client:
        await client.put("/g", b"2")
        await to_thread.run_sync(server.kill)
        await to_thread.run_sync(swap, data, tmp_path / "old")
        await to_thread.run_sync(server.start)
        async with connected(server.uri(DATABASE)) as other:  # has seen nothing, and writes: numbers are no sign
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
