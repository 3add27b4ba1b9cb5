"""Restored backups: directories of the sink that are put back, and the cures that the error names.

What was written since is in the change log: it is written again from the records of the restored tables on.
"""

from collections.abc import Iterator
from pathlib import Path
from shutil import copytree, rmtree

import pytest

from capture.api.client import RemoteError
from capture.api.connection import Connection
from capture.api.port import ChangefeedUpdate
from capture.errors import TableNotFoundError
from capture.python.local import LocalChangefeed
from reactor.records.changefeed import ChangefeedConfig, FeedState, SinkMode
from tests.acceptance.bed import Bed
from tests.acceptance.checks import sink_rows, source_rows

pytestmark = [pytest.mark.acceptance, pytest.mark.spark, pytest.mark.timeout(400), pytest.mark.matrix]

UPSERT, CHANGELOG, ICEBERG = "backup-upsert", "backup-changelog", "backup-iceberg"
FEEDS = (UPSERT, CHANGELOG, ICEBERG)
TABLES = {"account": "id, balance, note", "audit": "id, account, delta", "item": "id, value"}
#: a question that both source and sink are asked about
_ANSWER_S = 60.0


@pytest.fixture(scope="module", autouse=True)
def feeds(bed: Bed) -> None:
    write(bed, 0)
    for feed in FEEDS:
        bed.create_feed(
            feed,
            SinkMode.CHANGELOG if feed == CHANGELOG else SinkMode.UPSERT,
            sink_uri=f"{'iceberg+file' if feed == ICEBERG else 'delta+file'}://{bed.lake(feed)}",
            config=ChangefeedConfig(sync_point_interval_seconds=1),
        )


@pytest.fixture
def backup(bed: Bed, tmp_path: Path) -> Iterator[dict[str, int]]:
    """The changefeeds' lakes as they were at their checkpoints, in ``bed.directory/backup``; there is more by now.
    They are stopped."""
    write(bed, 1)
    synced(bed)
    stop(bed)
    where = bed.directory / "backup"
    copytree(bed.lakes, where)
    at = {feed: bed.query(feed).checkpoint_ts for feed in FEEDS}
    resume(bed)
    for round in (2, 3):
        write(bed, round)
        synced(bed)
    stop(bed)
    yield at
    rmtree(where)


def write(bed: Bed, round: int) -> None:
    """New, changed and deleted rows in all tables."""
    first = int(str(bed.execute("SELECT coalesce(max(id), 0) FROM item")[0][0]))
    bed.execute(f"UPDATE account SET balance = balance + {round + 1} WHERE id % 7 = {round}")
    bed.execute(f"INSERT INTO audit (account, delta) SELECT i, {round} FROM generate_series(1, 20) i")
    bed.execute(f"INSERT INTO item SELECT {first} + i, i FROM generate_series(1, 20) i")
    bed.execute(f"DELETE FROM item WHERE id % 20 = {round}")


def synced(bed: Bed, *feeds: str) -> None:
    ts = bed.last_ts()
    bed.wait_for(
        "all is there", lambda: all(bed.covers(feed, ts) and not bed.query(feed).held for feed in feeds or FEEDS)
    )


def stop(bed: Bed, *feeds: str) -> None:
    for feed in feeds or FEEDS:
        bed.ask(lambda client, feed=feed: client.pause(feed))  # type: ignore[misc]
    bed.wait_for("they stop", lambda: all(bed.query(feed).state is FeedState.STOPPED for feed in feeds or FEEDS))


def resume(bed: Bed, *feeds: str) -> None:
    for feed in feeds or FEEDS:
        bed.ask(lambda client, feed=feed: client.resume(feed), timeout_s=_ANSWER_S)  # type: ignore[misc]


def rewind(bed: Bed, feed: str, checkpoint_ts: int) -> None:
    """To the lowest Ts that the sink records, which the refusal of a higher one names."""
    with pytest.raises(RemoteError, match=r"was set back to \d+ at the sink: .*; rewind to \d+ or less") as refusal:
        bed.ask(lambda client: client.rewind(feed, checkpoint_ts + 1), timeout_s=_ANSWER_S)
    lowest = int(str(refusal.value).rpartition("rewind to ")[2].split()[0])
    assert lowest <= checkpoint_ts
    bed.ask(lambda client: client.rewind(feed, lowest), timeout_s=_ANSWER_S)


def said_of(bed: Bed, feed: str) -> str:
    """What is wrong with it: an error of all tables, or of those that are held."""
    view = bed.query(feed)
    own = view.warning or view.error
    return " ".join([own.message if own else "", *(held.message for held in view.held)])


