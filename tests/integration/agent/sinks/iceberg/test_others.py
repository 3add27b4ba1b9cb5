"""Commits of other writers: harmless or not, by the snapshots between our newest and the current one."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.update import SetSnapshotRefUpdate
from pyiceberg.types import StringType

from agent.errors import SinkError, TableForeignError
from agent.sinks.common.compaction import Plan
from agent.sinks.iceberg.table import commit, compact
from agent.sinks.iceberg.table.catalogs.lake import Lake
from agent.sinks.iceberg.table.commit import Step
from agent.sinks.iceberg.table.state import STATE, State
from agent.sinks.iceberg.upkeep import expiry, rewrite, upkeep
from agent.sinks.uri import parse_sink_uri
from reactor.records.changefeed import SinkMode
from tests.contracts.sink_bed import SPAN, TABLE, Bed
from tests.integration.agent.sinks.iceberg.lake import edit_metadata, place_of, table_of
from tests.unit.agent.changes_build import delete, insert, update


@pytest.fixture
def bed(tmp_path: Path) -> Bed:
    bed = Bed(f"iceberg+file://{tmp_path}/lake?retention_seconds=0", SinkMode.UPSERT)
    bed.load((1, "a", "x"), (2, "b", "y"))
    bed.flush(100, 200, [update(1, "aa", "x", ts=110)])
    return bed


def _appended(table: Table) -> None:
    table.append(pa.table({"id": [9], "name": ["other"], "big": ["w"]}))


def _deleted(table: Table) -> None:
    table.delete("id = 2")


def _set_back(table: Table) -> None:
    first = table.metadata.snapshots[0].snapshot_id
    update = {"ref-name": MAIN_BRANCH, "type": SnapshotRefType.BRANCH, "snapshot-id": first}
    table.catalog.commit_table(table, (), (SetSnapshotRefUpdate.model_validate(update),))


def _column_added(table: Table) -> None:
    with table.update_schema() as change:
        change.add_column("theirs", StringType())


@pytest.mark.parametrize("does", [_appended, _deleted, _set_back, _column_added])
def test_a_table_that_others_have_changed_is_held(bed: Bed, does: Callable[[Table], None]) -> None:
    does(table_of(bed, TABLE))
    for ask in (bed.at, lambda: bed.flush(200, 300, [insert(3, "c", "z", ts=210)])):
        with pytest.raises(TableForeignError, match="resync"):
            ask()


def test_a_table_that_others_have_changed_and_set_back_goes_on(bed: Bed) -> None:
    ours = table_of(bed, TABLE)
    _appended(table_of(bed, TABLE))
    update = {"ref-name": MAIN_BRANCH, "type": SnapshotRefType.BRANCH}
    back = SetSnapshotRefUpdate.model_validate({**update, "snapshot-id": ours.metadata.current_snapshot_id})
    theirs = table_of(bed, TABLE)
    theirs.catalog.commit_table(theirs, (), (back,))
    assert bed.flush(200, 300, [insert(3, "c", "z", ts=210)]).committed
    bed.assert_holds((1, "aa", "x"), (2, "b", "y"), (3, "c", "z"))


def test_properties_of_others_and_expired_snapshots_do_no_harm(bed: Bed) -> None:
    table = table_of(bed, TABLE)
    with table.transaction() as change:
        change.set_properties({"comment": "theirs"})
    table = table_of(bed, TABLE)
    table.maintenance.expire_snapshots().by_id(table.metadata.snapshots[0].snapshot_id).commit()
    assert bed.flush(200, 300, [delete(2, None, None, ts=210)]).committed
    bed.assert_at(300)
    bed.assert_holds((1, "aa", "x"))
    assert table_of(bed, TABLE).properties["comment"] == "theirs"


def test_a_table_that_others_have_rewritten_and_whose_snapshots_they_have_expired_goes_on(bed: Bed) -> None:
    """As a nightly job does, of a table that had no change for longer than it keeps snapshots."""
    ours = table_of(bed, TABLE).metadata.current_snapshot_id
    rewrite.rewrite(place_of(bed, TABLE), Plan(1 << 20).thorough())
    theirs = table_of(bed, TABLE)
    state = json.dumps(json.loads(theirs.properties[STATE]) | {"snapshot": ours})  # as if it were another's
    with theirs.transaction() as change:
        change.set_properties({STATE: state})

    def expired(metadata: dict[str, Any]) -> dict[str, Any]:  # PyIceberg itself also forgets that it was the parent
        return metadata | {
            "snapshots": [item for item in metadata["snapshots"] if item["snapshot-id"] != ours],
            "snapshot-log": metadata["snapshot-log"][-1:],
        }

    edit_metadata(bed, TABLE, expired)
    assert ours not in {item.snapshot_id for item in table_of(bed, TABLE).metadata.snapshots}
    assert bed.flush(200, 300, [delete(2, None, None, ts=210)]).committed
    bed.assert_holds((1, "aa", "x"))


def test_a_stale_commit_is_refused_and_not_repeated(bed: Bed) -> None:
    """pyiceberg's own transaction would append again, on top of what has come between."""
    from pyiceberg.exceptions import CommitFailedException

    stale = table_of(bed, TABLE)
    bed.flush(200, 300, [insert(3, "c", "z", ts=210)])
    with pytest.raises(CommitFailedException):
        commit.commit(stale, Step(State.of(stale).at({SPAN: 250})))
    bed.assert_at(300)


