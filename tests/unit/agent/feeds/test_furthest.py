"""Furthest records: what was written of a table that exists is remembered over processes, and of no other."""

import json
from pathlib import Path

import pytest

from agent.control.runtime import SpanPosition
from agent.errors import TableForeignError
from agent.feeds import furthest
from agent.feeds.furthest import FurthestRecords
from agent.log.storage import LogDirectory
from reactor.ids import TableSpan, Ts
from reactor.records.tables.table import TableRecord


def records(directory: LogDirectory, name: str) -> FurthestRecords:
    """Those of another process."""
    furthest._furthest.clear()
    found = FurthestRecords(("lake", "feed"), directory, name, retention_s=0.0)
    found.load()
    return found


def a_table(id: int) -> TableRecord:
    return TableRecord(table_id=id, schema_name="public", name=f"t{id}", start_ts=Ts(1))


def position(id: int, ts: int) -> SpanPosition:
    return SpanPosition(TableSpan(id), a_table(id), Ts(ts), Ts(ts))


def saved(path: Path) -> list[int]:
    return sorted(table for table, *_ in json.loads(path.read_text())["records"])


def test_what_was_seen_of_tables_that_are_gone_is_forgotten(tmp_path: Path) -> None:
    directory = LogDirectory(str(tmp_path), changefeed="feed", source="main")
    one = records(directory, "one")
    one.note([position(1, 10), position(2, 20), position(3, 30)])
    one.save()
    assert saved(Path(directory.path_of("records-one.json"))) == [1, 2, 3]
    one.note([position(1, 11)])
    one.save({1, 3})
    assert saved(Path(directory.path_of("records-one.json"))) == [1, 3]
    other = records(directory, "other")
    for id, ts in ((1, 11), (3, 30)):
        with pytest.raises(TableForeignError, match="was set back"):
            other.check(a_table(id), TableSpan(id), Ts(5), Ts(ts))
    other.check(a_table(2), TableSpan(2), Ts(5), Ts(20))
