"""PostgreSQL as a soak's source: random statements of its grammar, its catalog, its rows in canonical form."""

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import psycopg

from capture.embedded import EmbeddedPostgres
from tests.soak import literals, rows
from tests.soak.source import Column, Row, Session, StatementRefused, Table

_DATABASE = "soak"
_PUBLICATION = "soak_all"
_KEYS = ("integer", "bigint", "text", "uuid", "date", "numeric(10,2)", "smallint", "bytea", "timestamp")
_TYPES = (
    *(
        "smallint",
        "integer",
        "bigint",
        "real",
        "double precision",
        "numeric(10,2)",
        "numeric(12,4)",
        "numeric",
        "boolean",
    ),
    *("text", "varchar(10)", "varchar(40)", "char(5)", "bytea", "date", "time", "timestamp", "timestamptz", "uuid"),
    *("json", "jsonb", "inet", "cidr", "macaddr", "integer[]", "text[]", "interval", "bit(8)", "int4range", "mood"),
    *("money", "bit varying(9)", "tsvector", "jsonpath", "point", "oid", "pg_lsn", "time with time zone", "macaddr8"),
    *("int4multirange", "tstzrange", "mood[]", "pair", "pair[]", "cents", "places", "xid8", "name", '"char"'),
)
#: literals of types that have no generator of their own
_SPELLINGS = {
    "money": ("'-1.25'", "'92233720368547758.07'", "0"),
    "tsvector": ("'a:1A fat:2B,4C'", "''", "'x y'"),
    "jsonpath": ("'$.a[*] ? (@ > 1)'", "'$'", "'lax $.\"b c\"'"),
    "point": ("'(1.5,-2)'", "'(0,0)'", "'(1e300,NaN)'"),
    "oid": ("'4294967295'", "'0'", "'1'"),
    "pg_lsn": ("'16/B374D848'", "'0/0'", "'FFFFFFFF/FFFFFFFF'"),
    "macaddr8": ("'08:00:2b:01:02:03:04:05'", "'00:00:00:00:00:00:00:00'"),
    "int4multirange": ("'{}'", "'{[1,3),[5,9)}'", "'{(,)}'"),
    "tstzrange": ("'empty'", "'[2020-01-01 00:00+02,infinity)'", "'(,2021-02-03 04:05:06.789+00]'"),
    "mood[]": ("'{}'", "'{sad,NULL,happy}'"),
    "pair": ("'(1,\"x, y\")'", "'(,)'", '\'(2,"q""")\''),
    "pair[]": ("'{}'", "'{\"(1,a)\",NULL}'"),
    "cents": ("1.25", "-9999999.99", "0"),
    "places": ("'{}'", "'{1,NULL,3}'"),
    "xid8": ("'18446744073709551615'", "'3'"),
    "name": ("'n'", "''", "'é'"),
    '"char"': ("'a'", "''"),
}
#: changes of types that columns have
_OF_TYPES = (
    "ALTER TYPE mood ADD VALUE 'm{name}'",
    "ALTER TYPE mood RENAME VALUE 'ok' TO 'fine'; ALTER TYPE mood RENAME VALUE 'fine' TO 'ok'",
    "ALTER TYPE pair ADD ATTRIBUTE c{name} integer CASCADE",
    "ALTER DOMAIN cents SET DEFAULT 1.5",
)
_SET_UP = """
CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy');
CREATE TYPE pair AS (a integer, b text);
CREATE DOMAIN cents AS numeric(9,2);
CREATE DOMAIN places AS integer[];
CREATE PUBLICATION soak_all FOR ALL TABLES;
"""


