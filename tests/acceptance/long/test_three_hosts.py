"""Three hosts, each with a capture and a Spark worker; etcd, PostgreSQL, the Spark master and the S3 server, which has
change log and tables, are elsewhere. Two hosts are lost one after the other, and the last one continues alone."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable

from capture.embedded import EmbeddedS3
from capture.embedded.spark import EmbeddedSparkMaster, EmbeddedSparkWorker
from reactor.records.changefeed import SinkMode
from tests.acceptance import network
from tests.acceptance.bed import Bed, Process
from tests.acceptance.checks import CATCH_UP_TIMEOUT_S, CHANGELOG, FEEDS, UPSERT, follows, source_rows
from tests.acceptance.network import Host, Network
from tests.patience import patient

pytestmark = [
    pytest.mark.minutes(8),
    pytest.mark.acceptance,
    pytest.mark.matrix,
    pytest.mark.spark,
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(network.missing()), reason=network.missing()),
]

NAMES = ("capture-0", "capture-1", "capture-2")
SECRET = "known to the cluster"
BUCKET = "s3://three-hosts"
#: a lease runs out, and executors start on a worker that others have used
_RECOVERY_S = 120.0
_WARM_TRANSACTIONS = 100


class HostWorker(EmbeddedSparkWorker):
    """A worker on one of the hosts."""

    def __init__(self, directory: Path, master: EmbeddedSparkMaster, host: Host) -> None:
        super().__init__(directory, master, host=host.address, secret=SECRET)
        self._inside = host.inside

    def _command(self, home: Path) -> list[str | Path]:
        return [*self._inside, *super()._command(home)]


class HostsBed(Bed):
    """Three captures on a standalone cluster, whose log and tables are in a bucket."""

    def __init__(self, directory: Path, net: Network) -> None:
        self.net = net
        self.s3 = EmbeddedS3(directory / "s3", host=net.here)
        self.master = EmbeddedSparkMaster(directory / "master", host=net.here, secret=SECRET)
        super().__init__(directory, captures=3, network=net)
        self.workers = {name: HostWorker(directory / f"worker-{name}", self.master, net.hosts[name]) for name in NAMES}
        self._configured = self.processes[0]

    def start_source(self) -> None:
        super().start_source()
        self.s3.start()
        self.environment |= self.s3.options()
        self.master.start()
        self.spark_master = self.master.url
        for worker in self.workers.values():
            worker.start()

    def stop_source(self) -> None:
        for part in (*self.workers.values(), self.master, self.s3):
            part.stop()
        super().stop_source()

    def start(self, process: Process) -> None:
        self._configured = process
        super().start(process)

    @property
    def log_storage(self) -> str:
        return f"{BUCKET}/log"

    def _config(self) -> Path:
        """Of one capture: its driver listens on its own host."""
        path, host = super()._config(), self._configured.host
        assert host is not None
        settings = {
            "spark.executor.memory": "512m",
            "spark.authenticate": "true",
            "spark.authenticate.secret": SECRET,
            "spark.network.crypto.enabled": "true",
            "spark.driver.host": host.address,
            "spark.driver.bindAddress": host.address,
            # executors inherit nothing of a capture's environment
            **{f"spark.executorEnv.{name}": value for name, value in self.s3.options().items()},
            "spark.executorEnv.AWS_SECRET_ACCESS_KEY": "env:AWS_SECRET_ACCESS_KEY",
        }
        own = path.with_name(f"{self._configured.name}.toml")
        own.write_text("\n".join([path.read_text(), *(f'"{name}" = "{value}"' for name, value in settings.items())]))
        return own

    def table(self, feed: str, name: str) -> Any:
        return DeltaTable(f"{BUCKET}/{feed}/public/{name}", storage_options=self.s3.options()).to_pyarrow_table()

    def lose_host(self, process: Process) -> None:
        """It has no power: its capture, its worker and its executors are gone, and nothing comes from its address."""
        assert process.host is not None
        worker = self.workers[process.name]
        executors = psutil.Process(worker.pid).children(recursive=True)
        self.kill(process)
        worker.kill()
        for executor in executors:
            if executor.is_running():
                executor.kill()
        self.net.isolate(process.host)

    def return_hosts(self) -> None:
        self.net.heal()
        for worker in self.workers.values():
            if not worker.is_running:
                worker.start()
        self.mend()


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[HostsBed]:
    with Network(NAMES) as net, HostsBed(tmp_path, net) as bed:
        for feed, mode in ((UPSERT, SinkMode.UPSERT), (CHANGELOG, SinkMode.CHANGELOG)):
            bed.create_feed(feed, mode, sink_uri=f"delta+{BUCKET}/{feed}")
        yield bed


def test_two_of_three_hosts_are_lost_in_turn(bed: HostsBed) -> None:
    with bed.load(rate=50):
        written(bed)
        bed.lose_host(bed.owner(UPSERT))
        bed.wait_for("two continue", follows(bed), timeout_s=_RECOVERY_S)
        written(bed)
        bed.lose_host(bed.sync_worker(UPSERT))
        bed.wait_for("one continues", follows(bed), timeout_s=_RECOVERY_S)
        written(bed)
        bed.return_hosts()
        bed.wait_for("three continue", follows(bed), timeout_s=_RECOVERY_S)
        written(bed)
    bed.wait_for("both changefeeds have caught up", follows(bed), timeout_s=CATCH_UP_TIMEOUT_S)
    check(bed)


def written(bed: HostsBed) -> None:
    before = bed.transactions()
    bed.wait_for("the load writes", lambda: bed.transactions() > before + _WARM_TRANSACTIONS)
    bed.wait_for("both changefeeds follow", follows(bed), timeout_s=CATCH_UP_TIMEOUT_S)


def check(bed: HostsBed) -> None:
    for feed in FEEDS:
        found = bed.ask(lambda client: client.diff(feed), timeout_s=patient(60.0))  # noqa: B023  # called here
        assert [(one.table, one.differences, one.waiting) for one in found if not one.equal] == []
    for table, columns in (("account", ("id", "balance", "note")), ("audit", ("id", "account", "delta"))):
        rows = bed.table(UPSERT, table).select(columns)
        wanted = source_rows(bed, f"SELECT {', '.join(columns)} FROM {table} ORDER BY id")
        assert sorted(zip(*(column.to_pylist() for column in rows.columns), strict=True)) == wanted
    log = bed.table(CHANGELOG, "audit")
    inserted = log.filter(pc.equal(log["_change_type"], "insert"))["id"].to_pylist()
    assert sorted(inserted) == [row[0] for row in source_rows(bed, "SELECT id FROM audit ORDER BY id")]
