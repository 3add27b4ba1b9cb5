"""Rewrites on a real server: values that a USING expression has made are noticed, and what keeps values is not."""

from collections.abc import Iterator
from itertools import count, product
from pathlib import Path
from random import Random

import pytest

from agent.errors import SourceError, TableLockedError
from agent.settings import SyncSettings
from agent.sources.postgres.publication import losses, published
from agent.sources.postgres.publication.newcomers import Newcomers
from agent.sources.postgres.publication.proof import Proof
from agent.sources.postgres.publication.quiet_changes import QuietChanges
from agent.sources.postgres.publication.rewrites import Rewrites
from agent.sources.postgres.publication.row_search import has_rows
from agent.sources.postgres.server.catalog import read_schemas
from agent.sources.postgres.server.connection import Connection, connect
from agent.sources.postgres.stream.catalog_lookup import Guess, look_up, verified
from capture.embedded import EmbeddedPostgres
from tests.integration.agent.sources.postgres.repack import REPACK
from tests.integration.agent.sources.postgres.sync_rig import SyncRig, drop_slots, make_rig
from tests.shared_postgres import give_back

pytestmark = pytest.mark.sample(0.25)  # make matrix runs the others

#: types that one value fits, and become each other without an expression
_KINDS = {
    "1": (
        *("text", "varchar", "varchar(9)", "varchar(5)", "char(5)", "name", "label", "short", "code"),
        *("int", "bigint", "count", "numeric", "numeric(9,2)", "numeric(12,2)", "numeric(9,4)", "oid", "float8"),
    ),
    "2024-02-29 01:02:03": ("timestamp", "timestamp(3)", "timestamp(6)", "timestamptz", "timestamptz(2)", "date"),
    "01:02:03": ("time", "time(2)", "time(6)", "interval"),
    "101": ("bit(3)", "varbit", "varbit(5)", "varbit(9)"),
    "10.0.0.0/8": ("inet", "cidr"),
    "{1}": ("int[]", "bigint[]", "text[]", "varchar[]", "varchar(5)[]"),
    "[1]": ("json", "jsonb"),
    "ok": ("mood", "text"),
}
_MADE = """
CREATE TYPE mood AS ENUM ('sad', 'ok');
CREATE DOMAIN label AS text;
CREATE DOMAIN short AS varchar(5);
CREATE DOMAIN code AS text CHECK (value <> '');
CREATE DOMAIN count AS int CHECK (value > -99);
CREATE DOMAIN filled AS text DEFAULT 'x' CHECK (value <> '');
CREATE TABLE parent (id int, v varchar(9));
"""
#: domains with constraints, and their base: for these the server rewrites the table with an expression and without
_CHECKED = {"code", "count"}
#: each keeps the values of t, or sends them
_HARMLESS = (
    "VACUUM FULL t",
    "CLUSTER t USING t_pkey",
    "TRUNCATE t",
    "ALTER TABLE t ALTER v SET STATISTICS 50",
    "ALTER TABLE t ALTER v SET NOT NULL",
    "ALTER TABLE t ALTER v SET DEFAULT 'x'",
    "ALTER TABLE t RENAME v TO u",
    "ALTER TABLE t SET ACCESS METHOD heap",
    "ALTER TABLE t ADD w int DEFAULT 5",
    "ALTER TABLE t ADD w float DEFAULT random()",
    "ALTER TABLE t ADD w int; VACUUM FULL t; UPDATE t SET w = 5 WHERE id = 1",
    "ALTER TABLE t ADD w int DEFAULT 5; ALTER TABLE t ALTER w DROP DEFAULT",
    "ALTER TABLE t ALTER id TYPE bigint",
    "ALTER TABLE t ALTER id TYPE bigint USING id",
    "ALTER TABLE t ALTER v TYPE varchar",
    "ALTER TABLE t ALTER v TYPE text, ALTER v SET STORAGE EXTERNAL",
    "ALTER TABLE t DROP v; VACUUM FULL t",
    "UPDATE t SET v = 'x'; VACUUM FULL t",
    "UPDATE t SET v = 'x'; CLUSTER t USING t_pkey; CREATE INDEX ON t (v); REINDEX TABLE t",
    "ALTER TABLE t ALTER v SET NOT NULL; VACUUM FULL t",
    "ALTER TABLE t ALTER v SET STATISTICS 50; CLUSTER t USING t_pkey; ALTER TABLE t RENAME v TO u",
    "DELETE FROM t; ALTER TABLE t ALTER v TYPE text USING v || 'x'",
    "BEGIN; TRUNCATE t; COMMIT; ALTER TABLE t ALTER v SET NOT NULL; INSERT INTO t VALUES (5, 'e')",
    "BEGIN; ALTER TABLE t ALTER v TYPE text USING v || 'x'; ROLLBACK",
    "ALTER TABLE t RENAME v TO u; ALTER TABLE t ALTER id TYPE bigint; ALTER TABLE t ALTER u SET NOT NULL",
    "BEGIN; ALTER TABLE t INHERIT parent; TRUNCATE t; INSERT INTO t VALUES (5, 'e'); COMMIT",
    "BEGIN; TRUNCATE t; ALTER TABLE t ADD w int GENERATED ALWAYS AS IDENTITY; INSERT INTO t VALUES (5, 'e'); COMMIT",
    "ALTER TABLE t ADD w filled",
    "BEGIN; ALTER TABLE t ALTER id TYPE bigint, ALTER v SET NOT NULL; INSERT INTO t VALUES (99, 'x'); COMMIT",
    "VACUUM FULL pg_attribute; VACUUM FREEZE t; ANALYZE t",
    "ALTER TABLE plain ALTER v TYPE text USING v || 'x'",
    "CALL repack('t')",
    "CALL repack('t'); UPDATE t SET v = 'x'; CALL repack('t'); INSERT INTO t VALUES (99, 'z')",
    "ALTER TABLE t ADD w int; CALL repack('t'); UPDATE t SET w = 5 WHERE id = 1",
    "ALTER TABLE t ADD w int DEFAULT 5; CALL repack('t')",
    "ALTER TABLE t RENAME v TO u; CALL repack('t')",
    "ALTER TABLE t ADD w float DEFAULT random(); UPDATE t SET v = 'x'; ALTER TABLE t ADD CHECK (id > 0)",
)
#: each gives t values that no stream has
_HARMFUL = (
    "ALTER TABLE t ALTER v TYPE text USING upper(v)",
    "ALTER TABLE t ALTER id TYPE bigint, ALTER v TYPE varchar(9) USING upper(v)",
    "ALTER TABLE t ALTER v TYPE text USING upper(v); ALTER TABLE t ALTER id TYPE bigint",
    "ALTER TABLE t ALTER v TYPE varchar USING upper(v); VACUUM FULL t",
    "VACUUM FULL t; ALTER TABLE t ALTER v TYPE text USING upper(v); ALTER TABLE t ALTER v SET NOT NULL",
    "ALTER TABLE t ALTER v TYPE text USING upper(v); INSERT INTO t VALUES (99, 'z'); UPDATE t SET v = 'q' WHERE id = 1",
    "TRUNCATE t; INSERT INTO t VALUES (5, 'e'); ALTER TABLE t ALTER v TYPE text USING upper(v)",
    "BEGIN; SAVEPOINT s; ALTER TABLE t ALTER v TYPE text USING upper(v); RELEASE s; COMMIT",
    "ALTER TABLE t ADD w int, ALTER v TYPE text USING upper(v)",
    "ALTER TABLE t ALTER v TYPE text USING upper(v); ALTER TABLE t RENAME v TO u",
    "ALTER TABLE t ALTER v TYPE code USING upper(v)",
    "ALTER TABLE t ADD w float DEFAULT random(); ALTER TABLE t ALTER w DROP DEFAULT",
    "ALTER TABLE t ADD w int DEFAULT 5; ALTER TABLE t ALTER w DROP DEFAULT; VACUUM FULL t",
    "ALTER TABLE t ADD w filled; ALTER DOMAIN filled DROP DEFAULT",
    "ALTER TABLE t ALTER v TYPE text USING upper(v); CALL repack('t')",
    "ALTER TABLE t ALTER v TYPE text USING upper(v), ALTER v SET NOT NULL; CALL repack('t'); VACUUM t",
    "ALTER TABLE t ADD w float DEFAULT random(); CALL repack('t')",
    "ALTER TABLE t ADD w int GENERATED ALWAYS AS IDENTITY; CALL repack('t'); INSERT INTO t VALUES (99, 'z')",
    "ALTER TABLE t ADD w float DEFAULT random(); ALTER TABLE t ALTER w DROP DEFAULT; CALL repack('t')",
    # a column that the server adds without a rewrite is no reason for the new file
    "ALTER TABLE t ALTER v TYPE text USING upper(v); ALTER TABLE t RENAME v TO u; ALTER TABLE t ADD w int",
    # the catalog has no trace of what was written in between
    "ALTER TABLE t SET UNLOGGED; UPDATE t SET v = 'u'; ALTER TABLE t SET LOGGED",
    "ALTER TABLE t SET UNLOGGED; DELETE FROM t WHERE id > 1; ALTER TABLE t SET LOGGED; CREATE INDEX ON t (v)",
    "ALTER TABLE t SET UNLOGGED; UPDATE t SET v = 'u'; ALTER TABLE t SET LOGGED; ALTER TABLE t ADD w int DEFAULT 5",
    "ALTER TABLE t SET UNLOGGED; ALTER TABLE t SET LOGGED; INSERT INTO t VALUES (99, 'z'); GRANT SELECT ON t TO public",
)
#: in each the sink compares the values of v with the source's, as another column's type has made the server rewrite t
_COMPARED = (
    "ALTER TABLE t ALTER id TYPE bigint, ALTER v TYPE text",
    "ALTER TABLE t ALTER id TYPE bigint, ALTER v TYPE text USING upper(v)",
    "BEGIN; ALTER TABLE t ALTER v TYPE text; ALTER TABLE t ALTER id TYPE bigint; COMMIT",
)


