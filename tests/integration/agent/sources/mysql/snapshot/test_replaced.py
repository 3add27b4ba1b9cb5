"""Replaced tables: a comparison refuses a table that is not the one of its snapshot, and reads others."""

import os
from collections.abc import Iterator
from contextlib import closing
from itertools import count

import pyarrow as pa
import pymysql
import pytest

from agent.errors import TableAlteredError
from agent.ports.source import Scope
from agent.sources import open_source
from capture.embedded import EmbeddedMariaDB
from reactor.records.changefeed import ChangefeedConfig, FilterConfig, SinkMode

_TABLES = (
    "CREATE TABLE t (id int PRIMARY KEY, v varchar(9)) PARTITION BY RANGE (id) "
    "(PARTITION low VALUES LESS THAN (10), PARTITION high VALUES LESS THAN (20))",
    "INSERT INTO t VALUES (1, 'a'), (11, 'b')",
    "CREATE TABLE other (id int PRIMARY KEY, v varchar(9))",
    "INSERT INTO other VALUES (2, 'c')",
)
#: what is done behind the snapshot, and whether the table is refused then; MySQL lacks one of them
_STATEMENTS = {
    "RENAME TABLE t TO u, other TO t": True,
    "DROP TABLE t; CREATE TABLE t (id int PRIMARY KEY, v varchar(9))": True,
    "ALTER TABLE t DROP PARTITION low": True,
    "ALTER TABLE t TRUNCATE PARTITION low": True,
    "ALTER TABLE t ADD PARTITION (PARTITION highest VALUES LESS THAN (30))": True,
    "ALTER TABLE t CONVERT PARTITION low TO TABLE low": True,
    "ALTER TABLE t REMOVE PARTITIONING": True,
    "DELETE FROM t; INSERT INTO t VALUES (3, 'd')": False,
    "DROP TABLE other": False,
}
_NUMBERS = count()


@pytest.fixture
def database(server: EmbeddedMariaDB) -> Iterator[str]:
    name = f"replaced_{os.getpid()}_{next(_NUMBERS)}"
    server.create_database(name)
    for statement in _TABLES:
        server.execute(statement, database=name)
    yield name
    server.execute(f"DROP DATABASE {name}")


@pytest.mark.sample(0.4)
@pytest.mark.parametrize("statements", _STATEMENTS)
def test_the_table_of_the_snapshot_is_read_or_none(server: EmbeddedMariaDB, database: str, statements: str) -> None:
    config = ChangefeedConfig(filter=FilterConfig(rules=(f"{database}.t",)))
    source = open_source(server.uri(), Scope("c", database.replace("_", "-"), SinkMode.UPSERT, config))
    report = source.discover()
    source.prepare(report.tables)
    with closing(source.snapshot(list(report.tables), source.begin(report.tables))) as snapshot:
        schema = snapshot.schema(report.tables[0])
        is_known = True
        try:
            for statement in statements.split("; "):
                server.execute(statement, database=database)
        except pymysql.err.ProgrammingError:
            is_known = False
        if _STATEMENTS[statements] and is_known:
            with pytest.raises(TableAlteredError, match=r"altered under the snapshot.* try again"):
                list(snapshot.read(schema))
        else:
            rows = pa.Table.from_batches(snapshot.read(schema)).sort_by("id").to_pylist()
            assert rows == [{"id": 1, "v": "a"}, {"id": 11, "v": "b"}]
