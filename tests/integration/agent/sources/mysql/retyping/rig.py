"""Columns that a real server gives another type, and what it makes of their values, for tests."""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pymysql

from agent.errors import DecodeError
from agent.rows.schema import Column, TableSchema, ZeroDates
from agent.rows.schema_change import Refused
from agent.sources.mysql.decode.table_ids import table_id
from agent.sources.mysql.retyping.retyping import conversion
from agent.sources.mysql.retyping.terms import RetypeTerms
from agent.sources.mysql.server.catalog import read_schemas
from agent.sources.mysql.server.connection import connect
from agent.sources.mysql.snapshot.rows_text import read_rows, select_list
from capture.embedded import EmbeddedMariaDB
from tests.integration.agent.sources.mysql.retyping.conversion_types import Sample

#: columns of one table: InnoDB has a limit for its rows
_WIDTH = 24
#: a server refuses values that are none of these, in whatever mode
_PICKY = ("json", "geometry", "point", "linestring", "multipoint", "vector", "uuid", "inet4", "inet6")


@dataclass(frozen=True, slots=True)
class Retyped:
    """One column before and after, and its values in one spelling of zero dates."""

    before: Column
    after: Column
    values: pa.Array
    found: pa.Array
    zero_dates: ZeroDates


@dataclass(frozen=True, slots=True)
class Session:
    """Under which settings a server alters."""

    sql_mode: str = ""
    time_zone: str = "+02:00"
    second: int = 1_700_000_000


def read(server: EmbeddedMariaDB, database: str, name: str, zero_dates: ZeroDates) -> tuple[TableSchema, pa.Table]:
    """A table as a snapshot reads it, by its first column."""
    with connect(server.uri()) as connection:
        schema = read_schemas(connection, [(database, name)], zero_dates=zero_dates)[table_id(database, name)]
        sql = f"SELECT {select_list(schema.columns)} FROM {database}.{name} ORDER BY 1"
        batches = list(read_rows(connection, schema, sql))
    return schema, pa.Table.from_batches(batches).combine_chunks()


def retyped(
    server: EmbeddedMariaDB, database: str, old: Sample, new: Sequence[Sample], session: Session, suffix: str = ""
) -> Iterator[Retyped]:
    """``old`` with its values as each of ``new``; pairs that the server refuses are not in it. ``suffix``: behind each
    of the new types."""
    with contextlib.closing(server.connect(database)) as connection, connection.cursor() as cursor:
        cursor.execute(f"SET NAMES utf8mb4, time_zone = '{session.time_zone}'")
        for begin in range(0, len(new), _WIDTH):
            yield from _retyped(server, database, cursor, old, new[begin : begin + _WIDTH], session, suffix)


def _retyped(
    server: EmbeddedMariaDB,
    database: str,
    cursor: Any,
    old: Sample,
    new: Sequence[Sample],
    session: Session,
    suffix: str,
) -> Iterator[Retyped]:
    cursor.execute("SET sql_mode = ''")
    columns = ", ".join(f"c{at} {old.definition}" for at in range(len(new)))
    cursor.execute(f"CREATE TABLE m (id int PRIMARY KEY, {columns}) CHARACTER SET utf8mb4")
    rows = (f"({row}, {', '.join([value] * len(new))})" for row, value in enumerate(("NULL", *old.values)))
    cursor.execute(f"INSERT INTO m VALUES {', '.join(rows)}")
    before = {rule: read(server, database, "m", rule) for rule in (ZeroDates.NULL, ZeroDates.STRING)}
    cursor.execute(f"SET sql_mode = '{session.sql_mode}', timestamp = {session.second}")
    done = _alter(cursor, new, suffix)
    for rule, (schema, values) in before.items():
        after, found = read(server, database, "m", rule)
        for at in done:
            old_column, new_column = schema.columns[at + 1], after.columns[at + 1]
            columns_ = (values.column(at + 1).combine_chunks(), found.column(at + 1).combine_chunks())
            yield Retyped(old_column, new_column, *columns_, rule)
    cursor.execute("DROP TABLE m")


def _alter(cursor: Any, new: Sequence[Sample], suffix: str) -> list[int]:
    """All that no server refuses in one statement, the others in one each. Which have been done."""
    parts = [f"MODIFY c{at} {sample.definition}{suffix}" for at, sample in enumerate(new)]
    done = [at for at, sample in enumerate(new) if not sample.definition.startswith(_PICKY)]
    try:
        cursor.execute(f"ALTER TABLE m {', '.join(parts[at] for at in done)}")
    except pymysql.err.Error:
        done = []
    for at, part in enumerate(parts):
        with contextlib.suppress(pymysql.err.Error):
            if at not in done:
                cursor.execute(f"ALTER TABLE m {part}")
                done.append(at)
    return done


def differences(pair: Retyped, terms: RetypeTerms) -> list[str]:
    """Where the conversion is wrong: by value, as one value that is refused hides the others."""
    found = conversion(pair.before, pair.after, terms)
    title = f"{pair.before.type_name} → {pair.after.type_name} ({pair.zero_dates})"
    if isinstance(found, Refused):
        return []
    if found is None:
        return [] if pair.values.equals(pair.found) else [f"{title}: taken for the same"]
    wrong = []
    for row in range(len(pair.values)):
        value, there = pair.values.slice(row, 1), pair.found.slice(row, 1)
        try:
            made = found.convert(pa.concat_arrays([value]))
        except DecodeError:
            continue
        if made.type != there.type or not made.equals(there):
            wrong.append(f"{title}: {value.to_pylist()} became {made.to_pylist()}, the server has {there.to_pylist()}")
    return wrong