@pytest.fixture
def connection(postgres: EmbeddedPostgres, request: pytest.FixtureRequest) -> Iterator[Connection]:
    name = f"rewrites_{abs(hash(request.node.name)) % 10**8}"
    postgres.create_database(name)
    with connect(postgres.uri(name)) as connection:
        connection.query(_MADE + REPACK)
        yield connection
    give_back(postgres, name)


def _proof(
    connection: Connection, before: Proof | None, tables: list[int], *, was_truncated: bool = False
) -> tuple[Proof, dict[int, str]]:
    """The next one, as it is stored, and what is found on the way."""
    with published.one_moment(connection, before.files if before else {}):
        now = published.read(connection, (), tables)
        rewrites = Rewrites(Newcomers(connection, before or Proof(), now), lambda *_: was_truncated)
        found = {table: rewrites.trouble(table, None) for table in tables} if before else {}
    proof = losses.following(before, now, "", known=tables) if before else losses.first(now, "", tables)
    return Proof.from_text(proof.to_text()), found


class _Busy(Connection):
    """A connection to a server on which others write: transactions begin between any two of our statements."""

    def __init__(self, connection: Connection, other: Connection) -> None:
        self._connection, self._other = connection, other
        self.server_version = connection.server_version

    def query(self, sql: str, *, timeout_s: float = 60) -> list[tuple[str | None, ...]]:
        rows = self._connection.query(sql, timeout_s=timeout_s)
        for _ in range(9):
            self._other.query("SELECT pg_catalog.pg_current_xact_id()")
        return rows


