"""The sink contract on Delta, in both modes, and what is special about each mode."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from agent.errors import (
    SinkConfigError,
    SinkError,
    SinkFencedError,
    SinkPassingError,
    TableForeignError,
    TableHeldError,
)
from agent.ports.sink import FeedContext, FlushResult, FlushTask, StagedFile
from agent.rows.changes import BEFORE_FULL, BEFORE_KEY, Changes
from agent.sinks import open_sink
from agent.sinks.delta.sink import DeltaSink
from agent.sinks.delta.table import files
from agent.sinks.delta.upkeep import upkeep
from agent.sinks.delta.upkeep.upkeep import compact_small_files, remove_replaced_files
from agent.sinks.delta.upsert import by_vectors
from reactor.ids import TableSpan, Ts
from reactor.records.changefeed import SinkMode
from reactor.records.tables.table import TableRecord
from tests.unit.agent.changes_build import (
    ARROW,
    UNCHANGED,
    changes,
    delete,
    insert,
    table_schema,
    truncate,
    update,
)

SPAN = TableSpan(16384)
KEYED = TableRecord(table_id=16384, schema_name="public", name="t", key=("id",), start_ts=Ts(100))
KEYLESS = KEYED.with_(key=())

both_modes = pytest.mark.parametrize("mode", [SinkMode.UPSERT, SinkMode.CHANGELOG])


def sink_at(directory: Path, mode: SinkMode = SinkMode.UPSERT, changefeed: str = "feed") -> DeltaSink:
    sink = open_sink(f"delta+file://{directory}", changefeed=changefeed, mode=mode)
    assert isinstance(sink, DeltaSink)
    return sink


def loaded(
    directory: Path,
    mode: SinkMode = SinkMode.UPSERT,
    *,
    rows: Sequence[tuple[Any, ...]] = (),
    table: TableRecord = KEYED,
) -> DeltaSink:
    """A sink whose table holds ``rows`` at Ts 100."""
    sink = sink_at(directory, mode)
    batch = changes([insert(*row) for row in rows]).after
    staged = sink.stage(KEYED, "0", iter([batch]), Ts(100)) if rows else []
    sink.load(table, table_schema(), ARROW, staged)
    return sink


def task(
    sink: DeltaSink, from_ts: int, to_ts: int, *, table: TableRecord = KEYED, part: int = 0, parts: int = 1
) -> FlushTask:
    return FlushTask(
        FeedContext("feed", "", sink._owner.mode),
        span=SPAN,
        table=table,
        segments=(),
        from_ts=Ts(from_ts),
        to_ts=Ts(to_ts),
        part=part,
        parts=parts,
    )


def flush(sink: DeltaSink, order: FlushTask, *parts: Changes) -> FlushResult:
    """Flush, and wait for the upkeep that it may begin, which writes in the table's directory too."""
    [result] = sink.commit([order], [sink.write(order, parts)])
    for thread in threading.enumerate():
        if thread.name == "delta-upkeep":
            thread.join()
    return result


def rows(sink: DeltaSink, *columns: str) -> list[tuple[Any, ...]]:
    place = sink.place(KEYED)
    names = list(columns) or ["id", "name", "big"]
    table = DeltaTable(place.location).to_pyarrow_table(columns=names)
    return sorted((tuple(row.values()) for row in table.to_pylist()), key=repr)


# the contract


@both_modes
def test_the_record_moves_with_the_data(tmp_path: Path, mode: SinkMode) -> None:
    sink = loaded(tmp_path, mode, rows=[(1, "a", "x")])
    assert sink.committed_ts(KEYED, SPAN) == 100
    result = flush(sink, task(sink, 100, 200), changes([insert(2, "b", "y"), update(1, "c", "z")], commit_time=5.0))
    assert (result.committed, result.rows, result.commit_time, result.error) == (True, 2, 5.0, "")
    assert sink.committed_ts(KEYED, SPAN) == 200


@both_modes
def test_the_same_range_again_changes_nothing(tmp_path: Path, mode: SinkMode) -> None:
    sink = loaded(tmp_path, mode, rows=[(1, "a", "x")])
    order, part = task(sink, 100, 200), changes([insert(2, "b", "y"), update(1, "c", "z")])
    flush(sink, order, part)
    before = rows(sink)
    assert flush(sink, order, part).committed
    late = sink.commit([order], [replace(sink.write(order, iter([part])), committed=False)])
    assert late[0].error == ""
    assert rows(sink) == before


