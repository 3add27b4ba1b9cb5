"""A Spark query that begins with a snapshot: killed anywhere, its output has the table and each later change once."""

import shutil
import signal
import subprocess
from collections import Counter
from dataclasses import replace
from pathlib import Path

import duckdb
import pytest

from capture.api.connection import Connection
from capture.errors import ConfigError, PositionGoneError
from capture.python.snapshot_start import SnapshotStart
from reactor.records.changefeed import SinkMode
from tests.acceptance import queries
from tests.acceptance.bed import Bed
from tests.acceptance.checks import CHANGELOG, UPSERT, source_rows

pytestmark = [pytest.mark.acceptance, pytest.mark.spark, pytest.mark.timeout(600)]

ICEBERG = "iceberg"

#: a user's query, which writes each batch under its id; it kills itself and its JVM in a batch, before or after that
QUERY = """
import os, signal, sys
from pyspark.sql import SparkSession
import capture
server, token, changefeed, directory, killed = sys.argv[1:]
spark = SparkSession.builder.master("local[2]").getOrCreate()
spark.dataSource.register(capture.SparkSource)
changes = spark.readStream.format("weir").options(
    server=server, token=token, changefeed=changefeed, table="public.account", startingVersion="snapshot"
).load()
def write(rows, batch):
    if killed == f"within {batch}":
        rows.limit(50).write.mode("overwrite").parquet(f"{directory}/rows/{batch}")
        os.killpg(0, signal.SIGKILL)
    rows.write.mode("overwrite").parquet(f"{directory}/rows/{batch}")
    if killed == f"after {batch}":
        os.killpg(0, signal.SIGKILL)
sink = changes.writeStream.foreachBatch(write).option("checkpointLocation", f"{directory}/checkpoint")
sink.trigger(availableNow=True).start().awaitTermination()
"""

BATCH = """
import sys
from pyspark.sql import SparkSession
import capture
server, token, changefeed, directory, table = sys.argv[1:]
spark = SparkSession.builder.master("local[2]").getOrCreate()
spark.dataSource.register(capture.SparkSource)
spark.read.format("weir").options(
    server=server, token=token, changefeed=changefeed, table=table, startingVersion="snapshot"
).load().write.parquet(f"{directory}/rows")
"""


@pytest.fixture(scope="module")
def bed(bed: Bed) -> Bed:
    bed.create_feed(UPSERT)
    bed.create_feed(ICEBERG, sink_uri=f"iceberg+file://{bed.lake(ICEBERG)}")
    bed.create_feed(CHANGELOG, SinkMode.CHANGELOG)
    return bed