class Postgres:
    name = "postgres"
    inserts_all = False
    database = "public"

    def __init__(self, directory: Path) -> None:
        self._server = EmbeddedPostgres(directory / "postgres", unsafe_no_fsync=True)

    @property
    def uri(self) -> str:
        return self._server.uri(_DATABASE)

    def config(self, feed: str) -> Mapping[str, object]:
        return {"filter": {"rules": ["public.*"]}, "publication": _PUBLICATION}

    def start(self) -> None:
        self._server.start()
        self._server.create_database(_DATABASE)
        with psycopg.connect(self._server.dsn(_DATABASE)) as connection:
            connection.execute(_SET_UP.encode())

    def restart(self) -> None:
        self._server.restart()

    def stop(self) -> None:
        self._server.stop()

    @contextmanager
    def session(self, rng: random.Random) -> Iterator[Session]:
        with psycopg.connect(self._server.dsn(_DATABASE), autocommit=True) as connection:
            connection.execute(b"SET lock_timeout = '5s'")
            connection.execute(f"SET TimeZone = '{rng.choice(['UTC', 'Asia/Kolkata'])}'".encode())
            yield _Session(connection)

    def tables(self) -> Sequence[Table]:
        sql = """
            SELECT c.relname, c.oid, a.attname, format_type(a.atttypid, a.atttypmod),
                   coalesce(a.attnum = ANY (i.indkey), false), NOT a.attnotnull
            FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
            LEFT JOIN pg_index i ON i.indrelid = c.oid AND i.indisprimary
            WHERE c.relnamespace = 'public'::regnamespace AND c.relkind = 'r' ORDER BY c.relname, a.attnum"""
        found: dict[tuple[str, int], list[Column]] = {}
        for table, oid, name, type, is_key, is_nullable in self._server.execute(sql, database=_DATABASE):
            column = Column(str(name), str(type), bool(is_key), bool(is_nullable))
            found.setdefault((str(table), int(str(oid))), []).append(column)
        return [Table(name, tuple(columns), oid) for (name, oid), columns in found.items()]

    def touch(self, table: Table) -> bool:
        """PostgreSQL declares a changed table with the table's next row, not with the change itself."""
        at, column = self.quote(table.name), self.quote(table.columns[0].name)
        one = f"ctid = (SELECT ctid FROM {at} LIMIT 1)"
        sql = f"UPDATE {at} SET {column} = {column} WHERE {one} RETURNING 1"
        return bool(self._server.execute(sql, database=_DATABASE))

    def rows(self, table: Table) -> Iterator[Row]:
        columns = ", ".join(self.quote(column.name) for column in table.columns)
        settings = "-c TimeZone=UTC -c DateStyle=ISO -c IntervalStyle=postgres -c extra_float_digits=3"
        copied = f"COPY (SELECT {columns} FROM {self.quote(table.name)}) TO STDOUT".encode()
        with (
            psycopg.connect(self._server.dsn(_DATABASE), options=settings) as connection,
            connection.cursor() as cursor,
            cursor.copy(copied) as copy,
        ):
            for row in copy.rows():
                yield tuple(read(column.type, value) for column, value in zip(table.columns, row, strict=True))

    def canonical(self, column: Column, stored: Any) -> Any:
        return canonical(column.type, stored)

    def quote(self, name: str) -> str:
        return f'"{name}"'

    def value(self, rng: random.Random, column: Column) -> str:
        if column.is_nullable and rng.random() < 0.15:
            return "NULL"
        return _literal(rng, column.type)

    def schema_change(self, rng: random.Random, tables: Sequence[Table], name: str) -> str:
        statement = self._statement(rng, tables, name)
        if not tables or rng.random() < 0.7 or statement.startswith("BEGIN"):
            return statement
        # in a transaction with changes of rows, which may be of the same table, as a whole or in part rolled back
        steps = [
            rows.statement(rng, self, rng.choice(tables)),
            statement,
            rows.statement(rng, self, rng.choice(tables)),
        ]
        if rng.random() < 0.3:
            steps[1:2] = ["SAVEPOINT s", statement, rng.choice(["ROLLBACK TO s", "RELEASE s"])]
        return f"BEGIN; {'; '.join(steps)}; {rng.choice(['COMMIT', 'COMMIT', 'COMMIT', 'ROLLBACK'])}"

    def _statement(self, rng: random.Random, tables: Sequence[Table], name: str) -> str:
        if len(tables) < 4 or (len(tables) < 12 and rng.random() < 0.1):
            return f"CREATE TABLE {self.quote(name)} {_body(rng)}"
        table = rng.choice(tables)
        at = self.quote(table.name)
        kind = rng.random()
        if kind < 0.03:
            return f"DROP TABLE {at}"
        if kind < 0.07:
            return f"TRUNCATE {at}"
        if kind < 0.18:
            return self._move_names(rng, at, self.quote(rng.choice(tables).name), self.quote(name))
        if kind < 0.21:
            key = f"DROP CONSTRAINT IF EXISTS {table.name}_pkey, ADD PRIMARY KEY ({_new_key(rng, table)})"
            return f"ALTER TABLE {at} {key}"
        if kind < 0.23:
            return f"ALTER TABLE {at} SET UNLOGGED; ALTER TABLE {at} SET LOGGED"
        if kind < 0.25:
            return f"ALTER TABLE {at} REPLICA IDENTITY {rng.choice(['FULL', 'DEFAULT'])}"
        if kind < 0.27:
            return rng.choice(_OF_TYPES).format(name=name)
        if kind < 0.33:
            return f"ALTER TABLE {at} RENAME COLUMN {self.quote(rng.choice(table.columns).name)} TO z{name}"
        changes = [_alteration(rng, table, name) for _ in range(rng.choices([1, 2, 3], [6, 2, 1])[0])]
        return f"ALTER TABLE {at} {', '.join(changes)}"

    def _move_names(self, rng: random.Random, at: str, other: str, new: str) -> str:
        """Return what migrations and transformations do to names: rename, swap, replace, copy."""
        moves = (
            f"ALTER TABLE {at} RENAME TO {new}",
            f"BEGIN; DROP TABLE {at}; CREATE TABLE {at} {_body(rng)}; COMMIT",
            f"BEGIN; ALTER TABLE {at} RENAME TO {new}; CREATE TABLE {at} {_body(rng)}; COMMIT",
            f"BEGIN; ALTER TABLE {at} RENAME TO swap_; ALTER TABLE {other} RENAME TO {at}; "
            f"ALTER TABLE swap_ RENAME TO {other}; COMMIT",
            f"BEGIN; DROP TABLE {at}; ALTER TABLE {other} RENAME TO {at}; COMMIT",
            f"BEGIN; CREATE TABLE {new} (LIKE {at} INCLUDING ALL); INSERT INTO {new} SELECT * FROM {at}; "
            f"DROP TABLE {at}; ALTER TABLE {new} RENAME TO {at}; COMMIT",
        )
        return rng.choice(moves)


