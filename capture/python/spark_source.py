"""Spark source: changes as a DataFrame of the user's own session, ``spark.readStream.format("weir")``.

The driver asks a server which files of the change log hold the next changes; executors read and decode them. An offset
is a Ts, so a query continues from its checkpoint exactly. Executors need Weir installed, and the log storage.

Spark does not store where a query began, but asks for it again when the first batch is repeated. So the end of the
first batch, which is stored, tells it: ``began``, the Ts by table, and ``versions``, the snapshots that the batch
reads. A table that begins behind the others is not read before its own Ts, which later offsets keep until then.

Follows ``pyspark.sql.datasource`` of Spark 4.2 and later, which hands read limits to Python sources.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StringType, StructField, StructType

from agent.errors import DecodeError
from agent.feeds import changes
from agent.feeds.changes import LogSlice
from agent.log import segment
from capture.api.subscriptions import LogPart
from capture.errors import ConfigError, PositionGoneError
from capture.python.changes import Subscription, segments_of
from capture.python.snapshot_start import Pinned, SnapshotPart
from capture.python.spark_options import Options
from reactor.ids import TableSpan, Ts

_PARTITION_BYTES = 8 << 20
#: of several tables: which one a row is of
_TABLE = "_table"

Offset = dict[str, Any]


class SparkSource(DataSource):
    """Registers as ``spark.dataSource.register(capture.SparkSource)``."""

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self._options = Options.of(dict(options))

    @classmethod
    def name(cls) -> str:
        return "weir"

    def schema(self) -> StructType:
        """Return the columns that the table has at its source now, and those of a changelog; of several tables, a
        struct of these for each."""
        found = {}
        for table in self._options.tables:
            with self._options.looking(table) as subscription:
                found[table] = from_arrow_schema(subscription.schema(), prefer_timestamp_ntz=True)
        if len(found) == 1:
            return next(iter(found.values()))
        structs = [StructField(column, found[table]) for table, column in self._options.columns.items()]
        return StructType([StructField(_TABLE, StringType()), *structs])

    def reader(self, schema: StructType) -> DataSourceReader:
        return _Reader(self._options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """:raises ConfigError: option ``endingTs`` is set, which only batch queries have."""
        if self._options.ending is not None:
            raise ConfigError("option endingTs is for spark.read; a streaming query ends by its trigger")
        return _StreamReader(self._options, schema)


@dataclass
class _Part(InputPartition):
    """Some files of the log, or of a snapshot, for one task. ``column``: the table's struct; empty: the row is flat."""

    part: LogSlice | SnapshotPart
    table: str
    column: str
    schema: str
    leaves_out: bool


class _Parts:
    """Divides what is read into tasks."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._schema = json.dumps(schema.jsonValue())

    def of_log(self, subscription: Subscription, table: str, from_ts: int, to_ts: int | None) -> list[_Part]:
        if to_ts is not None and to_ts <= from_ts:
            return []
        part = subscription.part(from_ts, to_ts)
        if to_ts is not None and part.to_ts < to_ts:
            raise ConfigError(f"the log ends at {part.to_ts}, before {to_ts}")
        return [
            self._part(table, LogSlice(part.table, part.filter, segments, Ts(part.from_ts), Ts(part.to_ts)))
            for segments in changes.divided(segments_of(part), _PARTITION_BYTES)
        ]

    def of_snapshot(self, pinned: Pinned, table: str) -> list[_Part]:
        return [self._part(table, part) for part in self._options.snapshot(table).parts(pinned)]

    def _part(self, table: str, part: LogSlice | SnapshotPart) -> _Part:
        column = self._options.columns[table] if len(self._options.tables) > 1 else ""
        return _Part(part, table, column, self._schema, self._options.leaves_out)


class _Reader(DataSourceReader):
    """``spark.read``: what the log has now."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._parts = _Parts(options, schema)

    def partitions(self) -> Sequence[InputPartition]:
        return [part for table in self._options.tables for part in self._of(table)]

    def _of(self, table: str) -> list[_Part]:
        options = self._options
        with options.one_time(table) as subscription:
            if not options.from_snapshot:
                return self._of_log(subscription, table, subscription.ts)
            pinned = options.pin(table, subscription)
            if options.ending is not None and options.ending < pinned.ts:
                raise ConfigError(f"option endingTs is {options.ending}, before the snapshot's Ts, {pinned.ts}")
            found = self._parts.of_snapshot(pinned, table)
            return [*found, *self._of_log(subscription, table, pinned.ts)]

    def _of_log(self, subscription: Subscription, table: str, from_ts: int) -> list[_Part]:
        """The tasks read after ``subscription`` has ended."""
        found = self._parts.of_log(subscription, table, from_ts, self._options.ending)
        for first in found[:1]:
            assert isinstance(first.part, LogSlice)
            self._options.hold(table, first.part.table.table_id, from_ts)
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(partition)

    def __getstate__(self) -> dict[str, object]:
        """Executors get neither token nor subscription."""
        return {}


