"""Sessions of a snapshot are used again: each sees the snapshot's moment, and keeps no lock behind its use."""

import os
from collections.abc import Generator, Iterator
from contextlib import closing

import psycopg
import pyarrow as pa
import pytest

from agent.errors import SourceUnreachableError, StatementRefusedError, TableGoneError
from agent.ports.source import BEGIN, Scope
from agent.rows.schema import TableSchema
from agent.sources import open_source
from agent.sources.postgres.server.connection import Connection
from agent.sources.postgres.snapshot.chunks import WHOLE_TABLE
from agent.sources.postgres.snapshot.export import ExportedSnapshot, create_slot
from agent.sources.postgres.snapshot.rows import copy_rows
from agent.sources.postgres.snapshot.sessions import SnapshotSessions
from capture.embedded import EmbeddedPostgres
from reactor.records.changefeed import ChangefeedConfig, SinkMode
from tests import pgoutput

_PID = "SELECT pg_backend_pid()"


@pytest.fixture(scope="module")
def database(postgres: EmbeddedPostgres) -> str:
    name = f"sessions_{os.getpid()}"
    postgres.create_database(name)
    with psycopg.connect(postgres.dsn(name), autocommit=True) as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
        connection.execute("INSERT INTO t SELECT n, repeat('v', 1000) FROM generate_series(1, 50000) n")
    return name


@pytest.fixture
def export(postgres: EmbeddedPostgres, database: str) -> Iterator[ExportedSnapshot]:
    with create_slot(postgres.uri(database), database, is_temporary=True) as made:
        yield made


@pytest.fixture
def sessions(postgres: EmbeddedPostgres, database: str, export: ExportedSnapshot) -> Iterator[SnapshotSessions]:
    made = SnapshotSessions(postgres.uri(database), export.snapshot)
    yield made
    made.close()


def _read(sessions: SnapshotSessions, schema: TableSchema) -> Generator[pa.RecordBatch, None, None]:
    with sessions.use() as connection:
        yield from copy_rows(connection, schema, WHOLE_TABLE)


def _count(connection: Connection) -> int:
    [[count]] = connection.query("SELECT count(*) FROM public.t")
    return int(count or 0)


def test_the_next_use_has_the_same_session_and_moment(
    postgres: EmbeddedPostgres, database: str, sessions: SnapshotSessions
) -> None:
    with sessions.use() as connection:
        first, count = connection.query(_PID), _count(connection)
        with sessions.use() as other:
            assert other.query(_PID) != first
    with psycopg.connect(postgres.dsn(database), autocommit=True) as writer:
        writer.execute("INSERT INTO t VALUES (0, 'later')")
        try:
            with sessions.use() as one, sessions.use() as other:
                assert (_count(one), _count(other)) == (count, count)
                assert first in (one.query(_PID), other.query(_PID))
        finally:
            writer.execute("DELETE FROM t WHERE id = 0")


def test_a_statement_that_changes_a_table_does_not_wait_for_a_session_that_has_read_it(
    postgres: EmbeddedPostgres, database: str, sessions: SnapshotSessions
) -> None:
    with psycopg.connect(postgres.dsn(database), autocommit=True) as other:
        other.execute("SET lock_timeout = '100 ms'")
        with sessions.use() as connection:
            _count(connection)
            with pytest.raises(psycopg.errors.LockNotAvailable):
                other.execute("ALTER TABLE t ALTER v SET STORAGE EXTERNAL")
        other.execute("ALTER TABLE t ALTER v SET STORAGE EXTERNAL")


@pytest.mark.parametrize("how", ["refused", "abandoned"])
def test_a_session_that_was_left_in_the_middle_is_not_used_again(
    postgres: EmbeddedPostgres, database: str, sessions: SnapshotSessions, how: str
) -> None:
    table_id = pgoutput.table_id(postgres.dsn(database), "t")
    schema = pgoutput.read_schema(postgres.uri(database), table_id)
    with sessions.use() as connection:
        first = connection.query(_PID)
    if how == "refused":
        with pytest.raises(StatementRefusedError), sessions.use() as connection:
            connection.query("SELECT 1 / 0")
    else:
        rows = _read(sessions, schema)
        assert next(rows).num_rows
        rows.close()
    with sessions.use() as connection:
        assert connection.query(_PID) != first
        assert _count(connection) == 50_000


def test_a_snapshot_that_is_gone_says_so(postgres: EmbeddedPostgres, database: str, export: ExportedSnapshot) -> None:
    export.close()
    with (
        pytest.raises(SourceUnreachableError, match="the snapshot under which tables are read is gone"),
        SnapshotSessions(postgres.uri(database), export.snapshot).use(),
    ):
        pass


def test_a_table_that_took_the_name_is_not_read_for_the_one_that_had_it(
    postgres: EmbeddedPostgres, database: str
) -> None:
    """A name means what it means now, also under a snapshot."""
    with psycopg.connect(postgres.dsn(database), autocommit=True) as writer:
        writer.execute("CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY)")
        writer.execute("INSERT INTO a VALUES (1); INSERT INTO b VALUES (2)")
        source = open_source(postgres.uri(database), Scope("c", "swapped", SinkMode.UPSERT, ChangefeedConfig()))
        tables = {table.name: table for table in source.discover().tables}
        with closing(source.snapshot(list(tables.values()), BEGIN)) as snapshot:
            [a, b] = (snapshot.schema(tables[name]) for name in "ab")
            assert pa.Table.from_batches(snapshot.read(a)).to_pylist() == [{"id": 1}]
            writer.execute("BEGIN; ALTER TABLE a RENAME TO c; ALTER TABLE b RENAME TO a; COMMIT")
            with pytest.raises(SourceUnreachableError, match=r"public\.a was renamed or dropped"):
                list(snapshot.read(a))
            with pytest.raises(TableGoneError, match=r"42P01: .*public\.b"):
                list(snapshot.read(b))
