"""Defaults of added columns: what older rows hold is what a real server gave them, for all types and spellings."""

import contextlib
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pymysql
import pytest

from agent.rows.schema import TableSchema, ZeroDates
from agent.sources.mysql.ddl.parser import parse as ddl
from agent.sources.mysql.ddl.parser.edits import Altered, Edit
from agent.sources.mysql.values.fills import fill_value
from agent.sources.mysql.values.session import Session
from capture.embedded import EmbeddedMariaDB
from tests.integration.agent.sources.mysql.retyping.conversion_types import Sample
from tests.integration.agent.sources.mysql.retyping.rig import read
from tests.integration.agent.sources.mysql.retyping.test_retyping import types_of
from tests.mysql_server import is_mariadb

_FUNCTIONS = (
    "'now'",
    "(current_date + interval 1 year)", "(now() + interval 8 month)", "(date_add(curdate(), interval -1 day))",
    "(current_timestamp(2) - interval 36 hour)", "(curdate() + interval 5 minute)",
    "(date_sub(now(), interval 1 quarter))", "(now() + interval 1 second)", "(repeat('ab', 3))", "(space(2))",
    "(left('abc', 2))", "(right('abc', 2))", "(reverse('ab'))", "(substring('abc', 2, 1))", "(substr('abc', -2))",
    "(lpad('5', 3, '0'))", "(rpad('5', 1, 'x'))", "(replace('aXb', 'X', 'y'))", "(trim('  a '))", "(ltrim(' a '))",
    "(concat_ws('-', 'a', NULL, 'b'))", "(hex('ab'))", "(hex(255))", "(abs(-3))", "(coalesce(NULL, 'b'))",
    "(ifnull(NULL, 3))", "(json_object())", "(json_array())", "(json_array(1, 'a', NULL, true))",
    "(json_object('a', 1, 'bb', json_array('x')))", "('{}')", "(cast('[]' AS json))", '(\'[1.5, "a/b"]\')',
    "(json_array(-7, 1.5))", "(json_object('bb', 1, 'a', 2))", "(concat_ws('-', 'a', 'b'))",
)  # fmt: skip
#: in whatever type they are taken
_SPELLINGS = (
    *_FUNCTIONS,
    "NULL", "0", "-1", "+7", "1.5", "-2.5e1", "1e2", "'12'", "'7' '8'", "b'1100001'", "x'41'", "0x4142", "X'C3A9'",
    "true", "FALSE", "_latin1'b'", "_utf8mb4 x'C3A9'", "N'c'", "(1 + 2)", "(concat('a', 'b'))", "(-(3))",
    "(2 * 3.5)", "('a')", "(upper('b'))", "('2024-02-29')", "20240229", "'2024-2-3 4:5:6'", "'24-02-03'",
    "current_timestamp", "current_timestamp(3)", "now(6)", "(current_date)", "(concat(a, '-', id))", "(id + 1)",
    "(a)", "(rand())", "(uuid())", "''", "'a,b'", "DATE '2024-02-29'", "TIMESTAMP '2024-02-29 01:02:03'",
    "TIME '01:02:03'", "(_binary 'ab')", "(json_array(1))", "('[1, 2]')", '\'{"b": 1, "a": [1.50, "x"]}\'',
    "(NULL)", "(1 = 1)", "(7 div 2)", "(10 / 4)",
)  # fmt: skip
_NOW = 1_718_454_896.123456
_ZONE = "+02:00"
_STRICT = "STRICT_ALL_TABLES,NO_ZERO_DATE,NO_ZERO_IN_DATE"
_NULLING = "EMPTY_STRING_IS_NULL"
_MODES = {"": 0, _STRICT: 1 << 22 | 1 << 23 | 1 << 24, _NULLING: 1 << 32}
_SAMPLED, _SPELT = 5, 9
_WIDTH = 20
_BASE = "id int PRIMARY KEY, a varchar(9)"


