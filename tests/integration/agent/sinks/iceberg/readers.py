"""Readers of Iceberg tables, others' and the Python interface's, each behind one function: a table's rows as Arrow.

Those of the extra ``dev`` are always here. They are imported when they are asked: some are large.
"""

import importlib.util
import os
import warnings
from collections.abc import Callable
from contextlib import chdir
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import duckdb
import pyarrow as pa
from pyiceberg.table import Table


@dataclass(frozen=True)
class Reader:
    """``packages``: what it needs."""

    name: str
    packages: tuple[str, ...]
    rows: Callable[[Table], pa.Table]

    def why_not(self) -> str | None:
        missing = [name for name in self.packages if importlib.util.find_spec(name) is None]
        return f"no {missing[0]}" if missing else None

    def __str__(self) -> str:
        return self.name


def duckdb_rows(table: Table) -> pa.Table:
    """The packages bring the extensions as DuckDB's makers signed them."""
    with duckdb.connect() as db:
        for name in ("avro", "iceberg"):
            found = importlib.util.find_spec(f"duckdb_extension_{name}")
            assert found is not None
            assert found.origin is not None
            [extension] = Path(found.origin).parent.glob(f"extensions/*/{name}.duckdb_extension")
            db.execute(f"LOAD '{extension}'")
        rows = db.execute(f"SELECT * FROM iceberg_scan('{table.metadata_location.removeprefix('file://')}')")
        return rows.to_arrow_table()


def _pyiceberg(table: Table) -> pa.Table:
    return table.scan().to_arrow()


def _polars(table: Table) -> pa.Table:
    with warnings.catch_warnings(action="ignore"):  # it would be faster with another package
        found: pa.Table = import_module("polars").scan_iceberg(table.metadata_location).collect().to_arrow()
    return found


def _clickhouse(table: Table) -> pa.Table:
    """Files outside of the current directory are refused."""
    location = table.metadata.location.removeprefix("file://")
    with chdir(os.path.dirname(location)):
        found: pa.Table = import_module("chdb").query(f"SELECT * FROM icebergLocal('{location}')", "ArrowTable")
    return found


READERS = (
    Reader("pyiceberg", ("pyiceberg",), _pyiceberg),
    Reader("duckdb", ("duckdb", "duckdb_extension_iceberg", "duckdb_extension_avro"), duckdb_rows),
    Reader("polars", ("polars",), _polars),
    Reader("chdb", ("chdb",), _clickhouse),
)
#: those that read every kind of table with every type
COMPARED = READERS[:3]