@both_modes
def test_another_position_is_refused(tmp_path: Path, mode: SinkMode) -> None:
    sink = loaded(tmp_path, mode)
    part = changes([insert(2, "b", "y")])
    with pytest.raises(SinkFencedError, match=r"records 100 for span 16384:.* of public\.t, this writer expects 90"):
        flush(sink, task(sink, 90, 200), part)
    with pytest.raises(TableForeignError, match=r"table public\.t was set back: it records 100, and 150 was written"):
        flush(sink, task(sink, 150, 200), part)
    assert rows(sink) == []


def test_files_of_a_late_writer_are_refused_at_commit(tmp_path: Path) -> None:
    sink = loaded(tmp_path, SinkMode.CHANGELOG)
    order, part = task(sink, 100, 200), changes([insert(2, "b", "y")])
    written = sink.write(order, iter([part]))
    flush(sink, task(sink, 100, 250), part)
    [result] = sink.commit([order], [written])
    assert (result.committed, result.error_code, result.retryable) == (False, "SinkFenced", False)
    assert len(rows(sink)) == 1


@both_modes
def test_of_two_writers_of_one_range_one_wins(tmp_path: Path, mode: SinkMode) -> None:
    sink = loaded(tmp_path, mode, rows=[(at, "a", "x") for at in range(50)])
    part = changes([update(at, "b", "y") for at in range(50)] + [insert(99, "n", "n")])

    for start in (100, 300, 500):
        if start > 100:
            assert flush(sink, task(sink, sink.committed_ts(KEYED, SPAN) or 0, start), part).committed
        orders = [task(sink, start, start + 10 + at) for at in range(4)]
        with ThreadPoolExecutor(4) as pool:
            results = list(pool.map(lambda item: _try(sink_at(tmp_path, mode), item, part), orders))
        assert sum(result == "won" for result in results) == 1
        assert set(results) <= {"won", "SinkFenced"}
    count = len(rows(sink))
    assert count == (51 if mode == SinkMode.UPSERT else 50 + 5 * 51)


def _try(sink: DeltaSink, order: FlushTask, part: Changes) -> str:
    try:
        result = flush(sink, order, part)
    except SinkError as error:
        return error.code
    return "won" if result.committed else result.error_code


def _write_and_die(directory: Path, mode: SinkMode) -> None:
    sink = sink_at(directory, mode)
    order = task(sink, 100, 200)
    sink.write(order, iter([changes([update(1, "c", "z"), insert(2, "b", "y")])]))
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_writer_killed_between_files_and_commit_leaves_no_row(tmp_path: Path) -> None:
    sink = loaded(tmp_path, SinkMode.CHANGELOG, rows=[(1, "a", "x")])
    child = multiprocessing.get_context("spawn").Process(target=_write_and_die, args=(tmp_path, SinkMode.CHANGELOG))
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    assert [name for name in os.listdir(tmp_path / "public" / "t") if name.startswith("changes-")]
    assert rows(sink) == [(1, "a", "x")]
    assert sink.committed_ts(KEYED, SPAN) == 100
    assert flush(sink, task(sink, 100, 200), changes([insert(2, "b", "y")])).committed
    assert len(rows(sink)) == 2


@both_modes
def test_a_range_without_changes_leaves_the_record(tmp_path: Path, mode: SinkMode) -> None:
    sink = loaded(tmp_path, mode)
    result = flush(sink, task(sink, 100, 200))
    assert (result.committed, result.error, result.to_ts) == (False, "", 200)
    assert sink.committed_ts(KEYED, SPAN) == 100
    assert flush(sink, task(sink, 100, 300), changes([insert(1, "a", "x")])).committed


# upsert


def test_upsert_equals_the_source(tmp_path: Path) -> None:
    sink = loaded(tmp_path, rows=[(1, "a", "x"), (2, "b", "y"), (3, "c", "z")])
    moved = update(7, "m", UNCHANGED, before=(3, None, None), before_kind=BEFORE_KEY)
    part = changes([update(1, "aa", UNCHANGED), delete(2, None, None), insert(4, "d", None), moved])
    assert flush(sink, task(sink, 100, 200), part).committed
    assert rows(sink) == [(1, "aa", "x"), (4, "d", None), (7, "m", "z")]


