"""Random statements on a real server: after each of them the table that we make of it is what the server then had."""

import contextlib
from typing import Any

import pymysql
import pytest

from agent.rows.schema import TableSchema
from agent.sources.mysql.ddl.event import DdlEvent
from agent.sources.mysql.decode.charsets import charset_of
from agent.sources.mysql.retyping.families import vector_length
from agent.sources.mysql.retyping.numbers import printed_places
from agent.sources.mysql.server.catalog import read_schemas
from agent.sources.mysql.server.connection import Connection, connect
from capture.embedded import EmbeddedMariaDB
from reactor.records.tables.schema_change import DdlRecord
from tests.integration.agent.sources.mysql.binlog_rig import read_until, run, streaming, where
from tests.integration.agent.sources.mysql.ddl.grammar import Grammar
from tests.integration.agent.sources.mysql.ddl.test_statements import Followed
from tests.mysql_server import is_mariadb

_STATEMENTS = 40
#: names of tables
_TABLES = ("t", "u", "`w x`")


def shape(schema: TableSchema) -> list[tuple[Any, ...]]:
    return [
        (
            column.name,
            column.type_id,
            column.modifier,
            column.is_unsigned,
            charset_of(column.collation),
            column.members,
            column.is_key,
            printed_places(column),
            "zerofill" in column.type_name,
            vector_length(column),
        )
        for column in schema.columns
    ]


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


class Driven(Followed):
    """``seen``: by the mark in a statement, the tables that it left."""

    def __init__(self, server: EmbeddedMariaDB, database: str, asked: Connection) -> None:
        super().__init__(server, database)
        self._asked = asked
        self.known.is_empty = lambda table_id: True  # type: ignore[method-assign] # what older rows hold is not asked
        self.seen: dict[int, dict[str, list[tuple[Any, ...]]]] = {}
        self.statements: dict[int, str] = {}

    def drive(self, cursor: Any, statement: str) -> None:
        mark = len(self.statements)
        marked = f"{statement} /* mark {mark} */"
        try:
            cursor.execute(marked)
        except pymysql.Error:
            return
        self.statements[mark] = statement
        cursor.execute("SHOW TABLES")
        tables = [name for (name,) in cursor.fetchall()]
        schemas = read_schemas(self._asked, [(self._database, name) for name in tables]).values()
        self.seen[mark] = {schema.name: shape(schema) for schema in schemas}
        for name in tables:
            with contextlib.suppress(pymysql.Error):
                cursor.execute(f"INSERT INTO {quoted(name)} (id) VALUES ({mark})")

    def follow(self, begin: Any) -> int:
        """Compare after each statement; how many there were."""
        count = 0

        def interpret(event: DdlEvent) -> DdlRecord | None:
            nonlocal count
            record = self._interpreter.interpret(event)
            if "/* mark " in event.statement:
                mark = int(event.statement.rpartition("/* mark ")[2].split()[0])
                assert not [change.reason for change in (record.changes if record else ()) if change.is_hold]
                self.compare(mark)
                count += 1
            return record

        options: dict[str, Any] = {
            "interpret": interpret,
            "hold": self._interpreter.hold,
            "written": self._interpreter.written,
            "is_wanted": self.known.is_wanted,
            "describe": self.known.describe,
        }
        with streaming(self._server, begin, self._database, **options) as stream:
            cuts = read_until(stream, where(self._server))
        held = [change.reason for cut in cuts for record in cut.ddl for change in record.changes if change.is_hold]
        assert held == []
        self.compare(max(self.seen))
        return count

    def compare(self, mark: int) -> None:
        there = self.seen[mark]
        found = {name: shape(table.schema) for (_, name), table in self.known.by_name.items() if table.schema}
        assert found.keys() == there.keys(), self.statements[mark]
        for name, columns in there.items():
            assert found[name] == columns, f"{name} behind: {self._last_of(name, mark)}"

    def _last_of(self, name: str, mark: int) -> str:
        """The statements that may have made the table what it is."""
        earlier = [text for at, text in self.statements.items() if at <= mark]
        return " ;; ".join([text for text in earlier if name in text.lower()][-8:])


def mentions_of(asked: Connection, database: str, table: str) -> tuple[list[str], list[str]]:
    [schema] = read_schemas(asked, [(database, table.strip("`"))]).values()
    return [quoted(column.name) for column in schema.columns], [quoted(name) for name in schema.key]


@pytest.fixture
def database(server: EmbeddedMariaDB, request: pytest.FixtureRequest) -> str:
    name = f"gram_{abs(hash(request.node.nodeid)) % 10**9}"
    server.create_database(name)
    run(server, name, "CREATE TABLE t (id int PRIMARY KEY, a varchar(20), b bigint unsigned)")
    return name


@pytest.mark.sample(0.2)
@pytest.mark.parametrize("metadata", ["FULL", "MINIMAL", "NO_LOG"])
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.matrix)])
def test_random_statements(server: EmbeddedMariaDB, database: str, metadata: str, seed: int) -> None:
    if metadata == "NO_LOG" and not is_mariadb(server):
        pytest.skip("MySQL has no such setting")
    grammar = Grammar(seed, is_mariadb(server))
    begin = where(server)
    run(server, database, f"SET GLOBAL binlog_row_metadata = {metadata}")
    try:
        with (
            connect(server.uri()) as asked,
            contextlib.closing(server.connect(database)) as session,
            session.cursor() as cursor,
        ):
            driven = Driven(server, database, asked)
            for _ in range(_STATEMENTS):
                driven.drive(cursor, grammar.spell(statement(grammar, driven, asked, database)))
    finally:
        run(server, database, "SET GLOBAL binlog_row_metadata = FULL")
    # what the server spells again has no mark any more
    assert driven.follow(begin) > len(driven.statements) // 2 > _STATEMENTS // 8


def statement(grammar: Grammar, driven: Driven, asked: Connection, database: str) -> str:
    there = [name for name in _TABLES if name.strip("`") in _last(driven)]
    absent = [name for name in _TABLES if name not in there]
    roll = grammar.random.random()
    if not there or (roll < 0.1 and absent):
        name = grammar.random.choice(absent)
        like = grammar.random.choice(there) if there else ""
        return f"CREATE TABLE {name} LIKE {like}" if there and roll < 0.03 else grammar.create(name)
    table = grammar.random.choice(there)
    if roll < 0.13:
        return f"DROP TABLE IF EXISTS nobody, {table}"
    if roll < 0.16 and asked.is_mariadb:
        return grammar.create(table)
    if roll < 0.2 and absent:
        new = absent[0]
        return grammar.random.choice((f"RENAME TABLE {table} TO {database}.{new}", f"ALTER TABLE {table} RENAME {new}"))
    return grammar.alter(table, *mentions_of(asked, database, table))


def _last(driven: Driven) -> list[str]:
    return [*(driven.seen[max(driven.seen)] if driven.seen else {"t": None})]
