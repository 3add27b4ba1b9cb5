"""month: a table after 3,000 commits in thirty days, with its care on a patched clock: files, bytes and time of a scan.

The peer is the same rows, written into a fresh table: the ideal. Each flush updates random rows, deletes some and
inserts some; time passes between them, so that what a retention keeps goes. The care is what a capture does beside its
flushes, at the commits that make it due. ``files_ratio``: to the ideal number of files, their bytes divided by the
wanted size; ``bytes_ratio``: of what readers see; ``disk_ratio``: of the directory.

delta-rs has a clock of its own, not patched, by which removed files stay in a table's log and directory: a retention of
ten minutes would keep those of a whole run, where a real table has those of one flush. So Delta's is a second.
"""

import os
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from agent.ports.sink import FeedContext, FlushTask, Maintains, ReadsBack, Sink
from agent.rows.changes import BEFORE_KEY, BEFORE_NONE, DELETE, INSERT, UPDATE, Changes
from agent.rows.schema import Column, TableSchema
from agent.sinks import open_sink
from agent.sinks.delta.upkeep import upkeep as delta_upkeep
from agent.sinks.iceberg.upkeep import upkeep as iceberg_upkeep
from reactor.ids import TableSpan, Ts
from reactor.records.changefeed import SinkMode
from reactor.records.tables.table import TableRecord

COMMITS: Final = 3_000
ROWS: Final = 1_000_000
_DAYS: Final = 30
_CHANGES: Final = 1_000
_SINKS: Final = {
    "iceberg": "iceberg+file://{}/lake",
    "delta": "delta+file://{}/lake?deletion_vectors=true&retention_seconds=1",
}
_TABLE: Final = TableRecord(table_id=1, schema_name="public", name="t", key=("id",), start_ts=Ts(100))
_SPAN: Final = TableSpan(1)
_ARROW: Final = pa.schema([("id", pa.int64()), ("k", pa.int64()), ("note", pa.string())])
_SCHEMA: Final = TableSchema(
    1, "public", "t", tuple(Column(item.name, 0, -1, str(item.type), item.name == "id") for item in _ARROW)
)
_TARGETS: Final = {"iceberg": 64 << 20, "delta": 32 << 20}


class _Clock:
    """The time of day and the monotonic one, which pass by themselves and by ``skip``."""

    def __init__(self) -> None:
        self._skipped, self._time, self._monotonic = 0.0, time.time, time.monotonic

    def skip(self, seconds: float) -> None:
        self._skipped += seconds

    @contextmanager
    def patched(self) -> Iterator[None]:
        with (
            patch("time.time", lambda: self._time() + self._skipped),
            patch("time.monotonic", lambda: self._monotonic() + self._skipped),
        ):
            yield


def run(commits: int = COMMITS, rows: int = ROWS) -> dict[str, Any]:
    figures: dict[str, Any] = {
        "what": f"{commits:,} commits of {_CHANGES:,} changes into {rows:,} rows in {_DAYS} days"
    }
    for name in _SINKS:
        with tempfile.TemporaryDirectory(prefix="weir-month-") as directory:
            found = measure(name, Path(directory), commits, rows)
        figures |= {f"{name}_{what}": value for what, value in found.items()}
    return {**figures, "ratio": max(figures[f"{name}_scan_ratio"] for name in _SINKS)}


def measure(name: str, directory: Path, commits: int, rows: int) -> dict[str, float]:
    uri, clock = _SINKS[name].format(directory), _Clock()
    with clock.patched():
        _load(uri, [_rows_of(np.arange(rows), "row")])
        keys = _live(uri, clock, commits, rows)
        clock.skip(86_400)
        sink = _opened(uri)
        assert isinstance(sink, Maintains)
        done = sink.maintain(_TABLE)
    ours_s, held = _scan(sink)
    assert held == len(keys), f"{held} rows, and {len(keys)} at the source"
    with tempfile.TemporaryDirectory(prefix="weir-month-") as other:
        fresh_uri = _SINKS[name].format(other)
        assert isinstance(sink, ReadsBack)
        _load(fresh_uri, sink.read_rows(_TABLE, _SCHEMA, _ARROW))
        fresh = _opened(fresh_uri)
        assert isinstance(fresh, Maintains)
        ideal = fresh.maintain(_TABLE)
        ideal_s, _ = _scan(fresh)
        ideal_on_disk = _on_disk(Path(other))
    ideal_files = max(ideal.bytes / _TARGETS[name], 1.0)
    return {
        "files_before_maintain": done.files_before,
        "files": done.files,
        "files_ratio": round(done.files / ideal_files, 2),
        "bytes_ratio": round(done.bytes / ideal.bytes, 2),
        "disk_ratio": round(_on_disk(directory) / ideal_on_disk, 2),
        "scan_ratio": round(ours_s / ideal_s, 2),
    }


