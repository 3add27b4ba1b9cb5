"""Readers of changes in a real cluster: what they are given is what a changelog table has, over kills and restarts."""

import json
import subprocess
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from capture.api.connection import Connection
from capture.api.subscriptions import SubscriptionAsked
from capture.cli.main import main
from capture.errors import PositionGoneError, SubscriptionNotFoundError
from capture.python.local import LocalChangefeed
from capture.python.spark_source import SparkSource
from reactor.errors import WeirError
from reactor.records.changefeed import Mode, SinkMode
from tests.acceptance import queries
from tests.acceptance.bed import Bed
from tests.acceptance.checks import CHANGELOG, changelog

pytestmark = [pytest.mark.minutes(0.7), pytest.mark.acceptance, pytest.mark.spark, pytest.mark.timeout(600)]

UNSUNK = "unsunk"

#: a query of a user's own session: all that has arrived, once
QUERY = """
import json, sys
from pyspark.sql import SparkSession
import capture
server, token, directory, options = sys.argv[1:]
spark = SparkSession.builder.master("local[1]").getOrCreate()
spark.dataSource.register(capture.SparkSource)
changes = spark.readStream.format("weir").options(
    server=server, token=token, changefeed="changelog", startingTs="earliest", **json.loads(options)
).load()
sink = changes.writeStream.format("parquet").option("checkpointLocation", f"{directory}/checkpoint")
sink.option("path", f"{directory}/rows").trigger(availableNow=True).start().awaitTermination()
"""


@pytest.fixture(scope="module")
def bed(bed: Bed) -> Bed:
    bed.create_feed(CHANGELOG, SinkMode.CHANGELOG, config={"log_retention_seconds": 0})
    return bed


def feed_of(bed: Bed, number: int = 0) -> LocalChangefeed:
    process = bed.processes[number]
    return LocalChangefeed(Connection(f"http://{process.address}", token=bed.token_of(process)), CHANGELOG)


def counted(rows: pa.Table, *, after_ts: int = 0, key: str = "balance") -> Counter[tuple[Any, ...]]:
    names = ("_commit_version", "_commit_seq", "_change_type", "id", key)
    found = zip(*(rows.column(name).to_pylist() for name in names), strict=True)
    return Counter(row for row in found if row[0] > after_ts)


class Reader(threading.Thread):
    """Follows a table by a name of its own until it has reached a Ts."""

    def __init__(self, feed: LocalChangefeed) -> None:
        super().__init__(daemon=True)
        self.found: list[pa.Table] = []
        self.reached = 0
        self.error: WeirError | None = None
        self._changes = feed.changes("public.account", name="follower", from_ts="earliest")
        self.start()

    def run(self) -> None:
        try:
            for rows in self._changes:
                self.found.append(rows)
                self.reached = max(self.reached, rows.column("_commit_version")[-1].as_py())
        except WeirError as error:
            self.error = error


def start_ts(bed: Bed) -> int:
    return min(int(row[0]) for row in counted(changelog(bed, "account")))


@pytest.mark.matrix
def test_readers_get_each_change_once_over_a_kill_of_the_owner(bed: Bed) -> None:
    reader = Reader(feed_of(bed))
    begin = start_ts(bed)
    with bed.load():
        bed.wait_for("the reader follows", lambda: reader.reached > begin)
        owner = bed.owner(CHANGELOG)
        bed.kill(owner)
        bed.wait_for("another is owner", lambda: bed.owner(CHANGELOG) is not owner)
        bed.start(owner)
        reached = bed.last_ts()
        bed.wait_for("the reader follows again", lambda: reader.reached > reached)
    bed.execute("UPDATE account SET balance = 7 WHERE id = 1")
    ts = bed.last_ts()
    bed.wait_for("the sink has all", lambda: bed.covers(CHANGELOG, ts))
    expected = counted(changelog(bed, "account"), after_ts=begin)
    last = max(row[0] for row in expected)
    bed.wait_for("the reader has all", lambda: reader.reached >= last)
    assert counted(pa.concat_tables(reader.found)) == expected


