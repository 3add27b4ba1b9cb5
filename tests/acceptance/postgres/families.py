"""Families of schema changes: reads ``families.sql``, and what a server made of them in canonical form."""

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psycopg

from capture.embedded import EmbeddedPostgres
from tests.soak.postgres import canonical, read

Row = tuple[Any, ...]

DATABASE: Final = "families"
_FILE: Final = Path(__file__).with_suffix(".sql")
_SHOWN: Final = "-c TimeZone=UTC -c DateStyle=ISO -c IntervalStyle=postgres -c extra_float_digits=3"
#: with the type below all domains, and whether the column is of the key that changes carry; a partition is its root's
_COLUMNS_SQL: Final = """
WITH RECURSIVE below AS (
    SELECT oid, oid AS type, typtypmod AS modifier FROM pg_type
    UNION ALL
    SELECT below.oid, t.typbasetype, coalesce(nullif(below.modifier, -1), t.typtypmod)
      FROM below JOIN pg_type t ON t.oid = below.type AND t.typtype = 'd'
), base AS (
    SELECT below.oid, below.type, below.modifier FROM below JOIN pg_type t ON t.oid = below.type AND t.typtype <> 'd'
)
SELECT n.nspname, c.relname, a.attname, format_type(base.type, coalesce(nullif(a.atttypmod, -1), base.modifier)),
       a.attnum = ANY (coalesce((
           SELECT (i.indkey::int2[])[0:i.indnkeyatts - 1] FROM pg_index i
            WHERE i.indrelid = c.oid AND (i.indisreplident OR i.indisprimary) ORDER BY i.indisreplident DESC LIMIT 1
       ), '{}'::int2[])),
       c.relkind = 'p'
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
  JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
  JOIN base ON base.oid = a.atttypid
 WHERE c.relkind IN ('r', 'p') AND n.nspname LIKE 'fam\\_%' AND c.relpersistence = 'p' AND NOT c.relispartition
 ORDER BY 1, 2, a.attnum
"""


@dataclass(slots=True)
class Family:
    name: str
    setup: list[str] = field(default_factory=list)
    steps: list[str] = field(default_factory=list)

    @property
    def schema(self) -> str:
        return f"fam_{self.name}"


def families() -> list[Family]:
    found: list[Family] = []
    for line in _FILE.read_text().splitlines():
        if line.startswith("## "):
            found.append(Family(line.removeprefix("## ")))
            statements = found[-1].setup
        elif line == "then":
            statements = found[-1].steps
        elif line and found:
            statements.append(line)
    return found


def connected(server: EmbeddedPostgres, options: str = "") -> psycopg.Connection[Any]:
    return psycopg.connect(server.dsn(DATABASE), autocommit=True, options=options)


def run(server: EmbeddedPostgres, family: Family, statements: list[str]) -> int:
    """Run what the server takes; a transaction with a statement that it refuses is rolled back. How many that were."""
    done = 0
    with connected(server) as connection:
        connection.execute(f"CREATE SCHEMA IF NOT EXISTS {family.schema}".encode())
        connection.execute(f"SET search_path = {family.schema}, pg_catalog".encode())
        for statement in statements:
            with contextlib.suppress(psycopg.Error):
                connection.execute(statement.replace("{s}", family.schema).encode())
                done += 1
        if connection.info.transaction_status is not psycopg.pq.TransactionStatus.IDLE:
            connection.execute(b"ROLLBACK")
    return done


@dataclass(frozen=True, slots=True)
class Table:
    """``columns``: type by name. ``key``: of its replica identity."""

    schema: str
    name: str
    columns: Mapping[str, str]
    key: tuple[str, ...]
    is_partitioned: bool

    @property
    def full_name(self) -> str:
        return f"{self.schema}.{self.name}"


def tables(server: EmbeddedPostgres) -> Iterator[Table]:
    found: dict[tuple[str, str, bool], list[tuple[str, str, bool]]] = {}
    with connected(server) as connection:
        for schema, name, column, kind, is_key, is_partitioned in connection.execute(_COLUMNS_SQL.encode()):
            found.setdefault((schema, name, is_partitioned), []).append((column, kind, is_key))
    for (schema, name, is_partitioned), columns in found.items():
        kinds = {column: kind for column, kind, _ in columns}
        key = tuple(column for column, _, is_key in columns if is_key)
        yield Table(schema, name, kinds, key, is_partitioned)


def there(server: EmbeddedPostgres, table: Table) -> Counter[Row]:
    """The server's rows, as COPY sends them."""
    columns, only = ", ".join(map(_quoted, table.columns)), "" if table.is_partitioned else "ONLY "
    sql = f"COPY (SELECT {columns} FROM {only}{_quoted(table.schema)}.{_quoted(table.name)}) TO STDOUT"
    path = f" -c search_path={table.schema},pg_catalog"
    with (
        connected(server, _SHOWN + path) as connection,
        connection.cursor() as cursor,
        cursor.copy(sql.encode()) as copy,
    ):
        return Counter(
            tuple(read(kind, value) for kind, value in zip(table.columns.values(), row, strict=True))
            for row in copy.rows()
        )


def here(stored: list[dict[str, Any]], table: Table) -> Counter[Row]:
    """The sink's rows."""
    return Counter(tuple(canonical(kind, row[name]) for name, kind in table.columns.items()) for row in stored)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
