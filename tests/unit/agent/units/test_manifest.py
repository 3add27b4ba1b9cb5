"""The dump's memory: files that are written once, of which the newest writer's count."""

from pathlib import Path

import pytest

from agent.errors import LogError
from agent.ports.sink import StagedFile
from agent.ports.snapshot import DoneChunk, Plan, TablePlan
from agent.rows.schema import Column, TableSchema
from agent.sources.postgres.snapshot.chunks import ChunkPlan, PlanKind
from agent.units.manifest import Manifest, read_manifest
from reactor.ids import Ts
from reactor.records.tables.table import TableRecord

_SCHEMA = TableSchema(7, "s", 't"x', (Column("id", 23, -1, "integer", True),))


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    return Manifest.for_source(str(tmp_path), changefeed="cluster/feed", source="main")


def _plan(epoch: int, *, generation: int, chunks: int = 2) -> Plan:
    record = TableRecord(table_id=7, schema_name="s", name='t"x', key=("id",), start_ts=Ts(5))
    plan = ChunkPlan(PlanKind.KEYS, chunks, 10, "id", 0, 10)
    return Plan(epoch, Ts(5), (TablePlan(record, _SCHEMA, plan, generation),), "here")


def _done(generation: int, number: int, path: str) -> DoneChunk:
    return DoneChunk(7, generation, number, (StagedFile(path, 3, 100, '{"a": 1}'),))


def test_nothing_is_planned_at_first(manifest: Manifest) -> None:
    assert manifest.read_plan() is None
    with pytest.raises(LogError, match="there is no dump"):
        list(read_manifest(manifest.uri))


def test_what_is_written_is_read_and_the_newest_plan_counts(manifest: Manifest) -> None:
    for epoch in (2, 10, 9):
        manifest.write_plan(_plan(epoch, generation=epoch))
    assert manifest.read_plan() == _plan(10, generation=10)
    assert Manifest.open(manifest.uri).read_plan() == _plan(10, generation=10)


def test_chunks_of_another_generation_do_not_count(manifest: Manifest) -> None:
    plan = _plan(3, generation=3)
    manifest.write_done(1, 0, [_done(1, 0, "old")])
    manifest.write_done(3, 0, [_done(3, 1, "new"), DoneChunk(99, 3, 0, ())])
    assert manifest.read_done(plan) == {(7, 1): _done(3, 1, "new")}


def test_of_two_writers_of_a_chunk_the_newer_counts_whoever_was_last(manifest: Manifest) -> None:
    manifest.write_done(2, 0, [_done(1, 0, "newer")])
    manifest.write_done(1, 5, [_done(1, 0, "older")])
    assert manifest.read_done(_plan(2, generation=1))[7, 0].files[0].path == "newer"


def test_load_is_given_files_only_when_every_chunk_is_there(manifest: Manifest) -> None:
    plan = _plan(1, generation=1)
    manifest.write_plan(plan)
    manifest.write_done(1, 0, [_done(1, 1, "b")])
    with pytest.raises(LogError, match="1 chunks of"):
        list(read_manifest(manifest.uri))
    manifest.write_done(1, 1, [_done(1, 0, "a")])
    [(record, schema, files)] = read_manifest(manifest.uri)
    assert (record, schema) == (plan.tables[0].record, _SCHEMA)
    assert [file.path for file in files] == ["a", "b"]


def test_epochs_have_more_digits_once_etcd_is_old(manifest: Manifest) -> None:
    """Orders count from the owner's revision times 100,000: eleven digits after a few hours of a busy cluster."""
    for epoch in (9_999_900_001, 10_000_000_001):
        manifest.write_plan(_plan(epoch, generation=epoch))
    manifest.write_done(10_000_000_001, 1, [_done(10_000_000_001, 0, "a")])
    plan = manifest.read_plan()
    assert plan is not None
    assert plan.epoch == 10_000_000_001
    assert list(manifest.read_done(plan)) == [(7, 0)]
