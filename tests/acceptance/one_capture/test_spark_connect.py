"""A Spark query of a user of Spark Connect: its server is killed in mid-query, and its output has each change once."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

from tests.acceptance.bed import Bed
from tests.acceptance.checks import UPSERT, source_rows
from tests.acceptance.spark_connect import ConnectServer
from tests.patience import patient

pytestmark = [
    pytest.mark.minutes(3),
    pytest.mark.acceptance,
    pytest.mark.spark,
    pytest.mark.matrix,
    pytest.mark.timeout(400),
]

#: the sink of files has what its own record of batches names, which Spark reads
QUERY = """
import sys
from pyspark.sql import SparkSession
import capture
remote, server, token, changefeed, directory = sys.argv[1:]
spark = SparkSession.builder.remote(remote).getOrCreate()
spark.dataSource.register(capture.SparkSource)
changes = spark.readStream.format("weir").options(
    server=server, token=token, changefeed=changefeed, table="public.account", startingVersion="snapshot",
    maxRowsPerTrigger="50",
).load()
sink = changes.writeStream.format("parquet").option("checkpointLocation", f"{directory}/checkpoint")
sink.option("path", f"{directory}/written").trigger(availableNow=True).start().awaitTermination()
spark.read.parquet(f"{directory}/written").write.mode("overwrite").parquet(f"{directory}/rows")
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ConnectServer]:
    server = ConnectServer(tmp_path, Path(sys.executable))
    server.start()
    yield server
    server.kill()


def begun(bed: Bed, server: ConnectServer, directory: Path) -> subprocess.Popen[str]:
    """A session waits for a server that is starting."""
    process = bed.processes[0]
    arguments = [server.url(), f"http://{process.address}", bed.token_of(process), UPSERT, str(directory)]
    return subprocess.Popen(
        [sys.executable, "-c", QUERY, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )


def test_a_server_that_dies_in_mid_query_loses_and_doubles_nothing(
    bed: Bed, server: ConnectServer, tmp_path: Path
) -> None:
    bed.create_feed(UPSERT)
    with begun(bed, server, tmp_path) as query:
        batches = tmp_path / "checkpoint" / "commits"
        bed.wait_for("a batch is written", lambda: batches.is_dir() and any(batches.iterdir()), timeout_s=120.0)
        server.kill()
        query.kill()  # it would try for ten minutes to reach the server again
    bed.execute("UPDATE account SET balance = balance + 1 WHERE id % 5 = 0; DELETE FROM account WHERE id = 1")
    ts = bed.last_ts()
    bed.wait_for("the sink has it", lambda: bed.covers(UPSERT, ts))
    server.start()
    with begun(bed, server, tmp_path) as query:
        assert query.wait(patient(300.0)) == 0, query.stderr and query.stderr.read()[-3000:]
    with duckdb.connect() as engine:
        changes = engine.read_parquet(f"{tmp_path}/rows/*.parquet")
        kinds = changes.aggregate("_change_type, count(*)").fetchall()
        twice = changes.aggregate("count(*) AS times, id, _change_type, _commit_version, _commit_seq").filter(
            "times > 1"
        )
        assert twice.fetchall() == []
        last = engine.sql(
            "SELECT id, balance FROM (SELECT *, row_number() OVER (PARTITION BY id ORDER BY _commit_version DESC, "
            "_commit_seq DESC) AS place FROM changes) WHERE place = 1 AND _change_type <> 'delete' ORDER BY id"
        ).fetchall()
    assert last == source_rows(bed, "SELECT id, balance FROM account ORDER BY id")
    assert dict(kinds)["delete"] == 1
