"""Families of schema changes with rows before, between and behind them, as upserted tables and as changelogs: the sink,
Delta or Iceberg, has what the server has, or the table is held. The stream follows at once, or begins when all is
over."""

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

import capture
from agent.ports.source import Scope
from agent.sources import open_source
from capture.embedded import EmbeddedMariaDB
from reactor.records.changefeed import ChangefeedConfig, SinkMode
from tests.acceptance.families import Stored, captures_log, differences, follow, of_rows, stored
from tests.acceptance.mysql.families import Table, families, here, run, tables, there
from tests.mysql_package import why_not
from tests.mysql_server import EmbeddedMysql, is_mariadb
from tests.soak.sinks import folded

pytestmark = [
    pytest.mark.minutes(7),
    pytest.mark.in_turn("flavour"),
    pytest.mark.acceptance,
    pytest.mark.matrix,
    pytest.mark.spark,
    pytest.mark.timeout(1200),
]

_COPIES_S: Final = 120.0
#: sink mode and zero dates
_FEEDS: Final = {"upsert": ("upsert", "null"), "strings": ("upsert", "string"), "changelog": ("changelog", "null")}
_SMALL: Final = {"binlog_row_metadata": "MINIMAL", "binlog_row_image": "MINIMAL"}
_CASES: Final = [
    pytest.param(EmbeddedMariaDB, {"binlog_row_metadata": "NO_LOG"}, True, "delta", id="mariadb-no-log-late"),
    pytest.param(EmbeddedMariaDB, {"binlog_row_image": "MINIMAL"}, False, "delta", id="mariadb-minimal"),
    pytest.param(EmbeddedMariaDB, {}, True, "iceberg", id="mariadb-late-iceberg"),
    pytest.param(EmbeddedMariaDB, {"binlog_row_image": "MINIMAL"}, False, "iceberg", id="mariadb-minimal-iceberg"),
    pytest.param(EmbeddedMysql, {}, False, "delta", id="mysql"),
    pytest.param(
        EmbeddedMysql, {**_SMALL, "binlog_transaction_compression": "ON"}, True, "delta", id="mysql-minimal-late"
    ),
]


@pytest.fixture(autouse=True)
def _log(tmp_path: Path) -> Iterator[None]:
    with captures_log(tmp_path):
        yield


@pytest.mark.parametrize(("flavour", "settings", "is_late", "format"), _CASES)
def test_families(
    flavour: type[EmbeddedMariaDB], settings: Mapping[str, str], is_late: bool, format: str, tmp_path: Path
) -> None:
    if flavour is EmbeddedMysql and (reason := why_not()):
        pytest.skip(reason)
    server = flavour(tmp_path / "server", unsafe_no_fsync=True, settings=settings)
    with server, capture.local(tmp_path / "weir") as cluster:
        ours = families("mariadb" if is_mariadb(server) else "mysql")
        if is_mariadb(server) and "binlog_row_image" in settings:  # a changefeed with virtual columns is refused
            ours = [family for family in ours if not any("VIRTUAL" in line for line in family.setup)]
        for family in ours:
            server.create_database(family.database)
            run(server, family, family.setup)
        feeds = [cluster.create(name, **_spec(server, tmp_path, name, format)) for name in _FEEDS]
        runs = [partial(run, server, family, family.steps) for family in ours]
        count = sum(len(family.steps) for family in ours)
        follow(feeds, runs, partial(_end, server), statements=count, is_late=is_late, copies_s=_COPIES_S)
        wrong = [line for feed in feeds for line in _differences(server, feed, tmp_path / feed.id, format)]
    assert wrong == []


def _spec(server: EmbeddedMariaDB, directory: Path, name: str, format: str) -> dict[str, Any]:
    mode, zero_dates = _FEEDS[name]
    source = {"zero-dates": zero_dates, "unlogged-cascades": "accept"}
    config = {"filter": {"rules": ["fam_*.*"]}, "source": source}
    sink = f"{format}+file://{directory}/{name}"
    return {"source": server.uri(), "sink": sink, "sink_mode": mode, "config": config}


def _end(server: EmbeddedMariaDB) -> int:
    return open_source(server.uri(), Scope("families", "families", SinkMode.UPSERT, ChangefeedConfig())).current_ts()


def _differences(server: EmbeddedMariaDB, feed: Any, lake: Path, format: str) -> list[str]:
    def difference(table: Table, location: str) -> str:
        return _difference(server, feed.id, table, stored(lake, location, format))

    return differences(feed, tables(server), difference)


def _difference(server: EmbeddedMariaDB, feed: str, table: Table, found: Stored) -> str:
    mode, zero_dates = _FEEDS[feed]
    columns = found.of_source
    if found.is_dropped or not columns.issuperset(table.columns):
        return f"the sink has the columns {sorted(columns)}"
    if mode == "upsert" and columns != {*table.columns}:
        return f"the sink has the columns {sorted(columns)}"
    rows = found.rows()
    if mode == "changelog":
        former = [(one.until_ts, one.columns or tuple(table.columns)) for one in found.former_keys.keys]
        rows = folded(rows, table.key or tuple(table.columns), former)
    return of_rows(there(server, table, zero_dates=zero_dates), here(rows, table))
