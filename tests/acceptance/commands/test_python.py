"""Captures that run in a process of the user's own: they end with it, and may be started and stopped in any task."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.acceptance.commands.test_quickstart import processes_below, wait_until

pytestmark = [pytest.mark.acceptance, pytest.mark.spark, pytest.mark.timeout(180)]

FORGOTTEN = "import capture, sys; print(capture.local(sys.argv[1], spark_master='local[1]').captures()[0].is_owner)"
FAILED = """
import asyncio, sys, capture

async def main():
    try:
        await capture.start(sys.argv[1], addr="192.0.2.1:1", insecure=True)
    except capture.WeirError as error:
        print(error)
    task = asyncio.create_task(capture.start(sys.argv[1], spark_master="local[1]"))
    await asyncio.sleep(0.5)
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        print("cancelled")

asyncio.run(main())
"""


@pytest.mark.matrix
def test_a_forgotten_capture_ends_with_its_process(tmp_path: Path) -> None:
    assert run(FORGOTTEN, tmp_path) == ["True"]
    wait_until(lambda: processes_below(tmp_path) == [], timeout_s=10)


@pytest.mark.matrix
def test_a_start_that_fails_or_is_cancelled_leaves_nothing_behind(tmp_path: Path) -> None:
    refused, cancelled = run(FAILED, tmp_path)
    assert refused.startswith("cannot listen on 192.0.2.1:1 (Cannot assign requested address)")
    assert cancelled == "cancelled"
    wait_until(lambda: processes_below(tmp_path) == [], timeout_s=10)


def run(code: str, directory: Path) -> list[str]:
    done = subprocess.run([sys.executable, "-c", code, directory], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()
