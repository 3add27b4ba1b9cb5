"""Deleted rows that stay, and when rows were written, in tables of both formats, as readers see them."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from agent.errors import SinkUriError, TableHeldError
from agent.ports.sink import Alters, Replaces, SpanRepartition, Splits
from agent.rows.changes import BEFORE_KEY
from agent.rows.schema_change import ColumnMove, SchemaChange
from agent.sinks import open_sink, open_table
from agent.sinks.common.folds import parts as fold
from agent.sinks.delta.upsert import by_vectors, large
from agent.sinks.iceberg.table.catalogs.lake import Lake
from agent.sinks.uri import parse_sink_uri
from owner.scheduler.spans import even_spans
from reactor.ids import Ts
from reactor.records.changefeed import SinkMode
from reactor.records.tables.schema_change import SchemaChangeKind
from tests.contracts.sink_bed import SPAN, TABLE, Bed
from tests.unit.agent.changes_build import UNCHANGED, delete, insert, table_schema, truncate, update

_KINDS = {
    "iceberg": "iceberg+file://{}/lake?soft_delete=true&synced_at=true",
    "vectors": "delta+file://{}/lake?soft_delete=true&synced_at=true&deletion_vectors=true",
    "merged": "delta+file://{}/lake?soft_delete=true&synced_at=true",
    "small": "delta+file://{}/lake?soft_delete=true&synced_at=true",
}


@pytest.fixture(params=_KINDS)
def bed(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bed:
    if request.param == "merged":
        monkeypatch.setattr(by_vectors, "_SMALL_BYTES", 0)
    bed = Bed(_KINDS[request.param].format(tmp_path), SinkMode.UPSERT)
    bed.load((1, "a", "x"), (2, "b", "y"), (3, "c", "z"))
    return bed


def _rows(bed: Bed) -> pa.Table:
    uri = parse_sink_uri(bed.uri)
    if uri.scheme.startswith("iceberg"):
        return Lake.of(uri).place(TABLE).opened().scan().to_arrow()
    return pa.RecordBatchReader.from_stream(DeltaTable(f"{uri.location}/public/t").scan()).read_all()


def _held(bed: Bed, *names: str) -> list[tuple[Any, ...]]:
    found = _rows(bed).select([*(names or ("id", "name", "big")), "_weir_deleted"])
    return sorted((tuple(row.values()) for row in found.to_pylist()), key=repr)


def test_deleted_rows_stay_with_their_last_values(bed: Bed) -> None:
    begin = datetime.now(UTC)
    bed.flush(100, 200, [update(1, "aa", UNCHANGED, ts=110), delete(1, None, None, ts=120)])
    bed.flush(200, 300, [delete(2, None, None, ts=210), insert(4, "d", "w", ts=220), delete(4, None, None, ts=230)])
    assert _held(bed) == [(1, "aa", "x", True), (2, "b", "y", True), (3, "c", "z", False), (4, "d", "w", True)]
    bed.assert_holds((3, "c", "z"))
    times = dict(zip(*(_rows(bed).column(name).to_pylist() for name in ("id", "_weir_synced_at")), strict=True))
    assert times[3] < begin <= times[1] <= times[2] < begin + timedelta(minutes=10)
    bed.flush(300, 400, [insert(2, "again", "n", ts=310)])
    assert _held(bed)[1] == (2, "again", "n", False)
    bed.assert_holds((2, "again", "n"), (3, "c", "z"))


def test_a_changed_key_leaves_a_deleted_row(bed: Bed) -> None:
    bed.flush(100, 200, [update(7, "m", UNCHANGED, before=(1, None, None), before_kind=BEFORE_KEY, ts=110)])
    assert _held(bed) == [(1, "a", "x", True), (2, "b", "y", False), (3, "c", "z", False), (7, "m", "x", False)]


def test_truncate_marks_all_rows_but_those_that_come_back(bed: Bed) -> None:
    bed.flush(100, 200, [truncate(ts=110), insert(2, "new", "n", ts=120)])
    assert _held(bed) == [(1, "a", "x", True), (2, "new", "n", False), (3, "c", "z", True)]
    bed.assert_holds((2, "new", "n"))
    bed.flush(200, 300, [truncate(ts=210)])
    bed.assert_holds()
    assert len(_held(bed)) == 3


def test_a_copy_marks_the_rows_that_it_lacks(bed: Bed) -> None:
    bed.flush(100, 200, [delete(1, None, None, ts=110)])
    sink = bed.open()
    assert isinstance(sink, Replaces)
    copy = bed.copied(300, (2, "copied", "y"))
    for _ in range(2):
        sink.replace(copy)
        assert _held(bed) == [(1, "a", "x", True), (2, "copied", "y", False), (3, "c", "z", True)]
    bed.assert_holds((2, "copied", "y"))


def test_schema_changes_keep_the_marks(bed: Bed) -> None:
    bed.flush(100, 200, [delete(1, None, None, ts=110)])
    sink = bed.open()
    assert isinstance(sink, Alters)
    wide = pa.schema([("id", pa.int64()), ("title", pa.string()), ("n", pa.int64())])
    columns = (
        ColumnMove("id", pa.int64(), "id"),
        ColumnMove("title", pa.string(), "name"),
        ColumnMove("n", pa.int64(), None, pa.scalar(7)),
    )
    sink.alter([SchemaChange(Ts(201), SchemaChangeKind.ALTER, TABLE, TABLE, columns, table_schema(wide), wide)])
    assert _held(bed, "id", "title") == [(1, "a", True), (2, "b", False), (3, "c", False)]
    taken = pa.schema([*wide, ("_weir_deleted", pa.bool_())])
    more = (
        *(ColumnMove(item.name, item.type, item.name) for item in wide),
        ColumnMove("_weir_deleted", pa.bool_(), None),
    )
    with pytest.raises(TableHeldError, match="source column _weir_deleted has the name"):
        sink.alter([SchemaChange(Ts(202), SchemaChangeKind.ALTER, TABLE, TABLE, more, table_schema(taken), taken)])


def test_a_value_of_a_deleted_row_is_not_taken_for_another(bed: Bed) -> None:
    bed.flush(100, 200, [delete(1, None, None, ts=110)])
    with pytest.raises(TableHeldError, match="the sink has no row of id=1"):
        bed.flush(200, 300, [update(1, "n", UNCHANGED, ts=210)])
    bed.assert_at(200)


def test_an_option_that_was_set_later_or_taken_back(bed: Bed) -> None:
    """A table from before gets the columns; one with deleted rows is held without the option."""
    bed.flush(100, 200, [delete(1, None, None, ts=110)])
    off = Bed(bed.uri.replace("soft_delete=true&synced_at=true", "retention_seconds=600"), bed.mode)
    with pytest.raises(TableHeldError, match="set soft_delete=true in the sink URI again"):
        off.flush(200, 300, [insert(1, "b", "y", ts=210)])
    bed.assert_at(200)


def test_a_snapshot_part_has_what_the_source_has(bed: Bed) -> None:
    bed.flush(100, 200, [delete(1, None, None, ts=110)])
    reader = open_table(bed.uri, "public/t")
    version = reader.version()
    rows = [
        row
        for part in reader.parts(version, bytes_max=1)
        for item in reader.scan_part(version, part)
        for row in item.to_pylist()
    ]
    assert sorted(row["id"] for row in rows) == [2, 3]
    assert {*rows[0]} == {"id", "name", "big"}


def test_columns_for_a_table_from_before(tmp_path: Path) -> None:
    for scheme in ("iceberg", "delta"):
        plain = Bed(f"{scheme}+file://{tmp_path}/{scheme}", SinkMode.UPSERT)
        plain.load((1, "a", "x"), (2, "b", "y"))
        bed = Bed(f"{plain.uri}?soft_delete=true", SinkMode.UPSERT)
        bed.flush(100, 200, [delete(1, None, None, ts=110)])
        assert _held(bed) == [(1, "a", "x", True), (2, "b", "y", None)]
        bed.assert_holds((2, "b", "y"))


def test_changelogs_have_no_such_columns(tmp_path: Path) -> None:
    for scheme in ("iceberg", "delta"):
        with pytest.raises(SinkUriError, match=r"^option soft_delete=true is one of upserted tables; leave it out"):
            open_sink(f"{scheme}+file://{tmp_path}?soft_delete=true", changefeed="feed", mode=SinkMode.CHANGELOG)


def test_spans_mark_their_own_rows(bed: Bed) -> None:
    """TRUNCATE and a key that moves between spans, each span at its own pace."""
    sink = bed.open()
    assert isinstance(sink, Splits)
    order = SpanRepartition((SPAN,), even_spans(16384, 4), Ts(100), 1)
    assert sink.repartition(TABLE, order) == 100
    moved = [
        update(key + 10, f"n{key}", "v", before=(key, None, None), before_kind=BEFORE_KEY, ts=110) for key in (1, 2, 3)
    ]
    for span in order.new:
        assert bed.flush(100, 200, moved, span=span).error == ""
    olds = [(1, "a", "x", True), (2, "b", "y", True), (3, "c", "z", True)]
    assert _held(bed) == sorted([*olds, *((key + 10, f"n{key}", "v", False) for key in (1, 2, 3))], key=repr)
    for span in order.new:
        begin = bed.at(span) or 0  # one without a change has not moved
        assert bed.flush(begin, 300, [truncate(ts=210), insert(1, "back", "n", ts=220)], span=span).error == ""
    news = [(key + 10, f"n{key}", "v", True) for key in (1, 2, 3)]
    assert _held(bed) == sorted([(1, "back", "n", False), *olds[1:], *news], key=repr)


def test_large_transactions_keep_deleted_rows(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Folded one part of the key space after another."""
    monkeypatch.setattr(large, "_WHOLE_BYTES", 0)
    monkeypatch.setattr(fold, "_WHOLE_BYTES", 0)
    rows = [insert(key, f"n{key}", "v", ts=110) for key in range(10, 200)]
    gone = [delete(key, None, None, ts=120) for key in (1, *range(100, 200))]
    assert bed.flush(100, 200, rows, gone).error == ""
    wanted = [(key, f"n{key}", "v", key >= 100) for key in range(10, 200)]
    kept = [(1, "a", "x", True), (2, "b", "y", False), (3, "c", "z", False)]
    assert _held(bed) == sorted([*kept, *wanted], key=repr)
    assert bed.flush(200, 300, [truncate(ts=210), insert(2, "back", "n", ts=220)]).error == ""
    assert [row for row in _held(bed) if not row[3]] == [(2, "back", "n", False)]
    assert len(_held(bed)) == 193