def _number(connection: Connection, sql: str) -> int:
    return int(connection.query(f"SELECT ({sql})::int8")[0][0] or 0)


@pytest.mark.parametrize("value", [pytest.param("1", marks=pytest.mark.matrix), *list(_KINDS)[1:]])
def test_an_expression_is_seen_wherever_the_server_would_have_kept_the_values(
    connection: Connection, value: str
) -> None:
    """Two tables for each pair: one altered with an expression, one without."""
    pairs = list(product(_KINDS[value], repeat=2))
    names = [f"{kind}{at}" for at in range(len(pairs)) for kind in ("plain", "using")]
    for at, (old, _) in enumerate(pairs):
        for kind in ("plain", "using"):
            connection.query(f"CREATE TABLE {kind}{at} (id int PRIMARY KEY, v {old})")
            connection.query(f"INSERT INTO {kind}{at} SELECT n, '{value}' FROM generate_series(1, 3) n")
    ids = {name: _number(connection, f"'{name}'::regclass::oid") for name in names}
    files = {name: _number(connection, f"pg_relation_filenode('{name}')") for name in names}
    before, _ = _proof(connection, None, list(ids.values()))
    impossible = set()
    for at, (_, new) in enumerate(pairs):
        try:
            connection.query(f"ALTER TABLE plain{at} ALTER v TYPE {new}")
        except Exception:
            impossible.add(at)
        connection.query(f"ALTER TABLE using{at} ALTER v TYPE {new} USING CASE WHEN id > 1 THEN '{value}'::{new} END")
    proof, found = _proof(connection, before, list(ids.values()))
    kept = 0
    for at, pair in enumerate(pairs):
        is_suspect = bool(found[ids[f"plain{at}"]])
        assert not is_suspect or (pair[1] in _CHECKED and pair[0] != pair[1]), pair
        assert not is_suspect or found[ids[f"using{at}"]], pair
        assert is_suspect or pair not in {("text", "code"), ("label", "code"), ("int", "count")}, pair
        depends_on_zone = len({"timestamptz" in kind for kind in pair}) > 1  # which the sink holds by itself
        if at in impossible or depends_on_zone:
            continue
        is_kept = files[f"plain{at}"] == _number(connection, f"pg_relation_filenode('plain{at}')")
        kept += is_kept
        assert not is_kept or found[ids[f"using{at}"]], pair
    assert kept >= len(_KINDS[value])
    assert not any(_proof(connection, proof, list(ids.values()))[1].values())  # nobody finds it twice


