"""Table log: follows the log of a local Delta table commit by commit, so that reading it costs what is new.

delta-rs replays a log from its last checkpoint whenever it opens a table, and once more when it commits, which with
many tables costs more than the changes themselves. A ``TableLog`` is kept by its process and reads only the commits
that it has not seen; it appends commits of the kinds that flushes need. Everything else is delta-rs's.

A commit is one file that appears under its number whole, or not at all where another one has it (``os.link``, as
delta-rs does it): so writers of both kinds refuse each other. Logs on other storages, and of tables with unknown
features, are left to delta-rs.
"""

import json
import os
import re
import threading
import time
import zlib
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import pyarrow.parquet as pq
import structlog
from deltalake import DeltaTable, Schema
from deltalake.exceptions import CommitFailedError, DeltaError

from agent.sinks.delta.table import disk, history
from agent.sinks.delta.table import place as delta_table
from agent.sinks.delta.table import schema as delta_schema
from agent.sinks.delta.table.history import Commit
from agent.sinks.delta.table.place import SEEN, TablePlace

Action = dict[str, Any]

#: what a table may ask of its writers; whatever else it asks is delta-rs's to know
_FEATURES = frozenset({"appendOnly", "deletionVectors", "invariants", "timestampNtz", "variantType"})
_VECTORS = "deletionVectors"
_CHECKPOINT = re.compile(r"^(\d{20})\.checkpoint\.(.*)parquet$")
_KNOWN_MAX = 64
#: read again after so long: a log's old commits go after a day at the soonest
_KNOWN_S = 600.0
_CHECKPOINT_EVERY = 50

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class LiveFile:
    """A data file of the table as it is now: the ``add`` that says so."""

    add: Action

    @property
    def path(self) -> str:
        return str(self.add["path"])

    @property
    def size(self) -> int:
        return int(self.add["size"])

    @property
    def vector(self) -> Action | None:
        """Which of its rows are deleted."""
        found = self.add.get("deletionVector")
        return None if found is None else dict(found)

    @property
    def rows(self) -> int:
        """With those that are gone; 0 where nobody has said."""
        return int(json.loads(self.add.get("stats") or "{}").get("numRecords", 0))

    def remove(self, *, is_change: bool = True) -> Action:
        """``is_change``: its rows are not all in what is added with it."""
        fields = {
            "path": self.path,
            "deletionTimestamp": now_ms(),
            "dataChange": is_change,
            "extendedFileMetadata": True,
        }
        fields |= {"partitionValues": {}, "size": self.size}
        return {"remove": fields | ({} if self.vector is None else {"deletionVector": self.vector})}


