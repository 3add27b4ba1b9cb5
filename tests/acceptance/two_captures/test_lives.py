"""Changefeeds from creation to removal on real parts: every mode, every end, and captures that leave gracefully."""

import pytest
from deltalake import DeltaTable

from reactor.records.changefeed import FeedState, Mode, SinkMode
from tests.acceptance.bed import SESSION_TTL_S, Bed

pytestmark = [pytest.mark.acceptance, pytest.mark.spark, pytest.mark.timeout(300)]


@pytest.mark.matrix
def test_incremental_starts_empty_and_follows(bed: Bed) -> None:
    bed.create_feed("incremental", mode=Mode.INCREMENTAL)
    bed.execute("UPDATE account SET balance = 7 WHERE id <= 5")
    catch_up(bed, "incremental")
    assert column(bed, "incremental", "account", "id") == [1, 2, 3, 4, 5]
    bed.ask(lambda client: client.remove("incremental"))


def test_full_ends_after_the_snapshot(bed: Bed) -> None:
    bed.create("full", mode=Mode.FULL)
    bed.wait_for("full has finished", lambda: bed.query("full").state is FeedState.FINISHED)
    assert len(column(bed, "full", "account", "id")) == 2000
    bed.ask(lambda client: client.remove("full"))


def test_a_target_ends_it_exactly_there(bed: Bed) -> None:
    bed.create_feed("target", SinkMode.CHANGELOG, mode=Mode.INCREMENTAL)
    bed.execute("INSERT INTO audit (account, delta) VALUES (1, 111)")
    catch_up(bed, "target")
    bed.ask(lambda client: client.remove("target"))
    inside = bed.last_ts()
    bed.create("bounded", sink_mode=SinkMode.CHANGELOG, target_ts=inside + 5_000_000)
    bed.wait_for("bounded follows", lambda: bed.query("bounded").checkpoint_ts > inside)
    while bed.last_ts() < inside + 10_000_000:
        bed.execute("INSERT INTO audit (account, delta) SELECT 1, i FROM generate_series(1, 10000) AS i")
    bed.wait_for("bounded has finished", lambda: bed.query("bounded").state is FeedState.FINISHED)
    view = bed.query("bounded")
    assert view.checkpoint_ts == view.target_ts == inside + 5_000_000
    versions = column(bed, "bounded", "audit", "_commit_version")
    assert max(versions) <= inside + 5_000_000
    bed.ask(lambda client: client.remove("bounded"))


def test_pause_and_resume_lose_nothing(bed: Bed) -> None:
    bed.create_feed("paused")
    with bed.load():
        bed.ask(lambda client: client.pause("paused"))
        assert bed.query("paused").state is FeedState.STOPPED
        assert bed.query("paused").blocked_by == "paused by an operator"
        written = bed.transactions()
        bed.wait_for("the load writes", lambda: bed.transactions() > written + 50)
        bed.ask(lambda client: client.resume("paused"))
    catch_up(bed, "paused")
    assert all(one.equal for one in bed.ask(lambda client: client.diff("paused")))


def test_a_comparison_does_not_need_silence(bed: Bed) -> None:
    with bed.load():
        diffs = bed.ask(lambda client: client.diff("paused"))
    assert [diff.table for diff in diffs if not diff.equal] == []
    assert {diff.table for diff in diffs} == {"public.account", "public.audit", "public.item"}
    assert len({diff.ts for diff in diffs}) == 1


@pytest.mark.matrix
def test_a_capture_that_leaves_gives_everything_away(bed: Bed) -> None:
    """Nobody waits for a lease: the leaver's tables and workers are elsewhere before it exits."""
    leaver = bed.sync_worker("paused")
    with bed.load():
        assert bed.terminate(leaver) == 0
        ts = bed.last_ts()
        bed.wait_for("the service continues", lambda: bed.covers("paused", ts), timeout_s=SESSION_TTL_S + 5)
    bed.start(leaver)
    bed.wait_for("two captures again", lambda: len(bed.captures()) == 2)
    assert all(one.equal for one in bed.ask(lambda client: client.diff("paused")))


def test_a_removed_changefeed_leaves_only_its_tables(bed: Bed) -> None:
    bed.ask(lambda client: client.remove("paused"))
    assert bed.execute("SELECT slot_name FROM pg_replication_slots WHERE slot_name LIKE 'weir%'") == []
    assert bed.execute("SELECT pubname FROM pg_publication") == []
    assert not [path for path in (bed.directory / "log").rglob("*") if path.is_file() and path.name != "weir-log"]
    assert DeltaTable(bed.lake("paused") / "public" / "account").version() >= 0
    assert "paused" not in {view.id for view in bed.ask(lambda client: client.list())}


def test_a_sink_that_drops_everything_still_moves(bed: Bed) -> None:
    bed.create_feed("hole", sink_uri="blackhole://", mode=Mode.INCREMENTAL)
    bed.execute("UPDATE account SET balance = balance + 1")
    catch_up(bed, "hole")
    assert bed.query("hole").changes >= 2000
    bed.ask(lambda client: client.remove("hole"))


def catch_up(bed: Bed, feed: str) -> None:
    ts = bed.last_ts()
    bed.wait_for(f"{feed} has caught up", lambda: bed.covers(feed, ts))


def column(bed: Bed, feed: str, table: str, name: str) -> list[int]:
    rows = DeltaTable(bed.lake(feed) / "public" / table).to_pyarrow_table(columns=[name])
    return sorted(rows[name].to_pylist())