_TABLES = "CREATE TABLE t (id int PRIMARY KEY, v varchar(9)); CREATE TABLE plain (id int PRIMARY KEY, v text)"
_ROWS = "INSERT INTO t SELECT n, 'a' FROM generate_series(1, 50) n"


@pytest.mark.parametrize("statements", [*_HARMLESS, *_COMPARED, *_HARMFUL])
def test_a_table_is_suspect_iff_its_values_are_in_no_stream(connection: Connection, statements: str) -> None:
    for statement in (*_TABLES.split("; "), _ROWS, "ALTER TABLE t ADD m int DEFAULT 3"):
        connection.query(statement)
    tables = [_number(connection, f"'{name}'::regclass::oid") for name in ("t", "plain")]
    before, _ = _proof(connection, None, tables)
    for statement in statements.split("; "):
        connection.query(statement)
    _, found = _proof(connection, before, tables, was_truncated="TRUNCATE" in statements)
    assert [table for table in tables if found[table]] == (tables[:1] if statements in _HARMFUL else [])


def test_what_others_write_meanwhile_makes_no_row_an_old_one(
    connection: Connection, postgres: EmbeddedPostgres
) -> None:
    for statement in (*_TABLES.split("; "), _ROWS):
        connection.query(statement)
    table = _number(connection, "'t'::regclass::oid")
    before, _ = _proof(connection, None, [table])
    connection.query("ALTER TABLE t ALTER v TYPE text USING upper(v)")
    with connect(postgres.uri()) as other:
        assert _proof(_Busy(connection, other), before, [table])[1][table]


@pytest.mark.sample(1.0)
def test_a_table_keeps_its_file_while_its_rows_are_judged(connection: Connection, postgres: EmbeddedPostgres) -> None:
    """Else the catalog has one file, and the rows are those of another."""
    for statement in (*_TABLES.split("; "), _ROWS):
        connection.query(statement)
    ids = {name: _number(connection, f"'{name}'::regclass::oid") for name in ("t", "plain")}
    before, _ = _proof(connection, None, list(ids.values()))
    connection.query("ALTER TABLE t ADD w float DEFAULT random()")
    database = connection.query("SELECT current_database()")[0][0]
    with connect(postgres.uri(str(database))) as other, published.one_moment(connection, before.files):
        other.query("SET lock_timeout = 50")
        with pytest.raises(TableLockedError):
            other.query("TRUNCATE t")
        other.query("TRUNCATE plain")  # as far as is known, it has no other file
    connection.query("TRUNCATE t")


@pytest.mark.sample(1.0)
@pytest.mark.parametrize("otherwise", [True, False])
def test_a_table_that_is_rewritten_meanwhile_is_not_taken_for_an_empty_one(
    connection: Connection, postgres: EmbeddedPostgres, *, otherwise: bool
) -> None:
    for statement in (*_TABLES.split("; "), _ROWS):
        connection.query(statement)
    ids = {name: _number(connection, f"'{name}'::regclass::oid") for name in ("t", "plain")}
    database = connection.query("SELECT current_database()")[0][0]
    with connect(postgres.uri(str(database))) as other, published.one_moment(connection):
        now = published.read(connection, (), list(ids.values()))
        t, plain = (now.tables[ids[name]] for name in ("t", "plain"))
        assert has_rows(connection, t, "true", otherwise=otherwise)
        assert not has_rows(connection, t, "id > 99", otherwise=otherwise)
        assert not has_rows(connection, plain, "true", otherwise=otherwise)
        other.query("ALTER TABLE t ALTER id TYPE bigint")
        assert has_rows(connection, t, "true", otherwise=otherwise) is otherwise


