"""A table after many commits, with its care on a patched clock: as few files and bytes as if it was written again."""

from collections import OrderedDict
from pathlib import Path

import pytest

from agent.sinks.delta.upkeep import upkeep as delta_upkeep
from agent.sinks.iceberg.upkeep import upkeep as iceberg_upkeep
from benchmarks.lake import month


@pytest.fixture(autouse=True)
def turns_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the real clock they would be in the future."""
    monkeypatch.setattr(delta_upkeep, "_turns", OrderedDict())
    monkeypatch.setattr(iceberg_upkeep, "_turns", OrderedDict())


@pytest.mark.matrix
@pytest.mark.in_turn("name")
@pytest.mark.parametrize(
    "commits",
    [60, pytest.param(3_000, marks=[pytest.mark.matrix, pytest.mark.minutes(15), pytest.mark.timeout(3_600)])],
)
@pytest.mark.parametrize("name", ["iceberg", "delta"])
def test_a_table_stays_as_a_fresh_one(name: str, commits: int, tmp_path: Path) -> None:
    found = month.measure(name, tmp_path, commits, 20_000)
    assert found["files_ratio"] <= 1.5
    assert found["bytes_ratio"] <= 1.3
    assert found["files_before_maintain"] <= 40, "its care does not wait for anybody"
