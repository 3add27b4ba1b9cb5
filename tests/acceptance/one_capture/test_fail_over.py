"""A standby of PostgreSQL is promoted in place of its primary while a changefeed runs, and a table is copied."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from deltalake import DeltaTable

from agent.ports.source import Scope
from agent.sources import open_source
from capture.api.client import Client
from capture.embedded import EmbeddedPostgres
from reactor.records.changefeed import ChangefeedConfig, SinkMode
from tests.acceptance.bed import Bed
from tests.integration.agent.sources.postgres.standby import StandbyPostgres

pytestmark = [pytest.mark.acceptance, pytest.mark.spark, pytest.mark.timeout(280)]

_DATABASE = "shop"
_ROWS = 4_000


@dataclass
class Pair:
    """``now``: the server that writes."""

    primary: EmbeddedPostgres
    standby: StandbyPostgres
    now: EmbeddedPostgres

    @property
    def uri(self) -> str:
        ports = (self.primary.port, self.standby.port)
        places = ",".join(f"127.0.0.1:{port}" for port in ports)
        return f"postgresql://postgres:{self.primary.password}@{places}/{_DATABASE}"

    def execute(self, sql: str) -> list[list[object]]:
        return self.now.execute(sql, database=_DATABASE)

    def last_ts(self) -> int:
        return open_source(self.uri, Scope("x", "x", SinkMode.UPSERT, ChangefeedConfig())).current_ts()

    def wait_ready(self, bed: Bed, feed: str) -> None:
        of_feed = f"slot_name LIKE 'weir%{feed}%' AND NOT temporary"
        [[slot]] = self.execute(f"SELECT slot_name::text FROM pg_replication_slots WHERE {of_feed}")
        [[end]] = self.execute("SELECT pg_current_wal_insert_lsn()::text")
        replayed = f"SELECT pg_last_wal_replay_lsn() >= '{end}'::pg_lsn"
        bed.wait_for("the standby has all", lambda: self.standby.execute(replayed) == [[True]])
        bed.wait_for("the standby has the slot", lambda: self.standby.has_slot(str(slot)))

    def switch(self) -> None:
        self.now.stop()
        self.standby.promote()
        self.now = self.standby


@pytest.fixture
def pair(bed: Bed, tmp_path: Path) -> Iterator[Pair]:
    with ExitStack() as stack:
        primary = stack.enter_context(EmbeddedPostgres(tmp_path / "primary", unsafe_no_fsync=True))
        primary.create_database(_DATABASE)
        for table in ("account", "item"):
            primary.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, v text)", database=_DATABASE)
            rows = f"SELECT n, 'first' FROM generate_series(1, {_ROWS}) n"
            primary.execute(f"INSERT INTO {table} {rows}", database=_DATABASE)
        standby = stack.enter_context(StandbyPostgres(tmp_path / "standby", primary))
        yield Pair(primary, standby, primary)
        for feed in bed.ask(lambda client: client.list()):  # which have something at these servers
            bed.ask(partial(Client.remove, changefeed_id=feed.id))


def differences(bed: Bed, feed: str) -> list[object]:
    found = bed.ask(lambda client: client.diff(feed), timeout_s=120.0)
    return [(one.table, one.differences, one.waiting) for one in found if not one.equal]


def rows(bed: Bed, feed: str, table: str) -> dict[int, str]:
    found = DeltaTable(bed.lake(feed) / "public" / table).to_pyarrow_table().to_pylist()
    return {row["id"]: row["v"] for row in found}


@pytest.mark.matrix
@pytest.mark.parametrize(("feed", "is_killed"), [("over", False), ("killed", True)])
def test_a_changefeed_continues_on_a_promoted_standby(bed: Bed, pair: Pair, feed: str, is_killed: bool) -> None:
    pair.standby.hold_back_primary(is_on=True)
    bed.create_feed(feed, source_uri=pair.uri)
    pair.execute("UPDATE account SET v = 'before' WHERE id <= 100")
    bed.ask(lambda client: client.resync_table(feed, "public.item", rows_per_second=500))
    bed.wait_for("it is being copied", lambda: any(one.rows_done for one in bed.query(feed).resyncs))
    pair.wait_ready(bed, feed)
    if is_killed:
        bed.kill(bed.processes[0])
    pair.switch()
    if is_killed:
        bed.start(bed.processes[0])
    pair.execute("UPDATE account SET v = 'after' WHERE id > 100 AND id <= 200")
    pair.execute("DELETE FROM item WHERE id <= 10")
    ts = pair.last_ts()
    bed.wait_for("it continues", lambda: bed.covers(feed, ts))
    bed.wait_for("the table is copied", lambda: not (bed.query(feed).resyncs or bed.query(feed).held))
    assert differences(bed, feed) == []
    expected = {n: "before" if n <= 100 else "after" if n <= 200 else "first" for n in range(1, _ROWS + 1)}
    assert rows(bed, feed, "account") == expected
    assert rows(bed, feed, "item") == dict.fromkeys(range(11, _ROWS + 1), "first")


@pytest.mark.matrix
def test_what_the_promoted_standby_never_had_is_at_no_sink(bed: Bed, pair: Pair) -> None:
    """The primary crashes with commits that only Weir has got."""
    bed.create_feed("lost", source_uri=pair.uri, config=ChangefeedConfig(on_lost_position="resync"))
    pair.execute("UPDATE account SET v = 'both' WHERE id <= 100")
    pair.wait_ready(bed, "lost")
    pair.standby.cut_off()
    bed.wait_for(
        "nothing comes any more", lambda: pair.standby.execute("SELECT count(*) FROM pg_stat_wal_receiver") == [[0]]
    )
    pair.execute("UPDATE account SET v = 'lost' WHERE id <= 50")
    ts = pair.last_ts()
    bed.wait_for("it is at the sink", lambda: bed.covers("lost", ts))
    assert rows(bed, "lost", "account")[1] == "lost"
    pair.primary.kill()
    pair.standby.promote()
    pair.now = pair.standby
    # positions never go back: the new log has to come past the lost one
    pair.execute("INSERT INTO item SELECT n, repeat('x', 100) FROM generate_series(10001, 20000) n")
    bed.wait_for("it has a new position", lambda: bed.query("lost").checkpoint_ts > ts)
    pair.execute("UPDATE account SET v = 'after' WHERE id > 100 AND id <= 200")
    last = pair.last_ts()
    bed.wait_for("it continues", lambda: bed.covers("lost", last))
    bed.wait_for("all is copied", lambda: not (bed.query("lost").lost_tables or bed.query("lost").held))
    assert differences(bed, "lost") == []
    assert rows(bed, "lost", "account")[1] == "both"
