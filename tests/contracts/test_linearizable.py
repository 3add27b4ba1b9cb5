"""Stores answer concurrent clients as if one call was done after the other, also while their server is killed or
paused."""

import os
import random
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from itertools import count
from pathlib import Path
from typing import Protocol

import anyio
import pytest
from anyio import to_thread

from benchmarks.support.metadata import connect
from capture.embedded import EmbeddedEtcd, EmbeddedMariaDB, EmbeddedPostgres
from reactor.errors import StoreError
from reactor.store.memory import MemoryClient, MemoryEtcd
from reactor.store.port import Compare, Delete, KeyValue, MetaStore, Operation, Put, Target
from tests import mysql_package
from tests.contracts.linearizability import Call, Kind, is_linearizable
from tests.contracts.store_bed import DURABLE
from tests.mysql_server import EmbeddedMysql

_KEYS = ("/linear/a", "/linear/b", "/linear/c")
_CLIENTS = 6
_DOWN_S = 0.5

Connect = Callable[[], Awaitable[MetaStore]]


class Server(Protocol):
    @property
    def pid(self) -> int: ...

    def kill(self) -> None: ...

    def start(self) -> None: ...


class Histories:
    """What all clients have asked and heard, by key. Each value is written once."""

    def __init__(self) -> None:
        self.calls: dict[str, list[Call]] = {key: [] for key in _KEYS}
        self.lost = 0
        self._values = count(1)

    async def ask(self, client: MetaStore, chance: random.Random, known: dict[str, KeyValue | None]) -> None:
        """One call on one key. ``known``: what this client has read last."""
        key, kind = chance.choice(_KEYS), chance.choice((Kind.GET, Kind.GET, Kind.PUT, Kind.SWAP, Kind.SWAP))
        value = b"%d" % next(self._values) if chance.random() < 0.9 else None
        seen = known.get(key)
        began, returned, succeeded = anyio.current_time(), None, True
        try:
            if kind is Kind.GET:
                known[key] = found = await client.get(key)
                value = found.value if found else None
            else:
                held = Compare(key, Target.MOD_REVISION, seen.mod_revision if seen else 0)
                operation: Operation = Delete(key) if value is None else Put(key, value)
                succeeded = (await client.txn([held] if kind is Kind.SWAP else [], [operation])).succeeded
            returned = anyio.current_time()
        except StoreError:
            self.lost += 1
        self.calls[key].append(Call(kind, began, returned, value, seen.value if seen else None, succeeded))

    def violations(self) -> list[str]:
        return [key for key, calls in self.calls.items() if not is_linearizable(calls)]


@asynccontextmanager
async def _clients(connect: Connect) -> AsyncIterator[list[MetaStore]]:
    clients = [await connect() for _ in range(_CLIENTS)]
    try:
        yield clients
    finally:
        for client in clients:
            with anyio.CancelScope(shield=True):
                await client.close()


async def _observed(connect: Connect, *, seed: int, calls: int, fault: Callable[[], Awaitable[None]]) -> Histories:
    """``calls``: of each client before the fault begins; they continue until it is over."""
    found, is_over = Histories(), anyio.Event()
    are_done = [anyio.Event() for _ in range(_CLIENTS)]

    async def ask(client: MetaStore, number: int) -> None:
        chance, known, done = random.Random(f"{seed}/{number}"), dict[str, KeyValue | None](), 0
        while done < calls or not is_over.is_set():
            await found.ask(client, chance, known)
            await anyio.sleep(0.002 * chance.random())
            done += 1
            if done == calls:
                are_done[number].set()

    async with _clients(connect) as clients, anyio.create_task_group() as tasks:
        for number, client in enumerate(clients):
            tasks.start_soon(ask, client, number)
        for one in are_done:
            await one.wait()
        await fault()
        is_over.set()
    return found


async def _nothing() -> None: ...


