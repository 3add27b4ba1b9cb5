"""Data of v0.1.0: it is read, kept and continued by today's code, and v0.1.0 could read what today's code stores.

The fixtures were made by v0.1.0 itself, see ``tests/fixtures/v0.1.0/README.md``. Records, keys, secrets, segments,
manifests and Delta tables are covered here; clusters of both versions in ``tests/acceptance/long/test_roll_over.py``.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from agent.control.runtime import FlushLimits, SpanPosition
from agent.flush.job import FlushContext, flush
from agent.log.reader import LogReader
from agent.log.storage import LogDirectory
from agent.ports.sink import FeedContext
from agent.sinks import open_sink
from agent.units.manifest import Manifest
from capture.inspection.contents import inspect_segment
from capture.security.secrets import Keeper, resolve
from owner.scheduler.spans import even_spans
from reactor import keys
from reactor.ids import ChangefeedId, TableSpan
from reactor.messages import Barrier
from reactor.records import base as record
from reactor.records import capture, log_head, sync_point, task_position, upstream
from reactor.records import changefeed as records
from reactor.records.base import Record
from reactor.records.changefeed import SinkMode, UnitRecord
from reactor.records.tables import held, partitioning, schema_change
from reactor.records.tables import table as table_record
from reactor.state import ChangefeedState, ClusterState
from reactor.store.port import KeyValue, Snapshot
from tests.integration.agent.flush.test_job import Inline

FIXTURES = Path(__file__).parents[2] / "fixtures" / "v0.1.0"
STORED = {item["key"]: item["value"].encode() for item in json.loads((FIXTURES / "etcd.json").read_text())}
ROWS = json.loads((FIXTURES / "rows.json").read_text())
FEEDS = ("maria", "maria-log", "pg", "pg-log")
#: classes that have another name by now, which nothing stored knows of
RENAMED = {"TableCut": "TablePartitioning", "CutUnderWay": "RepartitionUnderWay"}
#: changefeed → its first table, at the sink and by the name of its rows
TABLES = {"pg": ("public", "person"), "maria": ("shop", "item")}


@pytest.fixture(scope="module")
def state() -> ClusterState:
    loaded = ClusterState("default")
    items = [KeyValue(key, value, 1, 1) for key, value in sorted(STORED.items())]
    loaded.load(Snapshot(tuple(items), 7))
    return loaded


def stored_records(state: ClusterState) -> dict[str, Record]:
    """By key, as today's code has read them."""
    found: dict[str, Record] = {}
    for feed in state.changefeeds.values():
        place = (state.cluster, state.namespace, feed.id)
        assert feed.info is not None
        assert feed.status is not None
        found[str(keys.InfoKey(*place))] = feed.info
        found[str(keys.StatusKey(*place))] = feed.status
        found |= {str(keys.UnitKey(*place, source)): unit for source, unit in feed.units.items()}
        found |= {str(keys.LogKey(*place, source)): head for source, head in feed.heads.items()}
        found |= {str(keys.DdlKey(*place, ts)): ddl for ts, ddl in feed.ddl.items()}
        found |= {str(keys.SyncPointKey(*place, ts)): point for ts, point in feed.sync_points.items()}
        found |= {
            str(keys.PartitioningKey(*place, table)): partitioning for table, partitioning in feed.partitionings.items()
        }
        found |= {
            str(keys.PositionKey(state.cluster, state.namespace, capture, feed.id)): position
            for capture, position in feed.positions.items()
        }
    found |= {str(keys.UpstreamKey("default", "default", source)): info for source, info in state.upstreams.items()}
    return found


def test_every_key_and_record_is_read_and_written_back_as_it_was(state: ClusterState) -> None:
    state.begin_tick(0.0)
    assert (state.broken, state.format) == ({}, 1)
    assert sorted(state.changefeeds) == sorted(FEEDS)
    assert len(state.captures) == 1
    assert next(iter(state.captures.values())).format == 1
    assert state.owner is not None
    found = stored_records(state) | {str(keys.CaptureKey("default", id)): info for id, info in state.captures.items()}
    assert {type(one).__name__ for one in found.values()} >= {
        *("ChangefeedInfo", "ChangefeedStatus", "UnitRecord", "LogHead", "DdlRecord", "SyncPoint", "TablePartitioning"),
        "CaptureInfo",
    }, "the fixture holds all kinds"
    assert STORED.keys() - found.keys() == {key for key in STORED if "/__meta__/" in key and "/capture/" not in key}
    for key, one in found.items():
        assert json.loads(one.encode()) == json.loads(STORED[key]), key


def test_sealed_uris_open_with_the_key_of_before(state: ClusterState) -> None:
    keeper = Keeper.from_file(FIXTURES / "secret.key")
    for name in FEEDS:
        info = state.changefeeds[ChangefeedId(name)].info
        assert info is not None
        assert resolve(keeper.open(info.source)).startswith(("postgresql://", "mysql://", "mariadb://"))
        assert resolve(keeper.open(info.sink)).endswith(f"/lake/{name}")


def today() -> dict[str, type[Record]]:
    tables = (held, partitioning, schema_change, table_record)
    modules = (capture, *tables, log_head, records, sync_point, task_position, upstream)
    found = [kind for module in modules for kind in vars(module).values()]
    base = {record.Record, record.UserConfig}
    return {k.__name__: k for k in found if isinstance(k, type) and issubclass(k, Record) and k not in base}