@pytest.mark.matrix
def test_the_log_is_kept_for_a_reader_until_it_is_closed(bed: Bed, capsys: pytest.CaptureFixture[str]) -> None:
    feed, log = feed_of(bed, 1), bed.directory / "log" / CHANGELOG / "main"
    bed.ask(lambda client: client.open_subscription(CHANGELOG, SubscriptionAsked(name="idle", table="public.account")))
    reader = Reader(feed)
    before = {path.name for path in log.glob("*.arrow")}

    def write(wanted: int) -> int:
        """How many segments of now are there when so many later changes are in the sink, one by one."""
        for _ in range(wanted):
            bed.execute("UPDATE account SET balance = balance + 1 WHERE id = 1")
            ts = bed.last_ts()
            bed.wait_for("it is in the sink", lambda ts=ts: bed.covers(CHANGELOG, ts))  # type: ignore[misc]
        return len({path.name for path in log.glob("*.arrow")} - before)

    assert write(5) >= 5
    held = min(set(log.glob("*.arrow")) - {log / name for name in before})
    assert list(counted(next(feed.changes("public.account", name="idle", follow=False))))
    server = ["-c", CHANGELOG, "--server", f"http://{bed.processes[1].address}"]
    assert main(["subscription", "list", *server]) == 0
    assert {"idle", "follower", "public.account"} <= set(capsys.readouterr().out.split())
    assert main(["subscription", "close", *server, "--name", "idle"]) == 0
    assert main(["subscription", "close", *server, "--name", "idle"]) == 1
    assert "has no subscription idle; it has follower" in " ".join(capsys.readouterr().err.split())
    feed.close_subscription("follower")
    bed.wait_for("the reader is refused", lambda: isinstance(reader.error, SubscriptionNotFoundError))
    bed.wait_for("the log is shortened", lambda: bool(write(1)) and not held.exists(), timeout_s=60.0)


def run_query(bed: Bed, directory: Path, **options: str) -> None:
    ended = query(bed, directory, **options)
    assert ended.returncode == 0, ended.stderr[-3000:]


def query(bed: Bed, directory: Path, **options: str) -> subprocess.CompletedProcess[str]:
    process = bed.processes[0]
    arguments = [f"http://{process.address}", bed.token_of(process), str(directory), json.dumps(options)]
    return queries.run(QUERY, *arguments)


def output(directory: Path) -> Counter[tuple[Any, ...]]:
    return counted(pq.read_table(directory / "rows"))


@pytest.mark.matrix  # daily one that was killed does, in test_spark_snapshot.py
def test_a_spark_query_continues_from_its_checkpoint(bed: Bed, tmp_path: Path) -> None:
    asked = SubscriptionAsked(name="query", table="public.account")
    begin = bed.ask(lambda client: client.open_subscription(CHANGELOG, asked)).ts
    bed.execute("UPDATE account SET balance = 11 WHERE id = 2")
    ts = bed.last_ts()
    bed.wait_for("it is in the sink", lambda: bed.covers(CHANGELOG, ts))
    one = {"table": "public.account", "name": "query"}
    run_query(bed, tmp_path, **one)
    assert [row[2] for row in output(tmp_path)] == ["update_postimage"]
    bed.execute("UPDATE account SET balance = 12 WHERE id = 2")
    bed.execute("DELETE FROM account WHERE id = 2")
    ts = bed.last_ts()
    bed.wait_for("it is in the sink", lambda: bed.covers(CHANGELOG, ts))
    expected = counted(changelog(bed, "account"), after_ts=begin)
    run_query(bed, tmp_path, **one)
    assert output(tmp_path) == expected
    assert max(expected.values()) == 1


