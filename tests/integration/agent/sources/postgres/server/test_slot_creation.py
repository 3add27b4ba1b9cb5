"""The creation of a slot on a server with open transactions: what it waits for is shown, and it can be given up."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from threading import Event
from typing import Any

import psycopg
import pytest

from agent.errors import OpenTransactionsError
from agent.pacing import ReadingStopped
from agent.ports.snapshot import Wait
from agent.ports.source import BEGIN, Position, Scope
from agent.sources.postgres import source as source_module
from agent.sources.postgres.publication import slots
from agent.sources.postgres.server import slot_creation
from agent.sources.postgres.server.connection import catalog_session, connect
from agent.sources.postgres.snapshot.export import create_slot
from agent.sources.postgres.source import PostgresSource
from capture.embedded import EmbeddedPostgres
from reactor.records.changefeed import ChangefeedConfig, SinkMode
from tests.patience import patient
from tests.shared_postgres import SharedPostgres

_SLOT = "weir_waits"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedPostgres]:
    """One of its own: transactions of other tests would be waited for as well."""
    with SharedPostgres(tmp_path_factory.mktemp("waits"), unsafe_no_fsync=True) as server:
        server.execute("CREATE TABLE t (id int PRIMARY KEY)")
        yield server


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slot_creation, "_LOOK_S", 0.1)


class Creation:
    """The creation of a slot on a thread of its own: by ``create``, or for a snapshot."""

    def __init__(
        self,
        server: EmbeddedPostgres,
        pool: ThreadPoolExecutor,
        *,
        is_temporary: bool = False,
        create: Callable[[Wait], object] | None = None,
    ) -> None:
        self.causes: list[str] = []
        self.stopped, self._reported = Event(), Event()
        for_snapshot = partial(create_slot, server.uri(), _SLOT, is_temporary=is_temporary)
        self.made: Future[Any] = pool.submit(create or for_snapshot, Wait(self._report, self.stopped))

    def _report(self, cause: str) -> None:
        self.causes.append(cause)
        self._reported.set()

    def cause(self) -> str:
        assert self._reported.wait(patient(20.0))
        return self.causes[-1]


def slots_of(server: EmbeddedPostgres) -> list[tuple[object, ...]]:
    return [tuple(row) for row in server.execute("SELECT slot_name, active FROM pg_replication_slots")]


@pytest.mark.usefixtures("quick")
def test_the_process_is_named_and_its_end_is_waited_for(server: EmbeddedPostgres) -> None:
    with ThreadPoolExecutor() as pool, psycopg.connect(f"{server.dsn()} application_name=etl") as other:
        other.execute("INSERT INTO t VALUES (1)")
        creation = Creation(server, pool)
        pid = other.info.backend_pid
        assert (
            f"and process {pid} (user 'postgres', application 'etl', database 'postgres') has one" in creation.cause()
        )
        assert creation.cause().endswith(f" UTC; let it end, or end it: SELECT pg_terminate_backend({pid})")
        other.rollback()
        creation.made.result(patient(20.0)).close()
    with catalog_session(server.uri()) as session:
        slots.drop_slot(session, _SLOT)


@pytest.mark.usefixtures("quick")
def test_a_prepared_transaction_is_named(server: EmbeddedPostgres) -> None:
    with ThreadPoolExecutor() as pool, psycopg.connect(server.dsn(), autocommit=True) as other:
        other.execute("BEGIN; INSERT INTO t VALUES (2); PREPARE TRANSACTION 'of the shop'")
        creation = Creation(server, pool, is_temporary=True)
        assert "'of the shop' is prepared; commit it" in creation.cause()
        other.execute("ROLLBACK PREPARED 'of the shop'")
        creation.made.result(patient(20.0)).close()


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("is_temporary", [True, False])
def test_who_gives_up_leaves_nothing_behind(server: EmbeddedPostgres, is_temporary: bool) -> None:
    """The server does not notice that a client has left, and would make the slot when the transaction ends."""
    with ThreadPoolExecutor() as pool, psycopg.connect(server.dsn()) as other:
        other.execute("INSERT INTO t VALUES (3)")
        creation = Creation(server, pool, is_temporary=is_temporary)
        assert creation.cause()
        creation.stopped.set()
        with pytest.raises(ReadingStopped):
            creation.made.result(patient(20.0))
        assert slots_of(server) == []
        other.rollback()
    assert slots_of(server) == []


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("is_again", [False, True])
def test_a_stream_without_a_snapshot_waits_in_the_same_way(server: EmbeddedPostgres, is_again: bool) -> None:
    source = PostgresSource(server.uri(), Scope("c", "f", SinkMode.UPSERT, ChangefeedConfig()))
    report = source.discover()

    def begin(wait: Wait) -> Position:
        if is_again:
            return source.begin_again(report.tables, BEGIN, report.identity, wait)
        return source.begin(report.tables, wait=wait)

    with ThreadPoolExecutor() as pool, psycopg.connect(server.dsn()) as other:
        other.execute("INSERT INTO t VALUES (6)")
        given_up = Creation(server, pool, create=begin)
        assert f"process {other.info.backend_pid}" in given_up.cause()
        given_up.stopped.set()
        with pytest.raises(ReadingStopped):
            given_up.made.result(patient(20.0))
        assert slots_of(server) == []
        creation = Creation(server, pool, create=begin)
        assert creation.cause()
        other.rollback()
        assert creation.made.result(patient(20.0)).ts > 0
    source.drop()
    assert slots_of(server) == []


@pytest.mark.usefixtures("quick")
def test_what_takes_too_long_ends_with_the_cause(server: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slot_creation, "_CREATE_TIMEOUT_S", 1.0)
    with psycopg.connect(server.dsn()) as other:
        other.execute("INSERT INTO t VALUES (4)")
        with pytest.raises(OpenTransactionsError, match="has one open since") as refused:
            create_slot(server.uri(), _SLOT)
        assert refused.value.retryable
        assert slots_of(server) == []
        with pytest.raises(OpenTransactionsError), connect(server.uri(), replication=True) as connection:
            slots.create_slot(connection, _SLOT)
        assert slots_of(server) == []


@pytest.mark.usefixtures("quick")
def test_a_comparison_does_not_wait_for_ever(server: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_module, "_COMPARE_WAIT_S", 0.5)
    source = PostgresSource(server.uri(), Scope("c", "f", SinkMode.UPSERT, ChangefeedConfig()))
    with psycopg.connect(server.dsn()) as other:
        other.execute("INSERT INTO t VALUES (5)")
        with pytest.raises(OpenTransactionsError, match="let it end"):
            source.snapshot([], BEGIN)
    assert slots_of(server) == []
