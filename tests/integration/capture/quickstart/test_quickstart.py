"""The quickstart's own part on a real PostgreSQL and pgbench, with a cluster in memory that replicates by magic."""

import signal
import time
from pathlib import Path

import anyio
import pytest

from capture.api import port as views
from capture.config import ServerSettings, load_server_settings
from capture.quickstart.pgbench import Pgbench
from capture.quickstart.quickstart import Quickstart, Summary, _until_signalled
from capture.terminal.progress import Reporter
from reactor.errors import OwnerNotFoundError, WeirError
from reactor.records.changefeed import FeedState, RunningError, Unit
from reactor.views import ChangefeedView
from tests.unit.capture.fakes import MemoryCluster, MemoryMember


class MagicCluster(MemoryCluster):
    """Dumps in two looks, then is always up to date; ``fails`` makes the changefeed fail when sync begins."""

    def __init__(self) -> None:
        super().__init__()
        self.looks = 0
        self.fails = False
        self.diffs = [views.TableDiff(table="public.pgbench_tellers", equal=True)]

    async def query(self, changefeed_id: str, *, tables: bool = True) -> ChangefeedView:
        self.looks += 1
        if self.looks == 1:
            raise OwnerNotFoundError("no owner is elected at the moment; try again")
        feed = await super().query(changefeed_id)
        progress: dict[str, object] = {
            "unit": Unit.DUMP if self.looks < 4 else Unit.SYNC,
            "rows_total": 100_000,
            "rows_done": 50_000 * min(self.looks, 2),
            "changes": 100 * self.looks,
            "checkpoint_ts": 1 << 60,
            "checkpoint_time": time.time() - 0.25,
            "lag_seconds": 0.25,
        }
        if self.fails and self.looks > 4:
            progress |= {"state": FeedState.FAILED, "error": RunningError(code="PositionLost", message="slot is gone")}
        return feed.model_copy(update=progress)


class MagicMember(MemoryMember):
    def __init__(self, settings: ServerSettings, cluster: MagicCluster) -> None:
        super().__init__(settings)
        self.cluster = cluster


async def run(directory: Path, cluster: MagicCluster) -> Summary:
    settings = load_server_settings(etcd="http://127.0.0.1:1", addr="127.0.0.1:0", data_dir=directory)
    with Reporter() as reporter:
        quickstart = Quickstart(
            settings,
            Pgbench(directory),
            reporter=reporter,
            seconds=1,
            scale=1,
            rate=100,
            new_member=lambda settings: MagicMember(settings, cluster),
        )
        return await quickstart.run()


@pytest.mark.matrix
async def test_a_run_makes_loads_watches_and_compares(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    cluster = MagicCluster()
    summary = await run(tmp_path, cluster)
    assert (summary.equal, summary.tables, summary.rows_snapshot) == (True, 1, 100_000)
    assert summary.changes > 0
    assert summary.lag_p50_ms is not None
    assert 200 < summary.lag_p50_ms < 1000
    spec = cluster.specs["quickstart"]
    assert spec.source_uri.endswith("/pgbench")
    assert spec.config.force_replicate
    assert "pgbench makes 100,000 accounts" in capfd.readouterr().err

    again = await run(tmp_path, cluster)
    assert again.equal
    assert "pgbench makes" not in capfd.readouterr().err


@pytest.mark.sample(0.25)
async def test_a_difference_is_reported(tmp_path: Path) -> None:
    cluster = MagicCluster()
    cluster.diffs = [views.TableDiff(table="a.t", equal=False, differences=("id=1: missing in the sink",))]
    summary = await run(tmp_path, cluster)
    assert not summary.equal
    assert summary.differences == {"a.t": ("id=1: missing in the sink",)}


@pytest.mark.sample(0.25)
async def test_a_changefeed_that_fails_ends_the_run(tmp_path: Path) -> None:
    cluster = MagicCluster()
    cluster.fails = True
    with pytest.raises(BaseExceptionGroup) as caught:
        await run(tmp_path, cluster)
    assert caught.group_contains(WeirError, match="changefeed quickstart is failed: slot is gone", depth=1)


def test_a_signal_undoes_everything_and_gives_no_result() -> None:
    undone = []

    async def work() -> int:
        try:
            signal.raise_signal(signal.SIGTERM)
            await anyio.sleep_forever()
        finally:
            undone.append(True)
        return 1

    assert anyio.run(_until_signalled, work) is None
    assert undone == [True]