class _Session:
    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection

    def execute(self, sql: str) -> None:
        try:
            self._connection.execute(sql.encode())
        except psycopg.Error as error:
            if self._connection.closed:
                raise ConnectionError(str(error)) from error
            if self._connection.info.transaction_status is psycopg.pq.TransactionStatus.INERROR:
                self._connection.execute(b"ROLLBACK")
            raise StatementRefused(str(error)) from error

    def begin(self) -> None:
        self.execute("BEGIN")

    def end(self, *, commit: bool) -> None:
        if self._connection.info.transaction_status is not psycopg.pq.TransactionStatus.IDLE:
            self.execute("COMMIT" if commit else "ROLLBACK")


def _body(rng: random.Random) -> str:
    columns = [f"id {rng.choice(_KEYS)} NOT NULL"]
    key = ["id"]
    if rng.random() < 0.3:
        columns.append(f"part {rng.choice(_KEYS)} NOT NULL")
        key.append("part")
    columns += [f"c{index} {_definition(rng)}" for index in range(rng.randint(1, 6))]
    return f"({', '.join(columns)}, PRIMARY KEY ({', '.join(key)}))"


def _new_key(rng: random.Random, table: Table) -> str:
    return ", ".join(f'"{column.name}"' for column in rng.sample(table.columns, min(2, len(table.columns))))


def _definition(rng: random.Random) -> str:
    type = rng.choice(_TYPES)
    default = f" DEFAULT {_literal(rng, type)}" if rng.random() < 0.4 else ""
    return type + default + (rng.choice(["", " NOT NULL"]) if default else "")


def _alteration(rng: random.Random, table: Table, name: str) -> str:
    column = rng.choice(table.columns)
    at = f'"{column.name}"'
    kind = rng.random()
    if kind < 0.4:
        return f'ADD COLUMN "x{name}{rng.randint(0, 9)}" {_definition(rng)}'
    if kind < 0.6:
        return f"DROP COLUMN {at}"
    if kind < 0.9:
        return f"ALTER COLUMN {at} TYPE {rng.choice(_TYPES)}"
    if kind < 0.95:
        return f"ALTER COLUMN {at} SET DEFAULT {_literal(rng, column.type)}"
    if kind < 0.97:
        return f"ADD COLUMN x{name} bigint GENERATED BY DEFAULT AS IDENTITY"
    return f"ALTER COLUMN {at} {rng.choice(['DROP NOT NULL', 'SET NOT NULL', 'DROP DEFAULT', 'SET STORAGE PLAIN'])}"


