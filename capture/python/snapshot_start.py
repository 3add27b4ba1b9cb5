"""Snapshot start: finds the version of a sink's table from which a reader of changes begins, and reads it in parts.

The version is one at which all spans of the table are at one Ts: the newest, or that of a sync point. It records the
Ts of the last flush that wrote to the table; a quiet table has all changes up to the checkpoint nevertheless. Changes
with a greater Ts are what it lacks. The reader's subscription is opened before the version is chosen, so the log has
them.
"""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

import pyarrow as pa

from agent.errors import SinkError, SinkUriError
from agent.feeds import changes
from agent.ports.table_reader import TableReader, TableState
from agent.sinks import open_table
from capture.api.client import Client
from capture.api.connection import Connection
from capture.errors import ConfigError, PositionGoneError, TableNotFoundError
from reactor.errors import WeirError
from reactor.ids import TableSpan, Ts
from reactor.records.changefeed import SinkMode
from reactor.records.sync_point import SyncPoint
from reactor.views import ChangefeedView, TableView

_PART_BYTES = 32 << 20
_PATIENCE_S, _POLL_S = 60.0, 0.5


@dataclass(frozen=True, slots=True)
class Pinned:
    """A version of a table that has all changes up to ``ts``. ``recorded``: the Ts that it records for ``spans``, by
    which the version is known again."""

    ts: int
    version: int
    spans: tuple[str, ...]
    recorded: int

    def to_offset(self) -> dict[str, Any]:
        return {"ts": self.ts, "version": self.version, "spans": ",".join(self.spans), "recorded": self.recorded}

    @classmethod
    def of_offset(cls, offset: Mapping[str, Any]) -> Self:
        """Return what a query's checkpoint holds; older ones have no ``recorded``, which was ``ts``."""
        ts = offset["ts"]
        return cls(ts, offset["version"], tuple(offset["spans"].split(",")), offset.get("recorded", ts))


@dataclass(frozen=True, slots=True)
class SnapshotPart:
    """Some files of a version, for one task. ``sink``: the URI, with secrets masked."""

    sink: str
    location: str
    name: str
    pinned: Pinned
    files: tuple[str, ...]

    def read(self) -> Iterator[pa.Table]:
        """Yield the rows as inserts at the version's Ts.

        :raises PositionGoneError: the version, or one of its files, is no longer there.
        """
        try:
            reader = open_table(self.sink, self.location)
            _check_same(reader, self.pinned)
            for rows in reader.scan_part(self.pinned.version, self.files):
                yield changes.inserted(rows, Ts(self.pinned.ts))
        except SinkError as error:
            raise _gone(self.name, self.pinned, error) from error


