"""Stores under test: ways to open clients of a real etcd, of its twin in memory, and of databases."""

import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import anyio

from reactor.store import sql
from reactor.store.etcd import connect
from reactor.store.memory import MemoryClient, MemoryEtcd
from reactor.store.port import MetaStore

#: what a server of MariaDB or MySQL must be set to, where tests make it forget commits otherwise
DURABLE = {"innodb_flush_log_at_trx_commit": "1", "sync_binlog": "1"}
#: the fixtures of databases that no other module uses
OWN = {"postgres": "own_database", "mariadb": "own_mariadb", "mysql": "own_mysql"}

_PREFIXES = (f"/contract/{number}/" for number in itertools.count())


@dataclass
class Store:
    """A way to open clients of one server, and a prefix that no other test uses."""

    connect: Callable[[], AbstractAsyncContextManager[MetaStore]]
    prefix: str = field(default_factory=lambda: next(_PREFIXES))

    def __truediv__(self, name: str) -> str:
        return self.prefix + name


def sqlite_url(directory: Path) -> str:
    return f"sqlite://{directory / 'store.db'}"


def sql_connect(url: str) -> Callable[[], AbstractAsyncContextManager[MetaStore]]:
    @asynccontextmanager
    async def open_client() -> AsyncIterator[MetaStore]:
        client = await sql.connect(url)
        try:
            yield client
        finally:
            with anyio.CancelScope(shield=True):  # tests cancel captures
                await client.close()

    return open_client


def memory_connect() -> Callable[[], AbstractAsyncContextManager[MetaStore]]:
    servers: list[MemoryEtcd] = []

    @asynccontextmanager
    async def open_client() -> AsyncIterator[MetaStore]:
        if not servers:
            servers.append(MemoryEtcd())
        yield MemoryClient(servers[0])

    return open_client


def etcd_connect(url: str) -> Callable[[], AbstractAsyncContextManager[MetaStore]]:
    @asynccontextmanager
    async def open_client() -> AsyncIterator[MetaStore]:
        client = await connect([url])
        try:
            yield client
        finally:
            with anyio.CancelScope(shield=True):  # tests cancel captures
                await client.close()

    return open_client
