"""Facts of user-made types: what alters the text of old rows is noticed for the tables that have them, and no more."""

from collections.abc import Iterator

import pytest

from agent.sources.postgres.publication import type_facts
from agent.sources.postgres.server.connection import Connection, connect
from capture.embedded import EmbeddedPostgres
from tests.shared_postgres import give_back

_MADE = """
CREATE TYPE mood AS ENUM ('sad', 'ok');
CREATE DOMAIN d_mood AS mood;
CREATE TYPE host AS (at inet, mood mood);
CREATE TYPE moods AS RANGE (subtype = mood);
CREATE TYPE other AS ENUM ('x');
CREATE TABLE plain (id int PRIMARY KEY, v text);
CREATE TABLE direct (id int PRIMARY KEY, v mood);
CREATE TABLE domains (id int PRIMARY KEY, v d_mood[]);
CREATE TABLE composite (id int PRIMARY KEY, v host);
CREATE TABLE lists (id int PRIMARY KEY, v host[]);
CREATE TABLE ranges (id int PRIMARY KEY, v moods);
CREATE TABLE rows_of (id int PRIMARY KEY, v plain);
CREATE TABLE others (id int PRIMARY KEY, v other);
CREATE TYPE item AS (price money);
CREATE TABLE prices (id int PRIMARY KEY, v money);
CREATE TABLE price_lists (id int PRIMARY KEY, v money[]);
CREATE TABLE items (id int PRIMARY KEY, v item);
"""
_OF_MONEY = {"prices", "price_lists", "items"}
_ALL = ("plain", "direct", "domains", "composite", "lists", "ranges", "rows_of", "others", *_OF_MONEY)
_OF_MOOD = {"direct", "domains", "composite", "lists", "ranges"}
_OF_HOST = {"composite", "lists"}


@pytest.fixture
def connection(postgres: EmbeddedPostgres, request: pytest.FixtureRequest) -> Iterator[Connection]:
    name = f"facts_{abs(hash(request.node.name)) % 10**8}"
    postgres.create_database(name)
    with connect(postgres.uri(name)) as connection:
        connection.query(_MADE)
        yield connection
    give_back(postgres, name)


def _tables(connection: Connection) -> dict[int, str]:
    return {int(connection.query(f"SELECT '{name}'::regclass::oid::int8")[0][0] or 0): name for name in _ALL}


@pytest.mark.sample(0.2)
@pytest.mark.parametrize(
    ("statement", "altered"),
    [
        ("ALTER TYPE mood RENAME VALUE 'ok' TO 'fine'", _OF_MOOD),
        ("ALTER TYPE mood RENAME VALUE 'ok' TO 'fine'; ALTER TYPE mood RENAME VALUE 'sad' TO 'ok'", _OF_MOOD),
        ("ALTER TYPE mood ADD VALUE 'glad'", set()),
        ("ALTER TYPE mood ADD VALUE 'glad' BEFORE 'sad'", set()),
        ("ALTER TYPE mood RENAME TO temper", set()),
        ("ALTER TYPE other RENAME VALUE 'x' TO 'y'", {"others"}),
        ("ALTER TYPE host ADD ATTRIBUTE port int", _OF_HOST),
        ("ALTER TYPE host DROP ATTRIBUTE mood", _OF_HOST),
        ("ALTER TYPE host RENAME ATTRIBUTE at TO address", set()),
        ("ALTER TABLE plain ADD w int", {"rows_of"}),
        ("ALTER TABLE plain DROP v", {"rows_of"}),
        ("ALTER TABLE direct ADD w mood", set()),
        ("SET lc_monetary = 'POSIX'", _OF_MONEY),
        ("ALTER TABLE others DROP v; ALTER TABLE others ADD v host", set()),
        ("INSERT INTO direct VALUES (1, 'ok'); VACUUM FULL pg_enum; ANALYZE", set()),
    ],
)
def test_what_alters_the_text_of_old_rows_is_noticed(connection: Connection, statement: str, altered: set[str]) -> None:
    tables = _tables(connection)
    before = type_facts.read(connection, tables)
    assert {tables[table] for table in type_facts.tables_with_types(connection, tables)} == {*_ALL} - {"plain"}
    digest = type_facts.DIGEST.format(typed=type_facts.ids_of(tables))
    seen = connection.query(digest)
    for part in statement.split("; "):
        connection.query(part)
    now = type_facts.read(connection, tables)
    assert {tables[table] for table in type_facts.altered(before.values, now)} == altered
    assert not altered or connection.query(digest) != seen
    assert type_facts.altered(now.values, now) == {}
