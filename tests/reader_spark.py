"""Spark as others run it, with the jars of Delta and Iceberg: another version than Weir's own, in an environment of its
own, so that tests read tables with it.

    python -m tests.reader_spark       fetch it (PyPI, Maven Central)

Tests are skipped with the reason where it is not there.
"""

import json
import subprocess
import sys
import urllib.request
import venv
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

HOME: Final = Path(sys.prefix) / "reader-spark"
SPARK: Final = "4.1"
_MAVEN: Final = "https://repo1.maven.org/maven2"
_JARS: Final = (
    "org/apache/iceberg/iceberg-spark-runtime-4.1_2.13/1.12.0/iceberg-spark-runtime-4.1_2.13-1.12.0.jar",
    "io/delta/delta-spark_4.1_2.13/4.4.0/delta-spark_4.1_2.13-4.4.0.jar",
    "io/delta/delta-storage/4.4.0/delta-storage-4.4.0.jar",
    "io/delta/delta-kernel-api/4.4.0/delta-kernel-api-4.4.0.jar",
    "io/delta/delta-kernel-defaults/4.4.0/delta-kernel-defaults-4.4.0.jar",
    "io/delta/delta-kernel-unitycatalog/4.4.0/delta-kernel-unitycatalog-4.4.0.jar",
    "org/xerial/sqlite-jdbc/3.50.3.0/sqlite-jdbc-3.50.3.0.jar",
)
_PROGRAM: Final = Path(__file__).with_name("reader_spark_program.py")


@dataclass(frozen=True)
class Job:
    """What Spark does with one table: ``read`` it, after the statements of ``sql``, in which ``{table}`` is it; return
    what the last one finds (``query``); or read all of its commits as a ``stream``. ``format``: delta or iceberg.
    ``lake``: the sink's directory, ``table``: the path below a Delta lake, or the name in the catalog of an Iceberg
    one. ``out``: a directory for the rows, as Parquet."""

    act: str
    format: str
    lake: str
    table: str
    out: str
    sql: str = ""


def why_not() -> str:
    """Return why it is not here; empty if it is."""
    if _python().exists() and all((HOME / "jars" / Path(jar).name).exists() for jar in _JARS):
        return ""
    return "no Spark with the jars of Delta and Iceberg: run make spark, which fetches it from PyPI and Maven"


def run(jobs: Sequence[Job]) -> dict[str, str]:
    """Do all in one session. Return the errors, by the job's ``out``.

    :raises AssertionError: the session itself ended with an error.
    """
    jars = ",".join(str(HOME / "jars" / Path(jar).name) for jar in _JARS)
    done = subprocess.run(
        [_python(), _PROGRAM, jars],
        input=json.dumps([asdict(job) for job in jobs]),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    errors: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return errors


def _python() -> Path:
    return HOME / "venv" / "bin" / "python"


def _fetch() -> None:
    (HOME / "jars").mkdir(parents=True, exist_ok=True)
    if not _python().exists():
        venv.create(HOME / "venv", with_pip=True)
        subprocess.run([_python(), "-m", "pip", "install", "--quiet", f"pyspark=={SPARK}.*"], check=True)
    for jar in _JARS:
        target = HOME / "jars" / Path(jar).name
        if not target.exists():
            scratch = target.with_suffix(".part")
            urllib.request.urlretrieve(f"{_MAVEN}/{jar}", scratch)
            scratch.rename(target)


if __name__ == "__main__":
    _fetch()