@pytest.mark.parametrize(("name", "fields"), json.loads((FIXTURES / "fields.json").read_text()).items())
def test_no_field_is_gone_and_none_that_came_later_is_required_or_written_with_its_default(
    name: str, fields: dict[str, bool]
) -> None:
    """v0.1.0 refuses a changefeed's configuration with a key it does not know, so: ``reactor.records.base.later``."""
    now = today()[RENAMED.get(name, name)].model_fields
    assert fields.keys() <= now.keys()
    assert {field for field in now if now[field].is_required()} <= {field for field in fields if fields[field]}
    for added in now.keys() - fields.keys():
        leave_out = now[added].exclude_if
        assert leave_out is not None, f"{name}.{added} came after v0.1.0: give it reactor.record.later(…)"
        assert leave_out(now[added].get_default(call_default_factory=True))


def test_the_configuration_that_nobody_has_changed_is_one_that_v0_1_0_reads() -> None:
    known = json.loads((FIXTURES / "fields.json").read_text())
    written = json.loads(records.ChangefeedConfig().encode())
    assert written.keys() <= known["ChangefeedConfig"].keys()
    assert written["filter"].keys() <= known["FilterConfig"].keys()


@pytest.mark.parametrize("name", TABLES)
def test_segments_hold_the_rows_that_v0_1_0_read_in_them(name: str) -> None:
    expected = json.loads((FIXTURES / "segments.json").read_text())
    mine = {path: batches for path, batches in expected.items() if path.startswith(f"log/{name}/")}
    assert sum(len(batch["rows"]) for batches in mine.values() for batch in batches) >= 6
    for path, batches in mine.items():
        now = [batch.model_dump(mode="json") for batch in inspect_segment(str(FIXTURES / path), limit=100)]
        assert [{field: batch[field] for field in old} for batch, old in zip(now, batches, strict=True)] == batches


@pytest.mark.parametrize("name", TABLES)
def test_manifests_of_a_dump_are_read(state: ClusterState, name: str) -> None:
    unit = unit_of(state, name)
    manifest = Manifest.for_source(str(FIXTURES / "log"), changefeed=name, source="main")
    plan = manifest.read_plan()
    assert plan is not None
    assert {table.record.table_id for table in plan.tables} == {table.table_id for table in unit.tables}
    assert len(manifest.read_done(plan)) == sum(table.chunks.count for table in plan.tables)
    assert manifest.read_schemas().keys() == {table.table_id for table in unit.tables}


@pytest.mark.parametrize("name", FEEDS)
def test_the_sink_finds_its_records(state: ClusterState, name: str) -> None:
    feed = feed_of(state, name)
    sink = open_sink(f"delta+file://{FIXTURES / 'lake' / name}", changefeed=f"default/{name}", mode=mode_of(feed))
    for table in unit_of(state, name).tables:
        partitioning = feed.partitionings.get(table.table_id)
        for span in even_spans(table.table_id, partitioning.spans if partitioning else 1):
            recorded = sink.committed_ts(table, span)
            assert recorded is not None
            assert recorded >= table.start_ts


@pytest.mark.parametrize("name", TABLES)
def test_a_table_is_continued_from_what_it_records(state: ClusterState, tmp_path: Path, name: str) -> None:
    """The last commit is taken away: the log of v0.1.0 is flushed into its table from where it then stands."""
    feed, (schema, table_name) = feed_of(state, name), TABLES[name]
    lake = shutil.copytree(FIXTURES / "lake" / name, tmp_path / "lake")
    commits = sorted((lake / schema / table_name / "_delta_log").glob("*.json"))
    commits[-1].unlink()
    table = next(table for table in unit_of(state, name).tables if table.name == table_name)
    uri, mode = f"delta+file://{lake}", mode_of(feed)
    sink = open_sink(uri, changefeed=f"default/{name}", mode=mode)
    recorded = sink.committed_ts(table, TableSpan(table.table_id))
    [head] = feed.heads.values()
    assert recorded is not None
    assert recorded < head.resolved_ts
    log = LogDirectory(str(FIXTURES / "log"), changefeed=name, source="main")
    assert feed.info is not None
    context = FlushContext(
        FeedContext(f"default/{name}", uri, mode, feed.info.config.filter),
        sink=sink,
        reader=LogReader(log),
        executor=Inline(),
    )
    limits = FlushLimits(head, Barrier(), {}, {table.table_id: table}, feed.ddl.newest_done())
    at = SpanPosition(TableSpan(table.table_id), table, recorded, recorded)
    [flushed] = flush(context, [at], limits).spans
    assert flushed.error is None
    assert flushed.position.committed_ts == head.resolved_ts
    assert sink_rows(lake / schema / table_name) == sorted(row[:2] for row in ROWS[table_name])


def sink_rows(table: Path) -> list[list[Any]]:
    found = DeltaTable(table).to_pyarrow_table(columns=["id", "name"]).to_pylist()
    return sorted([row["id"], row["name"]] for row in found)


def feed_of(state: ClusterState, name: str) -> ChangefeedState:
    return state.changefeeds[ChangefeedId(name)]


def unit_of(state: ClusterState, name: str) -> UnitRecord:
    [unit] = feed_of(state, name).units.values()
    return unit


def mode_of(feed: ChangefeedState) -> SinkMode:
    assert feed.info is not None
    return feed.info.sink_mode
