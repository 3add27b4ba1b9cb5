"""Tables whose columns have other names than in their files: no file is written for a rename, and every reader that is
here finds the rows, whatever follows.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from agent.errors import SinkConflictError, SinkUriError, TableForeignError, TableHeldError
from agent.ports.sink import FeedContext, FlushResult, FlushTask, RowRepair, TableCopy
from agent.rows.schema_change import ColumnMove, SchemaChange
from agent.sinks import formats_of, open_sink, open_table
from agent.sinks.delta.alter import steps
from agent.sinks.delta.sink import DeltaSink
from agent.sinks.delta.table import log as delta_log
from agent.sinks.delta.table import place as delta_table
from agent.sinks.delta.upkeep import upkeep
from agent.sinks.delta.upsert import by_vectors
from reactor.ids import Ts
from reactor.records.changefeed import SinkMode
from reactor.records.sink_settings import TableLayout
from reactor.records.tables.schema_change import SchemaChangeKind
from tests.integration.agent.sinks.delta.readers import READERS
from tests.integration.agent.sinks.delta.test_sink import KEYED, SPAN
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

pytestmark = pytest.mark.sample(0.25)
Row = tuple[Any, ...]
MAPPED = "?column_mapping=name"
VECTORS = "?column_mapping=name&deletion_vectors=true"
_ROWS = [(at, f"n{at}", f"b{at}") for at in range(1, 6)]


class Lake:
    """One table, at ``ts``."""

    def __init__(
        self, directory: Path, options: str = MAPPED, mode: SinkMode = SinkMode.UPSERT, layouts: Sequence[Any] = ()
    ) -> None:
        sink = open_sink(f"delta+file://{directory}{options}", changefeed="feed", mode=mode, layouts=tuple(layouts))
        assert isinstance(sink, DeltaSink)
        self.sink, self.mode, self.columns, self.ts = sink, mode, ARROW, 100
        self.key: tuple[str, ...] = ("id",)

    @property
    def path(self) -> Path:
        return Path(self.sink.place(KEYED).location)

    @property
    def table(self) -> DeltaTable:
        return DeltaTable(str(self.path))

    @property
    def names(self) -> dict[str, str]:
        """Those in files."""
        layout = delta_table.layout(self.table)
        return {name: layout.names.physical(name) for name in delta_table.arrow_schema(self.table).names}

    def load(self, rows: Sequence[Row]) -> "Lake":
        batch = changes([insert(*row) for row in rows], arrow=self.columns).after
        self.sink.load(
            KEYED, table_schema(self.columns), self.columns, self.sink.stage(KEYED, "0", iter([batch]), Ts(100))
        )
        return self

    def write(self, *rows: Change) -> tuple[FlushTask, FlushResult]:
        part = changes(rows, arrow=self.columns, key=self.key)
        record = KEYED.with_(key=self.key)
        task = FlushTask(FeedContext("feed", "", self.mode), SPAN, record, (), Ts(self.ts), Ts(self.ts + 10))
        return task, self.sink.write(task, iter([part]))

    def commit(self, task: FlushTask, result: FlushResult) -> FlushResult:
        [done] = self.sink.commit([task], [result])
        return done

    def flush(self, *rows: Change) -> None:
        done = self.commit(*self.write(*rows))
        assert not done.error, done.error
        self.ts += 10

    def change(self, columns: pa.Schema, **origins: str | None) -> SchemaChange:
        moves = tuple(ColumnMove(item.name, item.type, origins.get(item.name, item.name)) for item in columns)
        kind, schema = SchemaChangeKind.ALTER, table_schema(columns)
        return SchemaChange(Ts(self.ts), kind, KEYED, KEYED, moves, schema, columns)

    def alter(self, columns: pa.Schema, **origins: str | None) -> None:
        self.sink.alter([self.change(columns, **origins)])
        self.columns = columns
        self.key = tuple(next((new for new, old in origins.items() if old == name), name) for name in self.key)

    def data(self) -> set[str]:
        return {Path(path).name for path in self.table.file_uris()}

    def assert_holds(self, *rows: Row) -> None:
        """By each reader that is here."""
        for reader in READERS:
            if reader.why_not() is None and reader.has_mapping:
                found = reader.rows(str(self.path)).select(self.columns.names)
                held = sorted((tuple(row.values()) for row in found.to_pylist()), key=repr)
                assert held == sorted(rows, key=repr), reader


def _schema(**types: pa.DataType) -> pa.Schema:
    return pa.schema(list(types.items()))


TEXT, WHOLE = pa.string(), pa.int64()


@pytest.mark.parametrize("options", [MAPPED, VECTORS])
def test_columns_are_renamed_swapped_dropped_and_come_again_without_a_file(tmp_path: Path, options: str) -> None:
    lake = Lake(tmp_path, options).load(_ROWS)
    files = lake.data()
    lake.alter(_schema(id=WHOLE, big=TEXT, name=TEXT), big="name", name="big")
    assert lake.names == {"id": "id", "big": "name", "name": "big"}
    lake.assert_holds(*_ROWS)  # the columns have changed places, and names
    lake.ts += 10
    lake.alter(_schema(key=WHOLE, name=TEXT), key="id")
    lake.ts += 10
    lake.alter(_schema(key=WHOLE, name=TEXT, big=WHOLE, n=pa.timestamp("us")), big=None, n=None)
    assert lake.data() == files
    lake.assert_holds(*((key, big, None, None) for key, _, big in _ROWS))
    lake.ts = 100
    lake.flush(update(1, "u", 7, None), delete(2, None, None, None), insert(9, "i", 8, None))
    rest = [(3, "b3", None, None), (4, "b4", None, None), (5, "b5", None, None)]
    lake.assert_holds((1, "u", 7, None), (9, "i", 8, None), *rest)
    assert upkeep.maintain(lake.sink.place(KEYED)).files == 1
    assert upkeep.remove_replaced_files(lake.sink.place(KEYED)) == []
    delta_log._known.clear()
    lake.flush(update(9, "j", 8, None))
    lake.assert_holds((1, "u", 7, None), (9, "j", 8, None), *rest)


def test_the_last_files_have_ids_and_statistics_under_their_own_names(tmp_path: Path) -> None:
    lake = Lake(tmp_path).load(_ROWS)
    lake.alter(_schema(id=WHOLE, x=TEXT), x="name")
    lake.flush(insert(7, "seven"))
    log = delta_log.TableLog(lake.sink.place(KEYED))
    log.refresh()
    newest = max(log.files.values(), key=lambda file: file.path.startswith("rows-"))
    stored = pq.read_schema(lake.path / newest.path)
    assert stored.names == ["id", "name"]
    assert [item.metadata[b"PARQUET:field_id"] for item in stored] == [b"1", b"2"]
    assert json.loads(newest.add["stats"])["maxValues"] == {"id": 7, "name": "seven"}
    assert newest.bounds("x") == ("seven", "seven")


def test_rows_are_found_by_a_key_that_has_taken_anothers_name(tmp_path: Path) -> None:
    """What is kept of a file's keys is of the column that the file has."""
    lake = Lake(tmp_path, VECTORS)
    lake.columns = _schema(id=WHOLE, other=WHOLE)
    lake.load([(1, 10), (2, 20)])
    lake.flush(update(1, 11))
    lake.alter(_schema(other=WHOLE, id=WHOLE), other="id", id="other")
    lake.key = ("id",)
    lake.flush(update(5, 11), delete(None, 20))
    lake.assert_holds((5, 11))


