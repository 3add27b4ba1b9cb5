"""Table log: follows the log of a Delta table commit by commit, so that reading it costs only what is new.

delta-rs replays a log from its last checkpoint whenever it opens a table, and again when it commits, which with many
tables costs more than the changes themselves. A process keeps a ``TableLog``, which reads only commits that it has not
seen, and appends commits of the kinds that flushes need. Everything else is left to delta-rs.

``commits`` reads and writes the commits. The state of a table on an object store is also cached for the machine's other
processes: any of them may get a flush, and reading a log from the beginning costs a request per commit. Logs of tables
with unknown features are left to delta-rs.
"""

import json
import pickle
import threading
import time
from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pyarrow as pa
import structlog
from deltalake import Schema
from deltalake.exceptions import CommitFailedError

from agent import host_cache
from agent.sinks.common.forms import missing_fields
from agent.sinks.common.span_records import RETIRED
from agent.sinks.delta.table import history
from agent.sinks.delta.table import place as delta_table
from agent.sinks.delta.table.change_feed import PROPERTY, is_on
from agent.sinks.delta.table.commits import Action, commits_of, is_shaped
from agent.sinks.delta.table.files import DataFile
from agent.sinks.delta.table.history import Commit
from agent.sinks.delta.table.layout import Layout
from agent.sinks.delta.table.live_file import LiveFile, now_ms
from agent.sinks.delta.table.mapping import FEATURE, NO_MAPPING, ColumnNames, supporting
from agent.sinks.delta.table.place import SEEN, TablePlace
from reactor.ids import TableSpan

#: writer features supported here; tables with others are left to delta-rs. Those of the second line may be listed, but
#: not used: a table with a change feed lists them when it gets another feature
_FEATURES = frozenset(
    {"appendOnly", "changeDataFeed", FEATURE, "deletionVectors", "invariants", "timestampNtz", "variantType"}
)
_UNUSED = frozenset({"checkConstraints", "generatedColumns"})
_WRITER_VERSIONS = (1, 2, 3, 4, 5, 7)
_VECTORS = "deletionVectors"
#: what reading raises of a log that others have filled with anything
_BROKEN = (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError, pa.ArrowException)
_KNOWN_MAX = 64
#: maximum age of cached state; a log's old commits are kept for at least a day
_KNOWN_S = 600.0

_log = structlog.get_logger()