def _unknown(connection: Connection, table: int, column: str) -> dict[str, Guess]:
    at = f"attrelid = {table} AND attname = '{column}'"
    number = _number(connection, f"(SELECT attnum FROM pg_catalog.pg_attribute WHERE {at})")
    return {column: Guess(number, None, is_required=False)}


def test_rows_of_after_a_column_are_not_taken_for_older_ones(
    connection: Connection, postgres: EmbeddedPostgres
) -> None:
    for statement in (*_TABLES.split("; "), "ALTER TABLE t ADD w int DEFAULT random() * 9"):
        connection.query(statement)
    table = _number(connection, "'t'::regclass::oid")
    connection.query("INSERT INTO t SELECT n, 'a' FROM generate_series(1, 3) n")
    with connect(postgres.uri()) as other:
        assert verified(_Busy(connection, other), table, _unknown(connection, table, "w")) == ({}, [])
    connection.query("ALTER TABLE public.t ADD x int DEFAULT random() * 9")
    assert verified(connection, table, _unknown(connection, table, "x")) == ({}, ["x"])


#: what a new column holds in rows of before: unknown, or NULL or one value
_ADDED = {
    "ALTER TABLE t ADD w float DEFAULT random()": "unknown",
    "ALTER TABLE t ADD w float DEFAULT random(); ALTER TABLE t ALTER id TYPE bigint": "unknown",
    "ALTER TABLE t ADD w int GENERATED ALWAYS AS IDENTITY; ALTER TABLE t ALTER id TYPE bigint": "unknown",
    "BEGIN; ALTER TABLE t ADD w float DEFAULT random(); ALTER TABLE t ALTER id TYPE bigint; COMMIT": "unknown",
    "ALTER TABLE t ADD w float DEFAULT random(); ALTER TABLE t ADD z float DEFAULT random()": "unknown",
    "ALTER TABLE t ADD w float DEFAULT random(); ALTER TABLE t SET UNLOGGED; ALTER TABLE t SET LOGGED": "unknown",
    "ALTER TABLE t ADD w float DEFAULT random(); VACUUM FULL t": "unknown",
    "ALTER TABLE t ADD w float DEFAULT random(); CALL repack('t')": "unknown",
    "ALTER TABLE t ADD w int DEFAULT 5; ALTER TABLE t ALTER w SET DEFAULT 6; ALTER TABLE t ADD x serial": "unknown",
    "ALTER TABLE t ADD w int DEFAULT 5; ALTER TABLE t ALTER id TYPE bigint": "5",
    "ALTER TABLE t ADD w int; ALTER TABLE t ALTER w SET DEFAULT 5; ALTER TABLE t ALTER id TYPE bigint": "NULL",
    "ALTER TABLE t ADD w int; ALTER TABLE t ALTER w SET DEFAULT 5; CALL repack('t')": "NULL",
    # all rows are sent with it
    "ALTER TABLE t ADD w float DEFAULT random(); UPDATE t SET v = 'x'": "NULL",
    "ALTER TABLE t ADD w float DEFAULT random(); TRUNCATE t; INSERT INTO t VALUES (1, 'x')": "NULL",
    "ALTER TABLE t ADD w float DEFAULT random(); BEGIN; TRUNCATE t; INSERT INTO t VALUES (1, 'x'); COMMIT": "NULL",
}


@pytest.mark.sample(1.0)
@pytest.mark.parametrize("statements", _ADDED)
def test_rows_of_a_later_rewrite_are_older_than_a_new_column(connection: Connection, statements: str) -> None:
    for statement in (*_TABLES.split("; "), _ROWS, *statements.split("; ")):
        connection.query(statement)
    table = _number(connection, "'t'::regclass::oid")
    guess = look_up(connection, table).guesses["w"]
    fills, unknown = verified(connection, table, {"w": guess})
    assert ("unknown" if unknown else fills.get("w", "NULL")) == _ADDED[statements]


class _Altered(Connection):
    """A connection to a server on which another session alters a table behind this many of our statements."""

    def __init__(self, connection: Connection, other: Connection, statement: str, behind: int) -> None:
        self._connection, self._other, self._statement = connection, other, statement
        self.server_version, self.left = connection.server_version, behind
        self.is_kept_out = False

    def query(self, sql: str, *, timeout_s: float = 60) -> list[tuple[str | None, ...]]:
        try:
            return self._connection.query(sql, timeout_s=timeout_s)
        finally:
            self.left -= 1
            if self.left == 0:
                try:
                    for statement in self._statement.split("; "):
                        self._other.query(statement)
                except TableLockedError:
                    self.is_kept_out = True


