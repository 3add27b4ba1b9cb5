"""One file, several processes: some are killed or stopped, others see all that they did, and nothing by halves."""

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import pytest

from reactor.errors import RevisionsLostError, StoreError, StoreUnreachableError
from reactor.store import sql
from reactor.store.port import Compare, Put, Target, WatchBatch
from reactor.store.sql import sqlite
from tests.patience import patient

#: a process that puts two keys in each transaction, under a lease that it keeps alive, until it is killed
_WRITER = """
import sys, anyio
from reactor.membership.session import open_session
from reactor.store import sql
from reactor.store.port import Put

async def main(url, name):
    client = await sql.connect(url)
    async with open_session(client, ttl_s=10) as session:
        number = 0
        while True:
            number += 1
            pair = [Put(f"/w/{name}/{half}", b"%d" % number, session.lease) for half in "ab"]
            assert (await client.txn([], pair)).succeeded

anyio.run(main, *sys.argv[1:])
"""


@contextmanager
def writer(url: str, name: str) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", _WRITER, url, name]) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
def url(file: Path) -> str:
    return f"sqlite://{file}"


@pytest.mark.parametrize("is_restored", [True, False], ids=["restored", "removed"])
async def test_a_file_that_is_replaced_stops_its_clients(file: Path, url: str, is_restored: bool) -> None:
    """A connection stays with the old file: another process would be the owner in the new one."""
    client = await sql.connect(url)
    await client.put("/g", b"1")
    with sqlite3.connect(file) as source, sqlite3.connect(file.with_name("backup")) as backup:
        source.backup(backup)
    await client.put("/g", b"2")
    for left in file.parent.glob(f"{file.name}*"):
        left.unlink()
    if is_restored:
        file.with_name("backup").rename(file)
    with pytest.raises(StoreUnreachableError, match="was removed or replaced; it is opened again"):
        await client.put("/g", b"3")
    with pytest.raises(RevisionsLostError):
        await client.put("/g", b"3")
    await client.close()


@pytest.mark.matrix
async def test_killed_writers_leave_whole_transactions_and_their_leases_end_once(url: str) -> None:
    client = await sql.connect(url)
    batches, gone = list[WatchBatch](), set[str]()
    seen = Counter[str]()  # events by writer
    with writer(url, "x") as first, writer(url, "y") as second, anyio.fail_after(patient(120)):
        async with client.watch_prefix("/w/", start_revision=1) as watch:
            async for batch in watch:
                batches.append(batch)
                seen.update(event.key.split("/")[2] for event in batch.events)
                if seen["x"] > 200:
                    first.send_signal(signal.SIGKILL)
                if seen["y"] > 400:
                    second.send_signal(signal.SIGKILL)
                gone |= {event.key for event in batch.events if event.value is None}
                if len(gone) == 4:
                    break
    by_revision: dict[int, list[tuple[str, bytes | None]]] = {}
    for event in (event for batch in batches for event in batch.events):
        by_revision.setdefault(event.mod_revision, []).append((event.key, event.value))
    assert list(by_revision) == list(range(2, len(by_revision) + 2)), "no revision is missing or reported twice"
    last: dict[str, int] = {}
    for (one, first_value), (other, second_value) in by_revision.values():
        assert (one[:-1], first_value) == (other[:-1], second_value)
        if first_value is not None:
            assert int(first_value) == last.get(one, 0) + 1
            last[one] = int(first_value)
    assert (await client.get_prefix("/w/")).items == ()
    await client.close()


async def test_another_process_sees_a_write_soon(url: str) -> None:
    """Two clients share nothing but the file, so they are as good as two processes."""
    writing, reading = await sql.connect(url), await sql.connect(url)
    sent, delays = list[float](), list[float]()

    async def write() -> None:
        for number in range(20):
            await anyio.sleep(0.02 * number)
            sent.append(time.monotonic())
            await writing.put("/a", b"%d" % number)

    async with anyio.create_task_group() as tasks, reading.watch_prefix("/a", start_revision=1) as watch:
        tasks.start_soon(write)
        async for batch in watch:
            delays += [time.monotonic() - sent[int(event.value or b"")] for event in batch.events]
            if len(delays) == 20:
                break
    assert sorted(delays)[10] < patient(0.11)
    await writing.close()
    await reading.close()


