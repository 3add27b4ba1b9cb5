"""Upkeep of Iceberg tables beside flushes: rows, records and readers of changes do not notice it."""

import os
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from prometheus_client import REGISTRY
from pyiceberg.table.snapshots import Operation

from agent.errors import SinkConflictError, TableHeldError
from agent.ports.sink import Maintains
from agent.sinks import open_table
from agent.sinks.common.compaction import Plan
from agent.sinks.iceberg.table import compact
from agent.sinks.iceberg.table.catalogs.lake import TablePlace
from agent.sinks.iceberg.table.metadata import manifests
from agent.sinks.iceberg.upkeep import expiry, orphans, rewrite, upkeep
from reactor.records.changefeed import SinkMode
from tests.contracts.sink_bed import TABLE, Bed
from tests.integration.agent.sinks.iceberg.lake import edit_metadata, place_of, table_of
from tests.unit.agent.changes_build import delete, insert, update

_THOROUGH = Plan(1 << 20).thorough()


@pytest.fixture(params=[2, 3])
def bed(tmp_path: Path, request: pytest.FixtureRequest) -> Bed:
    bed = Bed(f"iceberg+file://{tmp_path}/lake?format_version={request.param}", SinkMode.UPSERT)
    bed.load(*((at, "a", "x") for at in range(10)))
    for turn in range(3):
        flush(bed, turn, insert(20 + turn, "n", "z"), update(turn, "u", "x"))
    return bed


def flush(bed: Bed, turn: int, *some: Any) -> None:
    assert bed.flush(100 + turn, 101 + turn, some).committed


def files(bed: Bed) -> int:
    return int(table_of(bed, TABLE).inspect.data_files().num_rows)


def rows(bed: Bed) -> dict[int, str]:
    """As PyIceberg reads them."""
    found = table_of(bed, TABLE).scan().to_arrow().to_pylist()
    assert len({row["id"] for row in found}) == len(found), "a key is there twice"
    return {row["id"]: row["name"] for row in found}


def test_what_was_done_is_in_the_metrics(bed: Bed) -> None:
    def joined() -> float:
        labels = {"format": "iceberg", "what": "joined"}
        return REGISTRY.get_sample_value("weir_maintenance_files_total", labels) or 0.0

    before = joined()
    sink = bed.open()
    assert isinstance(sink, Maintains)
    assert sink.maintain(TABLE).joined == 4
    assert joined() == before + 4


def test_files_become_one_and_readers_of_changes_see_none(bed: Bed) -> None:
    before = rows(bed)
    assert rewrite.rewrite(place_of(bed, TABLE), _THOROUGH) == 4
    assert files(bed) == 1
    assert rows(bed) == before
    snapshot = table_of(bed, TABLE).current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    assert snapshot.summary.operation is Operation.REPLACE
    flush(bed, 3, update(1, "again", "x"))
    assert rows(bed) == before | {1: "again"}


def test_position_deletes_that_no_file_needs_go(bed: Bed) -> None:
    upkeep.maintain(place_of(bed, TABLE), retention_s=0)
    assert table_of(bed, TABLE).inspect.delete_files().num_rows == 0
    flush(bed, 3, delete(5, None, None))
    flush(bed, 4, delete(6, None, None))
    before = rows(bed)
    rewrite.merge_deletes(place_of(bed, TABLE))
    assert table_of(bed, TABLE).inspect.delete_files().num_rows == 1
    assert rows(bed) == before


def _once_written(monkeypatch: pytest.MonkeyPatch, then: Callable[[], object]) -> None:
    """After the new file is there and before it is committed."""
    inner, waiting = compact.rewritten, [then]

    def rewritten(*args: Any, **named: Any) -> Any:
        made = inner(*args, **named)
        if waiting:
            waiting.pop()()
        return made

    monkeypatch.setattr(compact, "rewritten", rewritten)


