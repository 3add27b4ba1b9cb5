"""Metadata stores for benchmarks and tests: each durable, as in production, and a client for any of them by its URL."""

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final

from capture.embedded import EmbeddedEtcd, EmbeddedMariaDB, EmbeddedPostgres
from reactor.store import etcd, sql
from reactor.store.port import MetaStore


@contextmanager
def _etcd(directory: Path) -> Iterator[str]:
    with EmbeddedEtcd(directory / "etcd") as part:
        yield part.url


@contextmanager
def _postgres(directory: Path) -> Iterator[str]:
    with EmbeddedPostgres(directory / "postgres", wal_level="replica") as part:
        yield part.uri()


@contextmanager
def _mariadb(directory: Path) -> Iterator[str]:
    durable = {"innodb_flush_log_at_trx_commit": "1", "sync_binlog": "1"}
    with EmbeddedMariaDB(directory / "mariadb", settings=durable) as part:
        part.create_database("store")
        yield part.uri("store")


@contextmanager
def _sqlite(directory: Path) -> Iterator[str]:
    yield f"sqlite://{directory / 'store.db'}"


#: run a store below a directory, and give its URL
STORES: Final[Mapping[str, Callable[[Path], AbstractContextManager[str]]]] = {
    "etcd": _etcd,
    "postgres": _postgres,
    "mariadb": _mariadb,
    "sqlite": _sqlite,
}


async def connect(url: str) -> MetaStore:
    return await (etcd.connect([url]) if url.startswith("http") else sql.connect(url))


@asynccontextmanager
async def client_of(url: str) -> AsyncIterator[MetaStore]:
    client = await connect(url)
    try:
        yield client
    finally:
        await client.close()