#: what another session does while the rows are read, and what may be found then, of a column whose values differ
_MEANWHILE = {
    "ALTER TABLE t ALTER id TYPE bigint": {"unknown"},
    "ALTER TABLE t SET UNLOGGED": {"unknown"},
    "VACUUM FULL t": {"unknown"},
    "CALL repack('t')": {"unknown"},
    "ALTER TABLE t RENAME w TO x": {"unknown"},
    "ALTER TABLE t RENAME TO y": {"unknown"},
    "ALTER TABLE t ADD x serial": {"unknown"},
    # a later event of the stream is about that
    "ALTER TABLE t DROP w": {"unknown", "NULL"},
    "TRUNCATE t": {"unknown", "NULL"},
    "DROP TABLE t": {"unknown", "NULL"},
}


@pytest.mark.sample(0.5)
@pytest.mark.parametrize("meanwhile", _MEANWHILE)
def test_a_table_may_be_altered_while_its_older_rows_are_read(
    connection: Connection, postgres: EmbeddedPostgres, meanwhile: str
) -> None:
    database = connection.query("SELECT current_database()")[0][0]
    with connect(postgres.uri(str(database))) as other:
        for behind in count(1):
            for statement in (
                "DROP TABLE IF EXISTS t, y, plain",
                *_TABLES.split("; "),
                _ROWS,
                "ALTER TABLE t ADD w float DEFAULT random()",
            ):
                other.query(statement)
            table = _number(other, "'t'::regclass::oid")
            altered = _Altered(connection, other, meanwhile, behind)
            fills, unknown = verified(altered, table, look_up(connection, table).guesses)
            found = "unknown" if "w" in unknown else fills.get("w", "NULL")
            assert found in _MEANWHILE[meanwhile], f"behind statement {behind}"
            if altered.left > 0:
                break
    assert behind > 5


@pytest.mark.sample(0.1)
@pytest.mark.parametrize("is_moved", [False, True], ids=["as it was", "moved"])
@pytest.mark.parametrize("meanwhile", _HARMFUL)
def test_values_that_no_stream_has_are_found_whenever_they_come(
    connection: Connection, postgres: EmbeddedPostgres, meanwhile: str, is_moved: bool
) -> None:
    """By the reading of the catalog between whose statements they come, or by the next one."""
    database = connection.query("SELECT current_database()")[0][0]
    with connect(postgres.uri(str(database))) as other:
        for behind in count(1):
            renewed = "DROP TABLE IF EXISTS t, plain; ALTER DOMAIN filled SET DEFAULT 'x'"
            for statement in (*renewed.split("; "), *_TABLES.split("; "), _ROWS):
                other.query(statement)
            table = _number(other, "'t'::regclass::oid")
            before, _ = _proof(connection, None, [table])
            if is_moved:  # its rows are judged
                other.query("VACUUM FULL t")
            altered = _Altered(connection, other, meanwhile, behind)
            other.query("SET lock_timeout = 20")
            between, first = _proof(altered, before, [table])
            other.query("ROLLBACK; RESET lock_timeout")
            if altered.left > 0:
                break
            if not altered.is_kept_out:
                _, second = _proof(connection, between, [table])
                assert first[table] or second[table], f"behind statement {behind}"
    assert behind > 5


@pytest.mark.sample(0.5)
@pytest.mark.parametrize(
    "meanwhile",
    [
        *_MEANWHILE,
        "ALTER TABLE t DROP CONSTRAINT t_pkey, ALTER v SET NOT NULL, ADD PRIMARY KEY (v)",
        "ALTER TABLE t ALTER v TYPE text, ALTER w SET DEFAULT 3",
        "ALTER TABLE t ADD m int DEFAULT 4, DROP v",
        "BEGIN; ALTER TABLE t RENAME TO y; ALTER TABLE plain RENAME TO t; COMMIT",
    ],
)
def test_a_table_is_looked_up_as_of_one_moment(
    connection: Connection, postgres: EmbeddedPostgres, meanwhile: str
) -> None:
    database = connection.query("SELECT current_database()")[0][0]
    with connect(postgres.uri(str(database))) as other:
        for behind in count(1):
            for statement in ("DROP TABLE IF EXISTS t, y, plain", *_TABLES.split("; "), "ALTER TABLE t ADD w int"):
                other.query(statement)
            table = _number(other, "'t'::regclass::oid")
            before = look_up(connection, table)
            altered = _Altered(connection, other, meanwhile, behind)
            found = look_up(altered, table)
            if altered.left > 0:
                break
            assert found in (before, look_up(connection, table)), f"behind statement {behind}"
    assert behind > 5


