"""Fixtures for all tests: the real parts, started once per run and only when a test asks for them.

Tests share the parts, so each makes what it needs under names of its own (a database, a cluster id, a directory). Where
several processes run the tests (pytest-xdist), each starts parts of its own, and all tests of one file run in the same
process, one after the other.
"""

import asyncio
import contextlib
import gc
import importlib
import os
import shutil
import tempfile
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest
import structlog
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadFileScheduling

from agent import host_cache
from agent.spark.executor import SparkExecutor
from capture.embedded import EmbeddedEtcd, EmbeddedMariaDB
from capture.embedded import postgres as embedded_postgres
from tests import object_stores, scratch, selection, validated
from tests.mysql_package import why_not
from tests.mysql_server import EmbeddedMysql
from tests.patience import patient
from tests.shared_postgres import SharedPostgres

# How many examples count is a matter of time; how long one takes depends on what else the machine does.
settings.register_profile("daily", max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("matrix", settings.get_profile("daily"), max_examples=500)
settings.load_profile("daily")


def pytest_configure() -> None:
    # pytest-asyncio asks for the current loop to put it back later; without this, asking makes one that nobody closes.
    asyncio.set_event_loop(None)
    # where servers announce themselves to the command line of their user: these here to nobody else
    os.environ["XDG_RUNTIME_DIR"] = tempfile.mkdtemp(prefix="weir-tests-")
    if of_other_version := os.environ.get("TEST_POSTGRES"):
        vars(embedded_postgres)["installation"] = lambda: Path(of_other_version)


def pytest_unconfigure() -> None:
    shutil.rmtree(os.environ["XDG_RUNTIME_DIR"], ignore_errors=True)


@pytest.fixture(autouse=True)
def _own_logging() -> Iterator[None]:
    """A command that a test runs configures the log for its captured stream, which is closed when the test ends."""
    _log_plainly()
    yield
    structlog.reset_defaults()


def _log_plainly() -> None:
    """As by default, but for tracebacks: with all local values each takes up to seconds."""
    renderer = structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback)
    structlog.configure(processors=[*structlog.get_config()["processors"][:-1], renderer])


#: fixtures that start a server, in the order in which their tests run
_SERVERS = ("flavour", "server", "mysql", "mariadb", "postgres", "spark_executor")


#: the part of a run over which tests of clusters are spread: no long one is the last
_CLUSTERS_UNTIL = 0.8


#: folders whose modules share a fixture
_SHARING = ("tests/acceptance/on_mariadb", "tests/acceptance/one_capture", "tests/acceptance/two_captures")


def _unit(nodeid: str) -> str:
    """The tests that one process runs, one after the other: those of a file, or of a folder."""
    file = nodeid.partition("::")[0]
    folder = file.rpartition("/")[0]
    return folder if folder in _SHARING else file


class _Units(LoadFileScheduling):  # type: ignore[misc] # it has no types
    def _split_scope(self, nodeid: str) -> str:
        return _unit(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> _Units | None:
    return _Units(config, log) if config.getoption("dist") == "loadfile" else None


def _order(item: pytest.Item) -> int:
    """Tests of clusters, then those of one server after the other."""
    if item.get_closest_marker("acceptance"):
        return 0
    asked_for = getattr(item, "fixturenames", ())
    return next((place for place, server in enumerate(_SERVERS, 1) if server in asked_for), len(_SERVERS) + 1)


def _places(items: list[pytest.Item]) -> dict[str, float]:
    """Where in the run each unit comes, from 0 to 1. Clusters mostly wait, and need memory: they are spread among tests
    that compute, so that processes which run side by side seldom have clusters at once; the longest units begin."""
    first: dict[str, int] = {}
    for item in items:
        unit = _unit(item.nodeid)
        first[unit] = min(first.get(unit, len(_SERVERS) + 1), _order(item))
    clusters = sorted((unit for unit, order in first.items() if order == 0), key=lambda unit: unit not in _SHARING)
    others = sorted((unit for unit, order in first.items() if order), key=first.__getitem__)
    spread = {unit: _CLUSTERS_UNTIL * at / len(clusters) for at, unit in enumerate(clusters)}
    return spread | {unit: at / len(others) for at, unit in enumerate(others)}


def _import_share(config: pytest.Config) -> None:
    """Import this process's share of the test modules, so that a fresh clone's assertions are rewritten once: that is
    half of the time of collecting tests, and each process would need it for all. The cache then has the others."""
    if not (worker := getattr(config, "workerinput", {})):
        return
    roots = [Path(argument.partition("::")[0]).resolve() for argument in config.args]
    files = sorted({file for root in roots for file in ([root] if root.is_file() else root.rglob("test_*.py"))})
    for file in files[int(worker["workerid"].removeprefix("gw")) :: int(worker["workercount"])]:
        name = ".".join(file.relative_to(config.rootpath).with_suffix("").parts)
        with contextlib.suppress(Exception, pytest.skip.Exception), warnings.catch_warnings():
            warnings.simplefilter("error")
            importlib.import_module(name)  # collecting it shows what is wrong with it


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """A third of the processor time of collecting tests would go into looking for garbage, and there is none."""
    gc.disable()
    try:
        _import_share(session.config)
        return (yield)
    finally:
        gc.enable()
        gc.freeze()  # modules and tests live as long as the run


@pytest.hookimpl(tryfirst=True)  # before marks choose tests
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    selection.mark(items)
    is_of_properties = config.getoption("hypothesis_profile", None) == "matrix"
    if left_out := selection.left_out(items, is_of_properties):
        config.hook.pytest_deselected(items=left_out)
        gone = set(map(id, left_out))
        items[:] = [item for item in items if id(item) not in gone]
    for item in items:
        mark = item.get_closest_marker("timeout")
        seconds = float(mark.args[0] if mark else item.config.getini("timeout"))
        item.add_marker(pytest.mark.timeout(patient(seconds)), append=False)
    places = _places(items)
    items.sort(key=lambda item: places[_unit(item.nodeid)])


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: Any, request: pytest.FixtureRequest) -> Generator[None, Any, Any]:
    return (yield from scratch.with_directories(fixturedef, request))


