"""A running cluster's state is moved from etcd to PostgreSQL, and back: no row is lost or doubled."""

import subprocess
import sys
from pathlib import Path

import pytest

from reactor.records.changefeed import SinkMode
from tests.acceptance.bed import Bed
from tests.acceptance.checks import CATCH_UP_TIMEOUT_S, CHANGELOG, UPSERT, check_changelog, check_upsert, follows

pytestmark = [pytest.mark.acceptance, pytest.mark.spark, pytest.mark.timeout(400)]

_WARM_TRANSACTIONS = 200
_CLUSTER = "default"


def weir_store(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "capture", "store", *arguments, "--cluster-id", _CLUSTER]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_a_cluster_moves_to_postgresql_and_back_while_its_source_is_written_to(tmp_path: Path) -> None:
    with Bed(tmp_path, captures=1) as bed:
        bed.postgres.create_database("state")
        etcd, postgres = bed.etcd.url, bed.postgres.uri("state")
        bed.create_feed(UPSERT, SinkMode.UPSERT)
        bed.create_feed(CHANGELOG, SinkMode.CHANGELOG)
        (process,) = bed.processes
        with bed.load():
            flow(bed)
            bed.kill(process)
            killed = weir_store("migrate", etcd, postgres)
            assert "is in use" in killed.stderr, "its lease is not over"
            bed.wait_for("the lease is over", lambda: weir_store("migrate", etcd, postgres).returncode == 0)
            start(bed, postgres)
            flow(bed)

            assert bed.terminate(process) == 0
            assert weir_store("migrate", postgres, etcd).returncode == 1, "there it is still"
            assert weir_store("remove", etcd).returncode == 0
            moved = weir_store("migrate", postgres, etcd)
            assert moved.returncode == 0, moved.stderr
            bed.start(process)  # with the store that it was moved away from
            assert process.child is not None
            assert process.child.wait(CATCH_UP_TIMEOUT_S) == 1
            assert "it was moved to etcd at" in (tmp_path / f"{process.name}.log").read_text()
            start(bed, "")
            flow(bed)
        bed.wait_for("both changefeeds have caught up", follows(bed), timeout_s=CATCH_UP_TIMEOUT_S)
        check_upsert(bed)
        check_changelog(bed)


def start(bed: Bed, store: str) -> None:
    bed.store = store
    bed.start(bed.processes[0])


def flow(bed: Bed) -> None:
    before = bed.transactions()
    bed.wait_for("the load writes", lambda: bed.transactions() > before + _WARM_TRANSACTIONS)
    bed.wait_for("both changefeeds follow", follows(bed), timeout_s=CATCH_UP_TIMEOUT_S)
