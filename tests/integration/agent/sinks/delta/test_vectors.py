"""Upserts that take rows out of files by deletion vectors: read by delta-rs, against what a dictionary says."""

import json
import random
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError
from deltalake.schema import Field, PrimitiveType
from hypothesis import given
from hypothesis import strategies as st

from agent.errors import SinkFencedError, SinkUriError
from agent.rows.changes import BEFORE_KEY
from agent.sinks import open_sink
from agent.sinks.common import row_groups
from agent.sinks.delta.sink import DeltaSink
from agent.sinks.delta.table import deletion_vectors
from agent.sinks.delta.table import log as delta_log
from agent.sinks.delta.table import place as delta_table
from agent.sinks.delta.upkeep import upkeep
from agent.sinks.delta.upsert import by_vectors, merge
from reactor.ids import TableSpan, Ts
from reactor.records.changefeed import SinkMode
from tests.integration.agent.sinks.delta.test_sink import KEYED, SPAN, flush, task
from tests.unit.agent.changes_build import (
    ARROW,
    UNCHANGED,
    Change,
    changes,
    delete,
    insert,
    table_schema,
    truncate,
    update,
)

ROWS = [(at, "a", "x") for at in range(1_000)]

_FIRST_COUNT = upkeep._first_count  # as it is outside tests


@pytest.fixture
def sink(tmp_path: Path) -> DeltaSink:
    return loaded(tmp_path)


def loaded(directory: Path, rows: Sequence[tuple[Any, ...]] = ROWS, *, vectors: str = "true") -> DeltaSink:
    found = open_sink(f"delta+file://{directory}?deletion_vectors={vectors}", changefeed="feed", mode=SinkMode.UPSERT)
    assert isinstance(found, DeltaSink)
    staged = found.stage(KEYED, "0", iter([changes([insert(*row) for row in rows]).after]), Ts(100))
    found.load(KEYED, table_schema(), ARROW, staged)
    return found


def rows(sink: DeltaSink) -> dict[int, tuple[Any, ...]]:
    """As delta-rs reads them, from the log's begin."""
    reader = pa.RecordBatchReader.from_stream(DeltaTable(location(sink)).scan(columns=["id", "name", "big"]))
    found = [tuple(row.values()) for row in reader.read_all().to_pylist()]
    assert len({row[0] for row in found}) == len(found), "a key is there twice"
    return {row[0]: row[1:] for row in found}


def gone(key: int) -> Change:
    return delete(key, None, None)


def location(sink: DeltaSink) -> str:
    return sink.place(KEYED).location


def vectors(sink: DeltaSink) -> int:
    return int(pa.RecordBatchReader.from_stream(DeltaTable(location(sink)).deletion_vectors()).read_all().num_rows)


def last_commit(sink: DeltaSink) -> list[dict[str, Any]]:
    newest = max((Path(location(sink)) / "_delta_log").glob("*.json"))
    return [json.loads(line) for line in newest.read_text().splitlines()]


def test_changes_cost_no_file_of_the_table(sink: DeltaSink) -> None:
    [before] = DeltaTable(location(sink)).file_uris()
    flush(sink, task(sink, 100, 200), changes([update(7, "b", "y"), gone(8), insert(5_000, "n", "n")]))
    assert before in DeltaTable(location(sink)).file_uris()
    expected = {at: ("a", "x") for at in range(1_000) if at != 8} | {7: ("b", "y"), 5_000: ("n", "n")}
    assert rows(sink) == expected
    assert sink.committed_ts(KEYED, SPAN) == 200


def test_the_same_range_again_changes_nothing_and_another_is_refused(sink: DeltaSink) -> None:
    order, part = task(sink, 100, 200), changes([update(7, "b", "y"), gone(8)])
    assert flush(sink, order, part).committed
    version = DeltaTable(location(sink)).version()
    assert flush(sink, order, part).committed
    assert DeltaTable(location(sink)).version() == version
    with pytest.raises(SinkFencedError, match="this writer expects 100"):
        flush(sink, task(sink, 100, 210), part)