@pytest.fixture(scope="session")
def shared() -> scratch.Servers:
    """The servers of the run that have been started so far."""
    return []


@pytest.fixture(scope="module", autouse=True)
def _clear_shared(shared: scratch.Servers) -> Iterator[None]:
    yield
    for server in shared:
        scratch.clear(server)


@pytest.fixture(scope="session")
def made() -> Iterator[deque[Any]]:
    """Owners and agents that the test has made."""
    with validated.watching() as found:
        yield found


@pytest.fixture(autouse=True)
def valid_state(made: deque[Any]) -> Iterator[None]:
    """What a test leaves behind is in a state that it may be in."""
    made.clear()
    yield
    validated.validate(made)


@pytest.fixture(scope="session")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedEtcd]:
    """A running etcd; do not restart this one: others use it too."""
    with EmbeddedEtcd(tmp_path_factory.mktemp("etcd"), unsafe_no_fsync=True) as part:
        yield part


@pytest.fixture(scope="session")
def etcd_url(etcd: EmbeddedEtcd) -> str:
    return etcd.url


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory, shared: scratch.Servers) -> Iterator[SharedPostgres]:
    """A running PostgreSQL with ``wal_level=logical``; make a database of your own with ``create_database``."""
    with SharedPostgres(tmp_path_factory.mktemp("postgres"), unsafe_no_fsync=True) as part:
        shared.append(part)
        yield part


@pytest.fixture(scope="session")
def mariadb(tmp_path_factory: pytest.TempPathFactory, shared: scratch.Servers) -> Iterator[EmbeddedMariaDB]:
    """A running MariaDB with a full row binlog; make a database of your own with ``create_database``."""
    with EmbeddedMariaDB(tmp_path_factory.mktemp("mariadb"), unsafe_no_fsync=True) as part:
        shared.append(part)
        yield part


@pytest.fixture(scope="session")
def mysql(tmp_path_factory: pytest.TempPathFactory, shared: scratch.Servers) -> Iterator[EmbeddedMysql]:
    """The same of MySQL."""
    if reason := why_not():
        pytest.skip(reason)
    with EmbeddedMysql(tmp_path_factory.mktemp("mysql"), unsafe_no_fsync=True) as part:
        shared.append(part)
        yield part


@pytest.fixture(scope="session", params=[EmbeddedMariaDB, EmbeddedMysql], ids=["mariadb", "mysql"])
def flavour(request: pytest.FixtureRequest) -> type[EmbeddedMariaDB]:
    """For tests of both that start a server of their own."""
    kind: type[EmbeddedMariaDB] = request.param
    if kind is EmbeddedMysql and (reason := why_not()):
        pytest.skip(reason)
    return kind


@pytest.fixture(scope="session")
def server(flavour: type[EmbeddedMariaDB], request: pytest.FixtureRequest) -> EmbeddedMariaDB:
    """``mariadb``, then ``mysql``."""
    found: EmbeddedMariaDB = request.getfixturevalue("mysql" if flavour is EmbeddedMysql else "mariadb")
    return found


@pytest.fixture(scope="module")
def spark_executor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkExecutor]:
    """A started Spark session with two cores; it takes seconds to start, so ask for it only where a job must run. A
    process has one session at a time, and other modules want theirs elsewhere than here."""
    executor = SparkExecutor("local[2]", work_dir=tmp_path_factory.mktemp("spark"))
    executor.start()
    yield executor
    executor.stop()


class RunStore(Protocol):
    def __call__(self, kind: str, /, *, is_proxied: bool = ...) -> object_stores.RunningStore: ...


@pytest.fixture(scope="session")
def object_store_servers(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[[str], object_stores.RunningStore]]:
    """Return the server of a kind, started when it is first asked for."""
    servers: dict[str, object_stores.RunningStore] = {}
    with contextlib.ExitStack() as stack:

        def server(kind: str) -> object_stores.RunningStore:
            if reason := object_stores.missing(kind):
                pytest.skip(reason)
            if kind not in servers:
                place = tmp_path_factory.mktemp(f"store-{kind}")
                servers[kind] = stack.enter_context(object_stores.running(kind, place))
            return servers[kind]

        yield server


@pytest.fixture
def object_store(
    object_store_servers: Callable[[str], object_stores.RunningStore], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[RunStore]:
    """As ``object_store_servers``, with a host cache of its own, and credentials in the environment."""
    monkeypatch.setenv("WEIR_HOST_CACHE", str(tmp_path / "host-cache"))
    host_cache.directory.cache_clear()

    def server(kind: str, *, is_proxied: bool = False) -> object_stores.RunningStore:
        found = object_store_servers(kind)
        for name, value in (found.proxied if is_proxied else found.environment).items():
            monkeypatch.setenv(name, value)
        return found

    yield server
    host_cache.directory.cache_clear()
