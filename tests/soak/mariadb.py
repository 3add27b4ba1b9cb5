"""MariaDB as a soak's source: random statements of its grammar, its catalog, its rows in canonical form."""

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
from tests.soak import literals
from tests.soak.source import Column, Row, Session, StatementRefused, Table

_DATABASE = "soak"
_STRICT = "STRICT_TRANS_TABLES,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION"
_INTEGERS = {"tinyint": 8, "smallint": 16, "mediumint": 24, "int": 32, "bigint": 64}
_KEYS = (
    "int",
    "bigint unsigned",
    "varchar(20)",
    "uuid",
    "date",
    "decimal(10,2)",
    "smallint",
    "varbinary(8)",
    "datetime(3)",
)
_TYPES = (
    *(
        "tinyint",
        "tinyint unsigned",
        "smallint",
        "smallint unsigned",
        "mediumint",
        "int",
        "int unsigned",
        "int(6) zerofill",
    ),
    *(
        "bigint",
        "bigint unsigned",
        "float",
        "double",
        "decimal(10,2)",
        "decimal(12,4)",
        "decimal(38,10)",
        "decimal(5,0)",
    ),
    *(
        "bit(1)",
        "bit(12)",
        "year",
        "date",
        "time",
        "time(3)",
        "datetime",
        "datetime(3)",
        "datetime(6)",
        "timestamp(2) null",
    ),
    *("char(5)", "char(12)", "varchar(10)", "varchar(40)", "varchar(40) character set latin1", "text", "mediumtext"),
    *("binary(6)", "varbinary(10)", "varbinary(30)", "blob", "json", "uuid", "inet4", "inet6"),
    *("enum('a','B','é')", "enum('a','b','c','d')", "set('x','y','z')"),
)
_CHARSETS = ("utf8mb4", "latin1", "utf8mb3", "ucs2")


class MariaDB:
    """``metadata``: what the binlog contains of columns, ``FULL`` or ``NO_LOG``; ``image``: and of rows, ``FULL`` or
    ``MINIMAL``."""

    database = _DATABASE
    product: ClassVar[tuple[str, type[EmbeddedMariaDB]]] = ("mariadb", EmbeddedMariaDB)

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
            session = _Session(connection)
            session.execute(f"SET SESSION sql_mode = '{_STRICT if rng.random() < 0.5 else ''}', lock_wait_timeout = 5")
            session.execute(f"SET SESSION time_zone = '{rng.choice(['+00:00', '+02:00', '-05:30'])}'")
            yield session

    def tables(self) -> Sequence[Table]:
        sql = (
            "SELECT table_name, column_name, column_type, column_key = 'PRI', is_nullable = 'YES' FROM "
            f"information_schema.columns JOIN information_schema.tables USING (table_schema, table_name) "
            f"WHERE table_schema = '{_DATABASE}' AND table_type = 'BASE TABLE' ORDER BY table_name, ordinal_position"
        )
        found: dict[str, list[Column]] = {}
        for table, name, type, is_key, is_nullable in self._server.execute(sql):
            found.setdefault(table, []).append(Column(name, type, bool(is_key), bool(is_nullable)))
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
        kind = _kind(column.type)
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
        return _literal(rng, column.type)

    def schema_change(self, rng: random.Random, tables: Sequence[Table], name: str) -> str:
        statement = self._statement(rng, tables, name)
        if rng.random() < 0.1:
            statement = f"SET STATEMENT max_statement_time=60, sql_mode='{_STRICT}' FOR {statement}"
        return _respelled(rng, statement)

    def _statement(self, rng: random.Random, tables: Sequence[Table], name: str) -> str:
        if len(tables) < 4 or (len(tables) < 12 and rng.random() < 0.1):
            return _create(rng, tables, name)
        table = rng.choice(tables)
        at = self.quote(table.name)
        kind = rng.random()
        if kind < 0.03:
            return f"DROP TABLE {at}"
        if kind < 0.07:
            return f"TRUNCATE TABLE {at}"
        if kind < 0.10:
            return f"CREATE OR REPLACE TABLE {at} {_body(rng)}"
        if kind < 0.12:
            rows = "SELECT seq AS id, seq * 2 AS twice FROM seq_1_to_20"
            return f"CREATE OR REPLACE TABLE {at} (PRIMARY KEY (id)) AS {rows}"
        if kind < 0.15:
            return f"RENAME TABLE {at} TO {self.quote(name)}"
        if kind < 0.18:
            other = self.quote(rng.choice(tables).name)
            return f"RENAME TABLE {at} TO swap_, {other} TO {at}, swap_ TO {other}"
        if kind < 0.20:
            return f"RENAME TABLE {at} TO {self.quote(name)}, {self.quote(rng.choice(tables).name)} TO {at}"
        if kind < 0.22:
            return f"CREATE TABLE {self.quote(name)} (PRIMARY KEY (id)) AS SELECT * FROM {at}"
        if kind < 0.25:
            key = ", ".join(self.quote(one.name) for one in rng.sample(table.columns, min(2, len(table.columns))))
            return f"ALTER TABLE {at} DROP PRIMARY KEY, ADD PRIMARY KEY ({key})"
        changes = [_alteration(rng, table, name) for _ in range(rng.choices([1, 2, 3], [6, 2, 1])[0])]
        return f"ALTER TABLE {at} {', '.join(changes)}"


