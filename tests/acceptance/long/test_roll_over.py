"""A cluster of v0.1.0 captures is rolled over to today's, one by one, while two changefeeds run under load.

Covered: an old owner with new captures and a new owner with old ones (heartbeats, orders, workers, records of both), a
schema change while both versions are there, the format that is raised when the last old one has left, and an old one
that is refused afterwards. In the end source and sink are equal, row by row.
"""

import os
import subprocess
import sys
import tarfile
from io import BytesIO
from pathlib import Path

import pytest

from reactor.keys import FormatKey
from reactor.records import formats
from reactor.records.changefeed import SinkMode
from reactor.records.formats import ClusterFormat
from tests.acceptance.bed import Bed, Process
from tests.acceptance.checks import (
    CATCH_UP_TIMEOUT_S,
    CHANGELOG,
    FEEDS,
    UPSERT,
    check_changelog,
    check_upsert,
    follows,
)

pytestmark = [pytest.mark.minutes(15), pytest.mark.acceptance, pytest.mark.matrix, pytest.mark.timeout(1200)]

ROOT = Path(__file__).parents[3]
#: the tag, and the commit that it is of, for a clone without tags
VERSION, COMMIT = "v0.1.0", "b4fa067"
_JOIN_TIMEOUT_S = 240.0
_FORMAT_TIMEOUT_S = 60.0


def unpacked(directory: Path) -> Path:
    """The code of v0.1.0; skips where this clone does not have it."""
    for name in (VERSION, COMMIT):
        found = subprocess.run(["git", "-C", str(ROOT), "archive", name], capture_output=True, check=False)
        if found.returncode == 0:
            with tarfile.open(fileobj=BytesIO(found.stdout)) as archive:
                archive.extractall(directory, filter="data")
            return directory
    pytest.skip(f"this clone has neither the tag {VERSION} nor commit {COMMIT}: fetch tags, or the whole history")


def compile_kernels(code: Path) -> None:
    """Once, and not by every capture while it is waited for."""
    command = [sys.executable, "-c", "from agent.kernel import compile_all; compile_all()"]
    subprocess.run(command, cwd=code, env={**os.environ, "PYTHONPATH": str(code)}, check=True, timeout=400)


class TwoVersions(Bed):
    """Captures whose names are in ``old`` run the code of v0.1.0."""

    def __init__(self, directory: Path, *, captures: int) -> None:
        super().__init__(directory, captures=captures, environment={"WEIR_PEER_AUTH": "accept"})
        self.code = unpacked(directory / VERSION)
        compile_kernels(self.code)
        self.old = {process.name for process in self.processes}

    def interpreter(self, process: Process) -> list[str]:
        code = self.code if process.name in self.old else ROOT
        return ["env", f"--chdir={code}", f"PYTHONPATH={code}", sys.executable]

    def roll_over(self, process: Process) -> None:
        """An orderly end, and today's code in its place."""
        members = len(self.captures())
        assert self.terminate(process, timeout_s=60) == 0
        self.old.remove(process.name)
        self.start(process)
        self.wait_for(
            f"{process.name} is a member again", lambda: len(self.captures()) == members, timeout_s=_JOIN_TIMEOUT_S
        )

    def format(self) -> int:
        stored = self.stored(str(FormatKey("default")))
        return ClusterFormat.decode(stored, key="format").number if stored else formats.FIRST


def follow(bed: TwoVersions) -> None:
    bed.wait_for("both changefeeds follow", follows(bed), timeout_s=CATCH_UP_TIMEOUT_S)


def test_a_cluster_of_v0_1_0_is_rolled_over_under_load(tmp_path: Path) -> None:
    (tmp_path / VERSION).mkdir()
    with TwoVersions(tmp_path, captures=3) as bed:
        bed.create_feed(UPSERT)
        bed.create_feed(CHANGELOG, SinkMode.CHANGELOG)
        owner = bed.controller()
        first, second = (process for process in bed.processes if process is not owner)
        with bed.load(rate=30):
            follow(bed)
            bed.roll_over(first)  # an old owner, with one capture of each version beside it
            follow(bed)
            assert bed.controller() is owner
            bed.execute("ALTER TABLE item ADD COLUMN colour text DEFAULT 'red'")
            follow(bed)
            bed.roll_over(owner)  # whoever is next: the second, which is old, or the first, which is new
            follow(bed)
            if bed.controller().name in bed.old:
                bed.ask(lambda client: client.resign_owner(), timeout_s=30)
            assert bed.controller().name not in bed.old, "a new owner, with an old capture"
            follow(bed)
            assert bed.format() == 1, "an old capture is there, and nothing it does not know is stored"
            bed.execute("ALTER TABLE account ADD COLUMN rank int")
            follow(bed)
            bed.roll_over(second)
            bed.wait_for("the format is raised", lambda: bed.format() == formats.NEWEST, timeout_s=_FORMAT_TIMEOUT_S)
            follow(bed)
        follow(bed)
        for feed in FEEDS:
            found = bed.ask(lambda client, feed=feed: client.diff(feed), timeout_s=60)  # type: ignore[misc]
            assert [(table.table, table.differences) for table in found if not table.equal] == []
        check_upsert(bed)
        check_changelog(bed)
        refuse_an_old_one(bed)


def refuse_an_old_one(bed: TwoVersions) -> None:
    late = bed._process("late", None)
    bed.old.add(late.name)
    bed.start(late)
    assert late.child is not None
    assert late.child.wait(_JOIN_TIMEOUT_S) == 1
    assert "error: the log storage" in (bed.directory / "late.log").read_text()
    assert len(bed.captures()) == 3
