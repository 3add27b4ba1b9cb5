"""The README's lines of Python and of Spark run as they are written; only the addresses are others."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from agent.spark.defaults import JVM_OPTIONS
from tests.acceptance.bed import Bed
from tests.acceptance.checks import UPSERT
from tests.patience import patient

pytestmark = [pytest.mark.acceptance, pytest.mark.spark, pytest.mark.matrix, pytest.mark.timeout(600)]

_README = (Path(__file__).parents[3] / "README.md").read_text()
_BLOCKS = re.findall(r"^```python\n(.*?)^```", _README, re.MULTILINE | re.DOTALL)
_PYTHON = """
import ast, asyncio, sys
import capture
lines = compile(sys.argv[1], "README.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
asyncio.run(eval(lines, {"capture": capture}))
"""
_SPARK = """
import sys
from pyspark.sql import SparkSession
import capture
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
def write(rows, batch):
    rows.write.mode("overwrite").parquet(f"rows/{batch}")
exec(compile(sys.argv[1], "README.md", "exec"))
[query] = spark.streams.active
query.processAllAvailable()
query.stop()
"""


def lines_with(text: str, replaced: dict[str, str]) -> str:
    [block] = [block for block in _BLOCKS if text in block]
    for written, here in replaced.items():
        assert written in block
        block = block.replace(written, here)
    return str(block)


def run(program: str, lines: str, directory: Path, **environment: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", program, lines],
        cwd=directory,
        env=os.environ | {"PYSPARK_PYTHON": sys.executable, "JDK_JAVA_OPTIONS": JVM_OPTIONS} | environment,
        capture_output=True,
        text=True,
        timeout=patient(120),
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_the_lines_do_what_is_said_of_them(tmp_path: Path) -> None:
    with Bed(tmp_path, captures=1) as bed:
        bed.execute("INSERT INTO item SELECT i, i FROM generate_series(1, 50) AS i")
        python = {"postgresql://…": bed.source_uri, "file:///lake": f"file://{tmp_path}/python-lake"}
        run(_PYTHON, lines_with("capture.start(", python), tmp_path)
        assert len(DeltaTable(tmp_path / "python-lake" / "public" / "item").to_pyarrow_table()) == 50
        [server] = bed.processes
        bed.create_feed(UPSERT)
        bed.execute("UPDATE item SET value = 7 WHERE id <= 5")
        ts = bed.last_ts()
        bed.wait_for("it is in the sink", lambda: bed.covers(UPSERT, ts))
        spark = {"https://host:8300": f"http://{server.address}", '"shop"': f'"{UPSERT}"'}
        run(_SPARK, lines_with("readStream", spark), tmp_path, WEIR_TOKEN=bed.token_of(server))
    rows = pq.read_table(tmp_path / "rows").to_pylist()
    found = sorted((row["id"], row["value"], row["_change_type"]) for row in rows)
    assert found == [(number, 7, "update_postimage") for number in range(1, 6)]
