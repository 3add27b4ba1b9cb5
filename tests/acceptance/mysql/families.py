"""Families of schema changes: reads ``families.sql``, and what a server made of them in canonical form."""

import contextlib
import datetime
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import pymysql
import pymysql.converters

from capture.embedded import EmbeddedMariaDB
from capture.embedded.mariadb import USER

Row = tuple[Any, ...]

_FILE: Final = Path(__file__).with_suffix(".sql")
_USUAL: Final = (
    "CREATE TABLE t (id int PRIMARY KEY, a varchar(20), b int, c datetime(3))",
    "INSERT INTO t VALUES (1, 'x', 10, '2024-01-02 03:04:05.678'), (2, 'y', 20, NULL), (3, NULL, NULL, '1999-12-31')",
)
_BYTES: Final = ("binary", "varbinary", "blob", "tinyblob", "mediumblob", "longblob", "vector")
_SHAPES: Final = ("geometry", "point", "linestring", "polygon", "multipoint", "geomcollection", "geometrycollection")
_WHOLE: Final = ("tinyint", "smallint", "mediumint", "int", "bigint", "year")


@dataclass(slots=True)
class Family:
    """``product``: mariadb, mysql, or empty for both."""

    name: str
    product: str
    setup: list[str] = field(default_factory=list)
    steps: list[str] = field(default_factory=list)

    @property
    def database(self) -> str:
        return f"fam_{self.name}"


def families(product: str) -> list[Family]:
    """Return those that a product has."""
    found: list[Family] = []
    for line in _FILE.read_text().splitlines():
        if line.startswith("## "):
            name, _, which = line.removeprefix("## ").partition(" ")
            found.append(Family(name, which))
            statements = found[-1].setup
        elif line == "then":
            statements = found[-1].steps
        elif line == "usual":
            statements.extend(_USUAL)
        elif line and found:
            statements.append(line)
    return [family for family in found if family.product in ("", product)]


def run(server: EmbeddedMariaDB, family: Family, statements: list[str]) -> int:
    """Run what the server takes. How many that were."""
    sessions: dict[str, Any] = {}
    done = 0
    for line in statements:
        name, statement = ("b", line[3:]) if line.startswith("b> ") else ("a", line)
        if name not in sessions:
            sessions[name] = server.connect(family.database)
        with contextlib.suppress(pymysql.err.Error), sessions[name].cursor() as cursor:
            cursor.execute(statement.replace("{db}", family.database))
            done += 1
    for session in sessions.values():
        session.close()
    return done


@dataclass(frozen=True, slots=True)
class Table:
    """``columns``: type by name. ``key``: of its primary key."""

    schema: str
    name: str
    columns: Mapping[str, str]
    key: tuple[str, ...]

    @property
    def full_name(self) -> str:
        return f"{self.schema}.{self.name}"


def tables(server: EmbeddedMariaDB) -> Iterator[Table]:
    sql = "FROM information_schema.{} WHERE table_schema LIKE 'fam\\_%'"
    named = server.execute(f"SELECT table_schema, table_name {sql.format('tables')} AND table_type LIKE 'BASE TABLE'")
    columns = server.execute(
        f"SELECT table_schema, table_name, column_name, column_type, column_key {sql.format('columns')} "
        "ORDER BY table_schema, table_name, ordinal_position"
    )
    for schema, name in named:
        mine = [(column, _plain(kind), key) for *table, column, kind, key in columns if table == [schema, name]]
        yield Table(
            schema,
            name,
            {column: kind for column, kind, _ in mine},
            tuple(column for column, _, key in mine if key == "PRI"),
        )


def there(server: EmbeddedMariaDB, table: Table, *, zero_dates: str) -> Counter[Row]:
    """The server's rows."""
    shown = ", ".join(_shown(_quoted(name), kind) for name, kind in table.columns.items())
    connection = pymysql.connections.Connection(
        host="127.0.0.1",
        port=server.port,
        user=USER,
        password=server.password,
        database=table.schema,
        charset="utf8mb4",
        conv=pymysql.converters.encoders,
    )
    with contextlib.closing(connection), connection.cursor() as cursor:
        cursor.execute("SET SESSION time_zone = '+00:00', sql_mode = ''")
        cursor.execute(f"SELECT {shown} FROM {_quoted(table.name)}")
        return Counter(
            tuple(_read(kind, value, zero_dates) for kind, value in zip(table.columns.values(), row, strict=True))
            for row in cursor.fetchall()
        )


def here(stored: list[dict[str, Any]], table: Table) -> Counter[Row]:
    """The sink's rows."""
    return Counter(tuple(_canonical(kind, row[name]) for name, kind in table.columns.items()) for row in stored)


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _plain(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _kind(type: str) -> str:
    return re.split(r"[^a-z0-9]", type)[0]


def _shown(column: str, type: str) -> str:
    match _kind(type):
        case "float" | "double":
            return f"CAST({column} AS DOUBLE)"
        case "bit":
            return f"CAST({column} AS UNSIGNED)"
        case kind if kind in _BYTES:
            return f"LOWER(HEX({column}))"
        case kind if kind in _SHAPES:
            return f"LOWER(HEX(ST_AsWKB({column})))"
    return column


def _read(type: str, shown: Any, zero_dates: str) -> Any:
    if shown is None:
        return None
    text, kind = _plain(shown), _kind(type)
    if kind in ("date", "datetime", "timestamp") and zero_dates == "null":
        return _moment(text)
    if kind in ("float", "double"):
        return float(text)
    if kind == "json":
        return json.dumps(json.loads(text), sort_keys=True)
    return int(text) if kind in (*_WHOLE, "bit") else text


def _moment(text: str) -> str | None:
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        return None
    return text if len(text) == 10 else moment.isoformat(" ")


def _canonical(type: str, stored: Any) -> Any:
    kind = _kind(type)
    if isinstance(stored, str):
        return json.dumps(json.loads(stored), sort_keys=True) if kind == "json" else stored
    if stored is None or isinstance(stored, float):
        return stored
    match stored:
        case datetime.datetime():
            return stored.replace(tzinfo=None).isoformat(" ")
        case datetime.date():
            return stored.isoformat()
        case bytes():
            return stored.hex()
        case Decimal() if kind == "decimal":
            return format(stored, "f")
    return int(stored)