@dataclass(frozen=True, slots=True)
class Added:
    """A column as it was added, and what the server gave the rows that were there."""

    title: str
    name: str
    schema: TableSchema
    edit: Edit
    there: list[Any]


def _statement(definition: str, default: str | None, name: str, *, is_required: bool) -> str:
    said = "" if default is None else f" DEFAULT {default}"
    return f"ADD {name} {definition.removesuffix(' NULL')}{' NOT NULL' if is_required else ' NULL'}{said}"


def added(
    server: EmbeddedMariaDB, database: str, sample: Sample, mode: str, defaults: Sequence[str | None]
) -> Iterator[Added]:
    """Every definition that the server takes."""
    with contextlib.closing(server.connect(database)) as connection, connection.cursor() as cursor:
        cursor.execute(f"SET NAMES utf8mb4, time_zone = '{_ZONE}', sql_mode = '{mode}', timestamp = {_NOW}")
        wanted = [(one, flag) for one in defaults for flag in (False, True)]
        taken = [pair for pair in wanted if _is_taken(cursor, sample.definition, *pair)]
        for begin in range(0, len(taken), _WIDTH):
            parts = {
                f"n{at}": _statement(sample.definition, default, f"n{at}", is_required=is_required)
                for at, (default, is_required) in enumerate(taken[begin : begin + _WIDTH])
            }
            cursor.execute("DROP TABLE IF EXISTS d")
            cursor.execute(f"CREATE TABLE d ({_BASE}) CHARACTER SET utf8mb4")
            cursor.execute("INSERT INTO d VALUES (1, 'x'), (2, NULL)")
            known, _ = read(server, database, "d", ZeroDates.STRING)
            there = _alter(cursor, parts)
            schema, values = read(server, database, "d", ZeroDates.STRING)
            for name in there:
                edit = _parsed(server, database, f"ALTER TABLE d {parts[name]}", known, mode)
                yield Added(f"{parts[name]} [{mode}]", name, schema, edit, values.column(name).to_pylist())


def _is_taken(cursor: Any, definition: str, default: str | None, is_required: bool) -> bool:
    column = _statement(definition, default, "n", is_required=is_required).removeprefix("ADD ")
    try:
        cursor.execute(f"CREATE TEMPORARY TABLE probe ({_BASE}, {column}) CHARACTER SET utf8mb4")
    except pymysql.err.Error:
        return False
    cursor.execute("DROP TEMPORARY TABLE probe")
    return True


def _alter(cursor: Any, parts: Mapping[str, str]) -> list[str]:
    """In one statement; where that fails, as it may with rows, in one each. Which have been done."""
    try:
        cursor.execute(f"ALTER TABLE d {', '.join(parts.values())}")
    except pymysql.err.Error:
        return [name for name, part in parts.items() if _is_done(cursor, part)]
    return list(parts)


def _is_done(cursor: Any, part: str) -> bool:
    try:
        cursor.execute(f"ALTER TABLE d {part}")
    except pymysql.err.Error:
        return False
    return True


def _parsed(server: EmbeddedMariaDB, database: str, statement: str, known: TableSchema, mode: str) -> Edit:
    second, micros = divmod(round(_NOW * 1e6), 1_000_000)
    session = Session(_MODES[mode], 45, _ZONE, micros, second)
    edits = ddl.parse_ddl(
        statement, database, {(database, "d"): known}, is_mariadb=is_mariadb(server), session=session, copies={}
    )
    [edit] = edits
    return edit


def is_known(found: Added) -> bool:
    return isinstance(found.edit, Altered) and found.name not in found.edit.unknown_fills


def wrong(found: Added) -> list[str]:
    if not isinstance(found.edit, Altered) or found.name in found.edit.unknown_fills:
        return []
    text = found.edit.fills.get(found.name)
    value = None if text is None else fill_value(found.schema, found.name, text).as_py()
    return [] if found.there == [value] * 2 else [f"{found.title}: {value!r} for {found.there!r}"]


