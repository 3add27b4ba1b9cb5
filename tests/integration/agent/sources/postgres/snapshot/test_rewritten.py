"""Rewritten tables: rows that are not those of the snapshot are refused, and others are read."""

import contextlib
import itertools
import os
from collections.abc import Iterator
from contextlib import closing

import psycopg
import pyarrow as pa
import pytest

from agent.errors import TableAlteredError, TableLockedError
from agent.ports.source import BEGIN, Scope
from agent.sources import open_source
from agent.sources.postgres.server.connection import Connection
from agent.sources.postgres.server.terms import ALL_ROWS
from agent.sources.postgres.snapshot import survivors
from capture.embedded import EmbeddedPostgres
from reactor.records.changefeed import ChangefeedConfig, SinkMode
from tests import pgoutput
from tests.integration.agent.sources.postgres.meanwhile import between_queries
from tests.shared_postgres import give_back

_TABLES = """
CREATE TABLE t (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);
CREATE TABLE low PARTITION OF t FOR VALUES FROM (0) TO (10) PARTITION BY RANGE (id);
CREATE TABLE lowest PARTITION OF low FOR VALUES FROM (0) TO (5);
CREATE TABLE high PARTITION OF t FOR VALUES FROM (10) TO (20);
CREATE TABLE other (id int PRIMARY KEY, v text);
CREATE TABLE child () INHERITS (other);
INSERT INTO t VALUES (1, 'a'), (11, 'b');
INSERT INTO other VALUES (21, 'c');
"""
#: what is done behind the snapshot, and whether the table is refused then
_STATEMENTS = {
    "TRUNCATE lowest": True,
    "ALTER TABLE t ALTER v TYPE varchar(5)": True,
    "ALTER TABLE low DETACH PARTITION lowest": True,
    "ALTER TABLE t DETACH PARTITION high CONCURRENTLY": True,
    "DROP TABLE high": True,
    "ALTER TABLE t ATTACH PARTITION other FOR VALUES FROM (20) TO (30)": True,
    "CREATE TABLE more PARTITION OF t FOR VALUES FROM (30) TO (40)": True,
    "VACUUM FULL high": True,
    "TRUNCATE other": False,
    "DELETE FROM t; INSERT INTO t VALUES (2, 'd')": False,
    "ALTER TABLE t ADD w int DEFAULT 5": False,
    "CREATE INDEX ON t (v)": False,
    "CREATE TABLE grandchild () INHERITS (child)": False,
}


@pytest.fixture
def writer(postgres: EmbeddedPostgres, request: pytest.FixtureRequest) -> Iterator[psycopg.Connection]:
    name = f"rewritten_{os.getpid()}_{abs(hash(request.node.name)) % 10**6}"
    postgres.create_database(name)
    with psycopg.connect(postgres.dsn(name), autocommit=True) as connection:
        connection.execute(_TABLES)
        yield connection
    give_back(postgres, name)


def _uri(postgres: EmbeddedPostgres, writer: psycopg.Connection) -> str:
    return postgres.uri(writer.info.dbname)


@pytest.mark.sample(0.4)
@pytest.mark.parametrize("statements", _STATEMENTS)
def test_rows_of_partitions_are_those_of_the_snapshot(
    postgres: EmbeddedPostgres, writer: psycopg.Connection, statements: str
) -> None:
    if "ATTACH" in statements:
        writer.execute("DROP TABLE child")
    source = open_source(_uri(postgres, writer), Scope("c", "f", SinkMode.UPSERT, ChangefeedConfig()))
    tables = {table.name: table for table in source.discover().tables}
    with closing(source.snapshot([tables["t"]], BEGIN)) as snapshot:
        schema = snapshot.schema(tables["t"])
        for statement in statements.split("; "):
            writer.execute(statement.encode())
        if _STATEMENTS[statements]:
            with pytest.raises(TableAlteredError, match=r"was rewritten or got other partitions, .* try again"):
                list(snapshot.read(schema))
        else:
            rows = pa.Table.from_batches(snapshot.read(schema)).sort_by("id").to_pylist()
            assert rows == [{"id": 1, "v": "a"}, {"id": 11, "v": "b"}]


def test_a_detachment_that_was_interrupted_refuses_nothing(
    postgres: EmbeddedPostgres, writer: psycopg.Connection
) -> None:
    """Its second step is pending: the partition is not read as one any more."""
    with psycopg.connect(postgres.dsn(writer.info.dbname)) as reader:
        reader.execute("SELECT FROM t")
        writer.execute("SET lock_timeout = 50")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            writer.execute("ALTER TABLE t DETACH PARTITION high CONCURRENTLY")
    assert writer.execute("SELECT count(*) FROM pg_inherits WHERE inhdetachpending").fetchone() == (1,)
    source = open_source(_uri(postgres, writer), Scope("c", "f", SinkMode.UPSERT, ChangefeedConfig()))
    tables = {table.name: table for table in source.discover().tables}
    with closing(source.snapshot([tables["t"]], BEGIN)) as snapshot:
        rows = pa.Table.from_batches(snapshot.read(snapshot.schema(tables["t"]))).to_pylist()
    assert rows == [{"id": 1, "v": "a"}]


def test_values_are_compared_though_another_statement_rewrites_the_table(
    postgres: EmbeddedPostgres, writer: psycopg.Connection
) -> None:
    """It comes between any two of the statements by which they are read; no rows would mean that all are new."""
    uri = _uri(postgres, writer)

    def rewrite(own: Connection) -> None:
        with contextlib.suppress(TableLockedError):  # it is read just now
            own.query("ALTER TABLE v ALTER n TYPE bigint")

    for behind in itertools.count(1):
        writer.execute("DROP TABLE IF EXISTS v; CREATE TABLE v (id int PRIMARY KEY, v text, n int)")
        writer.execute("INSERT INTO v VALUES (1, 'a', 1), (2, 'b', 2)")
        table = pgoutput.table_id(postgres.dsn(writer.info.dbname), "v")
        before = pgoutput.read_schema(uri, table)
        writer.execute("ALTER TABLE v ALTER v TYPE varchar(3) USING upper(v)")
        after = pgoutput.read_schema(uri, table)
        queries = itertools.count(1)
        with between_queries(uri, rewrite, lambda: next(queries) == behind):  # noqa: B023 - called in this turn
            found = survivors.read(uri, before, after, {name: name for name in ("id", "v", "n")}, ("id",), ALL_ROWS)
        if next(queries) <= behind:
            break
        assert found is not None, f"behind statement {behind}"
        assert found.rows.to_pylist() == [{"id": 1, "v": "A"}, {"id": 2, "v": "B"}], f"behind statement {behind}"
    assert behind > 5
