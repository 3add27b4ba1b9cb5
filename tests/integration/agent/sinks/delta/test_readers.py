"""Delta tables as Weir writes them, read by other people's readers, against what their source holds.

Each story has what a changefeed does to a table: many small flushes (so files are put together, written again and
removed, and the log gets checkpoints), keys that change, values that are left out, columns that come, go and get wider,
TRUNCATE, other spans. Readers are asked for all rows, how many there are, and for rows by conditions: these are held
against the log's statistics first, which say less once rows are gone from a file.
"""

import operator
import shutil
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from agent.sinks.delta.table import log as delta_log
from agent.sinks.delta.table import schema
from agent.sinks.delta.table.place import TablePlace
from agent.sinks.delta.upkeep import upkeep
from agent.sinks.delta.upsert import by_vectors
from reactor.records.changefeed import SinkMode
from tests.integration.agent.sinks.delta.readers import READERS, Reader
from tests.integration.agent.sinks.delta.story import EXACT, Row, Story
from tests.unit.agent.changes_build import delete, insert, update

_OPERATORS = {"=": operator.eq, "<": operator.lt, ">=": operator.ge}
_DAY, _MOMENT = date(1970, 1, 1), datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Chapter:
    """A table at one time: a copy of its files, and what readers have to find."""

    name: str
    location: str
    columns: pa.Schema
    rows: list[Row]


@pytest.fixture(params=READERS, ids=str)
def reader(request: pytest.FixtureRequest) -> Reader:
    found: Reader = request.param
    if reason := found.why_not():
        pytest.skip(reason)
    return found


@pytest.fixture(
    scope="module",
    params=["vectors", *(pytest.param(name, marks=pytest.mark.matrix) for name in ("merged", "changelog"))],
)
def chapters(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Chapter]:
    directory = tmp_path_factory.mktemp(request.param)
    mode = SinkMode.CHANGELOG if request.param == "changelog" else SinkMode.UPSERT
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(by_vectors, "_SMALL_BYTES", 0 if request.param == "merged" else 1 << 14)
        patched.setattr(by_vectors, "SMALL_MAX", 5)
        story = Story(directory / "lake", mode, vectors=request.param == "vectors")
        return [_copied(story, name, directory / str(at)) for at, name in enumerate(_told(story))]


def _told(story: Story) -> Iterator[str]:
    is_changelog = story.mode is SinkMode.CHANGELOG
    story.load(800)
    yield "snapshot"
    _flush(story, 30)
    yield "flushed"
    story.alter(pa.schema([*story.columns, ("new", pa.string())]))
    _flush(story, 5)
    yield "column added"
    wide = {"a.b": pa.int64(), "price": pa.decimal128(20, 4), "Größe in cm": pa.int16()}
    columns = [pa.field(item.name, wide.get(item.name, item.type)) for item in story.columns]
    kept = [item for item in columns if is_changelog or item.name != "raw"]
    story.alter(pa.schema([*kept, pa.field("filled", pa.date32())]), filled=20_000)
    _flush(story, 5)
    yield "columns dropped, filled and widened"
    story.cut(3)
    _flush(story, 8)
    yield "split"
    story.flush(story.truncate())
    _flush(story, 8)
    yield "truncated"
    story.cut(1)
    _flush(story, 5)
    DeltaTable(story.location).create_checkpoint()
    _flush(story, 3)
    yield "joined, its log begins with a checkpoint"


def _flush(story: Story, times: int) -> None:
    for step in range(times):
        story.flush(story.some_changes())
        if step % 10 == 4:
            story.flush(story.leave_out())
            upkeep.remove_replaced_files(TablePlace(story.location))
        if step % 10 == 7:
            delta_log._known.clear()


def _copied(story: Story, name: str, place: Path) -> Chapter:
    # read before the files are listed, as readers do: a checkpoint may be written meanwhile, which the copy lacks
    hint = Path(story.location, "_delta_log", "_last_checkpoint")
    hinted = hint.read_bytes() if hint.exists() else None
    shutil.copytree(story.location, place, ignore=shutil.ignore_patterns("*#*"))  # files that are being written
    (place / "_delta_log" / hint.name).unlink(missing_ok=True)
    if hinted is not None:
        (place / "_delta_log" / hint.name).write_bytes(hinted)
    if "begins with a checkpoint" in name:
        log = place / "_delta_log"
        newest = max(path.name.split(".")[0] for path in log.glob("*.checkpoint.parquet"))
        for path in log.glob("*.json"):
            if path.name[:20].isdigit() and path.name.split(".")[0] <= newest:
                path.unlink()
    is_changelog = story.mode is SinkMode.CHANGELOG
    clocks = [at for at, item in enumerate(story.columns) if pa.types.is_time(item.type)]
    rows = [_with_texts(row, clocks) for row in (story.changelog if is_changelog else story.rows.values())]
    return Chapter(name, str(place), schema.delta_schema(story.columns, is_changelog=is_changelog), rows)


def _with_texts(row: Row, clocks: Sequence[int]) -> Row:
    """Delta has no times of day: they are text."""
    return tuple(_clock(value) if at in clocks and value is not None else value for at, value in enumerate(row))


def _clock(us: int) -> str:
    return (_MOMENT + timedelta(microseconds=us)).time().isoformat()


