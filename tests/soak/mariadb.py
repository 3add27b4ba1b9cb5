"""MariaDB and MySQL as a soak's source: sessions, the catalog, rows in canonical form."""

import datetime
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar

import pymysql
import pymysql.converters

from capture.embedded import EmbeddedMariaDB
from capture.embedded.mariadb import USER
from tests.mysql_server import EmbeddedMysql
from tests.soak import mariadb_grammar as grammar
from tests.soak.source import Column, Row, Session, StatementRefused, Table

_DATABASE = "soak"
#: of a session's statements
_CHARSETS = ("utf8mb4", "utf8mb4", "utf8mb4", "utf8mb3", "latin1", "cp850")
#: between the statements of one change
_END = "\n;;\n"


class MariaDB:
    """``metadata``: what the binlog contains of columns, ``FULL`` or ``NO_LOG``; ``image``: and of rows, ``FULL`` or
    ``MINIMAL``."""

    database = _DATABASE
    product: ClassVar[tuple[str, type[EmbeddedMariaDB]]] = ("mariadb", EmbeddedMariaDB)
    #: SQL modes that change what a statement says
    modes: ClassVar[Sequence[str]] = (
        f"ANSI_QUOTES,{grammar.STRICT}",
        "ANSI_QUOTES,PIPES_AS_CONCAT,IGNORE_SPACE",
        f"NO_BACKSLASH_ESCAPES,REAL_AS_FLOAT,{grammar.STRICT}",
        f"ORACLE,{grammar.STRICT}",
        "EMPTY_STRING_IS_NULL,TIME_ROUND_FRACTIONAL",
    )

    def __init__(self, directory: Path, metadata: str, *, image: str = "FULL") -> None:
        product, server = self.product
        self.name = f"{product}-{(metadata if image == 'FULL' else image).lower().replace('_', '-')}"
        self.inserts_all = image != "FULL"
        settings = {"binlog_row_metadata": metadata, "binlog_row_image": image}
        self._server = server(directory / self.name, unsafe_no_fsync=True, settings=settings)

    @property
    def uri(self) -> str:
        return self._server.uri(_DATABASE)

    def config(self, feed: str) -> Mapping[str, object]:
        return {"filter": {"rules": [f"{_DATABASE}.*"]}, "force_replicate": False}

    def start(self) -> None:
        self._server.start()
        self._server.create_database(_DATABASE)

    def restart(self) -> None:
        self._server.restart()

    def stop(self) -> None:
        self._server.stop()

    @contextmanager
    def session(self, rng: random.Random) -> Iterator[Session]:
        with closing(self._server.connect(_DATABASE)) as connection:
            mode = rng.choice([grammar.STRICT, grammar.STRICT, "", "", *self.modes])
            connection.set_character_set(rng.choice(_CHARSETS))
            session = _Session(connection, mode, rng)
            session.execute(f"SET SESSION sql_mode = '{mode}', lock_wait_timeout = 5")
            session.execute(f"SET SESSION time_zone = '{rng.choice(['+00:00', '+02:00', '-05:30'])}'")
            yield session

    def tables(self) -> Sequence[Table]:
        sql = (
            "SELECT table_name, column_name, column_type, column_key = 'PRI', is_nullable = 'YES', "
            "extra LIKE '%VIRTUAL GENERATED%' OR extra LIKE '%STORED GENERATED%' FROM "
            f"information_schema.columns JOIN information_schema.tables USING (table_schema, table_name) "
            f"WHERE table_schema = '{_DATABASE}' AND table_type = 'BASE TABLE' ORDER BY table_name, ordinal_position"
        )
        found: dict[str, list[Column]] = {}
        for table, name, type, *is_so in self._server.execute(sql):
            found.setdefault(table, []).append(Column(name, type, *map(bool, is_so)))
        return [Table(name, tuple(columns)) for name, columns in found.items()]

    def touch(self, table: Table) -> bool:
        """Nothing to do: statements are in the binlog."""
        return True

    def rows(self, table: Table) -> Iterator[Row]:
        columns = ", ".join(_shown(self.quote(column.name), column.type) for column in table.columns)
        with closing(_texts(self._server)) as connection, connection.cursor() as cursor:
            cursor.execute("SET SESSION time_zone = '+00:00', sql_mode = ''")
            cursor.execute(f"SELECT {columns} FROM {self.quote(table.name)}")
            for row in cursor.fetchall():
                yield tuple(_read(column.type, value) for column, value in zip(table.columns, row, strict=True))

    def canonical(self, column: Column, stored: Any) -> Any:
        kind = grammar.kind_of(column.type)
        if stored is None:
            return None
        if kind in ("date", "datetime", "timestamp"):
            return stored.replace(tzinfo=None).isoformat(" ") if kind != "date" else stored.isoformat()
        if kind in ("binary", "varbinary", "blob", "tinyblob", "mediumblob", "longblob"):
            return stored.hex()
        if kind == "bit":
            return int(stored)
        if kind in ("float", "double"):
            return float(stored)
        return format(stored, "f") if isinstance(stored, Decimal) else str(stored)

    def quote(self, name: str) -> str:
        return f"`{name}`"

    def value(self, rng: random.Random, column: Column) -> str:
        if column.is_nullable and rng.random() < 0.15:
            return "NULL"
        return grammar.literal(rng, column.type)

    def schema_change(self, rng: random.Random, tables: Sequence[Table], name: str) -> str:
        parts = grammar.statement(rng, tables, name).split(";; ")
        if len(parts) == 1 and rng.random() < 0.1:
            own = rng.choice([f"sql_mode='{grammar.STRICT}'", "sql_mode=@@sql_mode", "lock_wait_timeout=9"])
            parts = [f"SET STATEMENT max_statement_time=60, {own} FOR {parts[0]}"]
        return _END.join(grammar.respelled(rng, part) for part in parts)

    def insert(self, rng: random.Random, table: Table, columns: Sequence[Column], values: str) -> str:
        verb = rng.choices(["INSERT", "REPLACE", "INSERT IGNORE"], [8, 1, 1])[0]
        statement = (
            f"{verb} INTO {self.quote(table.name)} ({', '.join(self.quote(c.name) for c in columns)}) VALUES {values}"
        )
        if verb == "INSERT" and rng.random() < 0.15:
            name = self.quote(rng.choice(columns).name)
            statement += f" ON DUPLICATE KEY UPDATE {name} = VALUES({name})"
        return statement