def test_rows_that_a_flush_takes_meanwhile_stay_away(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    before = rows(bed)
    some = [
        update(3, "b", "y"),
        delete(4, None, None),
        update(20, "c", "y"),
        insert(77, "i", "z"),
        delete(2, None, None),
    ]
    _once_written(monkeypatch, lambda: flush(bed, 3, *some))
    assert rewrite.rewrite(place_of(bed, TABLE), _THOROUGH) == 4
    gone = {at: name for at, name in before.items() if at not in (2, 4)}
    assert rows(bed) == gone | {3: "b", 20: "c", 77: "i"}
    bed.assert_at(104)
    flush(bed, 4, update(20, "d", "y"), insert(4, "back", "z"))
    assert rows(bed) == gone | {3: "b", 20: "d", 77: "i", 4: "back"}


def test_it_loses_against_what_rewrites_the_same_files(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    before = rows(bed)
    _once_written(monkeypatch, lambda: rewrite.rewrite(place_of(bed, TABLE), _THOROUGH))
    with pytest.raises(SinkConflictError, match="rewritten meanwhile"):
        rewrite.rewrite(place_of(bed, TABLE), _THOROUGH)
    assert rows(bed) == before
    data = Path(compact.data_directory(table_of(bed, TABLE)).removeprefix("file://"))
    named = {Path(row["file_path"]).name for row in table_of(bed, TABLE).inspect.all_files().to_pylist()}
    assert {path.name for path in data.glob("compacted-*")} <= named, "its file is removed"


def test_files_of_a_writer_that_died_go_after_a_day(bed: Bed) -> None:
    place, before = place_of(bed, TABLE), rows(bed)
    directory = Path(table_of(bed, TABLE).metadata.location.removeprefix("file://"))
    old = directory / "data" / "changes-64-65-0-0123456789ab.parquet"
    new = directory / "metadata" / "snap-1-0-x.avro"
    uuid = "0d4a1c0d-0176-4aab-bde1-6b8e92439209"
    half = directory / "metadata" / f"{uuid}-m0.avro.0123abcd.tmp"
    foreign = [
        directory / "data" / name for name in ("notes.txt", f"00000-5-{uuid}-00001.parquet", f"q-{uuid}.parquet")
    ]
    for path in (old, new, half, *foreign):
        path.write_bytes(b"x")
    for path in directory.glob("*/*"):
        if path != new:
            os.utime(path, (1, 1))
    assert orphans.remove_orphans(place, retention_s=0) == 2
    assert (old.exists(), half.exists(), new.exists()) == (False, False, True)
    assert all(path.exists() for path in foreign)
    assert rows(bed) == before
    flush(bed, 3, update(1, "again", "x"))
    assert rows(bed) == before | {1: "again"}


def test_a_file_elsewhere_that_another_writer_has_named_is_not_read_and_stays(tmp_path: Path) -> None:
    bed = Bed(f"iceberg+file://{tmp_path}/lake", SinkMode.UPSERT)
    bed.load((1, "a", "x"))
    place, elsewhere = place_of(bed, TABLE), tmp_path / "elsewhere.parquet"
    theirs = place.lake.catalog().load_table(place.identifier)
    found = theirs.scan().to_arrow()
    pq.write_table(found.set_column(0, found.schema.field(0), pa.array([999], found.schema.field(0).type)), elsewhere)
    theirs.add_files([str(elsewhere)])
    for read in (
        lambda: open_table(bed.uri, TABLE.path).scan().read_all(),
        bed.assert_holds,
        lambda: _compacted(place),
    ):
        with pytest.raises(TableHeldError, match=r"elsewhere.parquet', which is not in that directory"):
            read()
    theirs.delete("id = 999")
    while expiry.expire(place, retention_s=0, at_least=1):
        pass
    assert len(table_of(bed, TABLE).metadata.snapshots) == 1
    assert elsewhere.exists()


def _compacted(place: TablePlace) -> None:
    table = place.opened()
    compact.rewritten(table, table.schema(), manifests.live(table).data, {}, file_bytes=1)


def test_a_directory_elsewhere_is_not_the_tables(tmp_path: Path) -> None:
    """Nor are old metadata files elsewhere, which each commit removes."""
    bed = Bed(f"iceberg+file://{tmp_path}/lake?retention_seconds=0", SinkMode.UPSERT)
    bed.load((1, "a", "x"))
    elsewhere = tmp_path / "elsewhere.metadata.json"
    elsewhere.write_text("{}")
    old = [{"timestamp-ms": 1, "metadata-file": f"file://{elsewhere}"}]
    edit_metadata(bed, TABLE, lambda known: known | {"metadata-log": old * 100})
    flush(bed, 0, update(1, "b", "x"))
    assert elsewhere.exists()
    edit_metadata(bed, TABLE, lambda known: known | {"location": f"file://{tmp_path}"})
    with pytest.raises(TableHeldError, match="which is not in the sink's directory"):
        flush(bed, 1, update(1, "c", "x"))


def test_it_begins_after_some_commits(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "_turns", OrderedDict())
    monkeypatch.setattr(upkeep, "_COMPACT_EVERY_S", -1.0)
    monkeypatch.setattr(upkeep, "_PLAN", Plan(1 << 20, files_min=2))
    began = [upkeep.begin_if_due(place_of(bed, TABLE), retention_s=0) for _ in range(upkeep._COMMITS)]
    assert began[:-1] == [None] * (upkeep._COMMITS - 1)
    assert began[-1] is not None
    began[-1].join()
    assert files(bed) == 1


def test_a_table_that_is_gone_fails_no_flush(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    place = place_of(bed, TABLE)
    monkeypatch.setattr(upkeep, "_turns", OrderedDict())
    monkeypatch.setattr(upkeep, "_COMMITS", 1)
    monkeypatch.setattr(upkeep, "_COMPACT_EVERY_S", -1.0)
    thread = upkeep.begin_if_due(TablePlace(place.lake, place.namespace, "missing"), retention_s=0)
    assert thread is not None
    thread.join()
    assert upkeep._busy.acquire(blocking=False)
    upkeep._busy.release()