def canonical(type: str, stored: Any) -> Any:
    """Return a sink's value as ``read`` has the server's."""
    if stored is None:
        return None
    match _kind(type):
        case "boolean":
            return "t" if stored else "f"
        case "real" | "double":
            return float(stored)
        case "bytea":
            return "\\x" + stored.hex()
        case "date":
            return stored.isoformat()
        case "time" if not type.endswith("with time zone"):
            return str(stored).rstrip("0").rstrip(".") if "." in str(stored) else str(stored)
        case "timestamp":
            return _trimmed(stored.replace(tzinfo=None).isoformat(" "))
    return format(stored, "f") if isinstance(stored, Decimal) else str(stored)


def _kind(type: str) -> str:
    return type if type.endswith("[]") else re.split(r"[^a-z0-9]", type)[0]


def _literal(rng: random.Random, type: str) -> str:
    numbers = [int(number) for number in re.findall(r"\d+", type.partition("(")[2])]
    match _kind(type):
        case "smallint":
            return literals.integer(rng, -(2**15), 2**15 - 1)
        case "integer":
            return literals.integer(rng, -(2**31), 2**31 - 1)
        case "bigint":
            return literals.integer(rng, -(2**63), 2**63 - 1)
        case "real" | "double":
            return f"'{literals.real(rng)}'"
        case "numeric":
            return literals.decimal(rng, *numbers) if numbers else literals.decimal(rng, 20, rng.randint(0, 6))
        case "boolean":
            return rng.choice(["true", "false"])
        case "text":
            return literals.long_text(rng)
        case "varchar" | "character":
            return literals.text(rng, numbers[0] if numbers else 20)
        case "char":
            return literals.text(rng, numbers[0] if numbers else 1)
        case "bytea":
            return f"'\\x{literals.hexadecimal(rng, 12)}'"
        case "date":
            return f"'{literals.date(rng)}'"
        case "time":
            return f"'{literals.time(rng, 6)}'"
        case "timestamp" | "timestamptz":
            return f"'{literals.date(rng)} {literals.time(rng, rng.choice([0, 3, 6]))}'"
        case "uuid":
            return f"'{literals.identifier(rng)}'"
        case "json" | "jsonb":
            return f'\'{{"k": {rng.randint(0, 9)}, "a": [1, null]}}\''
        case "inet":
            return f"'{literals.address(rng)}'" if rng.random() < 0.7 else "'10.0.0.0/8'"
        case "cidr":
            return f"'{rng.randint(1, 250)}.0.0.0/8'"
        case "macaddr":
            return f"'08:00:2b:01:02:{rng.randint(16, 99)}'"
        case "integer[]":
            return rng.choice(["'{1,2,NULL}'", "'{}'", "'{{1,2},{3,4}}'"])
        case "text[]":
            return rng.choice(["'{a,\"b c\",NULL}'", "'{}'", "'{\"\"}'"])
        case "interval":
            return rng.choice(["'1 day 02:00:00'", "'-3 mons'", "'00:00:01.5'"])
        case "bit":
            return f"B'{rng.randint(0, 255):08b}'"
        case "int4range":
            return rng.choice(["'[1,5)'", "'empty'", "'(,9]'"])
        case "mood":
            return rng.choice(["'sad'", "'ok'", "'happy'"])
    return rng.choice(_SPELLINGS.get(type, ("NULL",)))


def read(type: str, shown: Any) -> Any:
    if shown is None:
        return None
    text = shown.decode() if isinstance(shown, bytes) else str(shown)
    match _kind(type):
        case "real":
            return float(np.float32(text))
        case "double":
            return float(text)
        case "timestamp":
            return _trimmed(text.removesuffix("+00"))
    return text


def _trimmed(text: str) -> str:
    """Remove trailing zeros of the fraction."""
    return text.rstrip("0").rstrip(".") if "." in text else text