class _StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """``spark.readStream``. Its subscriptions are opened where the query begins, or continues from its checkpoint."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._parts = _Parts(options, schema)
        self._subscriptions: dict[str, Subscription] = {}
        #: numbers of the tables, which offsets have: another table may take the name of one that is read
        self._ids: dict[str, int] = {}
        #: whether the query ends where the log ended as it began, and that Ts once it is known
        self._ends_now = False
        self._last_ts: int | None = None

    def initialOffset(self) -> Offset:
        """Return where the query begins, unless the end of its first batch is known already: that is then valid."""
        if self._options.from_snapshot:
            return {"ts": 0, "begins": "snapshot"}
        return {"ts": min(self._at(table, None).ts for table in self._options.tables), "begins": "changes"}

    def prepareForTriggerAvailableNow(self) -> None:
        self._ends_now = True

    def getDefaultReadLimit(self) -> ReadLimit:
        options = self._options
        if options.max_bytes is not None:
            return ReadMaxBytes(options.max_bytes)
        return ReadAllAvailable() if options.max_rows is None else ReadMaxRows(options.max_rows)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        self._ids |= start.get("tables", {})
        if start.get("begins") == "snapshot":
            return self._pinned()
        is_first = "begins" in start
        after = {table: self._at(table, None).ts for table in self._options.tables} if is_first else self._after(start)
        if self._ends_now and self._last_ts is None:
            self._last_ts = max(self._part(table, ts, max_bytes=1).newest_ts for table, ts in after.items())
        # Spark stores the end of a query's first batch even if that is its start: where it began has to be in it
        if not is_first and self._last_ts is not None and min(after.values()) >= self._last_ts:
            return start
        to_ts = self._reached(after, is_limited=not isinstance(limit, ReadAllAvailable))
        if is_first:
            return {"ts": to_ts, "began": after, "tables": dict(self._ids)}
        return _offset(to_ts, start.get("began", {})) | {"tables": dict(self._ids)} if to_ts > start["ts"] else start

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        tables = self._options.tables
        self._ids |= end.get("tables", {})
        if "versions" in end and "begins" in start:
            pinned = {table: Pinned.of_offset(end["versions"][table]) for table in tables}
            for table, version in pinned.items():
                self._at(table, version.ts)
            return [part for table in tables for part in self._parts.of_snapshot(pinned[table], table)]
        after = end["began"] if "begins" in start else self._after(start)
        for table, known in list(self._subscriptions.items()):
            if "begins" in start and known.ts > after[table]:  # it was opened for a batch that is repeated
                self._subscriptions[table] = self._options.subscribe(table, "latest", at_ts=after[table])
        found = [
            part
            for table in tables
            for part in self._parts.of_log(self._at(table, after[table]), table, after[table], end["ts"])
        ]
        for part in found:
            assert isinstance(part.part, LogSlice)
            self._check_same(part.table, part.part.table.table_id)
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(partition)

    def __getstate__(self) -> dict[str, object]:
        """Executors get neither token nor subscription."""
        return {}

    def commit(self, end: Offset) -> None:
        for table, ts in self._after(end).items():
            self._at(table, ts).advance(ts)

    def stop(self) -> None:
        """Keep the positions: the query may be started again."""

    def _pinned(self) -> Offset:
        """Choose the snapshots, and hold the log from there on."""
        versions: dict[str, Pinned] = {}
        for table in self._options.tables:
            subscription = self._subscriptions.get(table) or self._options.subscribe(table, "earliest")
            found = versions[table] = self._options.pin(table, subscription)
            self._subscriptions[table] = self._options.subscribe(table, "earliest", at_ts=found.ts)
        began = {table: found.ts for table, found in versions.items()}
        stored = {table: found.to_offset() for table, found in versions.items()}
        self._ids |= {table: TableSpan.parse(version.spans[0]).table_id for table, version in versions.items()}
        return {"ts": min(began.values()), "began": began, "versions": stored, "tables": dict(self._ids)}

    def _reached(self, after: Mapping[str, int], *, is_limited: bool) -> int:
        """Return how far the next batch reaches."""
        max_bytes = self._options.max_bytes if is_limited else None
        parts = [
            self._part(table, ts, self._last_ts, max_bytes=max_bytes and -(-max_bytes // len(after)))
            for table, ts in after.items()
        ]
        to_ts = min(part.to_ts for part in parts)
        max_rows = self._options.max_rows if is_limited else None
        return to_ts if max_rows is None else min(to_ts, _behind_rows(parts, max_rows, to_ts))

    def _part(self, table: str, ts: int, to_ts: int | None = None, *, max_bytes: int | None) -> LogPart:
        found = self._at(table, ts).part(ts, to_ts, max_bytes=max_bytes)
        self._check_same(table, found.table.table_id)
        return found

    def _check_same(self, table: str, table_id: int) -> None:
        """:raises PositionGoneError: the query has read another table of that name."""
        if self._ids.setdefault(table, table_id) != table_id:
            raise PositionGoneError(
                f"{table} is another table than the query has read, as after an online schema change; start the query "
                'again with startingVersion="snapshot" and another checkpoint directory'
            )

    def _after(self, offset: Offset) -> dict[str, int]:
        """Return which Ts each table has been read to."""
        began = offset.get("began", {})
        return {table: max(offset["ts"], began.get(table, 0)) for table in self._options.tables}

    def _at(self, table: str, ts: int | None) -> Subscription:
        if table not in self._subscriptions:
            self._subscriptions[table] = self._options.subscribe(table, "latest", at_ts=ts)
        return self._subscriptions[table]


def _offset(ts: int, began: Mapping[str, int]) -> Offset:
    later = {table: at for table, at in began.items() if at > ts}
    return {"ts": ts, "began": later} if later else {"ts": ts}


def _behind_rows(parts: Sequence[LogPart], max_rows: int, to_ts: int) -> int:
    """Return the last Ts up to which there are ``max_rows`` changes at most, or the first one if it has more."""
    files = sorted((item for part in parts for item in part.segments), key=lambda item: item.seq)
    tables = [(part.table.table_id, part.from_ts, {item.path for item in part.segments}) for part in parts]
    found = np.empty(0, np.int64)
    for path in dict.fromkeys(item.path for item in files):
        for table_id, from_ts, paths in tables:
            if path in paths:
                at = [batch.column(0).to_numpy() for _, batch, _ in segment.read_batches(path, table_id)]
                found = np.concatenate([found, *(ts[(ts > from_ts) & (ts <= to_ts)] for ts in at)])
        if len(found) > max_rows:
            found.sort()
            fitting = found[found < found[max_rows]]
            return int(fitting[-1] if len(fitting) else found[0])
    return to_ts


def _read(partition: InputPartition) -> Iterator[pa.RecordBatch]:
    if not isinstance(partition, _Part):  # Spark's own, where a batch query has none
        return
    part = partition.part
    schema = to_arrow_schema(StructType.fromJson(json.loads(partition.schema)), timezone="UTC")
    wanted = pa.schema(list(schema.field(partition.column).type)) if partition.column else schema
    for rows in part.read() if isinstance(part, SnapshotPart) else changes.read(part):
        try:
            fitting = changes.conformed(rows, wanted, leaves_out=partition.leaves_out)
        except DecodeError as error:
            raise DecodeError(
                f"{partition.table} was changed: {error}; start the query "
                "again, so that it takes the table's columns, or give it a schema and mergeSchema=true"
            ) from None
        for batch in fitting.to_batches():
            yield _as_struct(batch, schema, partition) if partition.column else batch


def _as_struct(batch: pa.RecordBatch, schema: pa.Schema, partition: _Part) -> pa.RecordBatch:
    """Return rows whose only values are the table's name and its struct."""
    columns: dict[str, pa.Array] = {item.name: pa.nulls(batch.num_rows, item.type) for item in schema}
    columns[_TABLE] = pa.repeat(partition.table, batch.num_rows).cast(schema.field(_TABLE).type)
    columns[partition.column] = pa.StructArray.from_arrays(
        batch.columns, fields=list(schema.field(partition.column).type)
    )
    return pa.record_batch(list(columns.values()), schema=schema)