class StaleReads(MemoryClient):
    """A planted bug: one answer of twenty is the one before."""

    def __init__(self, server: MemoryEtcd) -> None:
        super().__init__(server)
        self._before: dict[str, KeyValue | None] = {}
        self._asked = count(1)

    async def get(self, key: str) -> KeyValue | None:
        found = await super().get(key)
        before, self._before[key] = self._before.get(key), found
        return before if next(self._asked) % 20 == 0 else found


class LostUpdates(MemoryClient):
    """A planted bug: a transaction compares, and writes later."""

    async def txn(self, compares: object, operations: object) -> object:  # type: ignore[override]
        done = await super().txn(compares, [])  # type: ignore[arg-type]
        await anyio.sleep(0.001)
        return await super().txn([], operations) if done.succeeded else done  # type: ignore[arg-type]


def _of(kind: Callable[[MemoryEtcd], MetaStore]) -> Connect:
    server = MemoryEtcd()

    async def open_client() -> MetaStore:
        return kind(server)

    return open_client


@pytest.mark.parametrize("kind", [StaleReads, LostUpdates])
async def test_a_store_that_is_not_linearizable_is_found(kind: Callable[[MemoryEtcd], MetaStore]) -> None:
    found = await _observed(_of(kind), seed=1, calls=60, fault=_nothing)
    assert found.violations()


async def test_the_store_in_memory_is_linearizable() -> None:
    found = await _observed(_of(MemoryClient), seed=1, calls=60, fault=_nothing)
    assert found.violations() == []


@contextmanager
def _etcd(directory: Path) -> Iterator[tuple[Server, str]]:
    with EmbeddedEtcd(directory) as server:
        yield server, server.url


@contextmanager
def _postgres(directory: Path) -> Iterator[tuple[Server, str]]:
    with EmbeddedPostgres(directory) as server:
        yield server, server.uri()


@contextmanager
def _mariadb(directory: Path) -> Iterator[tuple[Server, str]]:
    with EmbeddedMariaDB(directory, settings=DURABLE) as server:
        server.create_database("store")
        yield server, server.uri("store")


@contextmanager
def _mysql(directory: Path) -> Iterator[tuple[Server, str]]:
    if reason := mysql_package.why_not():
        pytest.skip(reason)
    with EmbeddedMysql(directory, settings=DURABLE) as server:
        server.create_database("store")
        yield server, server.uri("store")


SERVERS: dict[str, Callable[[Path], AbstractContextManager[tuple[Server, str]]]] = {
    "etcd": _etcd,
    "postgres": _postgres,
    "mariadb": _mariadb,
    "mysql": _mysql,
}


@pytest.mark.matrix
@pytest.mark.timeout(300)
@pytest.mark.parametrize("fault", ["kill", "pause"])
@pytest.mark.parametrize("name", SERVERS)
async def test_a_store_is_linearizable_while_its_server_fails(name: str, fault: str, tmp_path: Path) -> None:
    """Twice, under load; every file is synchronised, so nothing that was answered may be lost."""
    with SERVERS[name](tmp_path / "server") as (server, url):

        async def fail() -> None:
            for _ in range(2):
                await anyio.sleep(1.0)
                if fault == "kill":
                    await to_thread.run_sync(server.kill)
                    await to_thread.run_sync(server.start)
                else:
                    os.kill(server.pid, signal.SIGSTOP)
                    await anyio.sleep(_DOWN_S)
                    os.kill(server.pid, signal.SIGCONT)
            await anyio.sleep(1.0)

        found = await _observed(lambda: connect(url), seed=7, calls=100, fault=fail)
    assert sum(map(len, found.calls.values())) > _CLIENTS * 100
    assert found.violations() == [], f"{found.lost} answers were lost"


@pytest.mark.matrix
async def test_the_store_in_a_file_is_linearizable(tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path / 'store.db'}"
    found = await _observed(lambda: connect(url), seed=7, calls=100, fault=_nothing)
    assert found.violations() == []