def test_deleting_what_is_not_there_changes_nothing(tmp_path: Path) -> None:
    sink = loaded(tmp_path, rows=[(1, "a", "x")])
    result = flush(sink, task(sink, 100, 200), changes([delete(5, None, None)]))
    assert (result.committed, result.error) == (False, "")
    assert sink.committed_ts(KEYED, SPAN) == 100


def test_new_keys_are_appended_without_a_merge(tmp_path: Path) -> None:
    sink = loaded(tmp_path, rows=[(1, "a", "x")])
    part = changes([insert(2, "b", "y"), update(2, "c", UNCHANGED), insert(3, "d", "z"), delete(3, None, None)])
    assert flush(sink, task(sink, 100, 200), part).committed
    assert rows(sink) == [(1, "a", "x"), (2, "c", "y")]
    assert DeltaTable(sink.place(KEYED).location).history(1)[0]["operation"] == "WRITE"


def test_a_replayed_insert_does_not_double_a_row(tmp_path: Path) -> None:
    resumed = KEYED.with_(consistent_ts=Ts(150))
    sink = loaded(tmp_path, rows=[(1, "a", "x"), (2, "b", "y")], table=resumed)
    assert flush(
        sink, task(sink, 100, 200, table=resumed), changes([insert(2, "b", "y"), update(2, "c", "y")])
    ).committed
    assert rows(sink) == [(1, "a", "x"), (2, "c", "y")]


def test_truncate_empties_the_table(tmp_path: Path) -> None:
    sink = loaded(tmp_path, rows=[(1, "a", "x")])
    assert flush(sink, task(sink, 100, 200), changes([insert(2, "b", "y"), truncate(), insert(3, "c", "z")])).committed
    assert rows(sink) == [(3, "c", "z")]
    assert flush(sink, task(sink, 200, 300), changes([truncate()])).committed
    assert rows(sink) == []
    assert sink.committed_ts(KEYED, SPAN) == 300


def test_a_table_without_a_key_is_appended_to(tmp_path: Path) -> None:
    sink = loaded(tmp_path, rows=[(1, "a", "x")], table=KEYLESS)
    order = task(sink, 100, 200, table=KEYLESS)
    assert flush(sink, order, changes([insert(1, "a", "x"), insert(1, "a", "x")])).committed
    assert len(rows(sink)) == 3
    again = task(sink, 200, 300, table=KEYLESS)
    assert flush(sink, again, changes([insert(1, "a", "x"), truncate(), insert(2, "b", "y")])).committed
    assert rows(sink) == [(2, "b", "y")]
    with pytest.raises(TableHeldError, match=r"public\.t has no key, and a row of it was updated or deleted") as caught:
        flush(sink, task(sink, 300, 400, table=KEYLESS), changes([update(2, "c", "y")]))
    assert not caught.value.retryable


def test_columns_that_come_later_are_added(tmp_path: Path) -> None:
    sink = loaded(tmp_path, rows=[(1, "a", "x"), (2, "b", "y")])
    wider = pa.schema([*ARROW, ("at", pa.time64("us"))])
    part = changes([update(1, "c", UNCHANGED, time(1, 2, 3, 450000)), insert(3, "d", "z", time(4, 5))], arrow=wider)
    assert flush(sink, task(sink, 100, 200), part).committed
    assert rows(sink, "id", "big", "at") == [(1, "x", "01:02:03.450000"), (2, "y", None), (3, "z", "04:05:00")]


def test_a_column_of_another_type_is_refused(tmp_path: Path) -> None:
    sink = loaded(tmp_path, rows=[(1, "a", "x")])
    other = pa.schema([("id", pa.int64()), ("name", pa.int32()), ("big", pa.string())])
    with pytest.raises(TableHeldError, match=r"column name of public\.t is string in the sink and int32 in the source"):
        flush(sink, task(sink, 100, 200), changes([update(1, 5, "x")], arrow=other))


ODD = pa.schema([("Id Of `row".replace("`", "'"), pa.int32()), ("sélect", pa.decimal128(12, 2)), ("a.b", pa.date32())])


def test_odd_names_and_types_go_through_a_merge(tmp_path: Path) -> None:
    key = ODD.names[0]
    record = KEYED.with_(key=(key,))
    sink = sink_at(tmp_path)
    sink.load(record, table_schema(ODD, key=(key,)), ODD, [])
    first = changes([insert(1, Decimal("1.50"), date(2020, 2, 3)), insert(2, None, None)], arrow=ODD, key=(key,))
    assert flush(sink, task(sink, 100, 200, table=record), first).committed
    second = changes([update(1, UNCHANGED, date(1, 1, 1)), delete(2, None, None)], arrow=ODD, key=(key,))
    assert flush(sink, task(sink, 200, 300, table=record), second).committed
    assert rows(sink, *ODD.names) == [(1, Decimal("1.50"), date(1, 1, 1))]