#: what may be done to t in quick succession; none of it changes a row that the stream sends
_QUICK = (
    "ALTER TABLE t ADD {new} float DEFAULT random()",
    "ALTER TABLE t ADD {new} int GENERATED BY DEFAULT AS IDENTITY",
    "ALTER TABLE t ADD {new} text DEFAULT clock_timestamp()::text, ALTER id TYPE bigint",
    "ALTER TABLE t ADD {new} int DEFAULT 5",
    "ALTER TABLE t ADD {new} int NOT NULL DEFAULT 6",
    "ALTER TABLE t ADD {new} filled",
    "ALTER TABLE t ADD {new} int",
    "ALTER TABLE t ALTER {new} SET DEFAULT 7",
    "ALTER TABLE t ALTER {new} DROP DEFAULT",
    "ALTER TABLE t ALTER {new} SET NOT NULL",
    "ALTER TABLE t ALTER {new} TYPE bigint",
    "ALTER TABLE t RENAME {new} TO {new}r",
    "ALTER TABLE t DROP {new}",
    "ALTER DOMAIN filled SET DEFAULT 'y'",
    "ALTER TABLE t ALTER id TYPE bigint",
    "ALTER TABLE t ALTER v TYPE text",
    "ALTER TABLE t ALTER v TYPE text USING upper(v)",
    "ALTER TABLE t ALTER v SET NOT NULL",
    "ALTER TABLE t SET UNLOGGED",
    "ALTER TABLE t SET LOGGED",
    "ALTER TABLE t ADD CHECK (id > 0)",
    "CREATE INDEX ON t (id)",
    "REINDEX TABLE t",
    "GRANT SELECT ON t TO public",
    "VACUUM FULL t",
    "CLUSTER t USING t_pkey",
    "CALL repack('t')",
)


@pytest.mark.sample(0.12)
@pytest.mark.parametrize("seed", range(40))
def test_whatever_is_done_in_quick_succession_is_seen_or_the_table_is_held(connection: Connection, seed: int) -> None:
    """What is known of the rows, after all of it: their new columns' values, and that the others are as they were."""
    random = Random(seed)
    for _ in range(12):
        connection.query("RESET search_path")  # a lookup needs none
        connection.query("DROP TABLE IF EXISTS t, plain; ALTER DOMAIN filled SET DEFAULT 'x'")
        for statement in (*_TABLES.split("; "), _ROWS):
            connection.query(statement)
        table = _number(connection, "'t'::regclass::oid")
        declared = read_schemas(connection, [table])[table]
        before, _ = _proof(connection, None, [table])
        done = [statement for statement in _quick(random) if _is_done(connection, statement)]
        _, found = _proof(connection, before, [table])
        catalog = look_up(connection, table)
        new = {name: number for name, number in catalog.places.items() if number > len(declared.columns)}
        fills, unknown = verified(connection, table, {n: g for n, g in catalog.guesses.items() if n in new})
        if found[table] or unknown or "SET UNLOGGED" in str(done):
            continue
        for name in new:
            value = catalog.fills.get(name, fills.get(name))
            rows = connection.query(f"SELECT DISTINCT {name}::text FROM public.t")
            assert rows == [(value,)], done
        assert connection.query("SELECT DISTINCT v::text FROM public.t") == [("a",)], done


def _quick(random: Random) -> Iterator[str]:
    names = ["w0"]
    for number in range(random.choice((2, 3, 5))):
        statement = random.choice(_QUICK)
        names += [f"w{number}"] * (" ADD {new}" in statement)
        yield statement.format(new=names[-1] if " ADD {new}" in statement else random.choice(names))


def _is_done(connection: Connection, statement: str) -> bool:
    try:
        connection.query(statement)
    except SourceError:
        return False
    return True


@pytest.fixture
def rig(postgres: EmbeddedPostgres, tmp_path: Path) -> Iterator[SyncRig]:
    rig = make_rig(postgres, tmp_path, _TABLES, ["t", "plain"])
    rig.settings = SyncSettings(progress_s=0.05)
    with connect(rig.uri) as connection:
        rig.first_schemas = read_schemas(connection, [table.table_id for table in rig.tables])
    yield rig
    drop_slots(rig)


