"""Table: a replicated table of a sink, read where it is stored, for notebooks."""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from agent.ports.table_reader import TableReader
from agent.sinks import open_table
from capture.errors import ConfigError, TableNotFoundError
from capture.python import html
from reactor.ids import TableSpan
from reactor.records.sync_point import SyncPoint
from reactor.views import ChangefeedView, TableView, called


class Table:
    """One table. Methods read its storage directly, and block meanwhile; no server takes part."""

    def __init__(self, changefeed: str, name: str, reader: TableReader, *, version: int | None = None) -> None:
        self.changefeed = changefeed
        self.name = name
        self._reader = reader
        #: the version that is read; None: the newest
        self._version = version

    @classmethod
    def of(
        cls,
        feed: ChangefeedView,
        name: str,
        storage_options: Mapping[str, str] | None = None,
        *,
        version: int | None = None,
        found: TableView | None = None,
    ) -> "Table":
        """Return a table (schema.name) of a changefeed, as it is now or was at a version of the sink. ``found``: its
        view, if it is known already.

        :raises WeirError: the changefeed has no such table, or the sink's tables cannot be read back.
        """
        found = found or called(feed.tables, name)
        if found is None:
            known = ", ".join(sorted(table.table for table in feed.tables)[:20]) or "none yet"
            raise TableNotFoundError(f"changefeed {feed.id} has no table {name}; it has {known}")
        location = found.location or name.replace(".", "/", 1)  # an older server does not report it
        return cls(feed.id, name, open_table(feed.sink, location, storage_options), version=version)

    def check_was(self, table: TableView, point: SyncPoint) -> None:
        """Check that the version that is read is the one that ``point`` means: written for ``table``, and not later.

        :raises TableNotFoundError: it is not.
        """
        spans = [TableSpan(table.table_id), *(TableSpan.parse(item.span) for item in table.spans)]
        records = self._reader.state(spans, version=self._version).records
        if not records and self.name not in point.table_ids:
            raise TableNotFoundError(f"version {self._version} of {self.location} is not of {self.name} as it is now")
        if max(records.values(), default=0) > point.ts:
            raise TableNotFoundError(
                f"version {self._version} of {self.location} is not that of sync point {point.ts}: the table was set "
                "back since, and written again; read a newer sync point"
            )

    @property
    def location(self) -> str:
        """A directory or a URL, for other readers."""
        return self._reader.location

    @property
    def version(self) -> int:
        """The version that is read without another: the newest, unless the table is that of a ``Moment``."""
        return self._reader.version() if self._version is None else self._version

    def history(self, limit: int = 20) -> list[dict[str, Any]]:
        """Return the last commits, newest first.

        :raises ConfigError: ``limit`` is no number of commits.
        """
        if not _is_count(limit):
            raise ConfigError(f"limit is a whole number of commits, not {limit!r}")
        return self._reader.history(limit)

    def to_batches(self, columns: Sequence[str] | None = None, *, version: int | None = None) -> pa.RecordBatchReader:
        """Return the rows batch by batch: memory holds one batch at a time.

        :raises ConfigError: ``columns`` is no list of names, or ``version`` no number.
        :raises WeirError: the table has no such column or version, or cannot be read.
        """
        if isinstance(columns, str):
            raise ConfigError(f"columns is a list of names, not {columns!r}: pass [{columns!r}]")
        if columns is not None and not columns:
            raise ConfigError("columns is empty: leave it out to read all columns")
        if version is not None and not _is_number(version):
            raise ConfigError(f"version is a whole number that history() shows, not {version!r}")
        return self._reader.scan(columns, version=self._version if version is None else version)

    def to_arrow(self, columns: Sequence[str] | None = None, *, version: int | None = None) -> pa.Table:
        return self.to_batches(columns, version=version).read_all()

    def to_pandas(self, columns: Sequence[str] | None = None, *, version: int | None = None) -> Any:
        return self.to_arrow(columns, version=version).to_pandas()

    def to_polars(self, columns: Sequence[str] | None = None, *, version: int | None = None) -> Any:
        """:raises ConfigError: polars is not installed."""
        return _module("polars").from_arrow(self.to_arrow(columns, version=version))

    def to_duckdb(
        self, connection: Any = None, columns: Sequence[str] | None = None, *, version: int | None = None
    ) -> Any:
        """Return a relation of DuckDB, in ``connection`` or in its default one.

        :raises ConfigError: duckdb is not installed, or ``connection`` is none of it.
        """
        connection = _module("duckdb") if connection is None else connection
        if not hasattr(connection, "from_arrow"):
            raise ConfigError(
                f"connection is one of duckdb.connect(), not {_kind(connection)}; leave it out for its own"
            )
        return connection.from_arrow(self.to_arrow(columns, version=version))

    def to_spark(self, spark: Any, columns: Sequence[str] | None = None, *, version: int | None = None) -> Any:
        """Return a DataFrame of the session ``spark``. Rows go through this process: a session with Delta's own jars
        reads a large table better by its ``location``.

        :raises ConfigError: ``spark`` is no session.
        """
        if not hasattr(spark, "createDataFrame"):
            raise ConfigError(f"spark is a session, such as SparkSession.builder.getOrCreate(), not {_kind(spark)}")
        return spark.createDataFrame(self.to_arrow(columns, version=version))

    def __repr__(self) -> str:
        return html.one_line(f"<Table {self.name} of {self.changefeed} at {self.location}>")

    def _repr_html_(self) -> str:
        names = ("table", "changefeed", "location", "version")
        return html.rows(names, [(self.name, self.changefeed, self.location, self.version)])


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _kind(value: object) -> str:
    """Return what ``value`` is, which may hold a password."""
    return "None" if value is None else f"a {type(value).__name__}"


def _is_count(value: object) -> bool:
    return _is_number(value) and int(str(value)) >= 0


def _module(name: str) -> Any:
    try:
        return __import__(name)
    except ImportError:
        raise ConfigError(f"{name} is not installed; pip install {name}, or use to_arrow()") from None
