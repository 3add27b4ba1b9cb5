"""Spark source: a table's changes as a DataFrame of the user's own session, ``spark.readStream.format("weir")``.

The driver asks a server which files of the change log hold the next changes; executors read and decode them. An offset
is a Ts, so a query continues from its checkpoint exactly. Executors need Weir installed, and the log storage.

Spark does not store where a query began, but asks for it again when the first batch is repeated. So the end of the
first batch, which is stored, tells it: ``began``, or the ``version`` of the snapshot that the batch reads.

Follows ``pyspark.sql.datasource`` of Spark 4.2 and later, which hands read limits to Python sources.
"""

import json
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from agent.errors import DecodeError
from agent.feeds import changes
from agent.feeds.changes import LogSlice
from capture.api.connection import Connection
from capture.api.subscriptions import EXPIRES_DEFAULT_S
from capture.errors import ConfigError
from capture.python.changes import Subscription, segments_of
from capture.python.snapshot_start import Pinned, SnapshotPart, SnapshotStart
from reactor.ids import Ts

_PARTITION_BYTES = 8 << 20
_OPTIONS: Final = {
    "server": "the URL of any capture",
    "changefeed": "its id",
    "table": "schema.name",
    "token": "default: that of this user's server there, or WEIR_TOKEN",
    "cafile": "trusted certificates, besides the system's",
    "startingts": "a Ts, earliest or latest (default: latest; earliest for spark.read)",
    "startingversion": "snapshot: the table as it is in the sink, then the changes after it",
    "endingts": "spark.read: the last Ts (default: the log's end)",
    "name": "of the reader, whose position holds the log (default: a new one for each query)",
    "expires": "seconds that its position is kept without a request",
    "maxbytespertrigger": "of the log, compressed",
    "mergeschema": "true: leave out columns that the query does not know",
}


@dataclass(frozen=True)
class _Options:
    """The options of one reader, checked."""

    server: str
    changefeed: str
    table: str
    token: str | None
    ca_file: str
    starting: int | str | None
    ending: int | None
    from_snapshot: bool
    name: str
    expires: float
    max_bytes: int | None
    leaves_out: bool

    @classmethod
    def of(cls, given: dict[str, str]) -> "_Options":
        """:raises ConfigError: an option is unknown, missing or wrong."""
        known = {name.lower(): value for name, value in given.items() if name.lower() != "path"}
        for name in known.keys() - _OPTIONS.keys():
            raise ConfigError(f"unknown option {name}; there are: {', '.join(_OPTIONS)}")
        for name in ("server", "changefeed", "table"):
            if not known.get(name):
                raise ConfigError(f'option "{name}" is missing: {_OPTIONS[name]}')
        starting, version = known.get("startingts"), known.get("startingversion")
        if version not in (None, "snapshot", "latest"):
            raise ConfigError(f"option startingVersion is {version!r}; it may be snapshot or latest")
        if starting is not None and version is not None:
            raise ConfigError("options startingTs and startingVersion are both given; leave one out")
        if version is not None:
            starting = "earliest" if version == "snapshot" else "latest"
        return cls(
            server=known["server"],
            changefeed=known["changefeed"],
            table=known["table"],
            token=known.get("token"),
            ca_file=known.get("cafile", ""),
            starting=starting if starting in (None, "earliest", "latest") else _number("startingTs", starting),
            ending=_number("endingTs", known["endingts"]) if "endingts" in known else None,
            from_snapshot=version == "snapshot",
            name=known.get("name") or f"spark-{uuid.uuid4().hex[:12]}",
            expires=float(_number("expires", known["expires"])) if "expires" in known else EXPIRES_DEFAULT_S,
            max_bytes=_number("maxBytesPerTrigger", known["maxbytespertrigger"])
            if "maxbytespertrigger" in known
            else None,
            leaves_out=known.get("mergeschema", "").lower() == "true",
        )

    @property
    def connection(self) -> Connection:
        return Connection(self.server, token=self.token, ca_file=self.ca_file)

    @property
    def snapshot(self) -> SnapshotStart:
        return SnapshotStart(self.connection, self.changefeed, self.table)

    def pin(self, subscription: Subscription) -> Pinned:
        """Choose the version to begin with; ``subscription`` holds the log meanwhile."""
        return self.snapshot.pin(None if self.leaves_out else changes.source_names(subscription.schema()))

    def subscribe(self, default: str, *, at_ts: int | None = None) -> Subscription:
        begin = default if self.starting is None else self.starting
        return Subscription(
            self.connection,
            self.changefeed,
            self.table,
            name=self.name,
            from_ts=begin,
            at_ts=at_ts,
            expires=self.expires,
        )


