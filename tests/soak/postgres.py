"""PostgreSQL as a soak's source: sessions, the catalog, rows in canonical form."""

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import psycopg

from capture.embedded import EmbeddedPostgres
from tests.soak import postgres_grammar as grammar
from tests.soak import rows
from tests.soak.source import Column, Row, Session, StatementRefused, Table

_DATABASE = "soak"
_PUBLICATION = "soak_all"
_SET_UP = """
CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy');
CREATE TYPE pair AS (a integer, b text);
CREATE DOMAIN cents AS numeric(9,2);
CREATE DOMAIN places AS integer[];
CREATE SCHEMA aside;
CREATE PUBLICATION soak_all FOR ALL TABLES;
"""


class _Server(EmbeddedPostgres):
    #: transactions of some hundred rows are decoded from disk
    _settings = EmbeddedPostgres._settings | {
        "logical_decoding_work_mem": "64kB",
        "max_prepared_transactions": "10",
    }


class Postgres:
    """A publication of the user's, ``FOR ALL TABLES``: partitioned tables by leaf."""

    name = "postgres"
    by_root = False
    inserts_all = False
    database = "public"

    def __init__(self, directory: Path) -> None:
        self._server = _Server(directory / self.name, unsafe_no_fsync=True)

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
        for [name] in self._server.execute("SELECT gid FROM pg_prepared_xacts", database=_DATABASE):
            with suppress(Exception):  # its session may be as quick
                self._server.execute(f"ROLLBACK PREPARED '{name}'", database=_DATABASE)

    def stop(self) -> None:
        self._server.stop()

    @contextmanager
    def session(self, rng: random.Random) -> Iterator[Session]:
        with psycopg.connect(self._server.dsn(_DATABASE), autocommit=True) as connection:
            connection.execute(b"SET lock_timeout = '5s'")
            connection.execute(f"SET TimeZone = '{rng.choice(['UTC', 'Asia/Kolkata'])}'".encode())
            yield _Session(connection, is_prepared=rng.random() < 0.2)

    def tables(self) -> Sequence[Table]:
        sql = """
            SELECT c.relname, c.oid, a.attname, format_type(a.atttypid, a.atttypmod),
                   coalesce(a.attnum = ANY (i.indkey), false), NOT a.attnotnull, a.attgenerated <> ''
            FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
            LEFT JOIN pg_index i ON i.indrelid = c.oid AND i.indisprimary
            WHERE c.relnamespace = 'public'::regnamespace AND {kinds} ORDER BY c.relname, a.attnum"""
        kinds = "c.relkind IN ('r', 'p') AND NOT c.relispartition" if self.by_root else "c.relkind = 'r'"
        found: dict[tuple[str, int], list[Column]] = {}
        for table, oid, name, type, *is_so in self._server.execute(sql.format(kinds=kinds), database=_DATABASE):
            column = Column(str(name), str(type), *map(bool, is_so))
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
        return grammar.literal(rng, column.type)

    def schema_change(self, rng: random.Random, tables: Sequence[Table], name: str) -> str:
        statement = grammar.statement(rng, tables, name, by_root=self.by_root)
        if not tables or rng.random() < 0.7 or not statement.startswith("ALTER TABLE"):
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

    def insert(self, rng: random.Random, table: Table, columns: Sequence[Column], values: str) -> str:
        names = ", ".join(self.quote(column.name) for column in columns)
        statement = f"INSERT INTO {self.quote(table.name)} ({names}) VALUES {values}"
        if rng.random() < 0.15:
            statement += " ON CONFLICT DO NOTHING"
        elif rng.random() < 0.1 and table.key:
            one, key = self.quote(rng.choice(columns).name), ", ".join(map(self.quote, table.key))
            statement += f" ON CONFLICT ({key}) DO UPDATE SET {one} = excluded.{one}"
        return statement


class PostgresByRoot(Postgres):
    """Weir's own publication: partitioned tables by root, stored generated columns are sent."""

    name = "postgres-own"
    by_root = True

    def config(self, feed: str) -> Mapping[str, object]:
        return {"filter": {"rules": ["public.*"]}}


class _Session:
    """``is_prepared``: transactions are committed in two phases."""

    def __init__(self, connection: psycopg.Connection[Any], *, is_prepared: bool) -> None:
        self._connection = connection
        self._is_prepared = is_prepared

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
        if self._connection.info.transaction_status is psycopg.pq.TransactionStatus.IDLE:
            return
        if self._is_prepared:
            self.execute(f"PREPARE TRANSACTION 'soak{id(self)}'")
            self.execute(f"{'COMMIT' if commit else 'ROLLBACK'} PREPARED 'soak{id(self)}'")
        else:
            self.execute("COMMIT" if commit else "ROLLBACK")


def canonical(type: str, stored: Any) -> Any:
    """Return a sink's value as ``read`` has the server's."""
    if stored is None:
        return None
    match grammar.kind_of(type):
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


def read(type: str, shown: Any) -> Any:
    if shown is None:
        return None
    text = shown.decode() if isinstance(shown, bytes) else str(shown)
    match grammar.kind_of(type):
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
