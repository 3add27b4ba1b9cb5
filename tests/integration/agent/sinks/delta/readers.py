"""Readers of Delta tables, others' and the Python interface's, each behind one function: a table's rows as Arrow.

Those of the extra ``dev`` are always here, those of ``readers`` where it is installed. They are imported when they are
asked: some are large.
"""

import importlib.util
import os
from collections.abc import Callable
from contextlib import chdir
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pyarrow as pa

from agent.sinks import open_table

#: a table's directory, what is wanted of it (columns or an aggregate), and of which rows (empty: of all)
Read = Callable[[str, str, str], pa.Table]


@dataclass(frozen=True)
class Reader:
    """``packages``: what it needs. ``has_sql``: it takes conditions, and may leave files and row groups alone by them.
    ``moment``: how these have a moment. ``has_all``: it has each value that Weir writes. ``has_mapping``: it reads
    columns that have other names in files."""

    name: str
    packages: tuple[str, ...]
    read: Read
    has_sql: bool = True
    moment: str = "TIMESTAMP '{}'"
    has_all: bool = True
    has_mapping: bool = True

    def why_not(self) -> str | None:
        missing = [name for name in self.packages if importlib.util.find_spec(name) is None]
        return f"no {missing[0]}: .venv/bin/pip install -e '.[readers]' brings it" if missing else None

    def rows(self, location: str, where: str = "") -> pa.Table:
        return self.read(location, "*", where)

    def count(self, location: str) -> int:
        """What it says without reading rows, where it can."""
        [[count]] = self.read(location, "count(*) AS n", "").to_pydict().values()
        return int(count)

    def __str__(self) -> str:
        return self.name


def _duckdb(location: str, wanted: str, where: str) -> pa.Table:
    return _duckdb_session().execute(_sql(wanted, f"delta_scan('{location}')", where)).to_arrow_table()


@cache
def _duckdb_session() -> Any:
    """The package brings the extension as DuckDB's makers signed it; any other is refused."""
    found = importlib.util.find_spec("duckdb_extension_delta")
    assert found is not None
    assert found.origin is not None
    [extension] = Path(found.origin).parent.glob("extensions/*/delta.duckdb_extension")
    session = import_module("duckdb").connect()
    session.execute(f"LOAD '{extension}'")
    session.execute("SET TimeZone = 'UTC'")
    return session


def _kernel(location: str, wanted: str, where: str) -> pa.Table:
    assert (wanted, where) == ("*", ""), "its Python side has rows only"
    kernel = import_module("delta_kernel_rust_sharing_wrapper")
    interface = kernel.PythonInterface(f"file://{location}")
    snapshot = kernel.Table(f"file://{location}").snapshot(interface)
    return pa.table(kernel.ScanBuilder(snapshot).build().execute(interface).read_all())


def _delta_rs(location: str, wanted: str, where: str) -> pa.Table:
    deltalake = import_module("deltalake")
    query = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(location))
    return pa.table(query.execute(_sql(wanted, "t", where)).read_all())


def _weir(location: str, wanted: str, where: str) -> pa.Table:
    assert (wanted, where) == ("*", ""), "it has rows only"
    directory, name = os.path.split(location)
    return open_table(f"delta+file://{directory}", name).scan().read_all()


def _polars(location: str, wanted: str, where: str) -> pa.Table:
    return _polars_rows(import_module("polars").scan_delta(location), wanted, where)


def _polars_kernel(location: str, wanted: str, where: str) -> pa.Table:
    return _polars_rows(import_module("polars_deltalake").scan_delta(location), wanted, where)


def _polars_rows(frame: Any, wanted: str, where: str) -> pa.Table:
    return frame.sql(_sql(wanted, "self", where)).collect().to_arrow()


def _clickhouse(location: str, wanted: str, where: str) -> pa.Table:
    """Files outside of the current directory are refused. ``count(*)`` would be taken from the log, where it has rows
    that are gone in it (seen with 26.9). Its moments are of the years 1900 to 2299, and its lists are never NULL."""
    sql = _sql(wanted, f"deltaLakeLocal('{location}')", where) + " SETTINGS optimize_trivial_count_query = 0"
    with chdir(os.path.dirname(location)):
        return import_module("chdb").query(sql, "ArrowTable")


def _sql(wanted: str, table: str, where: str) -> str:
    return f"SELECT {wanted} FROM {table}" + (f" WHERE {where}" if where else "")


READERS = (
    Reader("weir", ("deltalake",), _weir, has_sql=False),
    Reader("duckdb", ("duckdb", "duckdb_extension_delta"), _duckdb),
    Reader("delta-kernel", ("delta_kernel_rust_sharing_wrapper",), _kernel, has_sql=False),
    Reader("delta-rs", ("deltalake",), _delta_rs),
    Reader("polars", ("polars",), _polars, has_mapping=False),
    Reader("polars-deltalake", ("polars_deltalake",), _polars_kernel),
    Reader("clickhouse", ("chdb",), _clickhouse, moment="toDateTime64('{}', 6)", has_all=False),
)