@pytest.mark.sample(0.2)
def test_every_row_is_read(reader: Reader, chapters: list[Chapter]) -> None:
    for chapter in chapters:
        found = _found(reader.rows(chapter.location), chapter.columns)
        assert found == _wanted(reader, chapter, chapter.rows), chapter.name
        if reader.has_sql:
            assert reader.count(chapter.location) == len(chapter.rows), chapter.name


@pytest.mark.sample(0.2)
def test_rows_are_found_by_conditions(reader: Reader, chapters: list[Chapter]) -> None:
    if not reader.has_sql:
        pytest.skip(f"{reader} takes none")
    for chapter in chapters[1::2]:
        for where, rows in _conditions(reader, chapter):
            found = _found(reader.rows(chapter.location, where), chapter.columns)
            assert found == _wanted(reader, chapter, rows), f"{chapter.name}: {where}"


def _conditions(reader: Reader, chapter: Chapter) -> Iterator[tuple[str, list[Row]]]:
    """Conditions, and the rows that meet them: the least and the greatest value of a column are found, and no more."""
    for name in ("id", "it's so", "semi;colon", "price", "unsigned", "day", "at"):
        at, arrow = chapter.columns.names.index(name), chapter.columns.field(name).type
        values = sorted({row[at] for row in chapter.rows if row[at] is not None})
        for sign, value in (("<", values[1]), ("=", values[len(values) // 2]), (">=", values[-1])):
            rows = [row for row in chapter.rows if row[at] is not None and _OPERATORS[sign](row[at], value)]
            yield f'"{name}" {sign} {_literal(reader, value, arrow)}', rows
        yield f'"{name}" IS NULL', [row for row in chapter.rows if row[at] is None]


def test_the_ends_of_all_ranges_are_read(reader: Reader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Days and moments that Python has no value for, in files of ours and in those that delta-rs has merged."""
    if not reader.has_all:
        pytest.skip(f"{reader} has no such days")
    monkeypatch.setattr(by_vectors, "_SMALL_BYTES", 0)
    story = Story(tmp_path, SinkMode.UPSERT)
    story.columns = pa.schema(
        [("id", pa.int64()), ("day", pa.date32()), ("at", pa.timestamp("us")), ("t", pa.string())]
    )
    story.load(0)
    ends = [(-1_000_000, -86_400_000_000_000_000, "\x00"), (4_000_000, 345_600_000_000_000_000, "\U0010ffff" * 30)]
    story.rows = {key: (key, *row) for key, row in enumerate(ends)}
    for change in (insert, update):
        story.flush([change(*row) for row in story.rows.values()])
        assert _found(reader.rows(story.location), story.columns) == _sorted(list(story.rows.values()))


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Story:
    """A file of several row groups whose vector has each form: lists and bitmaps, in parts of 65,536 rows."""
    story = Story(tmp_path_factory.mktemp("large"), SinkMode.UPSERT, vectors=True)
    story.columns = pa.schema([("id", pa.int64()), ("t", pa.string())])
    story.load(140_000)
    gone = [*range(10), *range(20_000, 45_000), *range(65_530, 65_540), *range(70_000, 80_000, 3), 139_999]
    for key in gone:
        del story.rows[key]
    story.flush([delete(key, None) for key in gone])
    return story


@pytest.mark.sample(0.2)
def test_vectors_of_every_form_are_read(reader: Reader, large: Story) -> None:
    assert sorted(reader.rows(large.location).column("id").to_pylist()) == list(large.rows)
    if reader.has_sql:
        assert reader.count(large.location) == len(large.rows)
        found = reader.rows(large.location, "id >= 131070").column("id").to_pylist()
        assert sorted(found) == list(range(131_070, 139_999))


def _literal(reader: Reader, value: Any, arrow: pa.DataType) -> str:
    if pa.types.is_date(arrow):
        return f"DATE '{_DAY + timedelta(days=value)}'"
    if pa.types.is_decimal(arrow):  # a bare one may be a float
        return f"CAST('{value}' AS DECIMAL({arrow.precision}, {arrow.scale}))"
    if pa.types.is_timestamp(arrow):
        return reader.moment.format((_MOMENT + timedelta(microseconds=value)).replace(tzinfo=None))
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else str(value)


def _wanted(reader: Reader, chapter: Chapter, rows: Sequence[Row]) -> list[Row]:
    lists = [] if reader.has_all else [at for at, item in enumerate(chapter.columns) if pa.types.is_list(item.type)]
    return _sorted(
        [tuple(() if at in lists and value is None else value for at, value in enumerate(row)) for row in rows]
    )


def _sorted(rows: Sequence[Row]) -> list[Row]:
    return sorted((tuple(_plain(value) for value in row) for row in rows), key=repr)


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return "NaN" if value != value else struct.pack("<d", value)
    if isinstance(value, Decimal):
        return value.normalize(EXACT)
    return tuple(value) if isinstance(value, list) else value


def _found(table: pa.Table, columns: pa.Schema) -> list[Row]:
    """Moments and days as whole numbers; whatever is not of a column's type raises."""
    assert sorted(table.column_names) == sorted(columns.names)
    values = []
    for item in columns:
        column = table.column(item.name).cast(item.type)
        if pa.types.is_temporal(item.type):
            column = column.cast(pa.int32() if pa.types.is_date(item.type) else pa.int64())
        values.append(column.to_pylist())
    return _sorted(list(zip(*values, strict=True)))