@pytest.mark.matrix
def test_a_query_that_was_away_for_too_long_says_how_to_begin_again(bed: Bed, tmp_path: Path) -> None:
    """Its position was not kept, and the log went on without it: it never continues with a gap."""
    asked = SubscriptionAsked(name="away", table="public.account")
    begin = bed.ask(lambda client: client.open_subscription(CHANGELOG, asked)).ts
    bed.execute("UPDATE account SET balance = 31 WHERE id = 7")
    ts = bed.last_ts()
    bed.wait_for("it is in the sink", lambda: bed.covers(CHANGELOG, ts))
    run_query(bed, tmp_path, table="public.account", name="away")
    before = output(tmp_path)
    for one in bed.query(CHANGELOG).subscriptions:
        bed.ask(lambda client, one=one: client.close_subscription(CHANGELOG, one.name))  # type: ignore[misc]
    feed = feed_of(bed)

    def is_past() -> bool:
        """The log begins behind what the query has."""
        bed.execute("UPDATE account SET balance = balance + 1 WHERE id = 7")
        ts = bed.last_ts()
        bed.wait_for("it is in the sink", lambda: bed.covers(CHANGELOG, ts))
        first = next(feed.changes("public.account", from_ts="earliest", follow=False))
        return bool(min(counted(first))[0] > max(before)[0] > begin)

    bed.wait_for("the log is shortened", is_past, timeout_s=60.0)
    ended = query(bed, tmp_path, table="public.account", name="away")
    assert ended.returncode != 0
    [line] = {line for line in ended.stderr.splitlines() if "PositionGoneError" in line and "startingVersion" in line}
    assert 'with startingVersion="snapshot" and another checkpoint directory' in line
    assert output(tmp_path) == before


@pytest.mark.matrix
def test_a_spark_query_of_several_tables_has_a_struct_for_each(bed: Bed, tmp_path: Path) -> None:
    asked = SubscriptionAsked(name="several", table="public.account")
    bed.ask(lambda client: client.open_subscription(CHANGELOG, asked))  # the log is kept
    several = {"table": "public.account,public.item", "name": "several", "maxRowsPerTrigger": "2"}
    for number in range(2):
        with psycopg.connect(bed.postgres.dsn(bed.database)) as session:  # in one transaction
            session.execute("UPDATE account SET balance = balance + 1 WHERE id IN (4, 5, 6)")
            session.execute("INSERT INTO item (id, value) VALUES (%s, %s)", [1_000_000 + number, number])
        bed.execute("UPDATE account SET balance = balance + 1 WHERE id = 4")
        ts = bed.last_ts()
        bed.wait_for("it is in the sink", lambda ts=ts: bed.covers(CHANGELOG, ts))  # type: ignore[misc]
        run_query(bed, tmp_path, **several)
    rows = pq.read_table(tmp_path / "rows").to_pylist()
    assert {row["_table"] for row in rows} == {"public.account", "public.item"}
    assert all(
        (row["account"] is None, row["item"] is None)
        == (row["_table"] != "public.account", row["_table"] != "public.item")
        for row in rows
    )
    found = {
        table: counted(pa.Table.from_pylist([row[table] for row in rows if row[table]]), key=key)
        for table, key in (("account", "balance"), ("item", "value"))
    }
    begin = min(min(row[0] for row in counts) for counts in found.values()) - 1
    for table, key in (("account", "balance"), ("item", "value")):
        assert found[table] == counted(changelog(bed, table), after_ts=begin, key=key)
    offsets = [path.read_text() for path in (tmp_path / "checkpoint" / "offsets").glob("[0-9]*")]
    assert len(offsets) >= 4, "transactions are not divided, and make batches of their own"
    assert {"several.account", "several.item"} <= {one.name for one in bed.query(CHANGELOG).subscriptions}


@pytest.mark.matrix
def test_a_changefeed_without_a_sink_is_only_read(bed: Bed) -> None:
    bed.create_feed(UNSUNK, sink_uri="none")
    view = bed.query(UNSUNK)
    assert (view.sink, view.mode) == ("none://", Mode.INCREMENTAL)
    process = bed.processes[1]
    feed = LocalChangefeed(Connection(f"http://{process.address}", token=bed.token_of(process)), UNSUNK)
    begin = feed.query().checkpoint_ts
    reader = Reader(feed)
    for balance in range(20, 24):
        bed.execute(f"UPDATE account SET balance = {balance} WHERE id = 3")
    bed.execute("ALTER TABLE account ADD COLUMN remark text DEFAULT 'x'")
    bed.execute("UPDATE account SET balance = 24 WHERE id = 3")
    ts = bed.last_ts()
    for name in (CHANGELOG, UNSUNK):
        bed.wait_for(f"{name} has all", lambda name=name: bed.covers(name, ts))  # type: ignore[misc]
    expected = counted(changelog(bed, "account"), after_ts=begin)
    assert len(expected) >= 5
    bed.wait_for("the reader has all", lambda: reader.reached >= max(row[0] for row in expected))
    assert counted(pa.concat_tables(reader.found, promote_options="default")) == expected
    with pytest.raises(WeirError, match="cannot be read back"):
        feed.table("public.account").to_arrow()
    bed.ask(lambda client: client.remove(UNSUNK))


