"""A hard day of eight tables, in one go: three captures and a MariaDB under sysbench, with all that may befall them.

At its end the sinks are held against the source as multisets of rows, and not with the code that ``diff`` uses: the
upserted tables as they are, the changelogs by carrying out each change on what the ones before it have left.
"""

import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.errors import NEW_POSITION
from reactor.records.changefeed import FeedState, SinkMode
from tests.acceptance.bed import Load, Process
from tests.acceptance.checks import CATCH_UP_TIMEOUT_S, CHANGELOG, FEEDS, SERVICE_TIMEOUT_S, UPSERT, follows
from tests.acceptance.maria_bed import DATABASE, TABLES, MariaBed, is_installed

pytestmark = [
    pytest.mark.minutes(3),
    pytest.mark.acceptance,
    pytest.mark.matrix,
    pytest.mark.spark,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not is_installed(), reason="sysbench is not installed (Debian: apt-get install sysbench)"),
]

#: transactions a second
_RATE = 30
#: bytes of binlog
_WARM = 50_000
#: a definition more than where a capture only falls
_FALL_TIMEOUT_S = SERVICE_TIMEOUT_S + 5

Row = tuple[Any, ...]


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[MariaBed]:
    with MariaBed(tmp_path, captures=3) as bed:
        bed.execute("ALTER TABLE sbtest3 ADD note varchar(20) NOT NULL DEFAULT 'soon gone'")
        bed.create_feed(UPSERT, SinkMode.UPSERT)
        bed.create_feed(CHANGELOG, SinkMode.CHANGELOG)
        yield bed


def test_a_hard_day(bed: MariaBed) -> None:
    with bed.load(rate=_RATE) as load:
        follow(bed)
        fall(bed, bed.owner(UPSERT), meanwhile="ALTER TABLE sbtest1 ADD price decimal(10,2) NOT NULL DEFAULT 9.95")
        bed.execute("FLUSH LOGS")
        bed.mariadb.restart()
        go_on(bed, load)
        purge_what_is_read(bed)
        bed.mend()

        fall(bed, bed.sync_worker(UPSERT), meanwhile="ALTER TABLE sbtest2 MODIFY k bigint NOT NULL DEFAULT 0")
        bed.execute("UPDATE sbtest2 SET k = k + (1 << 40) WHERE id % 10 = 0")
        bed.execute("FLUSH LOGS")
        bed.execute("CREATE TABLE fresh (id int PRIMARY KEY, k int NOT NULL, c char(120), pad char(60), KEY (k))")
        bed.execute("INSERT INTO fresh SELECT id, k, c, pad FROM sbtest7 WHERE id <= 500")
        bed.execute("RENAME TABLE sbtest7 TO retired, fresh TO sbtest7")
        bed.execute("TRUNCATE TABLE sbtest6")
        write_on(bed)
        follow(bed)
        bed.mend()

        fall(bed, writer_of_spans(bed), meanwhile="ALTER TABLE sbtest3 DROP COLUMN note")
        bed.mariadb.kill()
        bed.mariadb.start()
        go_on(bed, load)
        bed.execute("FLUSH LOGS")
        purge_what_is_read(bed)
        bed.mend()
    follow(bed)
    check(bed)
    lose_the_position(bed)
    check(bed)


# What is done to them


def fall(bed: MariaBed, process: Process, *, meanwhile: str) -> None:
    """``kill -9``: the others carry on, and follow a definition that comes just then; it starts again behind them."""
    bed.kill(process)
    bed.execute(meanwhile)
    bed.wait_for("the service continues", follows(bed), timeout_s=_FALL_TIMEOUT_S)
    bed.start(process)


def writer_of_spans(bed: MariaBed) -> Process:
    """One that does nothing else, if there is any."""
    holders = bed.span_holders(UPSERT)
    busy = [bed.owner(UPSERT), bed.sync_worker(UPSERT), bed.sync_worker(CHANGELOG)]
    return next((process for process in holders if process not in busy), holders[0])


def go_on(bed: MariaBed, load: Load) -> None:
    """The server was away: so is the load."""
    load.again()
    write_on(bed)
    follow(bed)


def write_on(bed: MariaBed) -> None:
    before = bed.last_ts()
    bed.wait_for("the load writes", lambda: bed.last_ts() > before + _WARM)