class SparkSource(DataSource):
    """Registers as ``spark.dataSource.register(capture.SparkSource)``."""

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self._options = _Options.of(dict(options))

    @classmethod
    def name(cls) -> str:
        return "weir"

    def schema(self) -> StructType:
        """Return the columns that the table has at its source now, and those of a changelog."""
        with _one_time(self._options) as subscription:
            return from_arrow_schema(subscription.schema(), prefer_timestamp_ntz=True)

    def reader(self, schema: StructType) -> DataSourceReader:
        return _Reader(self._options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return _StreamReader(self._options, schema)


@dataclass
class _Part(InputPartition):
    """Some files of the log, or of a snapshot, for one task."""

    part: LogSlice | SnapshotPart
    schema: str
    leaves_out: bool


class _Reader(DataSourceReader):
    """``spark.read``: what the log has now."""

    def __init__(self, options: _Options, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        with _one_time(options) as subscription:
            if not options.from_snapshot:
                return _parts(subscription, subscription.ts, options.ending, options, self._schema)
            pinned = options.pin(subscription)
            if options.ending is not None and options.ending < pinned.ts:
                raise ConfigError(f"option endingTs is {options.ending}, before the snapshot's Ts, {pinned.ts}")
            found = _snapshot_parts(pinned, options, self._schema)
            return [*found, *_parts(subscription, pinned.ts, options.ending, options, self._schema)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(partition)

    def __getstate__(self) -> dict[str, object]:
        """Executors get neither token nor subscription."""
        return {}


class _StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """``spark.readStream``. Its subscription is opened where the query begins, or continues from its checkpoint."""

    def __init__(self, options: _Options, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._subscription: Subscription | None = None
        #: whether the query ends where the log ended as it began, and that Ts once it is known
        self._ends_now = False
        self._last_ts: int | None = None

    def initialOffset(self) -> dict[str, Any]:
        """Return where the query begins, unless the end of its first batch is known already: that is then valid."""
        if self._options.from_snapshot:
            return {"ts": 0, "begins": "snapshot"}
        return {"ts": self._at(None).ts, "begins": "changes"}

    def prepareForTriggerAvailableNow(self) -> None:
        self._ends_now = True

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable() if self._options.max_bytes is None else ReadMaxBytes(self._options.max_bytes)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        if start.get("begins") == "snapshot":
            return self._pinned().to_offset()
        ts = start["ts"]
        max_bytes = limit.max_bytes if isinstance(limit, ReadMaxBytes) else None
        if self._ends_now and self._last_ts is None:
            self._last_ts = self._at(ts).part(ts, max_bytes=1).newest_ts
        if self._last_ts is not None and ts >= self._last_ts:
            return start
        found = self._at(ts).part(ts, self._last_ts, max_bytes=max_bytes)
        if "begins" in start:
            return {"ts": found.to_ts, "began": ts}
        return {"ts": found.to_ts} if found.to_ts > ts else start

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        if "begins" not in start:
            return _parts(self._at(start["ts"]), start["ts"], end["ts"], self._options, self._schema)
        if (pinned := Pinned.of_offset(end)) is not None:
            self._at(pinned.ts)
            return _snapshot_parts(pinned, self._options, self._schema)
        began = end.get("began", start["ts"])
        if self._subscription is None or self._subscription.ts > began:  # it was opened for a batch that is repeated
            self._subscription = self._options.subscribe("latest", at_ts=began)
        return _parts(self._at(began), began, end["ts"], self._options, self._schema)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(partition)

    def __getstate__(self) -> dict[str, object]:
        """Executors get neither token nor subscription."""
        return {}

    def commit(self, end: dict[str, Any]) -> None:
        self._at(end["ts"]).advance(end["ts"])

    def stop(self) -> None:
        """Keep the position: the query may be started again."""

    def _pinned(self) -> Pinned:
        """Choose the snapshot, and hold the log from there on."""
        if self._subscription is None:
            self._subscription = self._options.subscribe("earliest")
        pinned = self._options.pin(self._subscription)
        self._subscription = self._options.subscribe("earliest", at_ts=pinned.ts)
        return pinned

    def _at(self, ts: int | None) -> Subscription:
        if self._subscription is None:
            self._subscription = self._options.subscribe("latest", at_ts=ts)
        return self._subscription


def _one_time(options: _Options) -> Subscription:
    """Return a subscription that ends with its block."""
    return Subscription(
        options.connection,
        options.changefeed,
        options.table,
        from_ts="earliest" if options.starting is None else options.starting,
        expires=options.expires,
    )


def _parts(
    subscription: Subscription, from_ts: int, to_ts: int | None, options: _Options, schema: StructType
) -> list[_Part]:
    if to_ts is not None and to_ts <= from_ts:
        return []
    part = subscription.part(from_ts, to_ts)
    if to_ts is not None and part.to_ts < to_ts:
        raise ConfigError(f"the log ends at {part.to_ts}, before {to_ts}")
    wanted = json.dumps(schema.jsonValue())
    return [
        _Part(LogSlice(part.table, part.filter, segments, Ts(part.from_ts), Ts(part.to_ts)), wanted, options.leaves_out)
        for segments in changes.divided(segments_of(part), _PARTITION_BYTES)
    ]


def _snapshot_parts(pinned: Pinned, options: _Options, schema: StructType) -> list[_Part]:
    wanted = json.dumps(schema.jsonValue())
    return [_Part(part, wanted, options.leaves_out) for part in options.snapshot.parts(pinned)]


def _read(partition: InputPartition) -> Iterator[pa.RecordBatch]:
    if not isinstance(partition, _Part):  # Spark's own, where a batch query has none
        return
    part = partition.part
    wanted = to_arrow_schema(StructType.fromJson(json.loads(partition.schema)), timezone="UTC")
    if isinstance(part, SnapshotPart):
        name, found = part.name, part.read()
    else:
        name, found = f"{part.table.schema_name}.{part.table.name}", changes.read(part)
    for rows in found:
        try:
            fitting = changes.conformed(rows, wanted, leaves_out=partition.leaves_out)
        except DecodeError as error:
            raise DecodeError(
                f"{name} was changed: {error}; start the query "
                "again, so that it takes the table's columns, or give it a schema and mergeSchema=true"
            ) from None
        yield from fitting.to_batches()


def _number(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"option {name} is {text!r}, which is no number") from None
