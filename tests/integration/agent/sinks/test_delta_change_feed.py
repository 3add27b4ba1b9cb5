"""Change feed: what readers of changes make of an upserted table's commits, against the table at each version."""

from collections import Counter
from importlib import import_module
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from agent.errors import SinkUriError, TableHeldError
from agent.ports.sink import Alters, Maintains, Repairs, Replaces, RowRepair
from agent.rows.changes import BEFORE_KEY
from agent.rows.schema_change import ColumnMove, SchemaChange
from agent.sinks.delta.options import DeltaOptions
from agent.sinks.delta.table import change_feed
from agent.sinks.delta.upkeep import upkeep
from agent.sinks.delta.upsert import by_vectors, large
from reactor.ids import Ts
from reactor.records.changefeed import SinkMode
from reactor.records.tables.schema_change import SchemaChangeKind
from tests.contracts.change_feed import assert_plays_back
from tests.contracts.sink_bed import SPAN, TABLE, Bed
from tests.integration.agent.sinks.delta.story import COLUMNS, Story
from tests.unit.agent.changes_build import ARROW, UNCHANGED, changes, delete, insert, table_schema, truncate, update

_FEED = "change_data_feed=true"
_ROWS = ((1, "a", "x"), (2, "b", "y"), (3, "c", "z"))


def _bed(tmp_path: Path, *options: str, mode: SinkMode = SinkMode.UPSERT) -> Bed:
    return Bed(f"delta+file://{tmp_path}/lake?{'&'.join((_FEED, *options))}", mode)


def _location(bed: Bed) -> str:
    return f"{bed.uri.removeprefix('delta+file://').partition('?')[0]}/{TABLE.path}"


def _changes(bed: Bed) -> list[tuple[int, str, tuple[Any, ...]]]:
    return assert_plays_back(_location(bed), TABLE.key)


def _newest(bed: Bed) -> list[tuple[str, tuple[Any, ...]]]:
    version = DeltaTable(_location(bed)).version()
    return [(kind, row) for at, kind, row in _changes(bed) if at == version]


def _change_files(bed: Bed) -> list[Path]:
    return list((Path(_location(bed)) / change_feed.DIRECTORY).rglob("*.parquet"))


@pytest.mark.sample(0.08)
@pytest.mark.parametrize("options", ["", "&soft_delete=true&synced_at=true"], ids=["plain", "marks"])
@pytest.mark.parametrize("vectors", [True, False], ids=["vectors", "rewritten"])
@pytest.mark.parametrize("is_large", [True, False], ids=["in-parts", "whole"])
def test_every_version_follows_from_the_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_large: bool, vectors: bool, options: str
) -> None:
    """Changes of all types of columns, keys that change, values left out, two spans, care, new and dropped columns."""
    monkeypatch.setattr(by_vectors, "SMALL_MAX", 3)
    monkeypatch.setattr(by_vectors, "_SMALL_BYTES", 30_000)
    if is_large:
        monkeypatch.setattr(large, "_WHOLE_BYTES", 0)
    story = Story(tmp_path, SinkMode.UPSERT, vectors=vectors, options=f"&{_FEED}{options}")
    story.load(200)
    for turn in range(14):
        story.flush([*story.some_changes(), *(story.leave_out() if turn % 3 == 0 else ())])
        match turn:
            case 4:
                story.cut(2)
            case 6:
                story.alter(
                    pa.schema([*COLUMNS, pa.field("new", pa.string()), pa.field("filled", pa.int32())]), filled=7
                )
            case 8:
                upkeep.maintain(story.sink.place(TABLE))
            case 9:
                story.flush(story.truncate())
            case 11:
                story.alter(pa.schema([item for item in story.columns if item.name not in ("f", "raw")]))
    found = assert_plays_back(story.location, TABLE.key)
    kinds = Counter(kind for _, kind, _ in found)
    assert min(kinds[kind] for kind in ("insert", "update_postimage")) > 20
    assert "soft_delete" in options or kinds["delete"] > 20
    if not options:
        last = DeltaTable(story.location).version()
        newest = {row[0] for at, kind, row in found if at == last and kind in ("insert", "update_postimage")}
        assert newest <= set(story.rows)