def test_what_was_not_there_moves_no_record(sink: DeltaSink) -> None:
    assert not flush(sink, task(sink, 100, 200), changes([gone(77_777)])).committed
    assert sink.committed_ts(KEYED, SPAN) == 100


@pytest.mark.matrix
@pytest.mark.parametrize(("way", "small_bytes"), [("vectors", 1 << 20), ("small", 1 << 20), ("merged", 0)])
def test_many_flushes_leave_few_files_and_the_right_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, small_bytes: int
) -> None:
    """Each way beside delta-rs's own merges, compactions, checkpoints and vacuums, and after a lost process."""
    monkeypatch.setattr(by_vectors, "SMALL_MAX", 5)
    monkeypatch.setattr(by_vectors, "_SMALL_BYTES", small_bytes)
    if way != "merged":
        monkeypatch.setattr(merge, "_apply", _never)
    sink = loaded(tmp_path, vectors="true" if way == "vectors" else "false")
    chance, expected, most = random.Random(4), {row[0]: row[1:] for row in ROWS}, 0
    for step in range(120):
        part = list(_some_changes(chance, expected, step))
        flush(sink, task(sink, 100 + step, 101 + step), changes(part))
        most = max(most, len(DeltaTable(location(sink)).file_uris()))
        match step % 30:
            case 9:
                DeltaTable(location(sink)).optimize.compact()
            case 14:
                upkeep.remove_replaced_files(sink.place(KEYED))
            case 19:
                delta_log._known.clear()
        if step % 10 == 0:
            assert rows(sink) == expected
    assert rows(sink) == expected
    assert most <= 8
    with upkeep._busy:  # it has ended
        pass
    assert list((Path(location(sink)) / "_delta_log").glob("*.checkpoint.parquet"))


def add_column(sink: DeltaSink) -> None:
    """As a schema change would."""
    table = DeltaTable(location(sink))
    ours = delta_table.commit_properties(table, {})
    table.alter.add_columns([Field("late", PrimitiveType("string"))], commit_properties=ours)


def _never(*_: Any) -> None:
    raise AssertionError("delta-rs merged")


def test_what_updates_left_out_is_looked_up_in_the_stored_row(sink: DeltaSink, monkeypatch: pytest.MonkeyPatch) -> None:
    """In several files and row groups, under what was the key, or in a file that lacks the column."""
    monkeypatch.setattr(merge, "_apply", _never)
    monkeypatch.setattr(row_groups, "ROWS_MAX", 100)
    flush(sink, task(sink, 100, 110), changes([insert(at, "n", f"big {at}") for at in range(2_000, 3_000)]))
    add_column(sink)
    wide = pa.schema([*ARROW, pa.field("late", pa.string())])
    left_out = [
        update(7, "b", UNCHANGED, UNCHANGED),
        update(2_050, "b", UNCHANGED, "l"),
        update(2_950, UNCHANGED, UNCHANGED, UNCHANGED),
        update(5_000, "moved", UNCHANGED, "l", before=(2_500, None, None, None), before_kind=BEFORE_KEY),
        insert(2_500, "again", "x", "y"),
    ]
    flush(sink, task(sink, 110, 120), changes(left_out, arrow=wide))
    columns = ["id", "name", "big", "late"]
    reader = pa.RecordBatchReader.from_stream(DeltaTable(location(sink)).scan(columns=columns))
    found = {row["id"]: tuple(row.values())[1:] for row in reader.read_all().to_pylist()}
    assert len(found) == 2_001
    assert found[7] == ("b", "x", None)
    assert found[2_050] == ("b", "big 2050", "l")
    assert found[2_950] == ("n", "big 2950", None)
    assert found[5_000] == ("moved", "big 2500", "l")
    assert found[2_500] == ("again", "x", "y")


