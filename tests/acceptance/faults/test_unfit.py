"""A capture that is unfit to work: its disk is full, its JVM ends and does not come back, or its workers are killed.
Its spans and workers go to others, `capture list` says why, and they come back when it is well.
"""

import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from reactor.records.changefeed import FeedState, SinkMode
from tests.acceptance.bed import Bed, Process
from tests.acceptance.checks import CHANGELOG, FEEDS, UPSERT, check_changelog, check_upsert, follows

pytestmark = [pytest.mark.acceptance, pytest.mark.spark, pytest.mark.matrix, pytest.mark.timeout(290)]

_DISK = "256m"


def run(*command: str) -> bool:
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


class UnfitBed(Bed):
    """The first capture's data directory is a disk of its own; the second one's Java can be taken away."""

    def start(self, process: Process) -> None:
        if process is self.processes[0] and not process.data_dir.exists():
            process.data_dir.mkdir()
            if not run("mount", "-t", "tmpfs", "-o", f"size={_DISK}", "weir-test", str(process.data_dir)):
                pytest.skip("mounting needs privileges")
        super().start(process)

    def close(self) -> None:
        super().close()
        run("umount", "-l", str(self.processes[0].data_dir))

    def fill_disk(self) -> None:
        with (self.processes[0].data_dir / "fill").open("wb") as file:
            try:
                while True:
                    file.write(bytes(1 << 16))
                    file.flush()
            except OSError:
                pass

    def empty_disk(self) -> None:
        (self.processes[0].data_dir / "fill").unlink()

    def jvms(self, process: Process) -> list[int]:
        """The Java processes that it has started."""
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            try:
                fields = (path / "stat").read_text().rpartition(")")[2].split()
                name = (path / "comm").read_text().strip()
            except OSError:
                continue
            if name == "java" and int(fields[1]) == process.pid:
                found.append(int(path.name))
        return found

    def workers(self, process: Process) -> list[psutil.Process]:
        """The Python processes of its Spark, which run tasks."""
        found = []
        for jvm in self.jvms(process):
            with suppress(psutil.NoSuchProcess):
                daemons = psutil.Process(jvm).children()
                found += [worker for daemon in daemons for worker in daemon.children()]
        return found

    @contextmanager
    def killing_workers(self, process: Process) -> Iterator[None]:
        """As the kernel does on a machine without memory."""
        is_over = threading.Event()

        def kill() -> None:
            while not is_over.wait(0.02):
                for worker in self.workers(process):
                    with suppress(psutil.NoSuchProcess):
                        worker.kill()

        killing = threading.Thread(target=kill)
        killing.start()
        try:
            yield
        finally:
            is_over.set()
            killing.join()

    def fault_of(self, process: Process) -> str:
        return next(view.fault for view in self.captures() if view.address == process.address)

    def faults_of_feeds(self, process: Process) -> tuple[str, ...]:
        return next(view.faults for view in self.captures() if view.address == process.address)

    def has_work(self, process: Process) -> bool:
        view = next(view for view in self.captures() if view.address == process.address)
        return bool(view.spans or view.workers)

    def refuse_failures(self) -> None:
        for feed in FEEDS:
            view = self.query(feed)
            assert view.state in (FeedState.NORMAL, FeedState.WARNING), f"{feed} is {view.state}: {view.error}"


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UnfitBed]:
    directory: Path = tmp_path_factory.mktemp("bed")
    with UnfitBed(directory, captures=3) as bed:
        bed.create_feed(UPSERT)
        bed.create_feed(CHANGELOG, SinkMode.CHANGELOG)
        yield bed


def test_its_work_goes_to_others_while_its_disk_is_full_and_comes_back(bed: UnfitBed) -> None:
    full = bed.processes[0]
    with bed.load():
        bed.wait_for("it has work", lambda: bed.has_work(full), timeout_s=60)
        bed.fill_disk()
        bed.wait_for("it says so", lambda: "No space left" in bed.fault_of(full), timeout_s=30)
        assert str(full.data_dir) in bed.fault_of(full)
        bed.wait_for("others have its work", lambda: not bed.has_work(full), timeout_s=30)
        bed.wait_for("both changefeeds follow", follows(bed), timeout_s=60)
        bed.refuse_failures()
        bed.empty_disk()
        bed.wait_for("it is well", lambda: not bed.fault_of(full), timeout_s=90)
        bed.wait_for("it has work again", lambda: bed.has_work(full), timeout_s=60)
    bed.wait_for("all is there", follows(bed), timeout_s=60)
    check_upsert(bed)
    check_changelog(bed)


def test_its_work_goes_to_others_while_its_jvm_does_not_start(bed: UnfitBed) -> None:
    struck = next(process for process in bed.processes[1:] if bed.has_work(process))
    with bed.load():
        properties = struck.data_dir / "spark" / "log4j2.properties"
        properties.unlink()
        properties.mkdir()  # the next session cannot write its settings
        for jvm in bed.jvms(struck):
            os.kill(jvm, signal.SIGKILL)
        bed.wait_for("it says so", lambda: "did not start" in bed.fault_of(struck), timeout_s=60)
        bed.wait_for("others have its work", lambda: not bed.has_work(struck), timeout_s=30)
        bed.wait_for("both changefeeds follow", follows(bed), timeout_s=60)
        bed.refuse_failures()
        properties.rmdir()
        bed.wait_for("it is well", lambda: not bed.fault_of(struck), timeout_s=90)
        bed.wait_for("it has work again", lambda: bed.has_work(struck), timeout_s=60)
    bed.wait_for("all is there", follows(bed), timeout_s=60)
    check_upsert(bed)
    check_changelog(bed)


def test_its_work_goes_to_others_while_its_workers_are_killed_and_no_table_is_held(bed: UnfitBed) -> None:
    struck = next(process for process in bed.processes if bed.has_work(process))
    with bed.load():
        with bed.killing_workers(struck):
            bed.wait_for("it says so", lambda: "kernel's log" in str(bed.faults_of_feeds(struck)), timeout_s=120)
            bed.wait_for("others have its work", lambda: not bed.has_work(struck), timeout_s=60)
            bed.wait_for("both changefeeds follow", follows(bed), timeout_s=60)
            bed.refuse_failures()
            assert [one.table for feed in FEEDS for one in bed.query(feed).held] == []
        bed.wait_for("it has work again", lambda: bed.has_work(struck), timeout_s=120)
    bed.wait_for("all is there", follows(bed), timeout_s=60)
    check_upsert(bed)
    check_changelog(bed)
