"""A real standalone Spark cluster that two captures share: executors, workers, the master and drivers die under load,
and no row is lost or doubled."""

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from capture.embedded import EmbeddedSpark
from reactor.records.changefeed import SinkMode
from tests.acceptance.bed import Bed, Load
from tests.acceptance.checks import (
    CATCH_UP_TIMEOUT_S,
    CHANGELOG,
    UPSERT,
    check_changelog,
    check_upsert,
    follows,
)

pytestmark = [
    pytest.mark.minutes(2),
    pytest.mark.acceptance,
    pytest.mark.spark,
    pytest.mark.matrix,
    pytest.mark.timeout(600),
]

_WARM_TRANSACTIONS = 100
#: a driver, a worker's JVM or an executor has to start again
_RECOVERY_S = 120.0


class SparkBed(Bed):
    """Jobs run on the cluster, of which each capture has one core."""

    def __init__(self, directory: Path, cluster: EmbeddedSpark) -> None:
        super().__init__(directory, captures=2, spark_master=cluster.url)
        self.cluster = cluster

    def _config(self) -> Path:
        path = super()._config()
        settings = ['"spark.executor.memory" = "512m"', '"spark.driver.host" = "127.0.0.1"']
        path.write_text("\n".join([path.read_text(), *settings]))
        return path

    def executors(self) -> list[psutil.Process]:
        """The JVMs that workers have started."""
        found = [psutil.Process(worker.pid).children() for worker in self.cluster.workers if worker.is_running]
        return [process for children in found for process in children if process.name() == "java"]


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkBed]:
    directory = tmp_path_factory.mktemp("standalone")
    with EmbeddedSpark(directory / "spark") as cluster, SparkBed(directory, cluster) as bed:
        bed.create_feed(UPSERT, SinkMode.UPSERT)
        bed.create_feed(CHANGELOG, SinkMode.CHANGELOG)
        yield bed


def test_both_captures_have_joined_with_their_part_of_the_cores(bed: SparkBed) -> None:
    assert [view.waits_for for view in bed.captures()] == ["", ""]
    applications = bed.cluster.master.view()["activeapps"]
    assert [application["cores"] for application in applications] == [1, 1]


def test_executors_die(bed: SparkBed) -> None:
    def kill(_: Load) -> None:
        for executor in bed.executors():
            executor.send_signal(signal.SIGKILL)

    under_load(bed, kill)


def test_a_worker_dies(bed: SparkBed) -> None:
    worker = bed.cluster.workers[0]
    under_load(bed, lambda _: worker.kill(), then=worker.start)


def test_the_master_dies_and_comes_back(bed: SparkBed) -> None:
    under_load(bed, lambda _: bed.cluster.master.kill(), then=bed.cluster.master.start)


def test_a_master_that_has_forgotten_everything(bed: SparkBed) -> None:
    """And all executors with it: captures begin other applications by themselves."""

    def forget(_: Load) -> None:
        master = bed.cluster.master
        master.kill()
        for file in (master._directory / "recovery").iterdir():
            file.unlink()
        for worker in bed.cluster.workers:
            worker.kill()
        bed.cluster.start()

    under_load(bed, forget)


def test_a_driver_dies(bed: SparkBed) -> None:
    def kill(_: Load) -> None:
        process = bed.span_holders(UPSERT)[0]
        [driver] = [child for child in psutil.Process(process.pid).children() if child.name() == "java"]
        driver.send_signal(signal.SIGKILL)

    under_load(bed, kill)


def test_a_capture_dies_and_comes_back(bed: SparkBed) -> None:
    """Its cores are free at once: it joins again."""
    under_load(bed, lambda _: bed.kill(bed.span_holders(UPSERT)[0]), then=bed.mend)


def under_load(bed: SparkBed, fault: Callable[[Load], None], *, then: Callable[[], None] = lambda: None) -> None:
    with bed.load(rate=50) as load:
        before = bed.transactions()
        bed.wait_for("the load writes", lambda: bed.transactions() > before + _WARM_TRANSACTIONS)
        bed.wait_for("both changefeeds follow", follows(bed), timeout_s=CATCH_UP_TIMEOUT_S)
        fault(load)
        then()
        bed.wait_for("the service continues", follows(bed), timeout_s=_RECOVERY_S)
    bed.wait_for("both changefeeds have caught up", follows(bed), timeout_s=CATCH_UP_TIMEOUT_S)
    check_upsert(bed)
    check_changelog(bed)