def follow(bed: MariaBed) -> None:
    bed.wait_for("both changefeeds follow", follows(bed), timeout_s=CATCH_UP_TIMEOUT_S)


def purge_what_is_read(bed: MariaBed) -> None:
    """As an operator would: all files before the first that a changefeed says it needs."""
    follow(bed)
    oldest, *_ = bed.binlogs()
    needed = min(needed_binlog(bed, feed) for feed in FEEDS)
    assert oldest < needed
    bed.wait_for("they are purged", lambda: bed.purge(needed))


def lose_the_position(bed: MariaBed) -> None:
    """More is purged than a paused changefeed can do without; then what its error offers is done."""
    bed.ask(lambda client: client.pause(UPSERT))
    bed.wait_for("nobody reads for it", lambda: bed.readers() == 1)
    needed = needed_binlog(bed, UPSERT)
    bed.execute("UPDATE sbtest4 SET k = k + 1")
    bed.execute("FLUSH LOGS")
    newest, _ = bed.place()
    bed.wait_for("it is purged", lambda: bed.purge(newest))
    bed.ask(lambda client: client.resume(UPSERT))
    bed.wait_for("it has failed", lambda: bed.query(UPSERT).state is FeedState.FAILED)
    error = bed.query(UPSERT).error
    assert error is not None
    assert error.code == "SnapshotLostByGC"
    assert f"has purged {needed}, which comes next ({newest} is its oldest)" in error.message
    assert NEW_POSITION in error.message

    bed.ask(lambda client: client.remove(UPSERT))
    shutil.rmtree(bed.lake(UPSERT))
    bed.create_feed(UPSERT)
    follow(bed)


def needed_binlog(bed: MariaBed, feed: str) -> str:
    return bed.query(feed).source_position.partition(":")[0]


# What must hold


def check(bed: MariaBed) -> None:
    tables = {str(row[0]) for row in bed.execute("SHOW TABLES")}
    assert tables == {*TABLES, "retired"}
    for feed in FEEDS:
        assert {log.parent.name for log in (bed.lake(feed) / DATABASE).glob("*/_delta_log")} == tables
        diffs = bed.ask(lambda client, feed=feed: client.diff(feed), timeout_s=120.0)  # type: ignore[misc]
        assert {diff.table for diff in diffs} == {f"{DATABASE}.{table}" for table in tables}
        assert [(feed, diff) for diff in diffs if not diff.equal] == []
    for table in sorted(tables):
        columns = columns_of(bed, table)
        there = Counter(tuple(row) for row in bed.execute(f"SELECT {', '.join(columns)} FROM {table}"))
        assert there
        stored = bed.delta(UPSERT, table)
        assert set(stored.column_names) == set(columns)
        assert Counter(tuple(row[name] for name in columns) for row in stored.to_pylist()) == there, table
        assert Counter(carried_out(bed.delta(CHANGELOG, table).to_pylist(), columns)) == there, table


def columns_of(bed: MariaBed, table: str) -> list[str]:
    return [str(name) for name, *_ in bed.execute(f"SHOW COLUMNS FROM {table}")]


def carried_out(log: list[dict[str, Any]], columns: list[str]) -> list[Row]:
    """What a changelog's changes leave. Each finds the row that it says it changes; none is there twice."""
    rows: dict[Any, Row] = {}
    seen: set[tuple[int, int]] = set()
    for change in sorted(log, key=in_order):
        key, row = change["id"], tuple(change[name] for name in columns)
        kind, at = change["_change_type"], (change["_commit_version"], change["_commit_seq"])
        if kind in ("update_preimage", "delete"):
            assert rows.pop(key, None) == row
        elif kind == "truncate":
            rows.clear()
        else:
            assert key not in rows
            rows[key] = row
        is_snapshot = change["_commit_timestamp"] is None
        if kind != "update_preimage" and not is_snapshot:  # an update is two rows; the snapshot has no order
            assert at not in seen
            seen.add(at)
    return list(rows.values())


def in_order(change: dict[str, Any]) -> tuple[int, int, bool]:
    return change["_commit_version"], change["_commit_seq"], change["_change_type"] == "update_postimage"
