"""Statements for which a server may copy a table: what that makes of values in columns that they do not name."""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from agent.errors import TableHeldError
from agent.rows.schema import ZeroDates
from agent.schema_changes import apply
from capture.embedded import EmbeddedMariaDB
from reactor.records.changefeed import ChangefeedConfig, SinkMode
from tests.integration.agent.sources.mysql.binlog_rig import run
from tests.integration.agent.sources.mysql.ddl.test_statements import Followed
from tests.integration.agent.sources.mysql.retyping.rig import read
from tests.integration.agent.sources.mysql.retyping.test_pipeline import loaded, stored
from tests.mysql_server import is_mariadb

_FEED = apply.Terms(ChangefeedConfig(), SinkMode.UPSERT)
_COLUMNS = "a int, d date, e datetime(3), f timestamp NULL, y varchar(9) DEFAULT 'x'"
_TABLE = f"CREATE TABLE t (id int PRIMARY KEY, b int NOT NULL DEFAULT 3, {_COLUMNS}) CHARACTER SET utf8mb4"
_POSSIBLE = (
    "(1, 1, NULL, '2024-02-29', '2024-02-29 10:11:12.5', '2024-01-01', '')",
    "(2, 2, 5, '0000-00-00', '0000-00-00', '0000-00-00', 'z')",
)
_IMPOSSIBLE = (
    "(3, 3, 6, '2024-02-31', '2024-02-31 10:00:00', NULL, NULL)",
    "(4, 4, 7, '2024-00-10', '2024-00-10 10:11:12.5', NULL, NULL)",
    "(5, 5, 8, '0000-01-02', '0000-01-02 10:11:12.5', NULL, NULL)",
)
_MODES = ("", "NO_ZERO_IN_DATE", "NO_ZERO_DATE", "ALLOW_INVALID_DATES", "ALLOW_INVALID_DATES,NO_ZERO_DATE")
_STRICT = "STRICT_ALL_TABLES,NO_ZERO_IN_DATE"
_STATEMENTS = (
    "ALTER TABLE t ADD z int, ALGORITHM=COPY",
    "ALTER TABLE t MODIFY a bigint",
    "ALTER TABLE t FORCE",
    "ALTER TABLE t PARTITION BY KEY (id) PARTITIONS 3",
    "ALTER TABLE t COMMENT 'x', ALGORITHM=COPY",
    "ALTER TABLE t ADD z int, ALGORITHM=INPLACE",
    "CREATE INDEX i ON t (a) ALGORITHM=COPY",
    "ALTER TABLE t CONVERT TO CHARACTER SET latin1",
    "ALTER TABLE t DROP PRIMARY KEY, ADD PRIMARY KEY (id, b)",
)


@pytest.fixture
def database(server: EmbeddedMariaDB, request: pytest.FixtureRequest) -> str:
    name = f"copied_{abs(hash(request.node.nodeid)) % 10**9}"
    server.create_database(name)
    return name


def followed_into(
    server: EmbeddedMariaDB, database: str, directory: Path, rows: Sequence[str], *statements: str
) -> tuple[pa.Table, pa.Table]:
    """The sink's rows and the server's behind ``statements``."""
    fill = ["SET sql_mode = 'ALLOW_INVALID_DATES'", "DROP TABLE IF EXISTS t", _TABLE]
    run(server, database, *fill, f"INSERT INTO t VALUES {', '.join(rows)}")
    schema, values = read(server, database, "t", ZeroDates.STRING)
    sink = loaded(directory, schema, values)
    followed = Followed(server, database, looks=True, zero_dates=ZeroDates.STRING)
    for record in followed.run(*statements):
        apply.apply(sink, record, _FEED)
    _, there = read(server, database, "t", ZeroDates.STRING)
    return stored(directory, database).select(there.column_names), there


@pytest.mark.sample(0.2)
@pytest.mark.parametrize("mode", _MODES)
def test_dates_that_a_copy_makes_zero_are_held(
    server: EmbeddedMariaDB, database: str, tmp_path: Path, mode: str
) -> None:
    held: list[tuple[str, str]] = []
    for number, statement in enumerate(_STATEMENTS):
        directory = tmp_path / str(number)
        try:
            lines = f"SET sql_mode = '{mode}'", statement
            found, there = followed_into(server, database, directory, _POSSIBLE + _IMPOSSIBLE, *lines)
        except TableHeldError as error:
            held.append((statement, str(error)))
        else:
            assert (statement, found.to_pylist()) == (statement, there.to_pylist())
    changes = mode and "ALLOW" not in mode if is_mariadb(server) else "ALLOW" not in mode
    assert bool(held) == bool(changes)
    for statement, reason in held:
        assert "dates that no calendar has" in reason
        assert "INPLACE" not in statement


@pytest.mark.matrix
def test_tables_without_such_dates_flow(server: EmbeddedMariaDB, database: str, tmp_path: Path) -> None:
    lax = "SET sql_mode = 'NO_ZERO_IN_DATE,NO_ZERO_DATE'"
    for number, statement in enumerate(_STATEMENTS):
        found, there = followed_into(server, database, tmp_path / str(number), _POSSIBLE, lax, statement)
        assert (statement, found.to_pylist()) == (statement, there.to_pylist())


def test_a_strict_server_that_ignores_errors(mariadb: EmbeddedMariaDB, tmp_path: Path) -> None:
    mariadb.create_database("ignored")
    strict = f"SET sql_mode = '{_STRICT}'"
    numbers = "ALTER IGNORE TABLE t MODIFY a bigint NOT NULL"
    found, there = followed_into(mariadb, "ignored", tmp_path / "0", _POSSIBLE, strict, numbers)
    assert found.column("a").to_pylist() == there.column("a").to_pylist() == [0, 5]
    with pytest.raises(TableHeldError, match="dates that no calendar has"):
        followed_into(mariadb, "ignored", tmp_path / "1", _IMPOSSIBLE, strict, numbers)