class SnapshotStart:
    """The snapshot of one table of a changefeed."""

    def __init__(self, connection: Connection, changefeed: str, table: str) -> None:
        self._connection = connection
        self._changefeed = changefeed
        self._name = table

    def pin(self, columns: set[str] | None) -> Pinned:
        """Return the version to begin with. ``columns``: those it must have, None if any will do.

        :raises ConfigError: the sink has no such version, and gets none soon.
        """
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            try:
                found = self._pinned(columns)
            except WeirError as error:
                if not error.retryable or time.monotonic() > deadline:
                    raise
                found = str(error)
            if isinstance(found, Pinned):
                return found
            if time.monotonic() > deadline:
                raise ConfigError(f"there is no snapshot of {self._name} yet: {found}")
            time.sleep(_POLL_S)

    def parts(self, pinned: Pinned) -> list[SnapshotPart]:
        """:raises PositionGoneError: the version is no longer there."""
        feed, table = self._view()
        reader = _opened(feed, table)
        try:
            _check_same(reader, pinned)
            found = reader.parts(pinned.version, bytes_max=_PART_BYTES)
        except SinkError as error:
            raise _gone(self._name, pinned, error) from error
        return [SnapshotPart(feed.sink, table.location, self._name, pinned, files) for files in found]

    def _view(self) -> tuple[ChangefeedView, TableView]:
        feed = self._connection.call(lambda client: client.query(self._changefeed, tables=False))
        found = self._connection.call(lambda client: client.table(self._changefeed, self._name))
        if found is None:
            tables = self._connection.call(self._tables)
            known = ", ".join(sorted(table.table for table in tables)[:20]) or "none yet"
            raise TableNotFoundError(f"changefeed {self._changefeed} has no table {self._name}; it has {known}")
        return feed, found

    def _tables(self, client: Client) -> list[TableView]:
        return list(client.tables(self._changefeed))

    def _pinned(self, columns: set[str] | None) -> Pinned | str:
        """Return a version, or why there is none."""
        feed, table = self._view()
        if feed.sink_mode is not SinkMode.UPSERT:
            raise ConfigError(
                f"changefeed {feed.id} has sink-mode {feed.sink_mode}, of which there is no snapshot: read from "
                'startingTs="earliest" what the log has, the table itself, or a changefeed with sink-mode upsert'
            )
        if feed.checkpoint_ts == 0 or table.resync is not None:
            return f"changefeed {feed.id} is still copying it; try again when the copy is in the sink"
        reader = _opened(feed, table)
        spans = tuple(sorted(TableSpan.parse(item.span) for item in table.spans)) or (TableSpan(table.table_id),)
        # the views are older than the version: that has all changes up to their checkpoint
        covers = max(table.checkpoint_ts, 0 if table.held else feed.checkpoint_ts)
        states = [(reader.state(spans), covers)]
        if states[0][0].ts(spans) is None:
            points = self._connection.call(lambda client: list(client.sync_points(feed.id)))
            states += _of_points(reader, spans, table.table_id, points)
        found, covered = next((one for one in states if one[0].ts(spans) is not None), (None, 0))
        if found is None:
            return (
                f"its {len(spans)} spans are at several Ts in the sink; set sync-point-interval-seconds of changefeed "
                f"{feed.id}, or join them (weir table join), and start the query again"
            )
        if columns is not None and (other := {*found.names} ^ columns):
            return (
                f"column {min(other)} is not both at the source and in the sink; "
                "start the query again when the sink has the schema change"
            )
        recorded = found.ts(spans)
        assert recorded is not None
        return Pinned(max(recorded, covered), found.version, tuple(map(str, spans)), int(recorded))


def _opened(feed: ChangefeedView, table: TableView) -> TableReader:
    try:
        return open_table(feed.sink, table.location)
    except SinkUriError as error:
        raise ConfigError(
            f"changefeed {feed.id} has no tables to read a snapshot of ({error}); "
            'begin with startingTs="earliest" or "latest", or read a changefeed with a Delta or Iceberg sink'
        ) from None


def _of_points(
    reader: TableReader, spans: tuple[TableSpan, ...], table_id: int, points: list[SyncPoint]
) -> Iterator[tuple[TableState, int]]:
    """Yield the versions of sync points and their Ts, newest first, as far as they are still there."""
    for point in sorted(points, key=lambda item: item.ts, reverse=True):
        if version := point.version_of(table_id):
            try:
                state = reader.state(spans, version=int(version))
            except SinkError:  # it, and older ones, were removed
                return
            if max(state.records.values(), default=0) <= point.ts:  # else it was set back since, and written again
                yield state, point.ts


def _check_same(reader: TableReader, pinned: Pinned) -> None:
    """:raises SinkConfigError: there is no such version.
    :raises PositionGoneError: it is one of another table in the same place."""
    spans = tuple(map(TableSpan.parse, pinned.spans))
    found = reader.state(spans, version=pinned.version).ts(spans)
    if found != pinned.recorded:
        raise PositionGoneError(
            f"version {pinned.version} of {reader.location} is at {found}, not at {pinned.recorded}: the table was "
            "replaced; start the query again with another checkpoint directory"
        )


def _gone(name: str, pinned: Pinned, error: SinkError) -> PositionGoneError:
    return PositionGoneError(
        f"the snapshot of {name} (version {pinned.version}) cannot be read: {error}; start the query again with "
        "another checkpoint directory, and let the sink keep old versions longer than a "
        "snapshot takes (retention_seconds)"
    )
