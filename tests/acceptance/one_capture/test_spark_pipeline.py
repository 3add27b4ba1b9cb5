"""Spark's declarative pipelines: a changefeed's table is their source, and its columns are what AUTO CDC asks for."""

import os
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest

from agent.spark.java import find_java
from tests.acceptance.bed import Bed
from tests.acceptance.checks import UPSERT, source_rows
from tests.patience import patient

pytestmark = [pytest.mark.acceptance, pytest.mark.spark, pytest.mark.matrix, pytest.mark.timeout(600)]

SOURCE = """
from pyspark import pipelines
from pyspark.sql import SparkSession
import capture
spark = SparkSession.active()
spark.dataSource.register(capture.SparkSource)
def changes():
    options = {{"server": "{server}", "token": "{token}", "changefeed": "{changefeed}", "table": "public.account"}}
    return spark.readStream.format("weir").options(**options, startingVersion="snapshot").load()
"""
#: the changes as they are
COPIED = """
pipelines.table(name="account_changes")(changes)
"""
#: the documentation's table with a history
HISTORY = """
@pipelines.temporary_view
def versions():
    return changes().filter("_change_type <> 'update_preimage'")
pipelines.create_streaming_table("account_history")
pipelines.create_auto_cdc_flow(
    target="account_history",
    source="versions",
    keys=["id"],
    sequence_by="struct(_commit_version, _commit_seq)",
    apply_as_deletes="_change_type = 'delete'",
    column_list=["id", "balance"],
    stored_as_scd_type=2,
)
"""
SPECIFICATION = """
name: accounts
storage: file://{directory}/storage
libraries:
  - glob:
      include: definitions/**
configuration:
  spark.sql.shuffle.partitions: "1"
"""


@pytest.fixture(scope="module")
def bed(bed: Bed) -> Bed:
    bed.create_feed(UPSERT)
    return bed


def pipeline(bed: Bed, directory: Path, command: str, flow: str) -> subprocess.CompletedProcess[str]:
    """Give the pipeline of one flow to ``spark-pipelines``, as a user does."""
    process = bed.processes[0]
    server, token = f"http://{process.address}", bed.token_of(process)
    (directory / "definitions").mkdir(exist_ok=True)
    definition = SOURCE.format(server=server, token=token, changefeed=UPSERT) + flow
    (directory / "definitions" / "accounts.py").write_text(definition)
    (directory / "spark-pipeline.yml").write_text(SPECIFICATION.format(directory=directory))
    return subprocess.run(
        [Path(sys.executable).with_name("spark-pipelines"), command, "--spec", "spark-pipeline.yml"],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=patient(240),
        check=False,
        env=os.environ
        | {
            "JAVA_HOME": str(Path(find_java()).resolve().parents[1]),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYSPARK_PYTHON": sys.executable,
        },
    )


def test_a_pipeline_copies_the_changes(bed: Bed, tmp_path: Path) -> None:
    bed.execute("UPDATE account SET balance = balance + 1 WHERE id % 5 = 0")
    ts = bed.last_ts()
    bed.wait_for("the sink has it", lambda: bed.covers(UPSERT, ts))
    ended = pipeline(bed, tmp_path, "run", COPIED)
    # PySpark 4.3.0 ends a completed run of any streaming source in Python with UNKNOWN_RESPONSE, exit 1.
    assert "Run is COMPLETED" in ended.stdout, ended.stdout[-3000:]
    with duckdb.connect() as engine:
        changes = f"read_parquet('{tmp_path}/spark-warehouse/account_changes/*.parquet')"
        found = engine.execute(
            f"SELECT id, balance FROM {changes} WHERE _change_type <> 'update_preimage' QUALIFY row_number() "
            "OVER (PARTITION BY id ORDER BY _commit_version DESC, _commit_seq DESC) = 1 ORDER BY id"
        ).fetchall()
    assert found == source_rows(bed, "SELECT id, balance FROM account ORDER BY id")


# A run needs a connector with MERGE, and this Spark has none. A dry run resolves keys, order and columns.
def test_auto_cdc_takes_the_columns_of_a_change(bed: Bed, tmp_path: Path) -> None:
    ended = pipeline(bed, tmp_path, "dry-run", HISTORY)
    assert ended.returncode == 0, ended.stdout[-3000:]
    ended = pipeline(bed, tmp_path, "dry-run", HISTORY.replace("_commit_seq", "_no_such_column"))
    assert ended.returncode != 0
    assert "_no_such_column" in ended.stdout