@pytest.mark.parametrize("options", [(), ("deletion_vectors=true",)], ids=["rewritten", "vectors"])
def test_a_commit_says_which_rows_it_changes_and_nothing_of_others(tmp_path: Path, options: tuple[str, ...]) -> None:
    bed = _bed(tmp_path, *options)
    bed.load(*_ROWS)
    assert _newest(bed) == [("insert", row) for row in _ROWS]
    moved = update(20, "bb", "y", before=(2, None, None), before_kind=BEFORE_KEY, ts=106)
    some = [update(1, "aa", UNCHANGED, ts=105), moved, insert(9, "n", None, ts=106), insert(8, "gone", "again", ts=107)]
    assert bed.flush(100, 110, [*some, delete(8, None, None, ts=108), delete(7, None, None, ts=109)]).committed
    assert _newest(bed) == [
        ("delete", (2, "b", "y")),
        ("insert", (20, "bb", "y")),
        ("insert", (9, "n", None)),
        ("update_postimage", (1, "aa", "x")),
        ("update_preimage", (1, "a", "x")),
    ]
    [_] = _change_files(bed)
    assert bed.flush(110, 120, [insert(10, "n", "m", ts=115)]).committed
    assert _newest(bed) == [("insert", (10, "n", "m"))]
    assert len(_change_files(bed)) == 1, "new rows are in the data files alone"
    rest = [truncate(ts=125), insert(9, "n", None, ts=126), insert(1, "A", "X", ts=126)]
    assert bed.flush(120, 130, rest).committed
    assert _newest(bed) == [
        ("delete", (10, "n", "m")),
        ("delete", (20, "bb", "y")),
        ("delete", (3, "c", "z")),
        ("update_postimage", (1, "A", "X")),
        ("update_preimage", (1, "aa", "x")),
    ]


@pytest.mark.parametrize("vectors", ["true", "false"])
def test_the_kernel_reads_the_same_changes(tmp_path: Path, vectors: str) -> None:
    bed = _bed(tmp_path, f"deletion_vectors={vectors}")
    bed.load(*_ROWS)
    for at in range(4):
        parts = [update(1, f"a{at}", "x", ts=105 + at), insert(10 + at, "n", "m", ts=105 + at)]
        parts += [truncate(ts=105 + at)] if at == 2 else [delete(10 + at - 1, None, None, ts=105 + at)]
        assert bed.flush(100 + at, 101 + at, parts).committed
    expected = _changes(bed)
    kernel, address = import_module("delta_kernel_rust_sharing_wrapper"), f"file://{_location(bed)}"
    interface = kernel.PythonInterface(address)
    scan = kernel.TableChangesScanBuilder(kernel.Table(address), interface, 0, 4).build()
    found = pa.table(scan.execute(interface).read_all()).to_pylist()
    assert (
        sorted(
            ((row["_commit_version"], row["_change_type"], (row["id"], row["name"], row["big"])) for row in found),
            key=repr,
        )
        == expected
    )


