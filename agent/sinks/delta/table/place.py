"""Delta table place: opens tables, checks their owner, and reads their records. Nothing else opens tables.

The owner is named in the table's description (Delta has no place for custom properties when a table is created from
existing files): the changefeed and the write mode. Each span's position is an application transaction,
``weir/{changefeed}/{span}`` with the Ts as its version, which Delta commits together with the data.
"""

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final, Protocol
from urllib.parse import unquote

import pyarrow as pa
from deltalake import ColumnProperties, CommitProperties, DeltaTable, Schema, Transaction, WriterProperties
from deltalake.exceptions import TableNotFoundError

from agent import host_cache
from agent.errors import RESYNC, TableForeignError
from agent.object_store import ObjectStore
from agent.ports.sink import FlushTask
from agent.sinks.common import span_records
from agent.sinks.common.keys.former_keys import FormerKeys
from agent.sinks.common.row_marks import NO_MARKS, Marks
from agent.sinks.delta.table import mapping, own_files
from agent.sinks.delta.table import schema as delta_schema
from agent.sinks.delta.table.errors import MARK, away_error, storage_errors
from agent.sinks.delta.table.layout import Layout
from agent.sinks.delta.table.mapping import NO_MAPPING, ColumnNames
from agent.sinks.delta.table.own_files import OwnTable
from reactor.ids import TableSpan, Ts
from reactor.records.changefeed import SinkMode

#: our key in a table's description, and prefix of its records' names
OWNER = "weir"
#: in the owner's part of a description
FORMER_KEYS: Final = "former_keys"
#: the record of our newest commit's own number (see ``history``)
SEEN = f"{OWNER}/seen"
_MARK_TEXT = b"Weir writes the tables below. Without this file the directory is taken for one whose mount has gone.\n"
#: sinks' directories that this process has seen, with their devices
_seen: dict[str, int] = {}


@dataclass(frozen=True, slots=True)
class TablePlace:
    """``location``: a directory or a URL. ``options``: for the storage; may hold secrets, so not in the repr."""

    location: str
    is_local: bool = True
    options: dict[str, str] = field(default_factory=dict, repr=False)
    #: the directory of all the sink's tables, empty if not known
    root: str = ""

    def __str__(self) -> str:
        return self.location

    @property
    def store(self) -> ObjectStore:
        """The store of a table that is not in a directory."""
        return ObjectStore(self.location, self.options)

    def path_of(self, path: str) -> str:
        """Return the local path of the data file that the table's log calls ``path``: on an object store its cached
        copy, downloaded if needed (data files never change).

        :raises OSError: it cannot be read.
        :raises TableHeldError: it is no file of the table's directory.
        """
        own_files.refuse_others([path], self)
        name = unquote(path)
        if self.is_local:
            return os.path.join(self.location, name)
        return host_cache.fetch_path(f"{self.location}/{name}", lambda: self.store.read(name))

    def cached_path(self, path: str) -> str | None:
        """Return the local path of a data file that need not be downloaded; None if there is none."""
        return self.path_of(path) if self.is_local else host_cache.known_path(f"{self.location}/{unquote(path)}")

    def file_names(self) -> Sequence[str]:
        """Return the names of what is in the table's directory, of any kind; empty if there is no such directory.

        :raises SinkError: the storage fails.
        """
        if self.is_local and not os.path.isdir(self.location):
            return []
        with storage_errors(self, "list"):
            return os.listdir(self.location) if self.is_local else self.store.entries()

    def at(self, location: str) -> "TablePlace":
        """Return another location of the same sink."""
        return replace(self, location=location)

    def is_away(self) -> bool:
        """Return whether the sink's directory is missing, as when it is not mounted."""
        return bool(self.is_local and self.root) and not os.path.exists(os.path.join(self.root, MARK))

    def make(self) -> None:
        """Create the table's directory if it is missing.

        :raises SinkPassingError: the sink's directory is on another device than this process has seen.
        """
        if not self.is_local:
            return
        if self.is_away() and _seen.get(self.root, device := _device(self.root)) != device:
            raise away_error(self)
        with storage_errors(self, "make the directory of"):
            os.makedirs(self.location, exist_ok=True)
            self.mark()

    def mark(self) -> None:
        """Write the marker into the sink's directory.

        :raises SinkError: the storage fails.
        """
        if self.is_local and self.root and (self.root not in _seen or self.is_away()):
            with storage_errors(self, "mark the directory of"):
                with suppress(FileExistsError, PermissionError), open(os.path.join(self.root, MARK), "xb") as file:
                    file.write(_MARK_TEXT)
                _seen[self.root] = _device(self.root)

    def open(self) -> DeltaTable | None:
        """Return the current table; None if there is none.

        :raises SinkError: the storage or the table's log cannot be read.
        """
        if self.is_local and not os.path.isdir(os.path.join(self.location, "_delta_log")):
            return None
        with storage_errors(self, "open the Delta table"):
            try:
                table = OwnTable(self.location, storage_options=self.options or None)
            except TableNotFoundError:
                return None
            self.mark()
        return table

    def opened(self) -> DeltaTable:
        """:raises TableForeignError: there is no table.
        :raises SinkPassingError: the sink as a whole is unavailable.
        """
        table = self.open()
        if table is None and self.is_away():
            raise away_error(self)
        if table is None:
            raise TableForeignError(
                f"there is no Delta table at {self}: it was removed, or never loaded; bring it back with its history "
                f"and resume the changefeed, or {RESYNC}"
            )
        return table