class Mysql(MariaDB):
    """The same on MySQL, which refuses the words that only MariaDB has."""

    product = ("mysql", EmbeddedMysql)
    modes = (
        f"ANSI_QUOTES,{grammar.STRICT}",
        f"NO_BACKSLASH_ESCAPES,REAL_AS_FLOAT,{grammar.STRICT}",
        "TIME_TRUNCATE_FRACTIONAL",
    )


class _Session:
    """``mode``: the SQL mode. The log does not have it behind a ``SET STATEMENT`` of another one, where types and texts
    mean what it says."""

    def __init__(self, connection: Any, mode: str, rng: random.Random) -> None:
        self._connection, self._mode, self._rng = connection, mode, rng
        self._is_ansi = "ANSI_QUOTES" in mode or "ORACLE" in mode
        self._keeps_mode = any(word in mode for word in ("ORACLE", "REAL_AS_FLOAT", "EMPTY_STRING"))

    def execute(self, sql: str) -> None:
        if self._keeps_mode:
            sql = re.sub("sql_mode='[^']*' FOR", "sql_mode=@@sql_mode FOR", sql, flags=re.IGNORECASE)
        try:
            with self._connection.cursor() as cursor:
                for part in sql.split(_END):
                    self._run(cursor, part.replace("`", '"') if self._is_ansi else part)
        except UnicodeEncodeError as error:
            raise StatementRefused(str(error)) from error
        except (pymysql.err.OperationalError, pymysql.err.InterfaceError) as error:
            if not self._connection.open or error.args[0] in (0, 2006, 2013):
                raise ConnectionError(str(error)) from error
            raise StatementRefused(str(error)) from error
        except pymysql.err.Error as error:
            raise StatementRefused(str(error)) from error

    def _run(self, cursor: Any, statement: str) -> None:
        """Execute it, now and then as one that was prepared in this mode and is executed in another."""
        is_definition = re.match(r"\W*(ALTER|CREATE TABLE|RENAME|DROP TABLE|TRUNCATE)\b", statement, re.IGNORECASE)
        if self._keeps_mode or not is_definition or self._rng.random() > 0.1:
            cursor.execute(statement)
            return
        cursor.execute("PREPARE soak FROM %s", (statement,))
        try:
            cursor.execute("SET SESSION sql_mode = ''")
            cursor.execute("EXECUTE soak")
        finally:
            cursor.execute(f"SET SESSION sql_mode = '{self._mode}'")

    def begin(self) -> None:
        self.execute("START TRANSACTION")

    def end(self, *, commit: bool) -> None:
        self.execute("COMMIT" if commit else "ROLLBACK")


def _texts(server: EmbeddedMariaDB) -> Any:
    """Open a session that returns values as the server's text."""
    return pymysql.connections.Connection(
        host="127.0.0.1",
        port=server.port,
        user=USER,
        password=server.password,
        database=_DATABASE,
        charset="utf8mb4",
        conv=pymysql.converters.encoders,
    )


def _shown(column: str, type: str) -> str:
    match grammar.kind_of(type):
        case "float" | "double":
            return f"CAST({column} AS DOUBLE)"
        case "bit":
            return f"CAST({column} AS UNSIGNED)"
        case "binary" | "varbinary" | "blob" | "tinyblob" | "mediumblob" | "longblob":
            return f"LOWER(HEX({column}))"
    return column


def _read(type: str, shown: Any) -> Any:
    """Convert the server's text to canonical form; a date that no calendar has is NULL in the sink."""
    if shown is None:
        return None
    text = shown.decode() if isinstance(shown, bytes) else str(shown)
    match grammar.kind_of(type):
        case "date" | "datetime" | "timestamp":
            return _moment(text)
        case "float" | "double":
            return float(text)
        case "bit":
            return int(text)
        case "tinyint" | "smallint" | "mediumint" | "int" | "bigint" | "year":
            return str(int(text))
    return text


def _moment(text: str) -> str | None:
    try:
        return (
            datetime.date.fromisoformat(text).isoformat()
            if len(text) == 10
            else datetime.datetime.fromisoformat(text).isoformat(" ")
        )
    except ValueError:
        return None