# changelog


def test_changelog_has_every_change_in_order(tmp_path: Path) -> None:
    sink = loaded(tmp_path, SinkMode.CHANGELOG, rows=[(1, "a", "x")])
    part = changes(
        [
            insert(2, "b", "y", ts=150),
            update(2, "c", UNCHANGED, ts=160),
            update(1, "d", UNCHANGED, before=(1, "a", "x"), before_kind=BEFORE_FULL, ts=160),
            update(5, "e", UNCHANGED, before=(2, None, None), before_kind=BEFORE_KEY, ts=165),
            delete(5, None, None, ts=170),
            truncate(ts=180),
        ],
        commit_time=1_700_000_000.25,
    )
    assert flush(sink, task(sink, 100, 200), part).rows == 6
    place = sink.place(KEYED)
    table = (
        DeltaTable(place.location)
        .to_pyarrow_table()
        .sort_by([("_commit_version", "ascending"), ("_commit_seq", "ascending")])
    )
    images = [(row["_change_type"], row["id"], row["name"], row["big"], row["_unchanged"]) for row in table.to_pylist()]
    assert images == [
        ("insert", 1, "a", "x", None),
        ("insert", 2, "b", "y", None),
        ("update_postimage", 2, "c", None, ["big"]),
        ("update_preimage", 1, "a", "x", None),
        ("update_postimage", 1, "d", "x", None),
        ("delete", 2, None, None, None),
        ("insert", 5, "e", None, ["big"]),
        ("delete", 5, None, None, None),
        ("truncate", None, None, None, None),
    ]
    assert table.column("_commit_version").to_pylist() == [100, 150, 160, 160, 160, 165, 165, 170, 180]
    moments = table.column("_commit_timestamp").to_pylist()
    assert moments[0] is None
    assert moments[1] == datetime.fromtimestamp(1_700_000_000.25, UTC)


def test_parts_of_a_backlog_become_visible_together(tmp_path: Path) -> None:
    sink = loaded(tmp_path, SinkMode.CHANGELOG)
    orders = [task(sink, 100, 200, part=at, parts=3) for at in range(3)]
    results = [sink.write(order, iter([changes([insert(order.part, "a", "x")])])) for order in orders]
    assert rows(sink) == []
    failed = [*results[:2], replace(results[2], error="disk full; make room", error_code="SinkConfig")]
    assert [result.error_code for result in sink.commit(orders, failed)] == ["SinkConfig"] * 3
    assert rows(sink) == []
    assert all(result.committed for result in sink.commit(orders, results))
    assert len(rows(sink)) == 3
    assert DeltaTable(sink.place(KEYED).location).version() == 1


# loading, ownership, upkeep


@both_modes
def test_load_takes_staged_files_over_once(tmp_path: Path, mode: SinkMode) -> None:
    sink = sink_at(tmp_path, mode)
    batch = changes([insert(1, "a", "x"), insert(2, "b", None)]).after
    staged: list[StagedFile] = []
    for _ in range(2):  # a chunk that is staged again is the same file
        staged = sink.stage(KEYED, "chunk/1", iter([batch]), Ts(100))
    assert sink.committed_ts(KEYED, SPAN) is None
    before = os.stat(staged[0].path)
    for _ in range(2):
        sink.load(KEYED, table_schema(), ARROW, staged)
    assert os.stat(staged[0].path) == before
    assert rows(sink) == [(1, "a", "x"), (2, "b", None)]
    assert DeltaTable(sink.place(KEYED).location).version() == 0
    with pytest.raises(TableForeignError, match="holds a table that an earlier changefeed 'feed' loaded"):
        sink.load(KEYED.with_(start_ts=Ts(101)), table_schema(), ARROW, staged)


