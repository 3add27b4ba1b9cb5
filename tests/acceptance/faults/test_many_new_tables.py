"""Many new tables at once, under load and kills: small ones are copied together, and each is what its source is."""

from functools import partial
from pathlib import Path
from threading import Event, Thread

import pytest

from capture.api.client import Client
from reactor.records.changefeed import SinkMode
from reactor.records.tables.resync import ResyncStage
from tests.acceptance.bed import Bed
from tests.acceptance.checks import CHANGELOG, FEEDS, UPSERT, sink_rows, source_rows

pytestmark = [
    pytest.mark.minutes(4),
    pytest.mark.acceptance,
    pytest.mark.spark,
    pytest.mark.matrix,
    pytest.mark.timeout(600),
]

TABLES = [f"new_{number}" for number in range(80)]


def _copied(bed: Bed, feed: str) -> int:
    return sum(one.stage == ResyncStage.COPYING for one in bed.query(feed).resyncs)


def test_captures_fall_while_many_new_tables_are_copied(tmp_path: Path) -> None:
    with Bed(tmp_path, captures=2) as bed:
        bed.create_feed(UPSERT)
        bed.create_feed(CHANGELOG, SinkMode.CHANGELOG)
        for name in TABLES:
            bed.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, v int)")
            bed.execute(f"INSERT INTO {name} SELECT g, 0 FROM generate_series(1, 20) AS g")
        stopped = Event()
        writer = Thread(target=_write, args=(bed, stopped))
        writer.start()
        try:
            for feed in FEEDS:
                bed.wait_for(f"{feed} copies several together", lambda feed=feed: _copied(bed, feed) > 4)  # type: ignore[misc]
                process = bed.owner(feed)
                bed.kill(process)
                bed.start(process)
            for feed in FEEDS:
                bed.wait_for(f"all tables of {feed} flow", lambda feed=feed: _flows(bed, feed), timeout_s=240)  # type: ignore[misc]
        finally:
            stopped.set()
            writer.join()
        ts = bed.last_ts()
        for feed in FEEDS:
            bed.wait_for(f"{feed} has all of it", lambda feed=feed: bed.covers(feed, ts))  # type: ignore[misc]
        for name in TABLES:
            expected = sorted(source_rows(bed, f"SELECT id, v FROM {name}"))
            assert sorted(sink_rows(bed.lake(UPSERT), name, "SELECT id, v FROM {table}")) == expected, name
            last = (
                "SELECT id, v FROM (SELECT *, row_number() OVER (PARTITION BY id ORDER BY _commit_version DESC, "
                "_commit_seq DESC) AS place FROM {table} WHERE id IS NOT NULL "
                "AND _change_type <> 'update_preimage') AS rows WHERE place = 1 AND _change_type <> 'delete'"
            )
            assert sorted(sink_rows(bed.lake(CHANGELOG), name, last)) == expected, name
        for feed in FEEDS:
            compared = bed.ask(partial(Client.diff, changefeed_id=feed), timeout_s=240)
            assert [one.table for one in compared if not one.equal] == []
            assert len(compared) >= len(TABLES)


def _write(bed: Bed, stopped: Event) -> None:
    """Update, delete and insert in one new table after the other, a row at a time."""
    number = 0
    while not stopped.is_set():
        name, number = TABLES[number % len(TABLES)], number + 1
        bed.execute(
            f"UPDATE {name} SET v = v + 1 WHERE id % 3 = {number % 3}; DELETE FROM {name} WHERE id = {number % 20}; "
            f"INSERT INTO {name} VALUES ({20 + number}, {number})"
        )


def _flows(bed: Bed, feed: str) -> bool:
    view = bed.query(feed)
    return len(view.tables) >= len(TABLES) and not (view.joining or view.resyncs or view.held or view.lost_tables)
