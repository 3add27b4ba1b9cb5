"""The archive of Spark's classes: made once, mapped by drivers, and without harm where it is damaged."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from agent.kernels import store
from agent.spark import class_archive

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

_MAKE = "from agent.spark.archiving import archive_classes; print(archive_classes())"
_USE = """
import re
import sys
from pathlib import Path
from pyspark import SparkContext
from agent.spark.executor import SparkExecutor
executor = SparkExecutor("local[1]", work_dir=Path(sys.argv[1]))
executor.start()
print(bool(re.search("/spark-[0-9a-f]+.jsa", Path(f"/proc/{SparkContext._gateway.proc.pid}/maps").read_text())))
executor.stop()
"""


@pytest.mark.minutes(4)
@pytest.mark.matrix  # make kernels does so before the tests
def test_drivers_map_the_archive_and_start_without_a_damaged_one(tmp_path: Path) -> None:
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}

    def run(code: str) -> str:
        command = [sys.executable, "-c", code, str(tmp_path / "work")]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        return done.stdout.splitlines()[-1]

    assert run(_USE) == "False"
    archive = Path(run(_MAKE))
    assert archive.stat().st_size > 10 << 20
    assert [file.name for file in archive.parent.iterdir() if file.name.startswith("spark-")] == [archive.name]
    assert run(_MAKE) == str(archive)
    assert run(_USE) == "True"
    archive.chmod(0o600)
    with archive.open("r+b") as file:
        file.write(bytes(4096))
    assert run(_USE) == "False"


def test_each_java_has_an_archive_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "home", lambda: tmp_path)
    one, other = tmp_path / "java-17", tmp_path / "java-21"
    one.touch()
    other.touch()
    archive = class_archive.place(one)
    assert archive is not None
    assert archive != class_archive.place(other)
    assert class_archive.jvm_option(one) == ""
    archive.touch()
    assert class_archive.jvm_option(one) == f"-XX:SharedArchiveFile={archive}"
    assert class_archive.jvm_option(other) == ""


def test_nothing_is_archived_where_nothing_can_be_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "home", lambda: None)
    (tmp_path / "java").touch()
    assert class_archive.jvm_option(tmp_path / "java") == ""
