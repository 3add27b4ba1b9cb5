"""Metadata, manifests and position deletes kept in memory: equal to what a new read finds, with fewer reads."""

import json
import sqlite3
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.io import FileIO
from pyiceberg.schema import Schema
from pyiceberg.serializers import FromInputFile
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import SetPropertiesUpdate

from agent.sinks.iceberg.table import rows
from agent.sinks.iceberg.table.catalogs import sql as sql_catalog
from agent.sinks.iceberg.table.deletes import positions
from agent.sinks.iceberg.table.metadata import files as metadata_files
from agent.sinks.iceberg.table.metadata import manifests
from agent.sinks.iceberg.table.metadata.manifests import Live, LiveFile
from agent.sinks.iceberg.upsert import kept_keys
from reactor.ids import Ts
from reactor.records.changefeed import SinkMode
from tests.contracts.sink_bed import TABLE, Bed
from tests.integration.agent.sinks.iceberg.lake import table_of
from tests.unit.agent.changes_build import ARROW, changes, insert, table_schema, update


@pytest.fixture
def bed(tmp_path: Path) -> Bed:
    bed = Bed(f"iceberg+file://{tmp_path}/lake", SinkMode.UPSERT)
    bed.load((1, "a", "x"), (2, "b", "y"))
    return bed


def _flush(bed: Bed, turn: int) -> None:
    some = [update(1, f"t{turn}", "x", ts=101 + turn), insert(10 + turn, "n", "z", ts=101 + turn)]
    assert bed.flush(100 + turn, 101 + turn, some).committed


def _entries(live: Live) -> list[tuple[object, ...]]:
    return sorted((_described(item) for item in (*live.data, *live.deletes)), key=repr)


def _described(item: LiveFile) -> tuple[object, ...]:
    entry, file = item.entry, item.file
    numbers = (entry.snapshot_id, entry.sequence_number, entry.file_sequence_number, file.spec_id, file.record_count)
    maps = (file.lower_bounds, file.upper_bounds, file.value_counts, file.null_value_counts, file.nan_value_counts)
    return (item.path, item.manifest, file.content, file.file_size_in_bytes, *numbers, *(dict(one) for one in maps))