async def test_what_keeps_the_values_holds_no_table(rig: SyncRig) -> None:
    async with rig.running():
        rig.execute(_ROWS)
        await rig.wait_resolved()
        rig.execute("VACUUM FULL t")
        rig.execute("ALTER TABLE t ALTER v SET STATISTICS 50, ALTER v SET NOT NULL")
        await rig.wait_resolved()
    rig.execute("BEGIN; TRUNCATE t; ALTER TABLE t ALTER v SET DEFAULT 'x'; INSERT INTO t VALUES (5, 'e'); COMMIT")
    async with rig.running(rig.unit("b")):
        await rig.wait_resolved()
    assert [change.reason for record in rig.ddl() for change in record.holds] == []


@pytest.mark.parametrize(
    ("default", "drop"),
    [
        ("float DEFAULT random()", "TABLE t ALTER w DROP DEFAULT"),
        ("float DEFAULT 5", "TABLE t ALTER w DROP DEFAULT"),
        ("ratio", "DOMAIN ratio DROP DEFAULT"),
    ],
)
async def test_a_default_that_is_dropped_before_the_stream_declares_its_column_is_missed(
    rig: SyncRig, monkeypatch: pytest.MonkeyPatch, default: str, drop: str
) -> None:
    """The catalog is read with the default and without; a constant is kept in the catalog."""
    monkeypatch.setattr(QuietChanges, "look", lambda *_: None)  # else the stream may be told of the column in between
    rig.execute("CREATE DOMAIN ratio AS float DEFAULT 0.5 CHECK (value < 9)")
    async with rig.running():
        for statement in (
            _ROWS,
            f"ALTER TABLE t ADD w {default}",
            f"ALTER {drop}",
            "INSERT INTO t VALUES (99, 'b', 1)",
        ):
            rig.execute(statement)
            await rig.wait_resolved()
    [change] = [change for record in rig.ddl() for change in record.changes]
    assert (change.is_hold, change.fills) == ((False, {"w": "5"}) if default == "float DEFAULT 5" else (True, {}))


@pytest.mark.parametrize("is_running", [False, True])
async def test_values_that_no_stream_has_hold_their_table_from_the_last_proof_on(
    rig: SyncRig, *, is_running: bool
) -> None:
    alter = "ALTER TABLE t ALTER v TYPE text USING upper(v)"
    async with rig.running():
        rig.execute(_ROWS)
        at = await rig.wait_resolved()
        if is_running:
            rig.execute(alter)
            await rig.wait_resolved()
    if not is_running:
        rig.execute(alter)
    async with rig.running(rig.unit("b")):
        rig.execute("INSERT INTO t VALUES (100, 'b'); INSERT INTO plain VALUES (1, 'c')")
        await rig.wait_resolved()
    [(record, held)] = [(record, change) for record in rig.ddl() for change in record.holds]
    assert "table public.t was rewritten when its column" in held.reason
    assert "filter rule" in held.reason
    assert at.resolved_ts < record.ts <= max(event[1] for event in rig.logged())


@pytest.mark.parametrize(
    ("statements", "is_held"),
    [
        ("ALTER TABLE plain DROP v; ALTER TABLE plain ADD v text", True),
        ("ALTER TABLE plain DROP v, ADD v text DEFAULT 'd'", True),
        ("ALTER TABLE plain DROP v; ALTER TABLE plain ADD v int", False),
        ("ALTER TABLE plain DROP v; INSERT INTO plain VALUES (8); ALTER TABLE plain ADD v text", False),
        ("ALTER TABLE plain ADD w text; ALTER TABLE plain RENAME v TO x; ALTER TABLE plain RENAME w TO v", False),
        ("BEGIN; ALTER TABLE plain DROP v; ALTER TABLE plain ADD v text; ROLLBACK", False),
    ],
)
async def test_a_column_that_is_another_one_of_its_name_holds_its_table(
    rig: SyncRig, statements: str, *, is_held: bool
) -> None:
    """Also before a row says anything of it."""
    async with rig.running():
        rig.execute("INSERT INTO plain VALUES (1, 'a')")
        await rig.wait_resolved()
        for statement in [statements] if statements.startswith("BEGIN") else statements.split("; "):
            rig.execute(statement)
        await rig.wait_resolved()
        rig.execute("INSERT INTO plain VALUES (9)")
        await rig.wait_resolved()
    reasons = [change.reason for record in rig.ddl() for change in record.holds]
    assert [("column v was dropped and added again" in reason) for reason in reasons] == [True] * is_held
