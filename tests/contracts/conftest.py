"""Fixtures of the contracts: stores, and sinks that are opened by their URIs, with the example package installed."""

import os
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from agent.ports import plugin as plugins
from capture.embedded import EmbeddedEtcd, EmbeddedMariaDB, EmbeddedPostgres
from tests import iceberg_rest, mysql_package
from tests.contracts.sink_bed import COMBINATIONS, IMPLEMENTATIONS, ON_STORES, Bed
from tests.contracts.store_bed import DURABLE, OWN, Store, etcd_connect, memory_connect, sql_connect, sqlite_url
from tests.integration.agent.conftest import no_checkpoint_by_chance  # noqa: F401
from tests.mysql_server import EmbeddedMysql
from tests.object_stores import RunningStore
from tests.packages import example


@pytest.fixture(scope="session")
def example_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """``examples/weir-sqlite``, installed where this process and its children find it."""
    site = tmp_path_factory.mktemp("site")
    example.install("weir-sqlite", site)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(site))
        patch.setenv("PYTHONPATH", os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")]))
        plugins.sinks.cache_clear()
        yield site
    plugins.sinks.cache_clear()


_IN_MATRIX = COMBINATIONS | ON_STORES


@pytest.fixture(params=[*IMPLEMENTATIONS, *(pytest.param(name, marks=pytest.mark.matrix) for name in _IN_MATRIX)])
def bed(request: pytest.FixtureRequest, tmp_path: Path, example_site: Path) -> Iterator[Bed]:
    found = (IMPLEMENTATIONS | _IN_MATRIX)[request.param]
    if not found.store:
        yield Bed.of(found, tmp_path)
        return
    store: RunningStore = request.getfixturevalue("object_store")(found.store)
    place = f"{store.uri}/{tmp_path.name}"
    if not found.needs_rest:
        yield Bed.of(found, tmp_path, place)
        return
    access = {"s3.endpoint": store.environment["AWS_ENDPOINT_URL"], "s3.region": store.environment["AWS_REGION"]}
    with iceberg_rest.running(tmp_path, warehouse=place, **access) as port:
        yield Bed.of(found, tmp_path, place, f"127.0.0.1:{port}")


@pytest.fixture(scope="module")
def own_etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedEtcd]:
    """Revisions are looked at here, so nobody else's lease may run out meanwhile."""
    with EmbeddedEtcd(tmp_path_factory.mktemp("contract"), unsafe_no_fsync=True) as etcd:
        yield etcd


@pytest.fixture(scope="module")
def own_database(postgres: EmbeddedPostgres) -> str:
    """As ``own_etcd``."""
    database = f"contract_{uuid4().hex[:8]}"  # other modules name theirs by a number
    postgres.create_database(database)
    return postgres.uri(database)


@pytest.fixture(scope="module")
def own_mariadb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A database of a server that forgets no commits: the shared one does, and is refused as a store."""
    with EmbeddedMariaDB(tmp_path_factory.mktemp("mariadb"), unsafe_no_fsync=True, settings=DURABLE) as server:
        server.create_database("contract")
        yield server.uri("contract")


@pytest.fixture(scope="module")
def own_mysql(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The same of MySQL."""
    if reason := mysql_package.why_not():
        pytest.skip(reason)
    with EmbeddedMysql(tmp_path_factory.mktemp("mysql"), unsafe_no_fsync=True, settings=DURABLE) as server:
        server.create_database("contract")
        yield server.uri("contract")


@pytest.fixture(
    params=["memory", "etcd", "sqlite", "postgres", "mariadb", pytest.param("mysql", marks=pytest.mark.matrix)]
)
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    if request.param == "memory":
        yield Store(memory_connect())
    elif request.param == "etcd":
        etcd: EmbeddedEtcd = request.getfixturevalue("own_etcd")
        yield Store(etcd_connect(etcd.url))
    elif request.param == "sqlite":
        yield Store(sql_connect(sqlite_url(request.getfixturevalue("tmp_path"))))
    else:
        yield Store(sql_connect(request.getfixturevalue(OWN[request.param])))