@pytest.mark.parametrize("mode", [SinkMode.CHANGELOG, SinkMode.HISTORY])
def test_a_table_that_keeps_dropped_columns_renames_them(tmp_path: Path, mode: SinkMode) -> None:
    lake = Lake(tmp_path, mode=mode).load(_ROWS)
    files = lake.data()
    lake.alter(_schema(id=WHOLE, first=TEXT, big=WHOLE), first="name", big=None)
    assert lake.data() == files
    assert {**lake.names, "big": ""}.items() >= {"first": "name", f"big_before_{100:x}": "big", "big": ""}.items()
    lake.assert_holds(*((key, name, None) for key, name, _ in _ROWS))
    lake.flush(insert(9, "i", 5))
    lake.assert_holds((9, "i", 5), *((key, name, None) for key, name, _ in _ROWS))


@pytest.mark.parametrize("layouts", [(), (TableLayout(matcher=("*.*",), partition_by=("big",)),)])
def test_a_version_is_read_file_by_file(tmp_path: Path, layouts: tuple[TableLayout, ...]) -> None:
    lake = Lake(tmp_path, VECTORS, layouts=layouts).load(_ROWS)
    lake.alter(_schema(id=WHOLE, big=TEXT, name=TEXT), big="name", name="big")
    lake.flush(update(1, "u", "x"), delete(2, None, None))
    reader = open_table(f"delta+file://{tmp_path}", "public/t")
    version = lake.table.version()
    found = [
        tuple(row.values())
        for part in reader.parts(version, bytes_max=1)
        for rows in reader.scan_part(version, part)
        for row in rows.to_pylist()
    ]
    assert sorted(found) == [(1, "u", "x"), *_ROWS[2:]]