def _check(
    server: EmbeddedMariaDB,
    database: str,
    samples: Sequence[tuple[Sample, Sequence[str]]],
    modes: Sequence[str] = ("", _STRICT),
) -> None:
    found = [
        item
        for sample, spellings in samples
        for mode in modes
        for item in added(server, database, sample, mode, (None, *spellings, *sample.values[:6]))
    ]
    assert [line for item in found for line in wrong(item)] == []
    assert sum(map(is_known, found)) * 2 > len(found), "most defaults are known"


@pytest.fixture(scope="module")
def database(server: EmbeddedMariaDB) -> str:
    server.create_database("defaults")
    return "defaults"


@pytest.mark.matrix
def test_defaults_of_some_types(server: EmbeddedMariaDB, database: str) -> None:
    dice = random.Random(4)
    types = dice.sample(types_of(server), 8)[:_SAMPLED]
    _check(server, database, [(sample, dice.sample(_SPELLINGS, _SPELT)) for sample in types])


def test_a_vector_that_must_not_be_null_is_empty_in_older_rows(server: EmbeddedMariaDB, database: str) -> None:
    if is_mariadb(server):
        pytest.skip("MariaDB has no such type before 11.7")
    vectors = [sample for sample in types_of(server) if sample.definition.startswith("vector")]
    _check(server, database, [(replace(sample, values=()), ()) for sample in vectors[:1]])


def test_empty_defaults_of_texts(server: EmbeddedMariaDB, database: str) -> None:
    """MySQL drops the empty literal, with a warning, where it is not strict; it keeps an expression."""
    texts = [sample for sample in types_of(server) if re.search("text|blob", sample.definition)]
    assert len(texts) > 3
    _check(server, database, [(replace(sample, values=()), ("''", "('')", "'a'")) for sample in texts])


def test_empty_texts_that_mariadb_reads_as_null(mariadb: EmbeddedMariaDB) -> None:
    mariadb.create_database("nulls")
    found = [sample for sample in types_of(mariadb) if re.search("text|blob|char|enum|set", sample.definition)]
    spellings = ("''", "('')", "'' 'a'", "'a' ''", "N''", "(concat('', 'a'))", "(concat('a', 'b'))", "'a'", "' '", "5")
    samples = [(replace(sample, values=()), spellings) for sample in found[:8]]
    _check(mariadb, "nulls", samples, modes=[_NULLING])


def test_numbers_as_members(server: EmbeddedMariaDB, database: str) -> None:
    """MySQL looks for a literal among the texts of the members, MariaDB takes it for the number of one."""
    numbers = ("1", "01", "true", "0", "-1", "3", "1.0", "1e0", "0x31")
    spellings = (*numbers, *(f"({number})" for number in numbers))
    kinds = ("enum('0','-1','3','1')", "set('0','-1','3','1')")
    _check(server, database, [(Sample(kind, ()), spellings) for kind in kinds], modes=[""])


@pytest.mark.matrix
def test_functions_of_constants(server: EmbeddedMariaDB, database: str) -> None:
    definitions = ["varchar(40)", "int", "date", "datetime(3)", *([] if is_mariadb(server) else ["json"])]
    _check(server, database, [(Sample(definition, ()), _FUNCTIONS) for definition in definitions])


@pytest.mark.minutes(3.5)
@pytest.mark.matrix
@pytest.mark.in_turn("flavour")
@pytest.mark.timeout(900)
def test_defaults_of_all_types(server: EmbeddedMariaDB, database: str) -> None:
    _check(server, database, [(sample, _SPELLINGS) for sample in types_of(server)])


def test_members_that_differ_in_their_case_alone(server: EmbeddedMariaDB, database: str) -> None:
    kinds = [f"{kind}('b', 'a', 'A') COLLATE utf8mb4_bin" for kind in ("enum", "set")]
    _check(server, database, [(Sample(kind, ()), ("'A'", "'a'", "'b'", "'A,a'")) for kind in kinds])