class Mysql(MariaDB):
    """The same on MySQL, which refuses the words that only MariaDB has."""

    product = ("mysql", EmbeddedMysql)


class _Session:
    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def execute(self, sql: str) -> None:
        try:
            with self._connection.cursor() as cursor:
                cursor.execute(sql)
        except (pymysql.err.OperationalError, pymysql.err.InterfaceError) as error:
            if not self._connection.open or error.args[0] in (0, 2006, 2013):
                raise ConnectionError(str(error)) from error
            raise StatementRefused(str(error)) from error
        except pymysql.err.Error as error:
            raise StatementRefused(str(error)) from error

    def begin(self) -> None:
        self.execute("BEGIN")

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


def _create(rng: random.Random, tables: Sequence[Table], name: str) -> str:
    if tables and rng.random() < 0.2:
        return f"CREATE TABLE `{name}` LIKE `{rng.choice(tables).name}`"
    return f"CREATE TABLE `{name}` {_body(rng)}"


def _body(rng: random.Random) -> str:
    columns = [f"id {rng.choice(_KEYS)} NOT NULL"]
    key = ["id"]
    if rng.random() < 0.3:
        columns.append(f"part {rng.choice(_KEYS)} NOT NULL")
        key.append("part")
    columns += [f"c{index} {_definition(rng)}" for index in range(rng.randint(1, 6))]
    return f"({', '.join(columns)}, PRIMARY KEY ({', '.join(key)})) CHARACTER SET {rng.choice(_CHARSETS)}"


def _definition(rng: random.Random) -> str:
    type = rng.choice(_TYPES)
    if "null" in type:
        return type
    text = type + rng.choice(["", "", " NULL", " NOT NULL"])
    if rng.random() < 0.4:
        text += f" DEFAULT {_literal(rng, type)}"
    return text


def _alteration(rng: random.Random, table: Table, name: str) -> str:
    column = rng.choice(table.columns)
    at = f"`{column.name}`"
    place = rng.choice(["", "", " FIRST", f" AFTER {at}"])
    kind = rng.random()
    if kind < 0.1:
        return _attribute(rng, column)
    if kind < 0.37:
        return f"ADD COLUMN {rng.choice(['', 'IF NOT EXISTS '])}`x{name}{rng.randint(0, 9)}` {_definition(rng)}{place}"
    if kind < 0.5:
        return f"DROP COLUMN {at}"
    if kind < 0.75:
        return f"MODIFY {at} {_definition(rng)}{place}"
    if kind < 0.85:
        return f"CHANGE {at} `y{name}` {_definition(rng) if rng.random() < 0.5 else column.type}"
    if kind < 0.9:
        return f"RENAME COLUMN {at} TO `z{name}`"
    if kind < 0.94:
        return f"CONVERT TO CHARACTER SET {rng.choice(_CHARSETS)}"
    if kind < 0.96:
        return f"ADD COLUMN (`x{name}a` {_definition(rng)}, `x{name}b` {_definition(rng)})"
    if kind < 0.98:
        return rng.choice([f"ADD INDEX ({at})", f"ADD UNIQUE ({at})", "DROP PRIMARY KEY", f"ADD PRIMARY KEY ({at})"])
    return rng.choice(
        ["ENGINE = InnoDB", "FORCE", "ALGORITHM = COPY", "PARTITION BY KEY () PARTITIONS 3", "REMOVE PARTITIONING"]
    )