class TableLog:
    """Created by ``borrowed``. ``refresh`` reads it up to its current end."""

    def __init__(self, place: TablePlace) -> None:
        self._place = place
        self._commits = commits_of(place)
        self._read_s = 0.0
        #: nothing was asked of it since it was read
        self._is_fresh = False
        self._noted = -1
        self._forget()
        self._recall()

    def _forget(self) -> None:
        self.version = -1
        self.files: dict[str, LiveFile] = {}
        self._records: dict[str, int] = {}
        self._protocol: Action = {}
        self._metadata: Action = {}
        self._names = NO_MAPPING
        self._fitting: set[str] = set()
        #: others' commits since our last one
        self.since: list[Commit] = []

    @property
    def takes_vectors(self) -> bool:
        """Whether rows may be deleted without rewriting files."""
        configuration = self._metadata["configuration"]
        is_wanted = configuration.get("delta.enableDeletionVectors") == "true"
        return is_wanted and _VECTORS in (self._protocol.get("writerFeatures") or ())

    @property
    def is_plain(self) -> bool:
        """Whether all its writer features are supported here."""
        if self.version < 0 or not self._protocol or not self._metadata:
            return False
        protocol, metadata = self._protocol, self._metadata
        features = {*(protocol.get("readerFeatures") or ()), *(protocol.get("writerFeatures") or ())}
        is_known = protocol["minWriterVersion"] in _WRITER_VERSIONS and features <= _FEATURES | _UNUSED
        is_restricted = metadata["configuration"].get("delta.appendOnly") == "true" or any(
            name.startswith("delta.constraints.") for name in metadata["configuration"]
        )
        has_rules = any(rule in metadata["schemaString"] for rule in ("delta.invariants", "delta.generationExpression"))
        return is_known and not is_restricted and not has_rules

    @property
    def has_feed(self) -> bool:
        """Whether a commit that removes rows has to say which rows it changes."""
        configuration = self._metadata["configuration"]
        return PROPERTY in configuration and is_on(configuration, delta_table.to_arrow(self.schema()).names)

    @property
    def partitions(self) -> tuple[str, ...]:
        """The columns by which the table divides rows."""
        return tuple(self._metadata["partitionColumns"] or ())

    @property
    def layout(self) -> Layout:
        return Layout(self.partitions, self._names)

    def transaction_version(self, name: str) -> int | None:
        return self._records.get(name)

    def record_names(self, prefix: str) -> list[str]:
        return [name for name in self._records if name.startswith(prefix)]

    def schema(self) -> Schema:
        return Schema.from_json(self._metadata["schemaString"])

    def has_columns(self, schema: str, *, name: str) -> bool:
        """Return whether the table has every column of ``schema`` (Delta's JSON).

        :raises TableHeldError: a column has another type.
        """
        if schema not in self._fitting:
            stored, wanted = (delta_table.to_arrow(item) for item in (self.schema(), Schema.from_json(schema)))
            if missing_fields(stored, wanted, table=name):
                return False
            self._fitting.add(schema)
        return True

    def refresh(self) -> None:
        """Read new commits. A table that is gone, or has been replaced by another one, is read from the beginning."""
        is_old = time.monotonic() - self._read_s > _KNOWN_S
        is_same, actions = (False, None) if is_old or self.version < 0 else self._commits.follow(self.version)
        if not is_same:
            self._forget()
            self._read_checkpoint()
            self._read_s = time.monotonic()
            actions = self._commits.read(self.version + 1)
        while actions is not None:
            self._take(actions)
            self.version += 1
            if SEEN in self._records:
                self.since = history.follow(self.since, Commit(self.version, actions))
            actions = self._commits.read(self.version + 1)
        self._is_fresh = True

    def refreshed(self) -> "TableLog":
        """Return the current state; the first time after ``borrowed``, which has just read it, that state.

        :raises TableForeignError: other writers have changed the table since our last commit.
        """
        if not self._is_fresh:
            self.refresh()
        self._is_fresh = False
        history.refuse_changes(self._place, self.since)
        return self

    def commit(self, operation: str, actions: Sequence[Action], records: Mapping[str, int] | None = None) -> None:
        """Append one commit to what has been read. ``records``: its application transactions.

        :raises CommitFailedError: another commit was first, or requires that delta-rs handles the table.
        """
        if not self.is_plain:
            raise CommitFailedError("the table is another one now")
        version = self.version + 1
        fields = {"timestamp": now_ms(), "operation": operation, "operationParameters": {}, "engineInfo": "weir"}
        recorded = [
            {"txn": {"appId": name, "version": number, "lastUpdated": now_ms()}}
            for name, number in sorted({**(records or {}), SEEN: version}.items())
        ]
        written = [{"commitInfo": fields}, *actions, *recorded]
        lines = [json.dumps(action, separators=(",", ":")) for action in written]
        try:
            is_known = self._commits.append(version, ("\n".join(lines) + "\n").encode())
        except FileExistsError as error:
            raise CommitFailedError(f"version {version} exists") from error
        if is_known:
            self._take(written)
            self.version, self.since = version, []

    def overwrite(
        self,
        columns: pa.Schema,
        layout: Layout,
        files: Sequence[DataFile],
        records: Mapping[str, int],
        feed: Sequence[Action] | None = None,
    ) -> None:
        """Append the commit after which the table has other columns, layout and rows. ``feed``: the files with the
        rows that are others to readers of changes; None: the table has no feed.

        :raises CommitFailedError: another commit was first, or requires that delta-rs handles the table.
        """
        actions = self._definition(columns, layout)
        is_change = feed is None or bool(feed)
        actions += [file.remove(is_change=is_change) for file in self.files.values()]
        actions += [file.add(is_change=is_change) for file in files if file.rows]
        self.commit("WRITE", [*actions, *(feed or ())], records)

    def define(self, operation: str, columns: pa.Schema, layout: Layout, records: Mapping[str, int]) -> None:
        """Append the commit after which the same files are a table with other columns and names.

        :raises CommitFailedError: as for ``overwrite``.
        """
        self.commit(operation, self._definition(columns, layout), records)

    def support(self, feature: str) -> None:
        """Append a commit after which the table has a feature of readers and writers.

        :raises CommitFailedError: as for ``overwrite``.
        """
        self.commit("ADD FEATURE", [{"protocol": supporting(self._protocol, feature)}])

    def _definition(self, columns: pa.Schema, layout: Layout) -> list[Action]:
        if self.layout == layout and delta_table.plain_schema(self.schema()) == columns:
            return []
        begins = layout.names.is_mapped and not self._names.is_mapped
        protocol = [{"protocol": supporting(self._protocol, FEATURE)}] if begins else []
        changed = {
            "schemaString": layout.names.described(columns, self._metadata["schemaString"]),
            "partitionColumns": list(layout.partitions),
            "configuration": layout.names.configured(self._metadata["configuration"]),
        }
        return [*protocol, {"metaData": self._metadata | changed}]

    def _read_checkpoint(self) -> None:
        """Read the newest checkpoint. One that delta-rs did not write stops reading at a version that is not plain:
        -1."""
        found = self._commits.checkpoint()
        if found is None or found.rows is None:
            return
        for kind in found.rows.column_names:
            column = found.rows.column(kind).combine_chunks()
            actions = column.drop_null().to_pylist(maps_as_pydicts="strict")
            # the types of all files are those of the first
            if not all(is_shaped(kind, fields) for fields in (actions[:1] if kind == "add" else actions)):
                raise ValueError(f"checkpoint {found.version} has an action of another form")
            self._take([{kind: fields} for fields in actions])
        self.version = found.version
        for version in range(self._records.get(SEEN, self.version) + 1, self.version + 1):
            if (actions := self._commits.read(version)) is None:
                raise ValueError(f"commit {version}, after our last one, is missing")
            self.since = history.follow(self.since, Commit(version, actions))
        self._commits.read(self.version)  # sets the mark

    def _recall(self) -> None:
        """Load the state cached by another process of this machine."""
        content = None if self._place.is_local else host_cache.get(self._note)
        if content is None:
            return
        version, mark, protocol, metadata, records, files, since = pickle.loads(content)
        self.version, self._commits.mark, self._read_s = version, mark, time.monotonic()
        self._protocol, self._metadata, self._records, self.since = protocol, metadata, records, since
        self.files, self._noted = {path: LiveFile(add) for path, add in files.items()}, version
        self._name_columns()

    def note(self) -> None:
        """Cache the state for the other processes of this machine."""
        if self._place.is_local or self.version == self._noted:
            return
        files = {path: file.add for path, file in self.files.items()}
        known = (self._protocol, self._metadata, self._records, files, self.since)
        host_cache.put(self._note, pickle.dumps((self.version, self._commits.mark, *known)))
        self._noted = self.version

    @property
    def _note(self) -> str:
        """The key of a cached state, which is code to whoever loads it: no object of a store, whose keys are URLs, can
        have it."""
        return f"delta-log:{self._place.location}"

    def _take(self, actions: Sequence[Action]) -> None:
        is_redefined = False
        for kind, fields in sorted((item for action in actions for item in action.items()), key=_removes_first):
            match kind:
                case "protocol":
                    self._protocol, is_redefined = fields, True
                case "metaData":
                    self._metadata, is_redefined = fields, True
                    self._fitting = set()
                case "txn":
                    self._records[fields["appId"]] = fields["version"]
                case "remove":
                    self.files.pop(fields["path"], None)
                case "add":
                    self.files[fields["path"]] = LiveFile(_without_nulls(fields), self._names)
        if is_redefined:
            self._name_columns()

    def _name_columns(self) -> None:
        """Give the files the names of the table's columns."""
        if not self._protocol or not self._metadata:
            return
        names = ColumnNames.of(self._protocol, self._metadata["configuration"], self._metadata["schemaString"])
        if names != self._names:
            self._names = names
            self.files = {path: replace(file, names=names) for path, file in self.files.items()}


