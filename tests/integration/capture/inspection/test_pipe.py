"""``log inspect`` as a process whose reader goes away."""

import subprocess
import sys
from pathlib import Path

import pytest

from agent.sources.mysql.decode import wire
from tests.binlog_files import BinlogFile, query


@pytest.mark.matrix
def test_a_pipe_that_is_closed_is_quiet(tmp_path: Path) -> None:
    file = BinlogFile()
    for _ in range(5000):
        file.add(wire.QUERY, query("SELECT 'something that fills the pipe'"))
    path = tmp_path / "b"
    path.write_bytes(file.data)
    for options in ([], ["--json"]):
        command = [sys.executable, "-m", "capture", "log", "inspect", str(path), "--count", "5000", *options]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
            assert child.stdout is not None
            assert child.stderr is not None
            assert child.stdout.read(1)
            child.stdout.close()
            assert child.stderr.read() == b""
            assert child.wait(60) != 0
