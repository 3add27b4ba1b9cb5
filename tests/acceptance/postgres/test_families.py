"""Families of schema changes with rows before, between and behind them, as upserted tables, changelogs and histories:
the sink, Delta or Iceberg, has what the server has, or the table is held. The stream follows at once, or begins when
all is over."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

import capture
from agent.ports.source import Scope
from agent.sources import open_source
from capture.embedded import EmbeddedPostgres
from reactor.records.changefeed import ChangefeedConfig, SinkMode
from tests.acceptance.families import Stored, captures_log, differences, follow, of_rows, stored
from tests.acceptance.postgres.families import DATABASE, Table, families, here, run, tables, there
from tests.soak.sinks import folded

pytestmark = [
    pytest.mark.minutes(7),
    pytest.mark.in_turn("format"),
    pytest.mark.acceptance,
    pytest.mark.matrix,
    pytest.mark.spark,
    pytest.mark.timeout(1200),
]

_COPIES_S: Final = 240.0
_MODES: Final = tuple(SinkMode)
_SENT: Final = "publish_via_partition_root, publish_generated_columns = stored"


@pytest.fixture(autouse=True)
def _log(tmp_path: Path) -> Iterator[None]:
    with captures_log(tmp_path):
        yield


@pytest.mark.parametrize("format", ["delta", "iceberg"])
@pytest.mark.parametrize("is_late", [False, True], ids=["at-once", "late"])
def test_families(is_late: bool, format: str, tmp_path: Path) -> None:
    server = EmbeddedPostgres(tmp_path / "server", unsafe_no_fsync=True)
    with server, capture.local(tmp_path / "weir") as cluster:
        server.create_database(DATABASE)
        ours = families()
        for family in ours:
            run(server, family, family.setup)
        server.execute(f"CREATE PUBLICATION everything FOR ALL TABLES WITH ({_SENT})", database=DATABASE)
        feeds = [cluster.create(mode.value, **_spec(server, tmp_path, mode, format)) for mode in _MODES]
        runs = [partial(run, server, family, family.steps) for family in ours]
        count = sum(len(family.steps) for family in ours)
        follow(feeds, runs, partial(_end, server), statements=count, is_late=is_late, copies_s=_COPIES_S)
        wrong = [line for feed in feeds for line in _differences(server, feed, tmp_path / feed.id, format)]
    assert not wrong, "\n".join(wrong)


def _spec(server: EmbeddedPostgres, directory: Path, mode: SinkMode, format: str) -> dict[str, Any]:
    config = {"filter": {"rules": ["fam_*.*"]}, "publication": "everything"}
    sink = f"{format}+file://{directory}/{mode.value}"
    return {"source": server.uri(DATABASE), "sink": sink, "sink_mode": mode.value, "config": config}


def _end(server: EmbeddedPostgres) -> int:
    scope = Scope("families", "families", SinkMode.UPSERT, ChangefeedConfig())
    return open_source(server.uri(DATABASE), scope).current_ts()


def _differences(server: EmbeddedPostgres, feed: Any, lake: Path, format: str) -> list[str]:
    def difference(table: Table, location: str) -> str:
        return _difference(server, feed.id, table, stored(lake, location, format))

    keyed = [table for table in tables(server) if table.key]
    return differences(feed, keyed, difference, is_needed=lambda table: bool(there(server, table)))


def _difference(server: EmbeddedPostgres, mode: str, table: Table, found: Stored) -> str:
    columns = found.of_source
    if found.is_dropped or not columns.issuperset(table.columns):
        return f"the sink has the columns {sorted(columns)}"
    if mode == SinkMode.UPSERT and columns != {*table.columns}:
        return f"the sink has the columns {sorted(columns)}"
    rows = found.rows()
    if mode == SinkMode.CHANGELOG:
        former = [(one.until_ts, one.columns or tuple(table.columns)) for one in found.former_keys.keys]
        rows = folded(rows, table.key, former)
    if mode == SinkMode.HISTORY:
        rows = [row for row in rows if row["_is_current"]]
    return of_rows(there(server, table), here(rows, table))
