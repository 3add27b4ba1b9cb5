"""upsert-keys: seconds of one upsert of random keys into an upserted table, by format, size of the table and number of
keys.

Peers, in tables of the same rows: MERGE of delta-rs, upsert of PyIceberg (up to a million rows), MERGE of DuckDB in its
own format. Every upsert of ours is a flush as executors do it: folded, searched, written and committed with its record.
``first``: the first upsert into a table, which also makes the key indexes of its files. ``peak_mb``: of the process
that does all upserts of a case.
"""

import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import duckdb
import numpy as np
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from agent.ports.sink import FeedContext, FlushTask, Sink
from agent.rows.changes import UPDATE, Changes
from agent.rows.schema import Column, TableSchema
from agent.sinks import open_sink
from reactor.ids import TableSpan, Ts
from reactor.records.changefeed import SinkMode
from reactor.records.tables.table import TableRecord

SIZES: Final = (1_000_000, 20_000_000)
KEYS: Final = (100, 10_000, 1_000_000)
_CHUNK: Final = 1_000_000
_REPEATS: Final = 3
_PYICEBERG_MAX: Final = 1_000_000
#: keys that PyIceberg takes at a time without minutes of work
_PYICEBERG_KEYS_MAX: Final = 10_000
SINKS: Final = {
    "iceberg": "iceberg+file://{}/iceberg",
    "delta": "delta+file://{}/delta?deletion_vectors=true",
}
#: types of the key column
KINDS: Final = ("bigint", "uuid")
_TABLE: Final = TableRecord(table_id=1, schema_name="public", name="t", key=("id",), start_ts=Ts(100))
_SPAN: Final = TableSpan(1)


def arrow_of(kind: str) -> pa.Schema:
    key = pa.int64() if kind == "bigint" else pa.string()
    return pa.schema([("id", key), ("k", pa.int64()), ("note", pa.string())])


def rows_of(ids: np.ndarray[Any, np.dtype[np.int64]], kind: str, note: str) -> pa.RecordBatch:
    """Return rows with these numbers; a UUID has the bits of its number in an order without sense."""
    key: pa.Array = pa.array(ids)
    if kind == "uuid":
        words = ids.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        digits = np.frombuffer(words.astype(">u8").tobytes().hex().encode(), "S16").astype(str)
        key = pa.array([f"{text[:8]}-{text[8:12]}-4{text[12:15]}-8{text[15]}00-000000000000" for text in digits])
    columns = [key, pa.array(ids % 1_000), pa.array(np.char.add(f"{note} ", ids.astype(str)))]
    return pa.RecordBatch.from_arrays(columns, schema=arrow_of(kind))


def _chunks(rows: int, kind: str) -> Iterator[pa.RecordBatch]:
    for begin in range(0, rows, _CHUNK):
        yield rows_of(np.arange(begin, min(begin + _CHUNK, rows)), kind, "row")


def _schema(kind: str) -> TableSchema:
    columns = tuple(Column(item.name, 0, -1, str(item.type), item.name == "id") for item in arrow_of(kind))
    return TableSchema(1, "public", "t", columns)


def _opened(uri: str) -> Sink:
    return open_sink(uri, changefeed="bench", mode=SinkMode.UPSERT)


def load(uri: str, rows: int, kind: str) -> None:
    sink = _opened(uri)
    staged = [
        file
        for at, batch in enumerate(_chunks(rows, kind))
        for file in sink.writer().stage(_TABLE, f"{at}-0", iter([batch]), Ts(100))
    ]
    sink.load(_TABLE, _schema(kind), arrow_of(kind), staged)


def upsert(uri: str, batch: pa.RecordBatch, kind: str, from_ts: int) -> None:
    """One flush."""
    count = batch.num_rows
    changes = Changes(
        schema=_schema(kind),
        op=np.full(count, UPDATE, np.int8),
        commit_ts=np.full(count, from_ts + 1, np.int64),
        seq=np.arange(count, dtype=np.int64),
        after=batch,
        before=None,
        before_kind=np.zeros(count, np.int8),
    )
    task = FlushTask(FeedContext("bench", uri, SinkMode.UPSERT), _SPAN, _TABLE, (), Ts(from_ts), Ts(from_ts + 1))
    sink = _opened(uri)
    [done] = sink.commit([task], [sink.writer().write(task, [changes])])
    assert done.committed, done.error


