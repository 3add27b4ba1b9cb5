"""Unlogged statements and temporary tables: rows after them are never taken for another table's or column's."""

from collections.abc import Sequence

import pytest

from capture.embedded import EmbeddedMariaDB
from reactor.records.tables.schema_change import DdlRecord, SchemaChangeKind
from tests.integration.agent.sources.mysql.binlog_rig import run
from tests.integration.agent.sources.mysql.ddl.test_statements import Followed

_TABLE = "CREATE TABLE t (id int PRIMARY KEY, a int NOT NULL, v varchar(20), e enum('x','y'))"
_OFF, _ON = "SET sql_log_bin = 0", "SET sql_log_bin = 1"
_TEMPORARY = "CREATE TEMPORARY TABLE t (id int PRIMARY KEY, a int)"


@pytest.fixture
def database(server: EmbeddedMariaDB, request: pytest.FixtureRequest) -> str:
    name = f"unlogged_{abs(hash(request.node.nodeid)) % 10**9}"
    server.create_database(name)
    run(server, name, _TABLE)
    return name


def held(records: Sequence[DdlRecord]) -> list[str]:
    return [change.reason for record in records for change in record.changes if change.is_hold]


@pytest.mark.parametrize(
    ("alteration", "row", "reason"),
    [
        ("ADD x int DEFAULT 5", "(1, 1, 'v', 'x', 6)", "it has column x"),
        ("DROP v", "(1, 1, 'x')", "it lacks column v"),
        ("RENAME COLUMN v TO w", "(1, 1, 'v', 'x')", "it lacks column v"),
        ("MODIFY a varchar(9)", "(1, 'a', 'v', 'x')", "column a is string, not int32"),
        ("DROP PRIMARY KEY, ADD PRIMARY KEY (a)", "(1, 1, 'v', 'x')", r"its key is \(a\)"),
    ],
)
def test_an_alteration_without_the_log_holds_its_table(
    server: EmbeddedMariaDB, database: str, alteration: str, row: str, reason: str
) -> None:
    alter, insert = f"ALTER TABLE t {alteration}", f"INSERT INTO t VALUES {row}"
    found = held(Followed(server, database).run("INSERT INTO t VALUES (9, 9, 'v', 'x')", _OFF, alter, _ON, insert))
    assert len(found) == 1
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(found[0])
    assert "sql_log_bin" in found[0]


@pytest.mark.parametrize(
    "alteration",
    ["MODIFY v varchar(40)", "ADD INDEX i (a)", "MODIFY e enum('x','y','z')", "MODIFY v varchar(20) AFTER id"],
)
def test_one_that_leaves_the_values_alone_holds_nothing(
    server: EmbeddedMariaDB, database: str, alteration: str
) -> None:
    followed = Followed(server, database)
    insert = "INSERT INTO t (id, a, v, e) VALUES (1, 1, 'v', 'x')"
    assert held(followed.run(_OFF, f"ALTER TABLE t {alteration}", _ON, insert)) == []


def test_a_table_made_without_the_log_under_a_name_that_was_free_is_copied(
    server: EmbeddedMariaDB, database: str
) -> None:
    made = "CREATE TABLE t (id int PRIMARY KEY, other int)"
    followed = Followed(server, database, looks=True)
    records = followed.run("DROP TABLE t", _OFF, made, _ON, "INSERT INTO t VALUES (1, 2)", "TRUNCATE t")
    assert held(records) == []
    created = [change.table for record in records for change in record.changes if change.table]
    assert [table.to_copy for table in created] == [True]


def test_a_name_that_a_logged_statement_gives_again_is_another_tables(server: EmbeddedMariaDB, database: str) -> None:
    followed = Followed(server, database)
    statements = ["RENAME TABLE t TO u", _TABLE, "INSERT INTO t VALUES (1, 1, 'v', 'x')", "DROP TABLE t", "DO 1"]
    again = ["RENAME TABLE u TO t", "INSERT INTO t VALUES (2, 1, 'v', 'x')", "TRUNCATE t", "DROP TABLE t"]
    assert held(followed.run(*statements, *again)) == []
    [reason] = held(followed.run("CREATE TABLE t (v int)", "INSERT INTO t VALUES (1)"))
    assert "it has no key" in reason


def test_a_rename_of_a_temporary_table_holds_the_one_behind_it(mariadb: EmbeddedMariaDB) -> None:
    database = "temporary_renamed"
    mariadb.create_database(database)
    run(mariadb, database, _TABLE)
    followed = Followed(mariadb, database, looks=True)
    insert = "INSERT INTO t VALUES (1, 1, 'v', 'x')"
    records = followed.run(_TEMPORARY, "RENAME TABLE t TO u", "DROP TEMPORARY TABLE u", insert)
    changes = [change for record in records for change in record.changes]
    assert [change.kind for change in changes] == [
        SchemaChangeKind.RENAME,
        SchemaChangeKind.HOLD,
        SchemaChangeKind.CREATE,
    ]
    assert f"a table has its earlier name {database}.t" in changes[1].reason
    assert changes[2].table is not None
    assert changes[2].table.to_copy


def test_a_table_behind_a_temporary_one_keeps_its_name(mariadb: EmbeddedMariaDB) -> None:
    """Also if no row comes that would show it: the server does, at once if it is not ahead of the log."""
    database = "temporary_kept"
    mariadb.create_database(database)
    run(mariadb, database, _TABLE)
    followed = Followed(mariadb, database, looks=True)
    assert followed.run(_TEMPORARY, "RENAME TABLE t TO u") == []
    [renamed] = followed.run(_TEMPORARY, "RENAME TABLE t TO x, t TO u", "RENAME TABLE u TO t")[0].changes
    assert renamed.table is not None
    assert renamed.table.name == "u"
    assert held(followed.run(_TEMPORARY, "RENAME TABLE t TO u", "CREATE TABLE w LIKE t")) == []
    [reason] = held(followed.run("DROP TABLE w"))
    assert f"a table has its earlier name {database}.t" in reason


def test_one_to_a_name_that_another_table_has_holds_both(mariadb: EmbeddedMariaDB) -> None:
    database = "temporary_taken"
    mariadb.create_database(database)
    run(mariadb, database, _TABLE)
    followed = Followed(mariadb, database, looks=True)
    followed.run("CREATE TABLE u LIKE t")
    found = held(
        followed.run(
            _TEMPORARY, "RENAME TABLE t TO u", "DROP TEMPORARY TABLE u", "INSERT INTO u VALUES (1, 1, NULL, NULL)"
        )
    )
    assert [reason.split(":")[0] for reason in found] == [f"{database}.t", f"{database}.u"]