def test_a_commit_that_was_requested_twice_keeps_its_files(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy whose answer is lost sends a request again, which is refused because the first has succeeded."""
    kind = type(table_of(bed, TABLE).catalog)
    inner = kind.commit_table

    def twice(*request: Any) -> Any:
        inner(*request)
        return inner(*request)

    monkeypatch.setattr(kind, "commit_table", twice)
    assert bed.flush(200, 300, [update(1, "aaa", "x", ts=210), insert(3, "c", "z", ts=220)]).committed
    monkeypatch.setattr(kind, "commit_table", inner)
    bed.assert_at(300)
    bed.assert_holds((1, "aaa", "x"), (2, "b", "y"), (3, "c", "z"))
    assert table_of(bed, TABLE).scan().to_arrow().num_rows == 3


@pytest.mark.matrix
def test_files_and_snapshots_do_not_pile_up(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many small flushes: few live files, few snapshots, and what no snapshot names is removed from the disk."""
    monkeypatch.setattr(upkeep, "begin_if_due", lambda *_, **__: None)  # two at a time would be in each other's way
    for turn in range(60):
        assert bed.flush(200 + turn, 201 + turn, [update(1, f"t{turn}", "x", ts=201 + turn)]).committed
    place = Lake.of(parse_sink_uri(bed.uri)).place(TABLE)
    while expiry.expire(place, retention_s=0):
        pass
    table = table_of(bed, TABLE)
    assert len(table.metadata.snapshots) < 20 + 2
    live = len(table.inspect.data_files()) + len(table.inspect.delete_files())
    assert live < 50
    named = {row["file_path"].removeprefix("file://") for row in table.inspect.all_files().to_pylist()}
    on_disk = {str(path) for path in Path(compact.data_directory(table).removeprefix("file://")).iterdir()}
    assert named <= on_disk, "no file is missing"
    assert len(on_disk) < 100
    metadata = Path(f"{table.metadata.location}/metadata".removeprefix("file://"))
    assert len(list(metadata.glob("*.metadata.json"))) < 25
    assert len(list(metadata.glob("*.avro"))) < 120
    bed.assert_holds((1, "t59", "x"), (2, "b", "y"))


def test_branches_of_others_keep_what_they_name(bed: Bed) -> None:
    table = table_of(bed, TABLE)
    with table.manage_snapshots() as change:
        change.create_tag(table.metadata.snapshots[0].snapshot_id, "audit")
    for turn in range(25):
        bed.flush(200 + turn, 201 + turn, [update(1, f"t{turn}", "x", ts=201 + turn)])
    assert expiry.expire(Lake.of(parse_sink_uri(bed.uri)).place(TABLE), retention_s=0) == 0
    tagged = table_of(bed, TABLE).scan(snapshot_id=table.metadata.snapshots[0].snapshot_id).to_arrow()
    assert sorted(tagged.column("name").to_pylist()) == ["a", "b"]


def test_a_damaged_file_is_named(bed: Bed) -> None:
    table = table_of(bed, TABLE)
    for row in table.inspect.data_files().to_pylist():
        Path(row["file_path"].removeprefix("file://")).unlink()
    with pytest.raises(SinkError, match="bring back what is missing"):
        bed.flush(200, 300, [update(1, "b", "x", ts=210)])
