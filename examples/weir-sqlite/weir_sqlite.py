"""SQLite sink: tables of one database file that equal their source tables, for applications that read them offline.

``sqlite+file:///data/shop.db``. Executors and captures must be on the machine of the file. Values that SQLite has no
type for are text; a NaN is NULL. What is not said here is as for all databases (``agent.sinks.database``).
"""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from agent.errors import SinkPassingError
from agent.ports.plugin import SinkPlugin
from agent.sinks.database import CAPABILITIES, DatabaseSink
from reactor.records.tables.table import TableRecord

_LOCK_S = 30.0


class SqliteSink(DatabaseSink):
    """One database file."""

    types: ClassVar = {pa.int64(): "INTEGER", pa.float64(): "REAL", pa.binary(): "BLOB", pa.string(): "TEXT"}

    @property
    def staging(self) -> Path:
        return Path(f"{self.location}.staged")

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Cursor]:
        try:
            Path(self.location).parent.mkdir(parents=True, exist_ok=True)
            # closing it rolls back what was not committed
            with closing(sqlite3.connect(self.location, timeout=_LOCK_S, isolation_level=None)) as connection:
                db = connection.execute("BEGIN IMMEDIATE")
                yield db
                db.execute("COMMIT")
        except (sqlite3.Error, OSError) as error:
            raise SinkPassingError(
                f"cannot use {self.location} ({error}); see what it lacks, it is tried again"
            ) from error

    def columns(self, db: sqlite3.Cursor, title: str) -> set[str]:
        return {name for (name,) in db.execute("SELECT name FROM pragma_table_info(?)", (title,))}

    def unfit(self, tables: Sequence[TableRecord]) -> dict[int, str]:
        own = [table for table in tables if self.title(table).lower().startswith("sqlite_")]
        reasons = {table.table_id: f"SQLite keeps {self.title(table)} and such names for itself" for table in own}
        return super().unfit(tables) | reasons

    def stored(self, column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
        values = super().stored(column)
        if values.type == pa.float64():
            return pc.if_else(pc.is_nan(values), None, values)
        return values


PLUGIN = SinkPlugin(
    summary="tables of one SQLite database file",
    schemes=("sqlite+file",),
    open=SqliteSink,
    capabilities=CAPABILITIES,
)