def test_statistics_let_readers_skip_files(tmp_path: Path) -> None:
    arrow = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", "UTC")), ("d", pa.date32()), ("s", pa.string())])
    sink = sink_at(tmp_path)
    moment = datetime(2024, 5, 6, 7, 8, 9, 123456, UTC)
    batch = pa.record_batch([[1, 5], [moment, None], [date(2024, 1, 1), date(2025, 1, 1)], ["a", "b"]], schema=arrow)
    [staged] = sink.stage(KEYED, "0", iter([batch]), Ts(100))
    stats = files.DataFile.from_json(staged.stats).stats
    assert '"maxValues": {"id": 5, "at": "2024-05-06T07:08:09.124Z", "d": "2025-01-01", "s": "b"}' in stats
    sink.load(KEYED, table_schema(arrow), arrow, [staged])
    table = DeltaTable(sink.place(KEYED).location)
    assert pa.table(table.scan(predicate="id = 5")).num_rows == 1
    assert pa.table(table.scan(predicate="at >= '2024-05-06T07:08:09.123456Z'")).num_rows == 1
    assert pa.table(table.scan(predicate="id > 5")).num_rows == 0


def test_somebody_elses_table_is_refused(tmp_path: Path) -> None:
    loaded(tmp_path)
    sink_at(tmp_path).check([KEYED])
    with pytest.raises(TableForeignError, match="is written by changefeed 'feed'; choose another sink directory"):
        sink_at(tmp_path, changefeed="other").check([KEYED])
    with pytest.raises(TableForeignError, match="is written in upsert mode"):
        sink_at(tmp_path, SinkMode.CHANGELOG).check([KEYED])
    write_deltalake(tmp_path / "public" / "u", pa.table({"x": [1]}))
    with pytest.raises(TableForeignError, match="holds a Delta table that is not Weir's"):
        sink_at(tmp_path).check([KEYED.with_(name="u")])
    (tmp_path / "public" / "v").mkdir()
    (tmp_path / "public" / "v" / "notes.txt").write_text("mine")
    with pytest.raises(TableForeignError, match="is not empty"):
        sink_at(tmp_path).check([KEYED.with_(name="v")])


def test_an_unwritable_directory_is_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SinkConfigError, match=r"sink directory .* is not writable"):
        sink_at(tmp_path / "file" / "lake").check([KEYED])
    sink_at(tmp_path / "a" / "b").check([KEYED])
    assert os.listdir(tmp_path) == ["file"]


def test_a_missing_table_is_one_line(tmp_path: Path) -> None:
    sink = sink_at(tmp_path)
    with pytest.raises(SinkPassingError, match="is not the one that was written"):
        sink.committed_ts(KEYED, SPAN)
    other = KEYED.with_(name="other", table_id=2)
    sink.load(other, table_schema(), ARROW, [])
    assert sink.committed_ts(KEYED, SPAN) is None
    with pytest.raises(TableForeignError, match="there is no Delta table at"):
        sink.write(task(sink, 100, 200), iter(()))


def test_upkeep_keeps_rows_and_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(by_vectors, "SMALL_MAX", 1_000)  # else flushes do it by themselves
    sink = open_sink(f"delta+file://{tmp_path}?retention_seconds=0", changefeed="feed", mode=SinkMode.UPSERT)
    assert isinstance(sink, DeltaSink)
    sink.load(KEYED, table_schema(), ARROW, [])
    for at in range(110):
        flush(sink, task(sink, 100 + at, 101 + at), changes([insert(at, "a", "x")]))
    place = sink.place(KEYED)
    assert compact_small_files(place) == 110
    table = DeltaTable(place.location)
    assert len(table.file_uris()) == 1
    assert flush(sink, task(sink, 210, 211), changes([update(1, "b", "y")])).committed
    table.update_incremental()
    table.create_checkpoint()
    orphan = tmp_path / "public" / "t" / "changes-1-2-0-deadbeef.parquet"
    orphan.write_bytes(b"")
    os.utime(orphan, (1, 1))
    assert len(remove_replaced_files(sink.place(KEYED))) >= 111
    assert not orphan.exists()
    assert len(rows(sink)) == 110
    assert sink.committed_ts(KEYED, SPAN) == 211


def test_upkeep_waits_for_its_turn_and_never_fails_a_flush(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = loaded(tmp_path, rows=[(1, "a", "x")])
    place = sink.place(KEYED)
    assert upkeep.begin_if_due(place, retention_s=3600) is None
    monkeypatch.setattr(upkeep, "_COMPACT_EVERY_S", -1.0)
    monkeypatch.setattr(upkeep, "_VACUUM_EVERY_S", -1.0)
    for location in (place, sink.place(KEYED.with_(name="missing"))):
        thread = upkeep.begin_if_due(location, retention_s=3600)
        assert thread is not None
        thread.join()
    assert rows(sink) == [(1, "a", "x")]


# one large transaction
