"""Bounds of the log that is kept for a held table, in time and in bytes; past them the owner says that its position is
lost. A real sync unit removes real segments, and the owner is shown the head that this leaves."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.settings import SyncSettings
from capture.embedded import EmbeddedPostgres
from reactor import keys
from reactor.records.tables.held import HoldStage
from tests.integration.agent.sources.postgres.sync_rig import SyncRig, drop_slots, make_rig
from tests.unit.owner.feed.holds.test_held import broken, held, stage, until
from tests.unit.owner.owner_build import FEED
from tests.unit.owner.small_cluster import CLUSTER, NAMESPACE


@pytest.fixture
def rig(postgres: EmbeddedPostgres, tmp_path: Path) -> Iterator[SyncRig]:
    rig = make_rig(postgres, tmp_path, "CREATE TABLE t (id int PRIMARY KEY, v text)", ["t"])
    rig.settings = SyncSettings(progress_s=0.05, segment_age_s=0.01, retention_check_s=0.0)
    rig.retention_s = 0.0
    yield rig
    drop_slots(rig)


@pytest.mark.parametrize(("bound", "value"), [("held_retention_s", 0.0), ("held_bytes", 1)])
async def test_past_its_bound_a_held_table_has_lost_its_position(rig: SyncRig, bound: str, value: float) -> None:
    rig.held_ts = rig.start.ts
    async with rig.running():
        for number in range(3):
            rig.execute(f"INSERT INTO t VALUES ({number}, 'a')")
            head = await rig.wait_resolved()
        rig.checkpoint_ts = head.resolved_ts  # all others have passed it
        for number in range(3):
            rig.execute(f"INSERT INTO t VALUES ({number + 10}, 'a')")
            kept = await rig.wait_resolved()
        assert (kept.first_seq, kept.removed_ts) == (1, 0)
        setattr(rig, bound, value)
        head = await rig.wait_head(lambda head: head.first_seq > 1)
    assert rig.held_ts < head.removed_ts <= rig.checkpoint_ts
    cluster = broken()
    until(cluster, HoldStage.HELD)
    cluster.put(keys.LogKey(CLUSTER, NAMESPACE, FEED, "main"), head.with_(eras=()))
    until(cluster, HoldStage.LOST)
    error = held(cluster)[1].error
    assert (error.code, error.retryable, stage(cluster)) == ("PositionLost", False, HoldStage.LOST)
    assert "held-retention-seconds or -bytes allow" in error.message