def _removes_first(item: tuple[str, Any]) -> bool:
    """Sort removes first: within one commit a file may be removed and added again with other rows deleted."""
    return item[0] != "remove"


def _without_nulls(fields: Action) -> Action:
    vector = fields.get("deletionVector")
    kept = {name: value for name, value in fields.items() if value is not None}
    return kept if vector is None else kept | {"deletionVector": {n: v for n, v in vector.items() if v is not None}}


_known: OrderedDict[str, TableLog] = OrderedDict()
_lock = threading.Lock()


@contextmanager
def borrowed(place: TablePlace) -> Iterator[TableLog | None]:
    """Yield the table's log, read up to its end, or None if it is left to delta-rs. It is exclusive meanwhile, and
    discarded after an error.

    :raises TableForeignError: other writers have changed the table since our last commit.
    """
    log = _taken(place)
    yield log
    if log is not None:
        log.note()
        with _lock:
            _known[place.location] = log
            while len(_known) > _KNOWN_MAX:
                _known.popitem(last=False)


def is_of_another(place: TablePlace, changefeed: str, table_id: int) -> bool:
    """Return whether another table of the changefeed is written here. Unknown is False: see ``other_spans``."""
    log = TableLog(place)
    log.refresh()
    prefix = delta_table.record_prefix(changefeed)
    others = (name for name in _span_names(log, prefix) if not name.startswith(f"{prefix}{table_id}:"))
    return any(log.transaction_version(name) != RETIRED for name in others)


def other_spans(place: TablePlace, changefeed: str, spans: Collection[TableSpan]) -> dict[str, int]:
    """Return records that fence all writers of spans other than ``spans``: of the table, which may have been divided
    otherwise when it left, or was dropped; and of tables whose place it takes. None are found in a log that is left to
    delta-rs."""
    log = TableLog(place)
    log.refresh()
    prefix = delta_table.record_prefix(changefeed)
    kept = {delta_table.record_id(changefeed, span) for span in spans}
    return dict.fromkeys(_span_names(log, prefix) - kept, int(RETIRED))


def _span_names(log: TableLog, prefix: str) -> set[str]:
    return {name for name in log.record_names(prefix) if ":" in name.removeprefix(prefix)}


def _taken(place: TablePlace) -> TableLog | None:
    with _lock:
        log = _known.pop(place.location, None)
    log = log or TableLog(place)
    try:
        log.refresh()
    except _BROKEN as error:  # whatever is wrong with it, delta-rs reports it
        _log.info("a table's log is left to delta-rs", table=str(place), reason=str(error).splitlines()[:1])
        return None
    if not log.is_plain:
        return None
    history.refuse_changes(place, log.since)
    return log