def test_a_partition_column_that_is_renamed(tmp_path: Path) -> None:
    lake = Lake(tmp_path, layouts=[TableLayout(matcher=("*.*",), partition_by=("name",))]).load(_ROWS)
    files = lake.data()
    lake.alter(_schema(id=WHOLE, big=TEXT, name=TEXT), big="name", name="big")
    assert lake.data() == files
    assert lake.table.metadata().partition_columns == ["big"]
    lake.flush(update(1, "land", "x"), delete(2, None, None), insert(9, "land", "y"))
    lake.assert_holds((1, "land", "x"), (9, "land", "y"), *_ROWS[2:])
    upkeep.maintain(lake.sink.place(KEYED))
    lake.assert_holds((1, "land", "x"), (9, "land", "y"), *_ROWS[2:])
    lake.alter(_schema(id=WHOLE, name=TEXT))  # what divides the table goes: that takes other files
    assert lake.table.metadata().partition_columns == []
    lake.assert_holds((1, "x"), (9, "y"), *((key, big) for key, _, big in _ROWS[2:]))


def test_a_retyped_column_and_a_filled_one_take_files_with_names_of_their_own(tmp_path: Path) -> None:
    lake = Lake(tmp_path).load([(1, "5", "b")])
    lake.alter(_schema(id=WHOLE, n=TEXT, big=TEXT), n="name")
    lake.ts += 10
    lake.alter(_schema(id=WHOLE, n=WHOLE, big=TEXT))
    assert lake.names["n"] not in ("n", "name")
    assert (lake.names["id"], lake.names["big"]) == ("id", "big")
    lake.assert_holds((1, 5, "b"))


def test_truncated_and_copied_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = Lake(tmp_path).load(_ROWS)
    lake.alter(_schema(id=WHOLE, big=TEXT, name=TEXT), big="name", name="big")
    lake.flush(truncate(), insert(1, "a", "b"))
    lake.assert_holds((1, "a", "b"))
    for ts, columns, row in (
        (500, lake.columns, (2, "c", "d")),
        (600, _schema(id=WHOLE, big=WHOLE, more=TEXT), (3, 4, "e")),
    ):
        batch = changes([insert(*row)], arrow=columns).after
        staged = lake.sink.stage(KEYED, "1", iter([batch]), Ts(ts))
        copy = TableCopy(KEYED.with_(start_ts=Ts(ts)), (SPAN,), table_schema(columns), columns, tuple(staged))
        lake.sink.replace(copy)
        lake.columns, lake.ts = columns, ts
        lake.assert_holds(row)
        assert (len({Path(file.path).name for file in staged} & lake.data()) == 1) == (ts == 500), "written again"
    lake.flush(insert(9, 9, "f"))
    lake.assert_holds((3, 4, "e"), (9, 9, "f"))


def test_a_table_that_has_none_gets_a_mapping_with_its_first_rename(tmp_path: Path) -> None:
    Lake(tmp_path, "").load(_ROWS)
    lake = Lake(tmp_path)
    lake.flush(insert(6, "n6", "b6"))
    assert not delta_table.layout(lake.table).names.is_mapped
    files = lake.data()
    lake.alter(_schema(id=WHOLE, x=TEXT, big=TEXT), x="name")
    assert lake.data() == files
    lake.assert_holds(*_ROWS, (6, "n6", "b6"))
    Lake(tmp_path, "").sink.alter([lake.change(_schema(id=WHOLE, x=TEXT, big=TEXT), x="name")])  # done before
    plain = Lake(tmp_path, "")  # and keeps it without the option
    plain.columns, plain.ts = _schema(id=WHOLE, x=TEXT, big=TEXT), lake.ts
    plain.alter(_schema(id=WHOLE, big=TEXT))
    assert plain.data() == files
    plain.assert_holds(*((key, big) for key, _, big in _ROWS), (6, "b6"))