@pytest.mark.matrix
def test_a_reader_ends_where_another_table_takes_the_name(bed: Bed) -> None:
    """As at the end of an online schema change; all changes up to there come first."""
    bed.execute("CREATE TABLE shop (id int PRIMARY KEY, balance int)")
    bed.execute("CREATE TABLE shop_new (id int PRIMARY KEY, note text)")
    bed.execute("INSERT INTO shop VALUES (1, 0); INSERT INTO shop_new VALUES (1, '0')")

    def are_followed() -> bool:
        view = bed.query(CHANGELOG)
        names = {table.table for table in view.tables if table.held is None}
        return {"public.shop", "public.shop_new"} <= names and not view.joining

    bed.wait_for("both flow", are_followed)
    feed, found = feed_of(bed), list[pa.Table]()
    changes = feed.changes("public.shop", name="shopper", from_ts="latest")
    reader = threading.Thread(target=lambda: found.append(next(changes)))
    reader.start()
    bed.wait_for("it reads", lambda: "shopper" in {one.name for one in bed.query(CHANGELOG).subscriptions})
    bed.execute("UPDATE shop SET balance = 1 WHERE id = 1")
    reader.join()
    bed.execute("UPDATE shop SET balance = 2 WHERE id = 1")
    bed.execute("BEGIN; ALTER TABLE shop RENAME TO shop_old; ALTER TABLE shop_new RENAME TO shop; COMMIT")
    bed.execute("UPDATE shop_old SET balance = 3 WHERE id = 1; INSERT INTO shop VALUES (2, '0')")
    with pytest.raises(PositionGoneError, match=r"public\.shop is another table now, .* was read is public\.shop_old"):
        found.extend(changes)
    assert pa.concat_tables(found).column("balance").to_pylist() == [1, 2, 3]
    with pytest.raises(PositionGoneError, match=r"subscription shopper is of public\.shop"):
        next(feed.changes("public.shop", name="shopper"))


def source(bed: Bed, **options: str) -> SparkSource:
    process = bed.processes[0]
    usual = {"server": f"http://{process.address}", "token": bed.token_of(process), "changefeed": CHANGELOG}
    return SparkSource(usual | {"table": "public.account"} | options)


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"token": "wrong"}, "token"),
        ({"table": "public.nothing"}, "public.nothing"),
        ({"changefeed": "nothing"}, "nothing"),
        ({"server": "http://127.0.0.1:1"}, "127.0.0.1:1"),
    ],
)
def test_what_a_query_asks_for_in_vain_is_one_line(
    bed: Bed, options: dict[str, str], line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("capture.python.changes._RETRY_S", 0.5)
    with pytest.raises(WeirError, match=line) as refused:
        source(bed, **options).schema()
    assert "\n" not in str(refused.value)


@pytest.mark.matrix
def test_of_two_queries_under_one_name_the_later_one_continues(bed: Bed) -> None:
    one, two = (source(bed, name="same") for _ in range(2))
    schema = one.schema()
    first = one.streamReader(schema)
    begin = first.initialOffset()
    second = two.streamReader(schema)
    assert second.initialOffset()["ts"] >= begin["ts"]
    with pytest.raises(WeirError, match="another reader") as refused:
        first.latestOffset({"ts": begin["ts"]}, ReadAllAvailable())
    assert "same" in str(refused.value)
    assert second.latestOffset({"ts": begin["ts"]}, ReadAllAvailable())["ts"] >= begin["ts"]