@pytest.mark.matrix
def test_tables_that_are_flushed_together_write_their_checkpoints_at_other_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twenty of them in one flush were its longest by far."""
    monkeypatch.setattr(upkeep, "_first_count", _FIRST_COUNT)
    due = []
    for number in range(4):
        sink = loaded(tmp_path / str(number), rows=ROWS[:1])
        for step in range(50):
            flush(sink, task(sink, 100 + step, 101 + step), changes([update(0, "b", str(step))]))
            with upkeep._busy:  # it has ended
                pass
        [checkpoint] = (Path(location(sink)) / "_delta_log").glob("*.checkpoint.parquet")
        due.append(checkpoint.name)
    assert len(set(due)) > 1


def _some_changes(chance: random.Random, expected: dict[int, tuple[Any, ...]], step: int) -> Iterator[Change]:
    keys = list(expected)
    for key in chance.sample(keys, 12):
        if chance.random() < 0.4:
            del expected[key]
            yield gone(key)
        else:
            expected[key] = (f"u{step}", "y")
            yield update(key, *expected[key])
    for _ in range(8):
        key = chance.randrange(2_000)
        if key not in expected:
            expected[key] = (f"i{step}", "z")
            yield insert(key, *expected[key])
    if step % 7 == 3:  # the stored value is wanted
        key = chance.choice(list(expected))
        expected[key] = ("kept", expected[key][1])
        yield update(key, "kept", UNCHANGED)
    moved, free, big = chance.choice(list(expected)), 10_000 + step, "m" if step % 5 else UNCHANGED
    expected[free] = ("moved", expected[moved][1] if big is UNCHANGED else big)
    del expected[moved]
    yield update(free, "moved", big, before=(moved, None, None), before_kind=BEFORE_KEY)


def test_a_file_that_has_lost_much_is_written_again(sink: DeltaSink, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(by_vectors, "_SMALL_BYTES", 0)
    for step in range(5):
        flush(sink, task(sink, 100 + step, 101 + step), changes([gone(at) for at in range(60 * step, 60 * step + 60)]))
    assert vectors(sink) < 2
    assert len(DeltaTable(location(sink)).file_uris()) == 1
    assert sorted(rows(sink)) == list(range(300, 1_000))


def test_a_file_that_has_lost_all_goes(sink: DeltaSink) -> None:
    flush(sink, task(sink, 100, 110), changes([insert(5_000, "n", "n")]))
    flush(sink, task(sink, 110, 120), changes([update(5_000, "m", "m")]))
    assert len(DeltaTable(location(sink)).file_uris()) == 2
    assert rows(sink)[5_000] == ("m", "m")


def test_a_truncate_takes_all(sink: DeltaSink) -> None:
    flush(sink, task(sink, 100, 110), changes([gone(1)]))
    flush(sink, task(sink, 110, 120), changes([truncate(), insert(5, "n", "n")]))
    flush(sink, task(sink, 120, 130), changes([update(5, "m", "m")]))
    assert rows(sink) == {5: ("m", "m")}


def test_spans_of_one_table_meet_in_its_log(sink: DeltaSink) -> None:
    """Another writer's commit between reading and committing: decided again on what it left."""
    other = TableSpan(SPAN.table_id, 0, 1 << 63)
    place = sink.place(KEYED)
    with delta_log.borrowed(place) as log:
        assert log is not None
        flush(sink, task(sink, 100, 110), changes([gone(1)]))
        foreign = replace(task(sink, 100, 110), span=other)
        with pytest.raises(CommitFailedError, match="exists"):
            log.commit("WRITE", [{"txn": {"appId": f"weir/feed/{foreign.span}", "version": 110}}])
        log.refresh()
        assert log.transaction_version(f"weir/feed/{SPAN}") == 110


def test_delta_rs_gives_way_to_a_vector_that_came_meanwhile(sink: DeltaSink) -> None:
    """A compaction or a merge that began before it would bring the rows back."""
    late = [DeltaTable(location(sink)) for _ in range(2)]
    flush(sink, task(sink, 100, 110), changes([insert(5_000, "n", "n")]))
    flush(sink, task(sink, 110, 120), changes([gone(1), gone(5_000)]))
    with pytest.raises(CommitFailedError):
        late[0].optimize.z_order(["id"])
    rest = pa.table({"id": [2], "name": ["late"]})
    merging = late[1].merge(rest, "t.id = s.id", source_alias="s", target_alias="t")
    with pytest.raises(CommitFailedError):
        merging.when_matched_update({"name": "s.name"}).execute()
    assert rows(sink) == {row[0]: row[1:] for row in ROWS if row[0] != 1}