def measure(uri: str, rows: int, kind: str, keys: Sequence[int]) -> dict[str, float]:
    """Upsert into a loaded table: seconds by number of keys, of the first upsert, and the peak of memory in MB."""
    chance, ts = np.random.default_rng(rows), 100

    def once(count: int) -> float:
        nonlocal ts
        batch = rows_of(np.unique(chance.integers(0, rows, count)), kind, f"at {ts}")
        started = time.perf_counter()
        upsert(uri, batch, kind, ts)
        ts += 1
        return time.perf_counter() - started

    figures = {"first_s": round(once(min(keys)), 3)}
    for count in (each for each in keys if each <= rows):
        figures[f"{count}_keys_s"] = round(statistics.median(once(count) for _ in range(_REPEATS)), 3)
    return figures | {"peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)}


def _timed(act: Callable[[], object]) -> float:
    started = time.perf_counter()
    act()
    return round(time.perf_counter() - started, 3)


def peers(directory: Path, rows: int, keys: Sequence[int]) -> dict[str, float]:
    """Seconds of the peers, with the key type bigint."""
    figures: dict[str, float] = {}
    chance = np.random.default_rng(rows)
    given = {count: pa.table(rows_of(np.unique(chance.integers(0, rows, count)), "bigint", "at")) for count in keys}
    given = {count: pa.Table.from_batches(part.to_batches()) for count, part in given.items() if count <= rows}
    schema = arrow_of("bigint")
    path = str(directory / "peer-delta")
    write_deltalake(path, pa.RecordBatchReader.from_batches(schema, _chunks(rows, "bigint")))
    for count, part in given.items():
        merger = DeltaTable(path).merge(part, "t.id = s.id", source_alias="s", target_alias="t")
        figures[f"delta_rs_merge_{count}_keys_s"] = _timed(
            merger.when_matched_update_all().when_not_matched_insert_all().execute
        )
    with duckdb.connect(str(directory / "peer.duckdb")) as base:
        every = pa.RecordBatchReader.from_batches(schema, _chunks(rows, "bigint"))
        base.register("every", every)
        base.execute("CREATE TABLE t AS SELECT * FROM every")
        for count, part in given.items():
            base.register("part", part)
            merge = (
                "MERGE INTO t USING part s ON t.id = s.id "
                "WHEN MATCHED THEN UPDATE SET k = s.k, note = s.note WHEN NOT MATCHED THEN INSERT"
            )
            figures[f"duckdb_merge_{count}_keys_s"] = _timed(lambda merge=merge: base.execute(merge))  # type: ignore[misc]
    if rows <= _PYICEBERG_MAX:
        figures |= _pyiceberg(directory, rows, given)
    return figures


def _pyiceberg(directory: Path, rows: int, given: dict[int, pa.Table]) -> dict[str, float]:
    from pyiceberg.catalog.sql import SqlCatalog

    catalog = SqlCatalog("peer", uri=f"sqlite:///{directory}/peer.db", warehouse=f"file://{directory}/peer-iceberg")
    catalog.create_namespace("public")
    table = catalog.create_table("public.t", arrow_of("bigint"))
    table.append(pa.Table.from_batches(_chunks(rows, "bigint")))
    return {
        f"pyiceberg_upsert_{count}_keys_s": _timed(lambda part=part: table.upsert(part, join_cols=["id"]))  # type: ignore[misc]
        for count, part in given.items()
        if count <= _PYICEBERG_KEYS_MAX
    }


def _elsewhere(function: str, *arguments: object) -> Any:
    """Run a function of this module in a process of its own, so that memory and caches are its own."""
    code = (
        "import json, sys; from pathlib import Path; from benchmarks.lake import upsert_keys as m; "
        f"print(json.dumps(m.{function}(*{arguments!r})))"
    )
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True)
    with suppress(ValueError, IndexError):
        return json.loads(done.stdout.splitlines()[-1])
    return None


def peers_in(directory: str, rows: int, keys: Sequence[int]) -> dict[str, float]:
    return peers(Path(directory), rows, keys)


def run(
    sizes: Sequence[int] | int = SIZES,
    keys: Sequence[int] = KEYS,
    kinds: Sequence[str] = KINDS,
    formats: Sequence[str] = tuple(SINKS),
    *,
    with_peers: bool = True,
) -> dict[str, Any]:
    figures: dict[str, Any] = {"what": f"upserts of {min(keys):,} to {max(keys):,} random keys into rows of 30 bytes"}
    best = 0.0
    sizes = [sizes] if isinstance(sizes, int) else sizes
    for rows in sizes:
        for kind in kinds:
            for name in formats:
                with tempfile.TemporaryDirectory(prefix="weir-upsert-keys-") as directory:
                    uri = SINKS[name].format(directory)
                    _elsewhere("load", uri, rows, kind)
                    found = _elsewhere("measure", uri, rows, kind, tuple(keys))
                figures |= {f"{name}_{rows}_rows_{kind}_{what}": value for what, value in found.items()}
        if with_peers:
            with tempfile.TemporaryDirectory(prefix="weir-upsert-keys-") as directory:
                found = _elsewhere("peers_in", directory, rows, tuple(keys))
            figures |= {f"{name}_{rows}_rows": value for name, value in found.items()}
    if with_peers and 10_000 in keys:
        ours = max(figures[f"{name}_{sizes[-1]}_rows_{kinds[0]}_10000_keys_s"] for name in formats)
        best = figures[f"delta_rs_merge_10000_keys_s_{sizes[-1]}_rows"] / ours
    return {**figures, "ratio": best}
