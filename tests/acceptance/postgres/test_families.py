"""Families of schema changes with rows before, between and behind them, as upserted tables, changelogs and histories:
the sink has what the server has, or the table is held. The stream follows at once, or begins when all is over."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
import structlog
from deltalake import DeltaTable

import capture
from agent.ports.source import Scope
from agent.sinks.delta.alter.dropping import dropped_ts
from agent.sinks.delta.table.place import former_keys
from agent.sources import open_source
from capture.embedded import EmbeddedPostgres
from reactor.records.changefeed import ChangefeedConfig, SinkMode
from tests.acceptance.postgres.families import DATABASE, Table, families, here, run, tables, there
from tests.soak.compare import folded

pytestmark = [pytest.mark.acceptance, pytest.mark.matrix, pytest.mark.spark, pytest.mark.timeout(1200)]

_TIMEOUT_S: Final = 400.0
_COPIES_S: Final = 240.0
_POLL_S: Final = 0.5
_MODES: Final = tuple(SinkMode)
_SENT: Final = "publish_via_partition_root, publish_generated_columns = stored"


@pytest.fixture(autouse=True)
def _log(tmp_path: Path) -> Iterator[None]:
    """The captures' log: one that they open themselves stays open."""
    with (tmp_path / "capture.log").open("a") as log:
        structlog.configure(logger_factory=structlog.PrintLoggerFactory(log))
        yield
        structlog.reset_defaults()


@pytest.mark.parametrize("is_late", [False, True], ids=["at-once", "late"])
def test_families(is_late: bool, tmp_path: Path) -> None:
    server = EmbeddedPostgres(tmp_path / "server", unsafe_no_fsync=True)
    with server, capture.local(tmp_path / "weir") as cluster:
        server.create_database(DATABASE)
        ours = families()
        for family in ours:
            run(server, family, family.setup)
        server.execute(f"CREATE PUBLICATION everything FOR ALL TABLES WITH ({_SENT})", database=DATABASE)
        feeds = [cluster.create(mode.value, **_spec(server, tmp_path, mode)) for mode in _MODES]
        for feed in feeds:
            feed.wait(timeout=_TIMEOUT_S)
            if is_late:
                feed.pause()
        done = [run(server, family, family.steps) for family in ours]
        assert sum(done) > 0.9 * sum(len(family.steps) for family in ours)
        for feed in feeds:
            if is_late:
                feed.resume()
            _catch_up(server, feed)
        wrong = [line for feed in feeds for line in _differences(server, feed, tmp_path / feed.id)]
    assert not wrong, "\n".join(wrong)


def _spec(server: EmbeddedPostgres, directory: Path, mode: SinkMode) -> dict[str, Any]:
    config = {"filter": {"rules": ["fam_*.*"]}, "publication": "everything"}
    sink = f"delta+file://{directory}/{mode.value}"
    return {"source": server.uri(DATABASE), "sink": sink, "sink_mode": mode.value, "config": config}


def _catch_up(server: EmbeddedPostgres, feed: Any) -> None:
    """Until all is written, also copies of tables that came with rows."""
    feed.wait(ts=_end(server), timeout=_TIMEOUT_S)
    end = time.monotonic() + _COPIES_S
    while (view := feed.query()).resyncs or view.joining or any(one.code == "CameWithRows" for one in view.held):
        assert time.monotonic() < end, f"{feed.id}: {view.resyncs} {view.held}"
        time.sleep(_POLL_S)
    feed.wait(ts=_end(server), timeout=_TIMEOUT_S)


def _end(server: EmbeddedPostgres) -> int:
    scope = Scope("families", "families", SinkMode.UPSERT, ChangefeedConfig())
    return open_source(server.uri(DATABASE), scope).current_ts()


def _differences(server: EmbeddedPostgres, feed: Any, lake: Path) -> list[str]:
    view = feed.query()
    held = {one.renamed_to or one.table for one in view.held}
    places = {one.table: one.location for one in sorted(view.tables, key=lambda one: one.held is None)}
    found, count = [], 0
    for table in tables(server):
        if table.full_name in held or not table.key:
            continue
        count += 1
        line = (
            _difference(server, feed.id, table, lake / places[table.full_name])
            if table.full_name in places
            else "it is not at the sink" * bool(there(server, table))
        )
        found += [f"{feed.id}: {table.full_name}: {line}"] * bool(line)
    assert count > len(held), f"{feed.id}: most tables flow; held are {sorted(held)}"
    return found


def _difference(server: EmbeddedPostgres, mode: str, table: Table, place: Path) -> str:
    delta = DeltaTable(str(place))
    columns = {item.name for item in delta.schema().fields if not item.name.startswith("_")}
    if dropped_ts(delta) is not None or not columns.issuperset(table.columns):
        return f"the sink has the columns {sorted(columns)}"
    if mode == SinkMode.CHANGELOG:
        former = [(one.until_ts, one.columns or tuple(table.columns)) for one in former_keys(delta).keys]
        rows = folded(delta.to_pyarrow_table().to_pylist(), table.key, former)
    else:
        rows = pa.table(delta.scan()).to_pylist()
    if mode == SinkMode.UPSERT and columns != {*table.columns}:
        return f"the sink has the columns {sorted(columns)}"
    if mode == SinkMode.HISTORY:
        rows = [row for row in rows if row["_is_current"]]
    wanted, stored = there(server, table), here(rows, table)
    missing, extra = list((wanted - stored).elements())[:3], list((stored - wanted).elements())[:3]
    return f"only at the source: {missing}, only at the sink: {extra}" if missing or extra else ""