def run(bed: Bed, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    process = bed.processes[0]
    return queries.run(script, f"http://{process.address}", bed.token_of(process), *arguments)


def change(bed: Bed, feed: str) -> None:
    """Each existing account gets one more; some are deleted, and some are new."""
    bed.execute("UPDATE account SET balance = balance + 1 WHERE id % 5 = 0")
    bed.execute("DELETE FROM account WHERE id = (SELECT min(id) FROM account)")
    bed.execute("INSERT INTO account SELECT max(id) + 1, 0, NULL FROM account")
    ts = bed.last_ts()
    bed.wait_for("the sink has it", lambda: bed.covers(feed, ts))


def start(bed: Bed, feed: str, table: str = "public.account") -> SnapshotStart:
    process = bed.processes[0]
    return SnapshotStart(Connection(f"http://{process.address}", token=bed.token_of(process)), feed, table)


def check_output(bed: Bed, directory: Path) -> None:
    """The accounts' last images are the source's, and each balance was reached in single steps."""
    found = f"read_parquet('{directory}/rows/**/*.parquet')"
    with duckdb.connect() as engine:
        rows = engine.execute(f"SELECT id, balance, _change_type, _commit_version, _commit_seq FROM {found}").fetchall()
        last = engine.execute(
            f"SELECT id, balance FROM (SELECT *, row_number() OVER (PARTITION BY id ORDER BY _commit_version DESC, "
            f"_commit_seq DESC) AS place FROM {found}) WHERE place = 1 AND _change_type <> 'delete' ORDER BY id"
        ).fetchall()
    assert last == source_rows(bed, "SELECT id, balance FROM account ORDER BY id")
    assert max(Counter((row[0], *row[2:]) for row in rows).values()) == 1
    first, updates = dict[int, int](), Counter[int]()
    for key, balance, kind, *_ in sorted(rows, key=lambda row: row[3:]):
        if kind == "insert":
            first[key] = balance
        updates[key] += kind == "update_postimage"
    assert sum(updates.values()) > 0
    assert all(balance == first[key] + updates[key] for key, balance in last)


@pytest.mark.matrix
@pytest.mark.in_turn("kills")
@pytest.mark.parametrize(
    ("feed", "kills"),
    [
        (UPSERT, ("within 0",)),
        (UPSERT, ("within 0", "after 1")),
        (UPSERT, ("after 0", "within 1")),
        (ICEBERG, ("within 0", "within 1")),
    ],
)
def test_a_query_killed_anywhere_has_the_snapshot_and_each_later_change_once(
    bed: Bed, tmp_path: Path, feed: str, kills: tuple[str, ...]
) -> None:
    change(bed, feed)
    for kill in kills:
        ended = run(bed, QUERY, feed, str(tmp_path), kill)
        assert ended.returncode == -signal.SIGKILL, ended.stderr[-3000:]
        change(bed, feed)
    ended = run(bed, QUERY, feed, str(tmp_path), "never")
    assert ended.returncode == 0, ended.stderr[-3000:]
    check_output(bed, tmp_path)


@pytest.mark.matrix  # daily a stream begins with the same snapshot, above, and the table's parts are read, below
@pytest.mark.parametrize("feed", [UPSERT, ICEBERG])
def test_a_batch_query_reads_the_table_and_what_follows(bed: Bed, tmp_path: Path, feed: str) -> None:
    bed.execute(f"ALTER TABLE item ADD COLUMN of_{feed} int DEFAULT 5")
    if feed == ICEBERG:
        bed.execute("INSERT INTO item (id, value) VALUES (1, 2)")
        ts = bed.last_ts()
        bed.wait_for("the sink has it", lambda: bed.covers(feed, ts))
    ended = run(bed, BATCH, feed, str(tmp_path), "public.item")
    assert ended.returncode == 0, ended.stderr[-3000:]
    with duckdb.connect() as engine:
        found = engine.execute(
            f"SELECT id, value, of_{feed}, _change_type, _commit_timestamp, _commit_seq, _unchanged "
            f"FROM read_parquet('{tmp_path}/rows/*.parquet')"
        )
        assert found.fetchall() == ([] if feed == UPSERT else [(1, 2, 5, "insert", None, 0, None)])


@pytest.mark.matrix
def test_what_has_no_snapshot_says_what_to_do(bed: Bed) -> None:
    with pytest.raises(
        ConfigError, match="has sink-mode changelog, of which there is no snapshot: read from startingTs"
    ):
        start(bed, CHANGELOG).pin(None)
    bed.create_feed("nothing", sink_uri="blackhole://")
    with pytest.raises(ConfigError, match="nothing has no tables to read a snapshot of"):
        start(bed, "nothing").pin(None)


@pytest.mark.matrix
@pytest.mark.parametrize("feed", [UPSERT, ICEBERG])
def test_a_quiet_table_begins_at_the_checkpoint(bed: Bed, feed: str) -> None:
    """Its last flush may be so long ago that the log of that time was removed."""
    change(bed, feed)
    ts = bed.last_ts()
    bed.wait_for("all tables are there", lambda: bed.covers(feed, ts))
    pinned = start(bed, feed, "public.item").pin(None)
    assert pinned.recorded < ts <= pinned.ts


@pytest.mark.matrix
@pytest.mark.parametrize(("feed", "scheme"), [(UPSERT, "delta+file"), (ICEBERG, "iceberg+file")])
def test_a_snapshot_that_is_gone_says_so(bed: Bed, tmp_path: Path, feed: str, scheme: str) -> None:
    begin = start(bed, feed)
    pinned = begin.pin(None)
    (part,) = begin.parts(pinned)
    assert sum(rows.num_rows for rows in part.read()) == source_rows(bed, "SELECT count(*) FROM account")[0][0]
    with pytest.raises(PositionGoneError, match="start the query again with another checkpoint directory"):
        list(replace(part, pinned=replace(pinned, version=pinned.version + 1000)).read())
    if feed == UPSERT:
        shutil.copytree(bed.lake(feed), tmp_path / "lake")
        next((tmp_path / "lake").rglob(f"account/{part.files[0]}")).unlink()
        with pytest.raises(PositionGoneError, match="keep old versions longer"):
            list(replace(part, sink=f"{scheme}://{tmp_path}/lake").read())
        with pytest.raises(PositionGoneError, match="the table was replaced"):
            list(replace(part, pinned=replace(pinned, recorded=pinned.recorded - 1)).read())
