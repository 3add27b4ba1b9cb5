"""Furthest records: the highest Ts that the sink was seen to record for each span, over all runs of its changefeed.

A record at the sink only grows. One that is lower than before belongs to a table that was set back, for example by
restoring its directory while the changefeed was paused, or by giving the changefeed a sink to which an older state of
it was copied. Only a span that is written from its record on (after a rewind) may have such a record: then nothing in
between is missing.

A process keeps what it has seen in memory, and at intervals and when it stops in a file of its own beside the change
log, so that a table set back while no capture ran is detected too. The file may lag behind by less time than the log is
kept, and what the log still has is written again.
"""

import hashlib
import json
import re
import threading
import time
from collections.abc import Container, Iterable, Mapping
from typing import Any, BinaryIO

import structlog

from agent.control.runtime import SpanPosition
from agent.errors import RESYNC, SET_BACK, LogError, TableForeignError
from agent.log.storage import LogDirectory
from reactor.ids import TableSpan, Ts
from reactor.records.changefeed import ChangefeedInfo, FeedState
from reactor.records.tables.table import TableRecord
from reactor.store.port import MetaStore

#: identifies one changefeed's tables, wherever its sink is
FeedKey = tuple[str, ...]

_FILE = re.compile(r"^records-[^/]+\.json$")
#: a file unchanged for this long has nothing that others have not read
_STALE_S = 86_400.0
#: maximum age of the file, also limited to a part of the log's retention
_SAVE_S = 30.0
_SAVE_PART = 4

_log = structlog.get_logger()
_furthest: dict[FeedKey, dict[TableSpan, Ts]] = {}


class FurthestRecords:
    """The furthest records of one changefeed. ``name``: the file's owner; ``former_key``: in files of earlier versions
    of Weir."""

    def __init__(
        self, key: FeedKey, directory: LogDirectory, name: str, *, retention_s: float, former_key: FeedKey = ()
    ) -> None:
        self._seen = _furthest.setdefault(key, {})
        self._key = _digest(key)
        self._keys = {self._key, _digest(former_key)}
        self._directory = directory
        self._name = f"records-{name}.json"
        self._pause_s = min(_SAVE_S, retention_s / _SAVE_PART)
        self._lock = threading.Lock()
        self._stale: list[str] | None = None
        self._is_changed = False
        self._saved_at = time.monotonic()

    def load(self) -> None:
        """Read what other processes have seen, once; blocking.

        :raises LogError: the log's storage refused.
        """
        with self._lock:
            if self._stale is not None:
                return
            stale = []
            for entry in self._directory.entries():
                if _FILE.match(entry.name):
                    self._read(entry.name)
                    is_stale = entry.modified_at < time.time() - _STALE_S and entry.name != self._name
                    stale += [entry.name] if is_stale else []
            self._stale, self._is_changed = stale, bool(stale)

    def check(self, table: TableRecord, span: TableSpan, recorded: Ts, wanted: Ts) -> None:
        """``wanted``: the Ts from which the span is to be written.

        :raises TableForeignError: the table was set back, and what it lacks would not be written again.
        """
        written = self._seen.get(span, recorded)
        if recorded < min(written, wanted):
            cure = SET_BACK
            if recorded < table.start_ts:  # a rewind goes back no further than the copy
                cure = f"it was copied at {table.start_ts} since: bring the newer one back, or {RESYNC}"
            raise TableForeignError(
                f"the sink's table {table.schema_name}.{table.name} was set back: it records {recorded}, and {written} "
                f"was written; {cure}"
            )
        self._put(span, recorded)

    def set_back_to(self, recorded: Mapping[TableSpan, Ts]) -> Ts | None:
        """Return the lowest of the sink's records that are lower than what was written; None: there is none."""
        return min((ts for span, ts in recorded.items() if ts < self._seen.get(span, ts)), default=None)

    def note(self, positions: Iterable[SpanPosition]) -> None:
        """Record newly written positions."""
        for position in positions:
            self._put(position.span, position.committed_ts)

    def save(self, tables: Container[int] | None = None, *, is_last: bool = False) -> None:
        """Write the file if it is due, or if this is the last call and something has changed; blocking. ``tables``:
        those that the changefeed has; what was seen of others is forgotten. None: not known."""
        with self._lock:
            is_due = is_last or time.monotonic() - self._saved_at >= self._pause_s
            if not self._is_changed or not is_due:
                return
            self._saved_at, self._is_changed = time.monotonic(), False
            for span in [span for span in list(self._seen) if tables is not None and span.table_id not in tables]:
                self._seen.pop(span, None)
            seen = [[span.table_id, span.start, span.end, ts] for span, ts in list(self._seen.items())]
            text = json.dumps({"of": self._key, "records": seen}, separators=(",", ":"))
            try:
                self._directory.write(self._name, lambda file: _fill(file, text))
                stale, self._stale = self._stale or [], []
                self._directory.remove(stale)
            except LogError as error:
                self._is_changed = True
                _log.debug("how far the sink's tables are could not be noted", error=str(error))

    def _put(self, span: TableSpan, ts: Ts) -> None:
        if self._seen.get(span) != ts:
            self._seen[span] = ts
            self._is_changed = True

    def _read(self, name: str) -> None:
        """Read a file; ignore one that is gone or damaged."""
        try:
            found: Any = json.loads(self._directory.read(name))
            records = {TableSpan(table, start, end): Ts(ts) for table, start, end, ts in found["records"]}
        except FileNotFoundError:
            return
        except (ValueError, TypeError, KeyError):
            _log.warning("a file beside the change log cannot be read", path=self._directory.path_of(name))
            return
        if found["of"] in self._keys:
            for span, ts in records.items():
                self._seen[span] = max(ts, self._seen.get(span, ts))


async def is_kept(client: MetaStore, key: str) -> bool:
    """Return whether the changefeed of this key is not being removed, and its files are kept.

    :raises StoreError: no answer.
    """
    item = await client.get(key)
    return item is not None and ChangefeedInfo.decode(item.value, key=key).state is not FeedState.REMOVED


def _digest(key: FeedKey) -> str:
    """Former keys have a URI with secrets: it is too short to test guesses with."""
    return hashlib.sha256("\n".join(key).encode()).hexdigest()[:8]


def _fill(file: BinaryIO, text: str) -> None:
    file.write(text.encode())
