"""Syncs to disk, and their order, before a flush is reported as written. Power is not cut here."""

import os
from pathlib import Path

import pytest

from agent.sinks.common.compaction import Plan
from agent.sinks.delta.upkeep import upkeep
from agent.sinks.delta.upsert import by_vectors
from reactor.records.changefeed import SinkMode
from tests.integration.agent.sinks.delta.test_alter import altered, moves
from tests.integration.agent.sinks.delta.test_sink import KEYED, flush, loaded, task
from tests.unit.agent.changes_build import ARROW, changes, insert, update

ROWS = [(1, "a", "x"), (2, None, "y")]
COMMIT = ["*.parquet", "t", "*.json", "_delta_log"]
PART = changes([update(1, "b", "z"), insert(3, "c", "z")])


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of what was synced: a file as ``*.parquet`` or ``*.json``, a directory as it is called."""
    found: list[str] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        kind = "*.parquet" if ".parquet" in path.name else "*.json" if ".json" in path.name else path.name
        found.append(kind)
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    return found


def test_a_new_table_is_on_disk_with_its_name(tmp_path: Path, synced: list[str]) -> None:
    loaded(tmp_path / "lake", rows=ROWS)
    assert synced[:2] == ["*.parquet", "t"]
    assert synced[2:] == [*COMMIT, "t", "public", "lake"]


@pytest.mark.parametrize("mode", [SinkMode.UPSERT, SinkMode.CHANGELOG])
def test_a_commit_of_ours_names_nothing_that_is_not_there(tmp_path: Path, synced: list[str], mode: SinkMode) -> None:
    sink = loaded(tmp_path / "lake", mode, rows=ROWS)
    synced.clear()
    assert flush(sink, task(sink, 100, 110), PART).committed
    assert synced == COMMIT


def test_what_delta_rs_commits_is_synced_behind_it(
    tmp_path: Path, synced: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A MERGE, a schema change, a compaction."""
    monkeypatch.setattr(by_vectors, "_SMALL_BYTES", 0)
    monkeypatch.setattr(upkeep, "_SMALL_FILES_MAX", 1)
    monkeypatch.setattr(upkeep, "_PLAN", Plan(1 << 20, files_min=2))
    sink = loaded(tmp_path / "lake", rows=ROWS)
    synced.clear()
    assert flush(sink, task(sink, 100, 110), PART).committed
    assert synced == COMMIT
    synced.clear()
    sink.alter([altered(moves(ARROW, name=None), ts=111)])
    assert synced[-2:] == ["*.json", "_delta_log"]
    for ts in (110, 120, 130):
        flush(sink, task(sink, ts, ts + 10), changes([insert(ts, "n", "n")]))
    synced.clear()
    monkeypatch.setattr(upkeep, "_COMPACT_EVERY_S", -1.0)
    thread = upkeep.begin_if_due(sink.place(KEYED), retention_s=3600)
    assert thread is not None
    thread.join()
    assert synced == COMMIT


def test_a_checkpoint_is_on_disk(tmp_path: Path, synced: list[str]) -> None:
    sink = loaded(tmp_path / "lake", SinkMode.CHANGELOG, rows=ROWS)
    made = Path(sink.place(KEYED).location, "_delta_log", "_last_checkpoint")
    for ts in range(100, 152):
        synced.clear()
        flush(sink, task(sink, ts, ts + 1), changes([insert(ts, "n", "n")]))
        with upkeep._busy:  # it has ended
            pass
        if made.exists():
            break
    assert synced == [*COMMIT, "*.parquet", "_last_checkpoint", "_delta_log"]
