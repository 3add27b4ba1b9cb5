"""A flush whose log and tables lie on a real S3 server: what it asks for, and that it survives a store under load."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from agent import host_cache
from agent.control.runtime import FlushLimits, SpanPosition
from agent.errors import SinkConfigError
from agent.flush.job import FlushContext, flush
from agent.log import directories, segment
from agent.log.reader import LogReader
from agent.log.segment import SegmentName
from agent.log.storage import LogDirectory, claim, open_input
from agent.object_store import ObjectStore
from agent.ports.sink import FeedContext
from agent.rows.batches import TableBatch
from agent.rows.schema import LOG_BATCH
from agent.sinks import open_sink
from agent.sinks.delta.table import log as delta_log
from agent.sinks.delta.upkeep import upkeep
from agent.sinks.delta.upsert import find
from agent.sources.postgres.decode.types import arrow_schema
from benchmarks.support.store_proxy import StoreProxy
from capture.embedded import EmbeddedS3
from reactor.ids import TableSpan, Ts
from reactor.messages import Barrier
from reactor.records.changefeed import SinkMode
from reactor.records.log_head import Era, LogHead
from reactor.records.tables.table import TableRecord
from tests.integration.agent.flush.pgoutput_build import TABLE, Event, deleted, inserted, updated
from tests.integration.agent.flush.test_job import Inline

_BUCKETS = count()
TABLES = 4
#: what a flush may cost on an object store
PER_COMMIT = 10


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedS3]:
    with EmbeddedS3(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def proxy(server: EmbeddedS3, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[StoreProxy]:
    monkeypatch.setenv("WEIR_HOST_CACHE", str(tmp_path / "cache"))
    host_cache.directory.cache_clear()
    with StoreProxy(server.port).running() as proxy:
        for name, value in server.options(proxy.endpoint).items():
            monkeypatch.setenv(name, value)
        yield proxy
    host_cache.directory.cache_clear()


class Rig:
    """A changefeed of several tables, with log and lake in a bucket of their own."""

    def __init__(self, mode: SinkMode, options: str = "") -> None:
        bucket = f"s3://weir-{next(_BUCKETS)}"
        claim(f"{bucket}/log", cluster_id="c", expected=None)
        self.log = LogDirectory(f"{bucket}/log", changefeed="feed", source="main")
        self.lake, self.uri = f"{bucket}/lake", f"delta+{bucket}/lake{options}"
        sink = open_sink(self.uri, changefeed="feed", mode=mode)
        self.schemas = [replace(TABLE, table_id=TABLE.table_id + at, name=f"t{at}") for at in range(TABLES)]
        self.positions = []
        sink.check([])
        for schema in self.schemas:
            record = TableRecord(
                table_id=schema.table_id, schema_name="public", name=schema.name, key=("id",), start_ts=Ts(100)
            )
            sink.load(record, schema, arrow_schema(schema), [])
            self.positions.append(SpanPosition(TableSpan(schema.table_id), record, Ts(100), Ts(100)))
        self.context = FlushContext(
            FeedContext("feed", self.uri, mode), sink=sink, reader=LogReader(self.log), executor=Inline()
        )
        self.names: list[str] = []

    def append(self, resolved_ts: int, *events: Event) -> None:
        """One segment with the same events of every table."""
        columns = [
            pa.array([event.ts for event in events], pa.int64()),
            pa.array(range(len(events)), pa.int64()),
            pa.array([event.message for event in events], pa.large_binary()),
        ]
        batch = pa.record_batch(columns, schema=LOG_BATCH)
        name = SegmentName(len(self.names) + 1, 1, Ts(events[0].ts), Ts(events[-1].ts), Ts(resolved_ts))
        segment.write(self.log, name, [TableBatch(schema, batch, 1.0) for schema in self.schemas])
        self.names.append(str(name))
        self.resolved = resolved_ts

    def flush(self) -> None:
        head = LogHead(
            epoch=1,
            last_seq=len(self.names),
            complete_seq=len(self.names),
            resolved_ts=Ts(self.resolved),
            eras=(Era(epoch=1, first_seq=1),),
            recent=tuple(self.names[-16:]),
        )
        flushed = flush(self.context, self.positions, FlushLimits(head, Barrier()))
        assert [item.error for item in flushed.spans if item.error] == []
        self.positions = [item.position for item in flushed.spans]

    def rows(self, at: int = 0) -> list[tuple[Any, ...]]:
        """As delta-rs has them."""
        scan = DeltaTable(f"{self.lake}/public/t{at}").scan(columns=["id", "name", "big"])
        rows = [tuple(row.values()) for row in pa.table(scan).to_pylist()]
        return sorted(rows, key=lambda row: row[0])


def other_process() -> None:
    """What a flush knows in memory is forgotten; what this machine keeps in files is not."""
    delta_log._known.clear()
    find._kept._values.clear()


@pytest.mark.sample(0.15)
@pytest.mark.parametrize("options", ["", "?deletion_vectors=true"])
@pytest.mark.parametrize("mode", [SinkMode.UPSERT, SinkMode.CHANGELOG])
def test_requests_of_a_flush(proxy: StoreProxy, mode: SinkMode, options: str) -> None:
    rig = Rig(mode, options)
    rig.append(110, inserted(105, 1, "a", "x"), inserted(106, 2, "b", "y"))
    rig.flush()
    counted = []
    for number in range(2, 8):
        if number == 5:
            other_process()
        proxy.taken()
        at = 100 * number
        rig.append(at + 10, updated(at, 1, f"a{number}", "z"), inserted(at + 1, 10 + number, "n", None))
        assert proxy.counted() == Counter(PUT=1)
        rig.flush()
        counted.append(proxy.counted())
    for each in counted:
        assert each["HEAD"] == each["LIST"] == 0, counted
        assert sum(each.values()) <= PER_COMMIT * TABLES, counted
    if mode is SinkMode.UPSERT:
        rows = [(1, "a7", "z"), (2, "b", "y"), *((10 + number, "n", None) for number in range(2, 8))]
        assert rig.rows() == rig.rows(1) == rows
    else:
        assert len(rig.rows()) == 2 + 6 * 2


@pytest.mark.sample(0.15)
@pytest.mark.parametrize("mode", [SinkMode.UPSERT, SinkMode.CHANGELOG])
def test_a_checkpoint_is_not_on_the_way_of_a_flush(
    proxy: StoreProxy, monkeypatch: pytest.MonkeyPatch, mode: SinkMode
) -> None:
    """It lists the log and opens the table, as delta-rs does, while nothing waits for it."""
    due = 8
    monkeypatch.setattr(upkeep, "_first_count", lambda place: upkeep._CHECKPOINT_EVERY - due)
    rig = Rig(mode, "?deletion_vectors=true")
    with upkeep._busy:  # another table is being maintained
        for number in range(1, due + 3):
            rig.append(100 * number + 10, inserted(100 * number + 1, number, "n", None))
            proxy.taken()
            rig.flush()
            counted = proxy.counted()
            assert counted["HEAD"] == counted["LIST"] == 0, (number, counted)
    monkeypatch.setattr(upkeep, "_COMPACT_EVERY_S", 1e9)
    checkpoints = []
    for number in range(due + 3, due + 3 + TABLES):
        rig.append(100 * number + 10, inserted(100 * number + 1, number, "n", None))
        rig.flush()
        with upkeep._busy:  # it has ended
            found = (path for kind, path in proxy.taken() if kind == "PUT" and path.endswith(".checkpoint.parquet"))
            checkpoints += [path.split("/")[-3] for path in found]
    assert sorted(checkpoints) == [f"t{at}" for at in range(TABLES)]
    other_process()
    assert len(rig.rows()) == number


@pytest.mark.matrix
def test_another_machine_reads_a_segment_once(
    proxy: StoreProxy, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rig = Rig(SinkMode.UPSERT)
    rig.append(110, inserted(105, 1, "a", "x"))
    monkeypatch.setenv("WEIR_HOST_CACHE", str(tmp_path / "elsewhere"))
    host_cache.directory.cache_clear()
    proxy.taken()
    rig.flush()
    read = [path.rpartition("/")[2] for kind, path in proxy.taken() if kind == "GET" and path.endswith(".arrow")]
    assert read == rig.names


def test_what_lay_there_before_is_not_taken_for_what_lies_there_now(proxy: StoreProxy) -> None:
    """Another cluster's log at the same place, with files of the same names."""
    root, name = "s3://weir-again/log", "plan-0000000001.json"
    for cluster in ("one", "two"):
        claim(root, cluster_id=cluster, expected=None)
        directories._marker.cache_clear()  # another process
        place = LogDirectory(root, changefeed="feed", source="main")
        content = cluster.encode()
        ObjectStore(str(place)).write(name, content)  # by another machine
        with open_input(place.path_of(name)) as file:
            assert file.read() == content
        ObjectStore(root).remove(directories.MARKER)


@pytest.mark.matrix
def test_a_store_that_is_too_busy_is_asked_again(proxy: StoreProxy) -> None:
    rig = Rig(SinkMode.UPSERT)
    rig.append(110, inserted(105, 1, "a", "x"), deleted(106, 2, None, None))
    proxy.refusing = 4
    rig.flush()
    assert proxy.refusing == 0
    assert rig.rows(2) == [(1, "a", "x")]


def test_many_buckets(server: EmbeddedS3) -> None:
    """Each bucket takes several volumes of the server."""
    for number in range(20):
        ObjectStore(f"s3://weir-many-{number}", server.options()).write("name", b"content")


def test_a_store_without_conditional_puts_is_refused(proxy: StoreProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ObjectStore, "create", lambda store, name, content: store.write(name, content))
    with pytest.raises(SinkConfigError, match="does not keep conditional puts"):
        open_sink("delta+s3://weir-unfit/lake", changefeed="feed", mode=SinkMode.UPSERT).check([])