async def test_a_process_that_stands_still_in_its_transaction_blocks_others_no_longer_than_their_time(
    file: Path, url: str
) -> None:
    client = await sql.connect(url, timeout_s=1)
    stopped = sqlite3.connect(file, isolation_level=None)
    stopped.execute("BEGIN IMMEDIATE")
    with anyio.fail_after(patient(2)), pytest.raises(StoreUnreachableError):
        await client.put("/a", b"")
    assert await client.get("/a") is None, "reading continues"
    stopped.execute("ROLLBACK")
    absent = Compare("/a", Target.MOD_REVISION, 0)
    with anyio.fail_after(patient(3)):
        result = await client.txn([absent], [Put("/a", b"")])
    assert result.succeeded, "what was given up did not come later"
    stopped.close()
    await client.close()


async def test_a_closed_client_says_so_and_its_watches_end(url: str) -> None:
    client = await sql.connect(url)
    async with client.watch_prefix("/", start_revision=5) as watch, anyio.create_task_group() as tasks:
        tasks.start_soon(client.close)
        with anyio.fail_after(patient(5)), pytest.raises(StoreUnreachableError, match="closed"):
            await anext(watch)
    with pytest.raises(StoreUnreachableError, match="closed"):
        await client.put("/a", b"")


async def test_a_file_that_was_replaced_by_an_older_one_is_noticed_when_it_is_opened(file: Path, url: str) -> None:
    client = await sql.connect(url)
    await client.put("/a", b"1")
    with sqlite3.connect(file) as connection, sqlite3.connect(file.with_name("backup")) as backup:
        connection.backup(backup)
    connection.close()
    backup.close()
    revision = await client.put("/a", b"2")
    restored = await sql.connect(f"sqlite://{shutil.move(file.with_name('backup'), file.with_name('restored.db'))}")
    restored._seen = client._seen  # as a client that has seen the lost revision
    with pytest.raises(StoreError, match=rf"lacks what it has shown up to {revision}"):
        await restored.get("/a")
    await client.close()
    await restored.close()


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("sqlite://weir.db", "give its whole path"),
        ("sqlite:///", "give its whole path"),
        ("sqlite:////nowhere/at/all.db", r"/nowhere/at is no directory; create it"),
        ("sqlite:///proc/weir.db", "failed"),
        ("mongodb://h/d", "no store has the scheme .mongodb.; give sqlite"),
        ("mssql://weir:secret@h/d", "no store has the scheme .mssql.; give sqlite"),
    ],
)
async def test_a_store_that_cannot_be_is_explained_in_one_line(url: str, message: str) -> None:
    with pytest.raises(StoreError, match=message) as caught:
        await sql.connect(url)
    assert "\n" not in str(caught.value)


@pytest.fixture
def damaged(file: Path) -> str:
    file.write_bytes(os.urandom(4096))
    return f"sqlite://{file}"


async def test_what_is_no_store_is_refused(damaged: str) -> None:
    with pytest.raises(StoreError, match="is damaged, or no store"):
        await sql.connect(damaged)


async def test_a_store_of_a_later_version_is_refused(file: Path, url: str) -> None:
    await (await sql.connect(url)).close()
    with sqlite3.connect(file) as connection:
        connection.execute("UPDATE weir_store SET format = 99")
    connection.close()
    with pytest.raises(StoreError, match="format that this version does not know"):
        await sql.connect(url)


async def test_a_file_on_a_network_is_refused(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "_file_system", lambda _: "nfs4")
    with pytest.raises(StoreError, match="is on a network"):
        await sql.connect(url)


async def test_only_its_owner_may_read_the_file(file: Path, url: str) -> None:
    client = await sql.connect(url)
    await client.put("/a", b"")
    assert {path.stat().st_mode & 0o777 for path in file.parent.glob("store.db*")} == {0o600}
    await client.close()
