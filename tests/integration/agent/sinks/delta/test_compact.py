"""Small files put together beside flushes: every row and record stays, and readers of changes see none."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from agent.errors import SinkConflictError
from agent.sinks.common.compaction import Plan
from agent.sinks.delta.sink import DeltaSink
from agent.sinks.delta.table import files as delta_files
from agent.sinks.delta.table.place import TablePlace
from agent.sinks.delta.upkeep import compact as delta_compact
from agent.sinks.delta.upsert import by_vectors
from reactor.records.changefeed import SinkMode
from tests.integration.agent.sinks.delta.test_sink import KEYED, SPAN, flush, loaded, rows, task
from tests.integration.agent.sinks.delta.test_vectors import add_column, last_commit, location
from tests.integration.agent.sinks.delta.test_vectors import loaded as with_vectors
from tests.unit.agent.changes_build import changes, insert, update

FILES = 6


@pytest.fixture
def sink(tmp_path: Path) -> DeltaSink:
    """A changelog of six files of a row each, at Ts 106."""
    made = loaded(tmp_path, SinkMode.CHANGELOG)
    for at in range(FILES):
        flush(made, task(made, 100 + at, 101 + at), changes([insert(at, "a", "x")]))
    return made


def compact(sink: DeltaSink, *, files_max: int = 1, target_bytes: int = 1 << 20) -> int | None:
    return delta_compact.compact(sink.place(KEYED), Plan(target_bytes, files_min=files_max + 1))


def files(sink: DeltaSink) -> int:
    return len(DeltaTable(location(sink)).file_uris())


def test_the_rows_stay_in_their_order_and_no_change_is_reported(sink: DeltaSink) -> None:
    assert compact(sink) == FILES
    assert files(sink) == 1
    assert [row[0] for row in rows(sink, "id")] == list(range(FILES))
    assert sink.committed_ts(KEYED, SPAN) == 100 + FILES
    actions = [action for line in last_commit(sink) for kind, action in line.items() if kind in ("add", "remove")]
    assert len(actions) == FILES + 1
    assert not any(action["dataChange"] for action in actions)
    assert flush(sink, task(sink, 106, 107), changes([insert(9, "a", "x")])).committed
    assert len(rows(sink)) == FILES + 1


def test_whoever_opens_the_table_after_its_maintenance_reads_no_commits(sink: DeltaSink) -> None:
    sink.maintain(KEYED)
    last = json.loads((Path(location(sink)) / "_delta_log" / "_last_checkpoint").read_text())
    assert last["version"] == DeltaTable(location(sink)).version()


def test_few_files_are_left_alone(sink: DeltaSink) -> None:
    version = DeltaTable(location(sink)).version()
    assert compact(sink, files_max=FILES) == 0
    assert DeltaTable(location(sink)).version() == version


def test_files_become_about_as_large_as_is_wanted(sink: DeltaSink) -> None:
    sizes = DeltaTable(location(sink)).get_add_actions(flatten=True).column("size_bytes").to_pylist()
    compact(sink, target_bytes=sum(sizes[:2]))
    assert files(sink) == FILES // 2
    assert sorted(row[0] for row in rows(sink, "id")) == list(range(FILES))


def test_a_column_that_older_files_lack(sink: DeltaSink) -> None:
    add_column(sink)
    compact(sink)
    [batch] = pa.RecordBatchReader.from_stream(DeltaTable(location(sink)).scan(columns=["id", "late"]))
    assert pa.record_batch(batch).column("late").null_count == FILES


def test_flushes_continue_beside_it(sink: DeltaSink, monkeypatch: pytest.MonkeyPatch) -> None:
    _once_written(monkeypatch, lambda: flush(sink, task(sink, 106, 107), changes([insert(9, "a", "x")])))
    compact(sink)
    assert files(sink) == 2
    assert sorted(row[0] for row in rows(sink, "id")) == [*range(FILES), 9]
    assert sink.committed_ts(KEYED, SPAN) == 107


@pytest.mark.parametrize("small_bytes", [0, 1 << 20], ids=["vectors", "written again"])
def test_a_file_that_was_changed_meanwhile_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_bytes: int
) -> None:
    monkeypatch.setattr(by_vectors, "_SMALL_BYTES", small_bytes)
    monkeypatch.setattr(by_vectors, "SMALL_MAX", 2)
    sink = with_vectors(tmp_path, [(at, "a", "x") for at in range(10)])
    for at in range(2):
        flush(sink, task(sink, 100 + at, 101 + at), changes([insert(20 + at, "n", "n")]))
    _once_written(monkeypatch, lambda: flush(sink, task(sink, 102, 103), changes([update(3, "b", "y")])))
    if small_bytes:
        with pytest.raises(SinkConflictError, match="rewritten meanwhile"):
            compact(sink)
    else:
        assert compact(sink) == 3
        assert files(sink) == 2
    reader = pa.RecordBatchReader.from_stream(DeltaTable(location(sink)).scan(columns=["id", "name"]))
    found = {row["id"]: row["name"] for row in reader.read_all().to_pylist()}
    assert found == {at: "b" if at == 3 else "a" for at in range(10)} | {20: "n", 21: "n"}
    assert sink.committed_ts(KEYED, SPAN) == 103


def _once_written(monkeypatch: pytest.MonkeyPatch, then: Callable[[], object]) -> None:
    """After the new file is there and before it is committed."""
    inner = delta_files.write_file
    waiting = [then]

    def write_file(place: TablePlace, name: str, tables: Iterable[pa.Table], schema: pa.Schema, *rest: Any) -> Any:
        file = inner(place, name, tables, schema, *rest)
        if name.startswith("compact-") and waiting:
            waiting.pop()()
        return file

    monkeypatch.setattr(delta_files, "write_file", write_file)