def test_a_copy_changes_what_differs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where it is compared in parts; one that is the same changes nothing."""
    monkeypatch.setattr(change_feed, "KEYS_MAX", 4)
    bed = _bed(tmp_path, "deletion_vectors=true")
    bed.load(*_ROWS)
    sink = bed.open()
    assert isinstance(sink, Replaces)
    sink.replace(bed.copied(200, *_ROWS))
    assert _newest(bed) == []
    sink.replace(bed.copied(300, (1, "a", "x"), (2, "B", "y"), (4, None, None)))
    assert _newest(bed) == [
        ("delete", (3, "c", "z")),
        ("insert", (4, None, None)),
        ("update_postimage", (2, "B", "y")),
        ("update_preimage", (2, "b", "y")),
    ]


def _alter(bed: Bed, ts: int, *moves: ColumnMove) -> pa.Schema:
    sink, after = bed.open(), pa.schema([(move.name, move.type) for move in moves])
    assert isinstance(sink, Alters)
    sink.alter([SchemaChange(Ts(ts), SchemaChangeKind.ALTER, TABLE, TABLE, moves, table_schema(after), after)])
    return after


_ID, _NAME, _BIG = (ColumnMove(item.name, item.type, item.name) for item in ARROW)


def test_changed_columns_change_the_rows_that_have_other_values_under_a_name(tmp_path: Path) -> None:
    """So whoever plays the changes back with the newest columns has the table, and a name that is used again does not
    bring back what was dropped. Other types and new columns without values change no row."""
    bed = _bed(tmp_path, "deletion_vectors=true")
    bed.load((1, "a", "x"), (2, None, None))
    _alter(bed, 101, _ID, _NAME, _BIG, ColumnMove("n", pa.int32(), None))
    assert _newest(bed) == []
    _alter(bed, 102, _ID, _NAME, _BIG, ColumnMove("n", pa.int64(), "n"))
    assert _newest(bed) == []
    _alter(bed, 103, _ID, ColumnMove("title", pa.string(), "name"), _BIG, ColumnMove("n", pa.int64(), "n"))
    assert _newest(bed) == [
        ("update_postimage", (1, "a", "x", None)),
        ("update_preimage", (1, None, "x", None)),
    ]
    _alter(bed, 104, _ID, ColumnMove("title", pa.string(), "title"), ColumnMove("n", pa.int64(), "n"))
    _alter(bed, 105, _ID, ColumnMove("title", pa.string(), "title"), ColumnMove("big", pa.string(), None))
    assert {row for at, kind, row in _changes(bed) if kind == "update_preimage"} == {(1, None, "x"), (1, "a", "x")}
    wide = _alter(bed, 106, _ID, _BIG, ColumnMove("filled", pa.int32(), None, pa.scalar(7)))
    assert {row for kind, row in _newest(bed)} == {(1, None, None), (2, None, None), (1, None, 7), (2, None, 7)}
    assert bed.flush(100, 110, [update(1, "b", 8, ts=107)], arrow=wide).committed
    assert _newest(bed) == [("update_postimage", (1, "b", 8)), ("update_preimage", (1, None, 7))]


def test_what_delta_rs_merges_has_its_changes_too(tmp_path: Path) -> None:
    """Repaired rows, and rows that lack a column of the table."""
    bed = _bed(tmp_path, "deletion_vectors=true")
    bed.load(*_ROWS)
    assert bed.flush(100, 110, [delete(3, None, None, ts=105)]).committed
    sink = bed.open()
    assert isinstance(sink, Repairs)
    sink.repair(RowRepair(TABLE, (SPAN,), Ts(110), changes([update(1, "r", "r", ts=110), delete(2, "b", "y", ts=110)])))
    assert _newest(bed) == [
        ("delete", (2, "b", "y")),
        ("update_postimage", (1, "r", "r")),
        ("update_preimage", (1, "a", "x")),
    ]
    wide = pa.schema([*ARROW, ("late", pa.string())])
    assert bed.flush(110, 120, [insert(4, "n", "m", "l", ts=115)], arrow=wide).committed
    assert bed.flush(120, 130, [update(1, "again", "x", ts=125), insert(5, "n", "m", ts=126)]).committed
    assert _newest(bed) == [
        ("insert", (5, "n", "m", None)),
        ("update_postimage", (1, "again", "x", None)),
        ("update_preimage", (1, "r", "r", None)),
    ]


def test_changes_go_with_the_retention(tmp_path: Path) -> None:
    bed = _bed(tmp_path, "deletion_vectors=true", "retention_seconds=0")
    bed.load(*_ROWS)
    assert bed.flush(100, 110, [update(1, "aa", "x", ts=105)]).committed
    sink = bed.open()
    assert isinstance(sink, Maintains)
    assert len(_change_files(bed)) == 1
    sink.maintain(TABLE)
    assert _change_files(bed) == []
    assert isinstance(sink, Repairs)
    sink.repair(RowRepair(TABLE, (SPAN,), Ts(110), changes([update(1, "r", "r", ts=110)])))
    assert len(_change_files(bed)) == 1, "delta-rs's own"
    sink.maintain(TABLE)
    assert _change_files(bed) == []
    bed.assert_at(110)


def test_a_table_gets_a_feed_by_its_property(tmp_path: Path) -> None:
    """From then on; others may turn it on, and off again."""
    bed = Bed(f"delta+file://{tmp_path}/lake?deletion_vectors=true", SinkMode.UPSERT)
    bed.load(*_ROWS)
    assert bed.flush(100, 110, [update(1, "aa", "x", ts=105)]).committed
    DeltaTable(_location(bed)).alter.set_table_properties({change_feed.PROPERTY: "true"})
    since = DeltaTable(_location(bed)).version()
    assert bed.flush(110, 120, [update(1, "aaa", "x", ts=115)]).committed
    found = pa.table(DeltaTable(_location(bed)).load_cdf(starting_version=since).read_all())
    assert sorted(found.column("_change_type").to_pylist()) == ["update_postimage", "update_preimage"]
    DeltaTable(_location(bed)).alter.set_table_properties({change_feed.PROPERTY: "false"})
    assert bed.flush(120, 130, [update(1, "b", "x", ts=125)]).committed
    assert len(_change_files(bed)) == 1
    bed.assert_holds((1, "b", "x"), *_ROWS[1:])


def test_a_history_gets_a_feed_by_its_property(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(by_vectors, "SMALL_MAX", 2)
    bed = Bed(f"delta+file://{tmp_path}/lake", SinkMode.HISTORY)
    bed.load()
    DeltaTable(_location(bed)).alter.set_table_properties({change_feed.PROPERTY: "true"})
    for at in range(5):
        some = [insert(at, "a", "x", ts=105 + at * 10), update(0, f"a{at}", "x", ts=106 + at * 10)]
        assert bed.flush(100 + at * 10, 110 + at * 10, some).committed
    found = pa.table(DeltaTable(_location(bed)).load_cdf(starting_version=1).read_all())
    kinds = Counter(zip(*(found.column(name).to_pylist() for name in ("_commit_version", "_change_type")), strict=True))
    newest = DeltaTable(_location(bed)).version()
    assert kinds[newest, "delete"] == 1, "the version that has ended"
    assert kinds[newest, "insert"] == 3, "it with its end, and two new ones"
    net = found.num_rows - 2 * sum(count for (_, kind), count in kinds.items() if kind == "delete")
    assert net == pa.RecordBatchReader.from_stream(DeltaTable(_location(bed)).scan(columns=["id"])).read_all().num_rows


@pytest.mark.parametrize("name", ["_change_type", "_COMMIT_version", "_commit_timestamp"])
def test_names_of_a_feeds_own_columns_hold_the_table(tmp_path: Path, name: str) -> None:
    bed, wide = _bed(tmp_path), pa.schema([*ARROW, (name, pa.string())])
    said = f"column {name} of public.t has the name of a column of Delta's Change Data Feed; rename it"
    with pytest.raises(TableHeldError, match=said):
        bed.load_as(wide, (1, "a", "x", "t"))
    bed.load(*_ROWS)
    with pytest.raises(TableHeldError, match=said):
        _alter(bed, 101, _ID, _NAME, _BIG, ColumnMove(name, pa.string(), None))
    with pytest.raises(TableHeldError, match=said):
        bed.flush(100, 110, [insert(7, "n", "m", "t", ts=105)], arrow=wide)
    bed.assert_holds(*_ROWS)


@pytest.mark.parametrize("mode", [SinkMode.CHANGELOG, SinkMode.HISTORY])
def test_only_upserted_tables_have_one(tmp_path: Path, mode: SinkMode) -> None:
    with pytest.raises(SinkUriError, match=f"a table of mode {mode} has its changes as rows"):
        _bed(tmp_path, mode=mode).open()


def test_it_is_readable_for_a_day_unless_said_otherwise() -> None:
    assert DeltaOptions.model_validate({"change_data_feed": "true"}).retention_s == 86_400
    assert DeltaOptions.model_validate({"change_data_feed": "true", "retention_seconds": "60"}).retention_s == 60
    assert DeltaOptions.model_validate({}).retention_s == 600
    [said] = DeltaOptions.model_validate({"change_data_feed": "true"}).notices(SinkMode.UPSERT)
    assert "can be read for 86400 s (retention_seconds)" in said
