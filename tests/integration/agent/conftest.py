"""Fixtures of tests that write tables."""

import pytest

from agent.sinks.delta.upkeep import upkeep


@pytest.fixture(autouse=True)
def no_checkpoint_by_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which commit of a table is the first that is followed by a checkpoint depends on the table's path, so one test in
    fifty would have a thread that writes into a table which the test copies, removes or counts."""
    monkeypatch.setattr(upkeep, "_first_count", lambda place: 0)