def test_another_file_of_the_same_name_has_its_own_keys(tmp_path: Path) -> None:
    """A snapshot's files are named by its Ts: so a new one may have the names of the last."""
    first = loaded(tmp_path / "lake")
    flush(first, task(first, 100, 110), changes([gone(3)]))
    shutil.rmtree(tmp_path / "lake")
    second = loaded(tmp_path / "lake", ROWS[::-1])
    flush(second, task(second, 100, 110), changes([gone(3)]))
    assert sorted(rows(second)) == [at for at in range(1_000) if at != 3]


def test_a_table_that_was_replaced_is_read_from_its_begin(tmp_path: Path) -> None:
    first = loaded(tmp_path / "lake")
    for step in range(3):
        flush(first, task(first, 100 + step, 101 + step), changes([gone(step)]))
    (tmp_path / "lake").rename(tmp_path / "old")
    second = loaded(tmp_path / "lake")
    for step in range(5):
        assert flush(second, task(second, 100 + step, 101 + step), changes([update(step, "b", "y")])).committed
    assert len(rows(second)) == 1_000
    assert [rows(second)[at] for at in range(6)] == [("b", "y")] * 5 + [("a", "x")]


def test_a_log_of_which_only_a_checkpoint_is_left(tmp_path: Path) -> None:
    """Nothing tells it from another table's: so it is read again each time."""
    sinks = [loaded(tmp_path / name) for name in ("lake", "other")]
    for sink in sinks:
        flush(sink, task(sink, 100, 110), changes([gone(1)]))
        DeltaTable(location(sink)).create_checkpoint()
        for commit in (Path(location(sink)) / "_delta_log").glob("*.json"):
            commit.unlink()
    flush(sinks[1], task(sinks[1], 110, 120), changes([gone(2)]))
    place = sinks[0].place(KEYED)
    for name, recorded in (("lake", 110), ("other", 120)):
        if name == "other":
            shutil.rmtree(tmp_path / "lake")
            (tmp_path / "other").rename(tmp_path / "lake")
        with delta_log.borrowed(place) as log:
            assert log is not None
            assert log.transaction_version(f"weir/feed/{SPAN}") == recorded


def test_a_table_that_asks_for_more_is_left_to_delta_rs(sink: DeltaSink) -> None:
    DeltaTable(location(sink)).alter.add_constraint({"positive": "id >= 0"})
    with delta_log.borrowed(sink.place(KEYED)) as log:
        assert log is None
    flush(sink, task(sink, 100, 110), changes([gone(1), update(2, "b", "y")]))
    assert rows(sink)[2] == ("b", "y")
    assert 1 not in rows(sink)


def test_the_option_is_checked() -> None:
    with pytest.raises(SinkUriError, match="should be 'true' or 'false'"):
        open_sink("delta+file:///lake?deletion_vectors=1", changefeed="feed", mode=SinkMode.UPSERT)


@given(st.sets(st.one_of(st.integers(0, 200_000), st.integers(0, 70_000), st.integers(0, 1 << 31)), max_size=300))
def test_a_vector_is_read_as_it_was_written(found: set[int]) -> None:
    positions = np.array(sorted(found), np.int64)
    descriptor = deletion_vectors.encode(positions)
    back = deletion_vectors.decode(descriptor)
    assert back is not None
    assert back.tolist() == positions.tolist()
    assert descriptor["cardinality"] == len(found)


@pytest.mark.parametrize("count", [4_096, 4_097, 65_536, 70_000])
def test_dense_vectors(count: int) -> None:
    back = deletion_vectors.decode(deletion_vectors.encode(np.arange(3, count + 3)))
    assert back is not None
    assert back.tolist() == list(range(3, count + 3))