def test_a_crash_between_the_steps_of_a_creation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    lake = Lake(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(steps, "map_columns", crash)
        with pytest.raises(KeyboardInterrupt):
            lake.load(_ROWS)
    lake.load(_ROWS)
    lake.assert_holds(*_ROWS)
    lake.alter(_schema(id=WHOLE, x=TEXT, big=TEXT), x="name")
    assert lake.names["x"] == "name"
    lake.assert_holds(*_ROWS)


def test_a_chunk_that_is_staged_again_leaves_the_tables_file_as_it_is(tmp_path: Path) -> None:
    """As a task does that was given up, and writes what the table has by now under other names and ids."""
    lake = Lake(tmp_path).load(_ROWS)
    [late] = lake.sink.stage(KEYED, "0", iter([changes([insert(1, "late", "b")]).after]), Ts(100))
    assert Path(late.path).name not in lake.data()
    lake.assert_holds(*_ROWS)


def test_done_again_changes_nothing(tmp_path: Path) -> None:
    lake = Lake(tmp_path).load(_ROWS)
    change = lake.change(_schema(id=WHOLE, big=TEXT, name=TEXT), big="name", name="big")
    lake.sink.alter([change])
    version = lake.table.version()
    lake.sink.alter([change])
    assert lake.table.version() == version
    assert lake.table.transaction_version(f"weir/feed/{KEYED.table_id}/ddl") == 100


def test_files_of_before_a_rename_are_written_again(tmp_path: Path) -> None:
    """As an older capture, or one that was asleep, may have them."""
    lake = Lake(tmp_path, mode=SinkMode.CHANGELOG).load(_ROWS)
    task, result = lake.write(insert(9, "i", "j"))
    lake.alter(_schema(id=WHOLE, big=TEXT, name=TEXT), big="name", name="big")
    done = lake.commit(task, result)
    assert "they are written again" in done.error
    assert done.retryable
    assert done.error_code == SinkConflictError("").code
    lake.flush(insert(9, "i", "j"))
    lake.assert_holds(*_ROWS, (9, "i", "j"))


def test_a_column_that_only_a_file_has_comes_with_the_file_that_is_written_again(tmp_path: Path) -> None:
    lake = Lake(tmp_path, mode=SinkMode.CHANGELOG).load(_ROWS)
    lake.alter(_schema(id=WHOLE, x=TEXT, big=TEXT), x="name")
    lake.columns = _schema(id=WHOLE, x=TEXT, big=TEXT, name=WHOLE)
    assert "they are written again" in lake.commit(*lake.write(insert(9, "i", "j", 5))).error
    lake.flush(insert(9, "i", "j", 5))
    lake.assert_holds(*((*row, None) for row in _ROWS), (9, "i", "j", 5))


def test_a_changelog_whose_rows_name_a_renamed_column_is_written_again(tmp_path: Path) -> None:
    lake = Lake(tmp_path, mode=SinkMode.CHANGELOG).load(_ROWS[:1])
    lake.flush(update(1, UNCHANGED, "c"))
    files = lake.data()
    lake.alter(_schema(id=WHOLE, name=TEXT, large=TEXT), large="big")
    assert lake.data() == files
    lake.ts += 1
    lake.alter(_schema(id=WHOLE, x=TEXT, large=TEXT), x="name")
    assert not lake.data() & files
    assert lake.names["x"] == "name"
    named = pa.table(lake.table.scan(columns=["_unchanged"])).column(0).to_pylist()
    assert [found for found in named if found] == [["x"]]


def _upgraded(lake: Lake, *, mode: str = "name", protocol: dict[str, Any] | None = None) -> None:
    """As Spark's ALTER TABLE … SET TBLPROPERTIES does it."""
    version = lake.table.version() + 1
    actions = [
        json.loads(line)
        for number in range(version)
        for line in (lake.path / "_delta_log" / f"{number:020d}.json").read_text().splitlines()
    ]
    metadata = [action["metaData"] for action in actions if "metaData" in action][-1]
    schema = json.loads(metadata["schemaString"])
    for at, item in enumerate(schema["fields"], 1):
        item["metadata"] = {"delta.columnMapping.id": at, "delta.columnMapping.physicalName": item["name"]}
    mapping = {"delta.columnMapping.mode": mode, "delta.columnMapping.maxColumnId": str(len(schema["fields"]))}
    changed = {"schemaString": json.dumps(schema), "configuration": metadata["configuration"] | mapping}
    written = [
        {"commitInfo": {"operation": "SET TBLPROPERTIES", "engineInfo": "Apache-Spark", "timestamp": 1}},
        {"protocol": protocol or {"minReaderVersion": 2, "minWriterVersion": 5}},
        {"metaData": metadata | changed},
    ]
    text = "\n".join(map(json.dumps, written))
    (lake.path / "_delta_log" / f"{version:020d}.json").write_text(text)


def test_a_table_that_others_gave_a_mapping_is_followed(tmp_path: Path) -> None:
    lake = Lake(tmp_path, "").load(_ROWS)
    _upgraded(lake)
    lake.flush(update(1, "u", "x"))
    lake.alter(_schema(id=WHOLE, x=TEXT, big=TEXT, at=pa.timestamp("us")), x="name", at=None)
    assert delta_table.layout(lake.table).names.is_mapped, "delta-rs takes it away with such a column"
    lake.flush(insert(9, "i", "j", None))
    lake.assert_holds((1, "u", "x", None), (9, "i", "j", None), *((*row, None) for row in _ROWS[1:]))


def test_columns_that_others_rename_hold_the_table(tmp_path: Path) -> None:
    """Also those that are dropped and come again: the table's rows would be NULL in them."""
    lake = Lake(tmp_path).load(_ROWS)
    names = delta_table.layout(lake.table).names
    again = names.after([("id", "id"), ("name", None), ("big", "big")])
    metadata = {
        "id": str(lake.table.metadata().id),
        "format": {"provider": "parquet", "options": {}},
        "description": lake.table.metadata().description,
        "schemaString": again.described(ARROW),
        "partitionColumns": [],
        "configuration": again.configured(lake.table.metadata().configuration),
    }
    path = lake.path / "_delta_log" / f"{lake.table.version() + 1:020d}.json"
    path.write_text("\n".join(map(json.dumps, [{"commitInfo": {"operation": "CHANGE"}}, {"metaData": metadata}])))
    with pytest.raises(TableForeignError, match="was changed by another writer: CHANGE"):
        lake.flush(insert(9, "i", "j"))


def test_a_mapping_by_ids_holds_the_table(tmp_path: Path) -> None:
    lake = Lake(tmp_path, "").load(_ROWS)
    _upgraded(lake, mode="id")
    with pytest.raises(TableHeldError, match="column mapping of mode 'id'"):
        lake.flush(insert(9, "i", "j"))


def test_a_table_that_is_merged_by_delta_rs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A repair; its files are below directories of two letters, and are removed when they are replaced."""
    lake = Lake(tmp_path, f"{MAPPED}&retention_seconds=0").load(_ROWS)
    lake.alter(_schema(id=WHOLE, big=TEXT, name=TEXT), big="name", name="big")
    place = lake.sink.place(KEYED)
    made = changes([update(1, "u", "x"), insert(9, "i", "j")], arrow=lake.columns)
    lake.sink.repair(RowRepair(KEYED, (SPAN,), Ts(100), made))
    lake.assert_holds((1, "u", "x"), (9, "i", "j"), *_ROWS[1:])
    assert any("/" in path for path in pa.table(lake.table.get_add_actions())["path"].to_pylist())
    lake.flush(update(9, "k", "l"))
    upkeep.maintain(place)
    lake.assert_holds((1, "u", "x"), (9, "k", "l"), *_ROWS[1:])
    upkeep.remove_replaced_files(place)
    assert {path.name for path in lake.path.glob("**/*.parquet") if "_delta_log" not in path.parts} == lake.data()


def test_options_that_do_not_go_together_are_refused() -> None:
    for options, reason in (
        ("&readers=duckdb,pandas", "pandas is not known to read column mapping"),
        ("&change_data_feed=true", "leave column_mapping=name or change_data_feed=true out"),
    ):
        with pytest.raises(SinkUriError, match=reason):
            open_sink(f"delta+file:///lake{MAPPED}{options}", changefeed="feed", mode=SinkMode.UPSERT)
    open_sink(f"delta+file:///lake{MAPPED}&readers=duckdb,spark", changefeed="feed", mode=SinkMode.UPSERT)


def test_the_option_needs_a_cluster_that_knows_it() -> None:
    assert formats_of(f"delta+file:///lake{MAPPED}") == {"column_mapping": 18}
    assert formats_of("delta+file:///lake?column_mapping=env:WEIR_X") == {"column_mapping": 18}
    assert formats_of("delta+file:///lake?column_mapping=none") == formats_of("none://") == {}


def test_a_large_table_without_vectors_is_not_merged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(by_vectors, "_SMALL_BYTES", 0)
    lake = Lake(tmp_path).load(_ROWS)
    lake.alter(_schema(id=WHOLE, big=TEXT, name=TEXT), big="name", name="big")
    lake.flush(update(1, "u", "x"), delete(2, None, None))
    lake.assert_holds((1, "u", "x"), *_ROWS[2:])
    assert all("/" not in path for path in pa.table(lake.table.get_add_actions())["path"].to_pylist())
