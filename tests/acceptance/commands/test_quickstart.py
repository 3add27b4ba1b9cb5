"""The quickstart as a user runs it: it ends equal, continues in a second run, and leaves nothing behind."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.patience import HANG_S, patient

pytestmark = [pytest.mark.acceptance, pytest.mark.spark, pytest.mark.timeout(300)]

FIELDS = {"equal", "tables", "rows_snapshot", "changes", "changes_per_second", "lag_p50_ms", "lag_p99_ms"}


def command(directory: Path, *, seconds: int) -> list[str]:
    options = ["--dir", str(directory), "--seconds", str(seconds), "--scale", "1", "--json"]
    return [sys.executable, "-m", "capture", "quickstart", *options]


@pytest.mark.parametrize("times", [1, pytest.param(2, marks=pytest.mark.matrix)])
def test_it_ends_equal_and_continues(tmp_path: Path, times: int) -> None:
    for attempt in range(times):
        done = subprocess.run(command(tmp_path / "weir", seconds=5), capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        document = json.loads(done.stdout)
        assert document.keys() >= FIELDS
        assert document["equal"] is True
        assert document["tables"] == 4
        assert document["rows_snapshot"] == 100_011, f"attempt {attempt}"
        assert document["changes"] > 0
        assert document["lag_p50_ms"] <= document["lag_p99_ms"]
        wait_until(lambda: processes_below(tmp_path) == [], timeout_s=10)


@pytest.mark.matrix
@pytest.mark.minutes(2.5)
@pytest.mark.parametrize(
    "options",
    [("--spark", "standalone"), ("--storage", "s3"), ("--store", "sqlite"), ("--store", "postgresql")],
    ids=lambda options: options[1],
)
def test_it_ends_equal_on_other_parts(tmp_path: Path, options: tuple[str, str]) -> None:
    done = subprocess.run([*command(tmp_path / "weir", seconds=5), *options], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert (document["equal"], document["tables"], document["rows_snapshot"]) == (True, 4, 100_011)
    assert processes_below(tmp_path) == []


@pytest.mark.matrix
@pytest.mark.parametrize("stage", ["postgres", "etcd", "lake"])
@pytest.mark.parametrize("name", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda name: name.name)
def test_nothing_is_left_behind(tmp_path: Path, name: signal.Signals, stage: str) -> None:
    """``stage``: the signal comes when this directory appears."""
    with started(tmp_path / "weir") as process:
        wait_until(lambda: (tmp_path / "weir" / stage).exists() or process.poll() is not None, timeout_s=120)
        process.send_signal(name)
        code = process.wait(HANG_S)
    assert code in ((130,) if name is not signal.SIGKILL else (-signal.SIGKILL,))
    # The kernel, or the JVM's end of a pipe, takes a moment after a SIGKILL.
    wait_until(lambda: processes_below(tmp_path) == [], timeout_s=10)


@pytest.mark.matrix
def test_two_in_one_directory_are_refused(tmp_path: Path) -> None:
    with started(tmp_path / "weir") as process:
        wait_until(lambda: (tmp_path / "weir" / "postgres").exists(), timeout_s=60)
        second = subprocess.run(command(tmp_path / "weir", seconds=1), capture_output=True, text=True)
        assert second.returncode == 1
        assert second.stderr.startswith("error: a quickstart is running in")
        process.send_signal(signal.SIGINT)
        assert process.wait(HANG_S) == 130
    wait_until(lambda: processes_below(tmp_path) == [], timeout_s=10)


@contextmanager
def started(directory: Path) -> Iterator["subprocess.Popen[bytes]"]:
    process = subprocess.Popen(
        command(directory, seconds=60), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def processes_below(directory: Path) -> list[str]:
    """Processes that know the directory: by their arguments, their environment's, or their working directory."""
    found = []
    for process in psutil.process_iter():
        try:
            words = [*process.cmdline(), process.cwd()]
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
        if process.pid != os.getpid() and any(str(directory) in word for word in words):
            found.append(" ".join(words)[:200])
    return found


def wait_until(condition: Callable[[], bool], *, timeout_s: float) -> None:
    deadline = time.monotonic() + patient(timeout_s)
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)