@pytest.mark.matrix
def test_what_is_kept_equals_what_is_stored(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through flushes, a compaction and joined manifests."""
    for turn in range(30):
        _flush(bed, turn)
        table = table_of(bed, TABLE)
        stored = FromInputFile.table_metadata(table.io.new_input(table.metadata_location))
        assert table.metadata == stored
        kept = manifests.live(table)
        gone = positions.deleted(table, kept.deletes)
        with monkeypatch.context() as patch:
            patch.setattr(manifests, "_cache", type(manifests._cache)())
            patch.setattr(positions, "_kept", positions._Kept())
            read = manifests.live(table)
            assert _entries(kept) == _entries(read)
            assert {path: list(at) for path, at in gone.items()} == {
                path: list(at) for path, at in positions.deleted(table, read.deletes).items()
            }


def test_a_flush_reads_no_metadata_and_copies_no_snapshot(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    """So its cost does not grow with the snapshots that are retained."""
    for turn in range(3):
        _flush(bed, turn)
    read: list[str] = []
    inner = FromInputFile.table_metadata

    def table_metadata(file: Any, encoding: str = "utf-8") -> Any:
        read.append(file.location)
        return inner(file, encoding)

    copied: list[int] = []
    deeply = Snapshot.__deepcopy__

    def deepcopy(self: Snapshot, memo: Any = None) -> Snapshot:
        copied.append(self.snapshot_id)
        return deeply(self, memo)

    monkeypatch.setattr(FromInputFile, "table_metadata", staticmethod(table_metadata))
    monkeypatch.setattr(Snapshot, "__deepcopy__", deepcopy)
    _flush(bed, 3)
    assert read == []
    assert len(copied) == 2, "the one before, and the new one"
    assert len(table_of(bed, TABLE).metadata.snapshots) == 5


def test_little_is_kept(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many tables, those that were used last; of one, what is needed for its next commit."""
    monkeypatch.setattr(sql_catalog, "_SNAPSHOTS_MAX", 6)
    other = TABLE.with_(table_id=2, name="other")
    batch = changes([insert(1, "a", "x")]).after
    staged = bed.open().writer().stage(other, "1-0", iter([batch]), Ts(100))
    bed.open().load(other, table_schema(name="other"), ARROW, staged)
    for turn in range(8):
        _flush(bed, turn)
    catalog = table_of(bed, TABLE).catalog
    [kept] = catalog._kept.values()  # type: ignore[attr-defined]
    assert len(kept.snapshots) == 9 == catalog._snapshots  # type: ignore[attr-defined]
    bed.assert_holds((1, "a", "x"), table=other)


def test_keys_of_small_files_are_read_once(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    """And found as in the files themselves."""
    opened: list[str] = []
    inner = rows.opened

    def noted(io: FileIO, path: str, schema: Schema) -> AbstractContextManager[rows.DataRows]:
        opened.append(path)
        return inner(io, path, schema)

    monkeypatch.setattr(rows, "opened", noted)
    for turn in range(6):
        _flush(bed, turn)
    assert len(opened) == len({*opened}) > 1
    monkeypatch.setattr(kept_keys, "_ROWS_MAX", -1)
    _flush(bed, 6)
    bed.assert_holds((1, "t6", "x"), (2, "b", "y"), *((10 + turn, "n", "z") for turn in range(7)))


def test_a_commit_from_an_older_version_is_refused_and_leaves_no_file(bed: Bed) -> None:
    """Whatever has changed meanwhile, and whether or not the requirements say so."""
    old = table_of(bed, TABLE)
    _flush(bed, 0)
    newest = table_of(bed, TABLE)
    metadata = Path(newest.metadata.location.removeprefix("file://")) / "metadata"
    before = {*metadata.iterdir()}
    with pytest.raises(CommitFailedException, match="has another version now"):
        old.catalog.commit_table(old, (), (SetPropertiesUpdate(updates={"late": "yes"}),))
    assert {*metadata.iterdir()} == before
    assert table_of(bed, TABLE).metadata == newest.metadata


@pytest.mark.parametrize(("wanted", "kept"), [("3", 3), ("0", 1), (None, 7)])
def test_as_many_earlier_metadata_files_stay_as_the_table_says(bed: Bed, wanted: str | None, kept: int) -> None:
    with table_of(bed, TABLE).transaction() as change:
        if wanted is None:
            change.remove_properties("write.metadata.previous-versions-max")
        else:
            change.set_properties({"write.metadata.previous-versions-max": wanted})
    for turn in range(5):
        _flush(bed, turn)
    table = table_of(bed, TABLE)
    log = [item.metadata_file for item in table.metadata.metadata_log]
    assert len(log) == len({*log}) == kept
    files = (Path(table.metadata.location.removeprefix("file://")) / "metadata").glob("*.metadata.json")
    assert {path.name for path in files} == {Path(path).name for path in (*log, table.metadata_location)}


def test_the_text_of_a_metadata_file_is_pyicebergs(bed: Bed) -> None:
    for turn in range(3):
        _flush(bed, turn)
    metadata = table_of(bed, TABLE).metadata
    for some in (metadata, metadata.model_copy(update={"snapshots": [], "snapshot_log": []})):
        assert json.loads(metadata_files.to_json(some)) == json.loads(some.model_dump_json())


@pytest.mark.parametrize(("before", "after"), [("delete", "truncate"), ("wal", "wal")])
def test_sqlite_keeps_its_journal(before: str, after: str, tmp_path: Path) -> None:
    """Unless others have given the file another mode."""
    base = sqlite3.connect(tmp_path / "catalog.db")
    base.execute(f"PRAGMA journal_mode = {before}")
    base.close()
    catalog = sql_catalog.KeepingSqlCatalog("weir", uri=f"sqlite:///{tmp_path}/catalog.db")
    with catalog.engine.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == after
    catalog.close()