@dataclass(frozen=True, slots=True)
class TableOwner:
    """The changefeed that writes a table, and the mode. ``marks``: the columns that its sink adds; the table does not
    say."""

    changefeed: str
    mode: SinkMode
    marks: Marks = field(default=NO_MARKS, compare=False)

    def description(self) -> str:
        return json.dumps({OWNER: {"changefeed": self.changefeed, "mode": self.mode.value}})

    @classmethod
    def of(cls, table: DeltaTable) -> "TableOwner | None":
        """None if the table is not Weir's."""
        try:
            named = json.loads(table.metadata().description)[OWNER]
            return cls(named["changefeed"], SinkMode(named["mode"]))
        except (ValueError, KeyError, TypeError):
            return None

    def refuse_foreign(self, table: DeltaTable, place: TablePlace) -> None:
        """:raises TableForeignError: the table is not this owner's."""
        owner = TableOwner.of(table)
        if owner is None:
            raise TableForeignError(f"{place} holds a Delta table that is not Weir's; choose another sink directory")
        if owner.changefeed != self.changefeed:
            raise TableForeignError(
                f"{place} is written by changefeed {owner.changefeed!r}; choose another sink directory"
            )
        if owner.mode != self.mode:
            raise TableForeignError(
                f"{place} is written in {owner.mode} mode; choose that mode or another sink directory"
            )


def former_keys(table: DeltaTable) -> FormerKeys:
    """Return those of a changelog, which its description has."""
    return FormerKeys.from_text(json.loads(table.metadata().description)[OWNER].get(FORMER_KEYS, ""))


def _device(path: str) -> int:
    """Return the device of a directory, or of the nearest existing parent."""
    while not os.path.isdir(path):
        path = os.path.dirname(path)
    return os.stat(path).st_dev


def record_prefix(changefeed: str) -> str:
    return f"{OWNER}/{changefeed}/"


def record_id(changefeed: str, span: TableSpan) -> str:
    return f"{record_prefix(changefeed)}{span}"


class Records(Protocol):
    """The records of a table."""

    def transaction_version(self, name: str, /) -> int | None: ...


def committed_ts(table: Records, changefeed: str, span: TableSpan) -> Ts | None:
    """Return the recorded Ts, which may be ``RETIRED`` and thus not a position."""
    version = table.transaction_version(record_id(changefeed, span))
    return None if version is None else Ts(version)


def is_written(table: Records, task: FlushTask) -> bool:
    """See ``span_records.is_written``."""
    return span_records.is_written(committed_ts(table, task.feed.changefeed, task.span), task)


def first_properties(records: Mapping[str, int]) -> CommitProperties:
    """Return the properties of the commit that creates a table: its first records."""
    return _properties(0, records)


def commit_properties(table: DeltaTable, records: Mapping[str, int]) -> CommitProperties:
    """Return the properties of a commit on top of ``table``: ``records``, and its own number, which makes it fail if
    another commit comes between: delta-rs must not rebase it onto unchecked commits."""
    return _properties(table.version() + 1, records)


def _properties(version: int, records: Mapping[str, int]) -> CommitProperties:
    versions = {**records, SEEN: version}
    transactions = [Transaction(name, number) for name, number in sorted(versions.items())]
    return CommitProperties(app_transactions=transactions, max_commit_retries=0)


def new_records(tasks: Sequence[FlushTask]) -> dict[str, int]:
    """Return the records of the tasks' spans after the commit, by name."""
    return {record_id(task.feed.changefeed, task.span): int(task.to_ts) for task in tasks}


def partitions(table: DeltaTable) -> tuple[str, ...]:
    """Return the columns by which the table divides rows."""
    return tuple(table.metadata().partition_columns)


def layout(table: DeltaTable) -> Layout:
    """:raises TableHeldError: the table has a column mapping that Weir does not write."""
    configuration = table.metadata().configuration
    if not mapping.is_set(configuration):
        return Layout(partitions(table))
    found = table.protocol()
    protocol = {"minWriterVersion": found.min_writer_version, "writerFeatures": found.writer_features}
    return Layout(partitions(table), ColumnNames.of(protocol, configuration, table.schema().to_json()))


def names_for(table: DeltaTable, columns: pa.Schema) -> ColumnNames:
    """Return the names in files of some columns; without a mapping unless the table has all, with these types."""
    stored = {item.name: item.type for item in plain_schema(table.schema())}
    has_all = all(stored.get(item.name) == item.type for item in columns)
    return layout(table).names if has_all else NO_MAPPING


def arrow_schema(table: DeltaTable) -> pa.Schema:
    return to_arrow(table.schema())


def to_arrow(schema: Schema) -> pa.Schema:
    return pa.schema(schema.to_arrow())


def plain_schema(schema: Schema) -> pa.Schema:
    """Return the schema as in our own files."""
    return pa.schema([pa.field(item.name, delta_schema.plain_type(item.type)) for item in to_arrow(schema)])


def writer_properties(table: DeltaTable) -> WriterProperties:
    """Return delta-rs's writer settings for this table: without statistics for columns where its own are wrong.

    It writes bounds of decimals as floats, so a value may be outside; bounds of floats ignore NaN. Readers that search
    such a value skip files with wrong bounds, including delta-rs's own MERGE, which then duplicates a key (seen with
    1.6.6, keys of MySQL's ``bigint unsigned``).
    """
    names = layout(table).names
    wrong = [names.physical(item.name) for item in arrow_schema(table) if _has_wrong_bounds(item.type)]
    without = ColumnProperties(statistics_enabled="NONE")
    return WriterProperties(
        compression="ZSTD", compression_level=1, column_properties=dict.fromkeys(wrong, without) or None
    )


def _has_wrong_bounds(arrow: pa.DataType) -> bool:
    return bool(pa.types.is_decimal(arrow) or pa.types.is_floating(arrow))