class TableLog:
    """Made by ``borrowed``. ``refresh`` brings it up to what the log holds now."""

    def __init__(self, place: TablePlace) -> None:
        self._place = place
        self._directory = os.path.join(place.location, "_delta_log")
        # tables that are flushed together have about the same versions; they must not all write one in the same flush
        self._turn = zlib.crc32(place.location.encode())
        self._seen: tuple[int, ...] = ()
        self._read_s = 0.0
        self._forget()

    def _forget(self) -> None:
        self.version = -1
        self.files: dict[str, LiveFile] = {}
        self._records: dict[str, int] = {}
        self._protocol: Action = {}
        self._metadata: Action = {}
        self._fitting: set[str] = set()
        #: others' commits since our last one
        self._since: list[Commit] = []

    @property
    def takes_vectors(self) -> bool:
        """Rows may be taken out of its files without rewriting them."""
        configuration = self._metadata["configuration"]
        is_wanted = configuration.get("delta.enableDeletionVectors") == "true"
        return is_wanted and _VECTORS in (self._protocol.get("writerFeatures") or ())

    @property
    def is_plain(self) -> bool:
        """It asks nothing of a writer that is not done here."""
        if self.version < 0:
            return False
        protocol, metadata = self._protocol, self._metadata
        features = {*(protocol.get("readerFeatures") or ()), *(protocol.get("writerFeatures") or ())}
        is_known = protocol["minWriterVersion"] in (1, 2, 7) and features <= _FEATURES
        is_restricted = metadata["configuration"].get("delta.appendOnly") == "true" or metadata["partitionColumns"]
        return is_known and not is_restricted and "delta.invariants" not in metadata["schemaString"]

    def transaction_version(self, name: str) -> int | None:
        return self._records.get(name)

    def schema(self) -> Schema:
        return Schema.from_json(self._metadata["schemaString"])

    def has_columns(self, schema: str, *, name: str) -> bool:
        """Whether the table has every column of ``schema`` (Delta's JSON).

        :raises TableHeldError: one has another type.
        """
        if schema not in self._fitting:
            stored, wanted = (delta_table.to_arrow(item) for item in (self.schema(), Schema.from_json(schema)))
            if delta_schema.missing_fields(stored, wanted, table=name):
                return False
            self._fitting.add(schema)
        return True

    def refresh(self) -> None:
        """Read what has been committed since. A table that is gone, or is another one now, is read from its begin."""
        is_old = time.monotonic() - self._read_s > _KNOWN_S
        if is_old or not self._seen or self._stat() != self._seen:
            self._forget()
            self._read_checkpoint()
            self._read_s = time.monotonic()
        while (actions := self._read(self.version + 1)) is not None:
            self._take(actions)
            self.version += 1
            if SEEN in self._records:
                self._since = history.follow(self._since, Commit(self.version, actions))

    def refreshed(self) -> "TableLog":
        """:raises TableForeignError: others have changed the table since our last commit."""
        self.refresh()
        history.refuse_changes(self._place, self._since)
        return self

    def commit(self, operation: str, actions: Sequence[Action], records: Mapping[str, int] | None = None) -> None:
        """Append one commit to what has been read. ``records``: the application transactions in it.

        :raises CommitFailedError: another commit was faster, or has made the table one for delta-rs.
        """
        if not self.is_plain:
            raise CommitFailedError("the table is another one now")
        version = self.version + 1
        fields = {"timestamp": now_ms(), "operation": operation, "operationParameters": {}, "engineInfo": "weir"}
        recorded = [
            {"txn": {"appId": name, "version": number, "lastUpdated": now_ms()}}
            for name, number in sorted({**(records or {}), SEEN: version}.items())
        ]
        lines = [json.dumps(action, separators=(",", ":")) for action in ({"commitInfo": fields}, *actions, *recorded)]
        scratch = os.path.join(self._directory, f"_commit_{uuid4().hex}.json.tmp")
        try:
            with open(scratch, "x") as file:
                file.write("\n".join(lines) + "\n")
                file.flush()
                os.fsync(file.fileno())
            os.link(scratch, self._path(version))
            disk.sync(self._directory)
        except FileExistsError as error:
            raise CommitFailedError(f"version {version} exists") from error
        finally:
            with suppress(FileNotFoundError):
                os.unlink(scratch)
        if (version + self._turn) % self._checkpoint_every == 0:
            self._write_checkpoint()

    @property
    def _checkpoint_every(self) -> int:
        return max(int(self._metadata["configuration"].get("delta.checkpointInterval", _CHECKPOINT_EVERY)), 1)

    def _write_checkpoint(self) -> None:
        """It makes reading shorter, and nothing depends on it."""
        try:
            table = DeltaTable(self._place.location)
            table.create_checkpoint()
            disk.sync_checkpoint(self._place, table.version())
            table.cleanup_metadata()
        except (DeltaError, OSError) as error:
            reason = str(error).splitlines()[:1]
            _log.info("a checkpoint of the table's log was not written", table=str(self._place), reason=reason)

    def _path(self, version: int) -> str:
        return os.path.join(self._directory, f"{version:020d}.json")

    def _stat(self) -> tuple[int, ...]:
        """Which file the newest commit is; another table's at the same place is another one."""
        try:
            return _identity(os.stat(self._path(self.version)))
        except FileNotFoundError:
            return ()

    def _read(self, version: int) -> list[Action] | None:
        try:
            with open(self._path(version), "rb") as file:
                actions = [json.loads(line) for line in file if line.strip()]
                self._seen = _identity(os.fstat(file.fileno()))
        except FileNotFoundError:
            return None
        if not actions:
            raise ValueError(f"commit {version} is empty")
        return actions

    def _read_checkpoint(self) -> None:
        """A checkpoint in another form than delta-rs's stops us at a version that is not plain: -1."""
        names = os.listdir(self._directory) if os.path.isdir(self._directory) else []
        found = [match for name in names if (match := _CHECKPOINT.match(name))]
        newest = max(found, key=lambda match: match[0], default=None)
        if newest is None or newest[2]:
            return
        with pq.ParquetFile(os.path.join(self._directory, newest[0])) as file:
            rows = file.read(columns=["protocol", "metaData", "txn", "add"], use_threads=False)
        for kind in ("protocol", "metaData", "txn", "add"):
            column = rows.column(kind).combine_chunks()
            self._take([{kind: action} for action in column.drop_null().to_pylist(maps_as_pydicts="strict")])
        self.version = int(newest[1])
        for version in range(self._records.get(SEEN, self.version) + 1, self.version + 1):
            if (actions := self._read(version)) is None:
                raise ValueError(f"commit {version}, behind our last one, is gone")
            self._since = history.follow(self._since, Commit(version, actions))
        self._seen = self._stat()

    def _take(self, actions: Sequence[Action]) -> None:
        for kind, fields in sorted((item for action in actions for item in action.items()), key=_removes_first):
            match kind:
                case "protocol":
                    self._protocol = fields
                case "metaData":
                    self._metadata = fields
                    self._fitting = set()
                case "txn":
                    self._records[fields["appId"]] = fields["version"]
                case "remove":
                    self.files.pop(fields["path"], None)
                case "add":
                    self.files[fields["path"]] = LiveFile(_without_nulls(fields))


def _identity(found: os.stat_result) -> tuple[int, ...]:
    return found.st_ino, found.st_mtime_ns, found.st_size


def _removes_first(item: tuple[str, Any]) -> bool:
    """Within one commit a file may go and come back with other rows taken out of it."""
    return item[0] != "remove"


def _without_nulls(fields: Action) -> Action:
    vector = fields.get("deletionVector")
    kept = {name: value for name, value in fields.items() if value is not None}
    return kept if vector is None else kept | {"deletionVector": {n: v for n, v in vector.items() if v is not None}}


def now_ms() -> int:
    return int(time.time() * 1000)


_known: OrderedDict[str, TableLog] = OrderedDict()
_lock = threading.Lock()


@contextmanager
def borrowed(place: TablePlace) -> Iterator[TableLog | None]:
    """The table's log, read up to its end; None where it is delta-rs's to read. Nobody else has it meanwhile, and after
    an error it is not kept.

    :raises TableForeignError: others have changed the table since our last commit.
    """
    log = _taken(place) if place.is_local else None
    yield log
    if log is not None:
        with _lock:
            _known[place.location] = log
            while len(_known) > _KNOWN_MAX:
                _known.popitem(last=False)


def _taken(place: TablePlace) -> TableLog | None:
    with _lock:
        log = _known.pop(place.location, None)
    log = log or TableLog(place)
    try:
        log.refresh()
    except (OSError, ValueError, KeyError) as error:  # whatever is wrong with it, delta-rs has the words for it
        _log.info("a table's log is left to delta-rs", table=str(place), reason=str(error).splitlines()[:1])
        return None
    return log.refreshed() if log.is_plain else None
