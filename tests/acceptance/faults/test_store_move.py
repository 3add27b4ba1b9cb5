"""A running cluster's state is moved from etcd to PostgreSQL, and back, and to a file: no row is lost or doubled."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from reactor.records.changefeed import FeedState, SinkMode
from tests.acceptance.bed import Bed
from tests.acceptance.checks import CATCH_UP_TIMEOUT_S, CHANGELOG, FEEDS, UPSERT, check_changelog, check_upsert, follows

pytestmark = [pytest.mark.acceptance, pytest.mark.spark, pytest.mark.timeout(400)]

_WARM_TRANSACTIONS = 200


def weir_store(
    *arguments: str, cluster: Sequence[str] = ("--cluster-id", "default")
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "capture", "store", *arguments, *cluster]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.minutes(4)
@pytest.mark.matrix  # daily a store is copied with its contract suite
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


@pytest.mark.minutes(3)
@pytest.mark.matrix
def test_an_older_export_is_not_continued_behind_what_was_written_since(tmp_path: Path) -> None:
    """The cluster has run since it was exported: the slot and the change log are further than what is imported."""
    with Bed(tmp_path, captures=1) as bed:
        etcd, backup = bed.etcd.url, tmp_path / "backup.json"
        for feed, mode in ((UPSERT, SinkMode.UPSERT), (CHANGELOG, SinkMode.CHANGELOG)):
            bed.create_feed(feed, mode)
        (process,) = bed.processes
        with bed.load():
            flow(bed)
            assert bed.terminate(process) == 0
            assert weir_store("export", etcd, str(backup)).returncode == 0
            start(bed, "")
            flow(bed)
            assert bed.terminate(process) == 0
            assert weir_store("remove", etcd, "--usable").returncode == 0
            assert weir_store("import", str(backup), etcd, cluster=()).returncode == 0
            start(bed, "")
            for feed in FEEDS:
                bed.wait_for(f"{feed} has failed", lambda: bed.query(feed).state is FeedState.FAILED)  # noqa: B023
                error = bed.query(feed).error
                assert error is not None
                assert error.code == "PositionLost"
                assert "the store was put back to an earlier state" in error.message
                bed.ask(lambda client: client.resume(feed, resync=True))  # noqa: B023
            for feed in FEEDS:
                bed.wait_for("all tables are copied", lambda: is_copied(bed, feed))  # noqa: B023
            flow(bed)
        bed.wait_for("both changefeeds have caught up", follows(bed), timeout_s=CATCH_UP_TIMEOUT_S)
        check_upsert(bed)


def is_copied(bed: Bed, feed: str) -> bool:
    view = bed.query(feed)
    return view.checkpoint_ts > 0 and not (view.lost_tables or view.resyncs or view.held)


def start(bed: Bed, store: str) -> None:
    bed.store = store
    bed.start(bed.processes[0])


def flow(bed: Bed) -> None:
    before = bed.transactions()
    bed.wait_for("the load writes", lambda: bed.transactions() > before + _WARM_TRANSACTIONS)
    bed.wait_for("both changefeeds follow", follows(bed), timeout_s=CATCH_UP_TIMEOUT_S)
