"""Care of tables: the turns of those that are written are remembered, not of all that there ever were."""

from collections import OrderedDict

import pytest

from agent.sinks import care


def test_turns_of_tables_that_are_not_written_any_more_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(care, "_TURNS_MAX", 3)
    turns = OrderedDict[str, int]()
    for number in range(10):
        for table in ("orders", f"temporary-{number}"):
            turns.setdefault(table, number)
            care.keep_newest(turns, table)
    assert turns == {"orders": 0, "temporary-8": 8, "temporary-9": 9}
