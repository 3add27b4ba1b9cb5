"""A user's query on a standalone Spark cluster reads a changefeed through every fault, each change exactly once.

An executor, the capture that the query asks, the capture that reads the source, and the query's own driver are killed
while rows change; the changefeed moves to another capture. In the end the output is compared with the source.
"""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from capture.api.access import TokenAsked
from capture.embedded import EmbeddedSpark
from reactor.records.access import Role
from tests.acceptance.bed import Bed
from tests.acceptance.checks import UPSERT
from tests.acceptance.one_capture.test_spark_snapshot import check_output

pytestmark = [
    pytest.mark.minutes(9),
    pytest.mark.acceptance,
    pytest.mark.spark,
    pytest.mark.matrix,
    pytest.mark.timeout(900),
]

#: a user's query, which writes each batch under its id until it is killed
QUERY = """
import sys
from pyspark.sql import SparkSession
import capture
server, token, changefeed, directory, master = sys.argv[1:]
settings = {"spark.ui.enabled": "false", "spark.executor.memory": "512m", "spark.driver.host": "127.0.0.1"}
spark = SparkSession.builder.master(master).config(map=settings).getOrCreate()
spark.dataSource.register(capture.SparkSource)
changes = spark.readStream.format("weir").options(
    server=server, token=token, changefeed=changefeed, table="public.account", startingVersion="snapshot", name="query"
).load()
def write(rows, batch):
    rows.write.mode("overwrite").parquet(f"{directory}/rows/{batch}")
sink = changes.writeStream.foreachBatch(write).option("checkpointLocation", f"{directory}/checkpoint")
sink.trigger(processingTime="1 second").start().awaitTermination()
"""
_STEPS = (
    "UPDATE account SET balance = balance + 1 WHERE id % 5 = 0",
    "DELETE FROM account WHERE id = (SELECT min(id) FROM account)",
    "INSERT INTO account SELECT max(id) + 1, 0, NULL FROM account",
)
_RECOVERY_S = 120.0


class Query:
    """The query's process, and how far its output has come."""

    def __init__(self, bed: Bed, cluster: EmbeddedSpark, directory: Path) -> None:
        self._bed = bed
        self._cluster = cluster
        self._directory = directory
        self._child: subprocess.Popen[bytes] | None = None
        #: a server's own is unknown while that server is away
        self._token = str(bed.ask(lambda client: client.create_token(TokenAsked(role=Role.OPERATOR))).token)
        self.log = directory / "query.log"

    def start(self) -> None:
        servers = ",".join(f"http://{process.address}" for process in self._bed.processes)
        arguments = [servers, self._token, UPSERT, str(self._directory)]
        with self.log.open("ab") as output:
            self._child = subprocess.Popen(
                [sys.executable, "-c", QUERY, *arguments, self._cluster.url],
                stdout=output,
                stderr=output,
                env=os.environ | {"PYSPARK_PYTHON": sys.executable},
                start_new_session=True,
            )

    def kill(self) -> None:
        """The driver and its JVM, at once."""
        if self._child is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._child.pid, signal.SIGKILL)
            self._child.wait()
            self._child = None

    def reached(self) -> int:
        """The Ts of the last batch whose output is complete."""
        assert self._child is not None
        assert self._child.poll() is None, f"the query has ended: {self.log.read_text()[-3000:]}"
        done = [int(path.name) for path in (self._directory / "checkpoint" / "commits").glob("[0-9]*")]
        if not done:
            return 0
        lines = (self._directory / "checkpoint" / "offsets" / str(max(done))).read_text().splitlines()
        return int(json.loads(lines[-1])["ts"])

    def executors(self) -> list[psutil.Process]:
        found = [psutil.Process(worker.pid).children() for worker in self._cluster.workers]
        return [process for children in found for process in children if process.name() == "java"]


@contextmanager
def changing(bed: Bed) -> Iterator[None]:
    """Each account gets one more again and again; some are deleted, and some are new."""
    is_over = threading.Event()

    def change() -> None:
        while not is_over.wait(0.3):
            for statement in _STEPS:
                bed.execute(statement)

    writing = threading.Thread(target=change)
    writing.start()
    try:
        yield
    finally:
        is_over.set()
        writing.join()


def test_a_query_on_a_cluster_has_each_change_once_through_every_fault(tmp_path: Path) -> None:
    with EmbeddedSpark(tmp_path / "spark") as cluster, Bed(tmp_path, captures=2) as bed:
        bed.create_feed(UPSERT)
        query = Query(bed, cluster, tmp_path)

        def follows(what: str) -> None:
            ts = bed.last_ts()
            bed.wait_for(f"the query follows {what}", lambda: query.reached() >= ts, timeout_s=_RECOVERY_S)

        def kill_executor() -> None:
            bed.wait_for("there is an executor", lambda: bool(query.executors()), timeout_s=_RECOVERY_S)
            query.executors()[0].kill()

        def kill_server() -> None:
            bed.kill(bed.processes[0])
            bed.mend()

        def kill_worker() -> None:
            bed.kill(bed.sync_worker(UPSERT))
            bed.mend()

        def move() -> None:
            here = bed.sync_worker(UPSERT)
            if bed.controller() is here:  # it would not be drained
                bed.ask(lambda client: client.resign_owner())
                bed.wait_for("another is controller", lambda: bed.controller() is not here)
            bed.ask(lambda client: client.drain(bed.id_of(here)))
            bed.wait_for("it has moved", lambda: bed.sync_worker(UPSERT) is not here)
            bed.terminate(here)
            bed.mend()

        def kill_driver() -> None:
            query.kill()
            query.start()

        faults = (kill_executor, kill_server, kill_driver, kill_worker, move, kill_executor)
        query.start()
        try:
            with changing(bed):
                follows("the snapshot")
                for fault in faults:
                    fault()
                    follows(fault.__name__)
            follows("the last change")
        finally:
            query.kill()
        bed.wait_for("the sink has all", lambda: bed.covers(UPSERT, bed.last_ts()))
        check_output(bed, tmp_path)