def _live(uri: str, clock: _Clock, commits: int, rows: int) -> Any:
    """Flush, and let time pass; return the keys that the table has in the end."""
    chance, keys, next_key = np.random.default_rng(7), np.arange(rows), rows
    sink = _opened(uri)
    for turn in range(commits):
        some = chance.permutation(len(keys))[:_CHANGES]
        updated, deleted = keys[some[: _CHANGES * 8 // 10]], keys[some[_CHANGES * 8 // 10 : _CHANGES * 9 // 10]]
        inserted = np.arange(next_key, next_key + _CHANGES // 10)
        next_key += len(inserted)
        _flush(sink, uri, turn, updated, deleted, inserted)
        keys = np.concatenate([np.delete(keys, some[_CHANGES * 8 // 10 : _CHANGES * 9 // 10]), inserted])
        clock.skip(_DAYS * 86_400 / commits)
        for busy in (delta_upkeep._busy, iceberg_upkeep._busy):  # a capture has all the time between two commits
            with busy:
                pass
    return keys


def _opened(uri: str) -> Sink:
    return open_sink(uri, changefeed="bench", mode=SinkMode.UPSERT)


def _rows_of(ids: Any, note: str) -> pa.RecordBatch:
    columns = [pa.array(ids), pa.array(ids % 1_000), pa.array(np.char.add(f"{note} ", ids.astype(str)))]
    return pa.RecordBatch.from_arrays(columns, schema=_ARROW)


def _load(uri: str, batches: Iterable[pa.RecordBatch]) -> None:
    sink = _opened(uri)
    staged = sink.writer().stage(_TABLE, "0-0", iter(batches), Ts(100))
    sink.load(_TABLE, _SCHEMA, _ARROW, staged)


def _flush(sink: Sink, uri: str, turn: int, updated: Any, deleted: Any, inserted: Any) -> None:
    ids = np.concatenate([updated, deleted, inserted])
    op = np.repeat(np.array([UPDATE, DELETE, INSERT], np.int8), [len(updated), len(deleted), len(inserted)])
    images, nothing = _rows_of(ids, f"at {turn}"), pa.nulls(len(ids))
    is_gone = pa.array(op == DELETE)
    after = [pc.if_else(is_gone, nothing.cast(column.type), column) for column in images.columns]
    before = [
        pc.if_else(is_gone, images.column(0), nothing.cast(pa.int64())),
        *(nothing.cast(f.type) for f in list(_ARROW)[1:]),
    ]
    changes = Changes(
        schema=_SCHEMA,
        op=op,
        commit_ts=np.full(len(ids), 101 + turn, np.int64),
        seq=np.arange(len(ids), dtype=np.int64),
        after=pa.RecordBatch.from_arrays(after, schema=_ARROW),
        before=pa.RecordBatch.from_arrays(before, schema=_ARROW),
        before_kind=np.where(op == DELETE, BEFORE_KEY, BEFORE_NONE).astype(np.int8),
    )
    feed = FeedContext("bench", uri, SinkMode.UPSERT)
    task = FlushTask(feed, _SPAN, _TABLE, (), Ts(100 + turn), Ts(101 + turn))
    [done] = sink.commit([task], [sink.writer().write(task, [changes])])
    assert done.committed, done.error


def _scan(sink: Sink) -> tuple[float, int]:
    assert isinstance(sink, ReadsBack)
    best, rows = float("inf"), 0
    for _ in range(3):
        started = time.perf_counter()
        rows = sum(batch.num_rows for batch in sink.read_rows(_TABLE, _SCHEMA, _ARROW))
        best = min(best, time.perf_counter() - started)
    return best, rows


def _on_disk(directory: Path) -> int:
    return sum(os.path.getsize(path) for path in directory.rglob("*") if path.is_file())