def check(bed: Bed) -> None:
    """Tables are equal, and each change is in the changelog once."""
    for feed in (UPSERT, ICEBERG):
        check_equal(bed, bed.lake(feed))
    for table, columns in TABLES.items():
        lake = bed.lake(CHANGELOG)
        same = "_commit_version, _commit_seq, _change_type, id"
        doubled = f"SELECT {same} FROM {{table}} GROUP BY {same} HAVING count(*) > 1"
        assert sink_rows(lake, table, doubled) == [], table
        ranked = (
            "SELECT *, row_number() OVER (PARTITION BY id ORDER BY _commit_version DESC, _commit_seq DESC) AS place "
            "FROM {table} WHERE _change_type <> 'update_preimage'"
        )
        kept = f"SELECT {columns} FROM ({ranked}) WHERE place = 1 AND _change_type <> 'delete' ORDER BY id"
        assert sink_rows(lake, table, kept) == source_rows(bed, f"SELECT {columns} FROM {table} ORDER BY id"), table


def check_equal(bed: Bed, lake: Path) -> None:
    for table, columns in TABLES.items():
        sql = f"SELECT {columns} FROM {{table}} ORDER BY id"
        assert sink_rows(lake, table, sql) == source_rows(bed, sql.format(table=table)), table


def check_points(bed: Bed, feed: str, *, copied: str = "") -> bool:
    """Every sync point can be read, without the tables that were held; return whether the newest has all tables. Of one
    that was ``copied``, versions of before may be others by now, and are refused."""
    [process] = bed.processes
    found = LocalChangefeed(Connection(f"http://{process.address}", token=bed.token_of(process)), feed)
    points = sorted(found.sync_points(), key=lambda point: point.ts)
    refused: dict[int, tuple[str, bool]] = {}
    for point in points:
        moment = found.at(point)
        for name in {f"public.{table}" for table in TABLES}.difference(point.left_out):
            try:
                assert moment.table(name).to_arrow().num_rows > 0
            except TableNotFoundError as error:
                refused[point.ts] = name, "the table was set back since, and written again" in str(error)
    assert {*refused.values()} <= {(copied, True)}
    return bool(points) and not points[-1].left_out and points[-1].ts not in refused


@pytest.mark.parametrize("is_resumed_first", [False, True])
def test_all_tables(bed: Bed, backup: dict[str, int], is_resumed_first: bool) -> None:
    rmtree(bed.lakes)
    copytree(bed.directory / "backup", bed.lakes)
    if is_resumed_first:
        resume(bed)
        bed.wait_for("it is noticed", lambda: all("was set back" in said_of(bed, feed) for feed in FEEDS))
        stop(bed)
    for feed in FEEDS:
        rewind(bed, feed, backup[feed])
    resume(bed)
    write(bed, 4)
    synced(bed)
    check(bed)
    bed.wait_for("there are new sync points", lambda: all(check_points(bed, feed) for feed in FEEDS))


@pytest.mark.parametrize("cure", ["rewind", "resync"])
def test_one_table(bed: Bed, backup: dict[str, int], cure: str) -> None:
    lake = bed.lake(UPSERT) / "public" / "account"
    rmtree(lake)
    copytree(bed.directory / "backup" / UPSERT / "public" / "account", lake)
    resume(bed)
    bed.wait_for("it is held", lambda: [held.table for held in bed.query(UPSERT).held] == ["public.account"])
    write(bed, 4)
    if cure == "rewind":
        stop(bed)
        rewind(bed, UPSERT, backup[UPSERT])
        resume(bed)
    else:
        bed.ask(lambda client: client.resync_table(UPSERT, "public.account"), timeout_s=_ANSWER_S)
    synced(bed)
    check(bed)
    copied = "public.account" if cure == "resync" else ""
    bed.wait_for("there are new sync points", lambda: check_points(bed, UPSERT, copied=copied))


@pytest.mark.parametrize("is_older", [False, True])
def test_another_sink_to_which_the_tables_were_copied(bed: Bed, is_older: bool) -> None:
    """A copy that is older is noticed as if it had been put back."""
    feed, place = f"backup-moved-{is_older}", bed.lakes / f"moved-{is_older}"
    uri = f"delta+file://{place}"
    bed.create_feed(feed)
    write(bed, 1)
    synced(bed, feed)
    stop(bed, feed)
    ts = bed.query(feed).checkpoint_ts
    if is_older:
        copytree(bed.lake(feed), place)
        resume(bed, feed)
        write(bed, 2)
        synced(bed, feed)
        stop(bed, feed)
    else:
        bed.lake(feed).rename(place)
    bed.ask(lambda client: client.update(feed, ChangefeedUpdate(sink_uri=uri)), timeout_s=_ANSWER_S)
    resume(bed, feed)
    if is_older:
        bed.wait_for("it is noticed", lambda: "was set back" in said_of(bed, feed))
        stop(bed, feed)
        rewind(bed, feed, ts)
        resume(bed, feed)
    write(bed, 3)
    synced(bed, feed)
    check_equal(bed, place)