def _attribute(rng: random.Random, column: Column) -> str:
    """Return a change of a column that keeps its type."""
    at, default = f"`{column.name}`", _literal(rng, column.type)
    return rng.choice(
        [
            f"MODIFY {at} {column.type} NOT NULL",
            f"MODIFY {at} {column.type} NULL DEFAULT {default}",
            f"MODIFY {at} {column.type} NOT NULL DEFAULT {default}",
            f"ALTER COLUMN {at} SET DEFAULT {default}",
            f"ALTER COLUMN {at} DROP DEFAULT",
        ]
    )


def _respelled(rng: random.Random, statement: str) -> str:
    """Change the case of keywords and insert comments; text in quotes stays."""
    parts = re.split(r"('(?:[^']|'')*'|`[^`]*`)", statement)
    case = rng.choice(["as it is", "lower", "upper"])
    respelled = {"lower": str.lower, "upper": str.upper}.get(case, str)
    text = "".join(part if index % 2 else respelled(part) for index, part in enumerate(parts))
    return rng.choice(["", "", "", "/* soak */ ", "-- soak\n"]) + text


def _kind(type: str) -> str:
    return re.split(r"[^a-z0-9]", type)[0]


def _numbers(type: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", type.partition("(")[2].partition(")")[0])]


def _literal(rng: random.Random, type: str) -> str:
    kind, numbers = _kind(type), [] if type.startswith(("enum", "set")) else _numbers(type)
    if kind in _INTEGERS:
        bits = _INTEGERS[kind]
        is_unsigned = "unsigned" in type or "zerofill" in type
        return (
            literals.integer(rng, 0, 2**bits - 1)
            if is_unsigned
            else literals.integer(rng, -(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        )
    digits = numbers[0] if numbers else 0
    match kind:
        case "decimal":
            return literals.decimal(rng, *(numbers if len(numbers) == 2 else [digits, 0]))
        case "float" | "double":
            return literals.real(rng)
        case "bit":
            return f"b'{rng.randint(0, 2**digits - 1):b}'"
        case "year":
            return str(rng.randint(1901, 2155))
        case "date":
            return f"'{literals.date(rng)}'"
        case "time":
            return f"'{rng.choice(['', '-', '1'])}{literals.time(rng, digits)}'"
        case "datetime" | "timestamp":
            return f"'{literals.date(rng)} {literals.time(rng, digits)}'"
        case "char" | "varchar":
            return literals.text(rng, digits)
        case "text" | "mediumtext" | "tinytext" | "longtext":
            return (
                "'{\"a\": [1, null]}'"
                if rng.random() < 0.2
                else literals.long_text(rng)
                if kind != "tinytext"
                else "'t'"
            )
        case "json":
            return f"'{{\"k\": {rng.randint(0, 9)}}}'"
        case "binary" | "varbinary":
            return f"x'{literals.hexadecimal(rng, digits)}'"
        case "blob" | "tinyblob" | "mediumblob" | "longblob":
            return f"x'{literals.hexadecimal(rng, 12)}'"
        case "uuid":
            return f"'{literals.identifier(rng)}'"
        case "inet4":
            return f"'{literals.address(rng)}'"
        case "inet6":
            return f"'2001:db8::{rng.randint(1, 60000):x}'"
        case "enum":
            return f"'{rng.choice(re.findall(chr(39) + '([^' + chr(39) + ']*)' + chr(39), type))}'"
        case "set":
            return f"'{','.join(sorted({rng.choice('xyz') for _ in range(rng.randint(0, 3))}))}'"
    return "1"


def _shown(column: str, type: str) -> str:
    match _kind(type):
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
    match _kind(type):
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
