"""Tables of format version 3: one deletion vector for each data file, ids of rows, and tables that were upgraded."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from pyiceberg.io import FileIO
from pyiceberg.manifest import FileFormat
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadataV3

from agent.errors import SinkUriError
from agent.ports.sink import Maintains, Replaces
from agent.sinks import open_sink
from agent.sinks.common.compaction import Plan
from agent.sinks.iceberg.table import row_ids, rows
from agent.sinks.iceberg.table.deletes import positions, vectors
from agent.sinks.iceberg.table.files import Vector
from agent.sinks.iceberg.table.metadata import manifests
from agent.sinks.iceberg.table.metadata.manifests import Live
from agent.sinks.iceberg.upkeep import expiry, rewrite
from reactor.records.changefeed import SinkMode
from tests.contracts.sink_bed import TABLE, Bed
from tests.integration.agent.sinks.iceberg.lake import edit_metadata, place_of, table_of
from tests.integration.agent.sinks.iceberg.test_readers import agree
from tests.unit.agent.changes_build import delete, insert, update

pytestmark = pytest.mark.sample(0.25)  # make matrix runs the others


@pytest.fixture
def bed(tmp_path: Path) -> Bed:
    return Bed(f"iceberg+file://{tmp_path}/lake?format_version=3", SinkMode.UPSERT)


def _flush(bed: Bed, turn: int, *some: object) -> None:
    assert bed.flush(100 + turn * 10, 110 + turn * 10, some).committed  # type: ignore[arg-type]


def _checked(table: Table) -> Live:
    """Return the table's files, which are as the specification asks for."""
    live, metadata = manifests.live(table), table.metadata
    assert isinstance(metadata, TableMetadataV3)
    data = {item.path: item for item in live.data}
    about = Counter(item.vector.about for item in live.deletes if item.vector is not None)
    assert len(about) == len(live.deletes), "position deletes, or two vectors of one data file"
    for item in live.deletes:
        assert item.vector is not None
        assert item.file.file_format == FileFormat.PUFFIN
        of = data[item.vector.about]
        assert item.sequence >= of.sequence
        assert item.home == of.home
        [(_, places)] = vectors.read(table.io, item.path, [item.vector])
        assert places.tolist() == positions.deleted(table, [item])[item.vector.about].tolist()
        assert 0 < len(places) == item.file.record_count
        assert places[-1] < of.file.record_count
    ranges = []
    for item in live.data:
        first = row_ids.first_id_of(item.file)
        assert first is not None
        ranges.append((first, first + item.file.record_count))
    ranges.sort()
    assert all(end <= begin for (_, end), (begin, _) in pairwise(ranges)), "an id is given twice"
    following = 0
    for snapshot in metadata.snapshots:
        if snapshot.first_row_id is not None:
            assert snapshot.first_row_id >= following
            assert snapshot.added_rows is not None
            following = snapshot.first_row_id + snapshot.added_rows
    assert metadata.next_row_id is not None
    assert metadata.next_row_id >= following >= max(end for _, end in ranges)
    return live


@pytest.mark.matrix
def test_each_data_file_has_one_vector(bed: Bed) -> None:
    bed.load(*((at, f"n{at}", "b") for at in range(100)))
    held = {at: (at, f"n{at}", "b") for at in range(100)}
    for turn in range(30):  # past the joining of files
        some = [update(at, f"t{turn}", "u", ts=turn * 10 + 101) for at in range(turn, turn + 5)]
        _flush(bed, turn, *some, delete(turn + 40, None, None), insert(200 + turn, "new", "r"))
        held |= {at: (at, f"t{turn}", "u") for at in range(turn, turn + 5)}
        held.pop(turn + 40, None)
        held[200 + turn] = (200 + turn, "new", "r")
        live = _checked(table_of(bed, TABLE))
        assert live.deletes or turn > 20
        if turn in (0, 11, 29):
            agree(bed, list(held.values()))
    sink = bed.open()
    assert isinstance(sink, Maintains)
    sink.maintain(TABLE)
    _checked(table_of(bed, TABLE))
    agree(bed, list(held.values()))


def test_a_flush_reads_a_file_of_vectors_once(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    """One for all data files that lost rows in one commit, and none in the process that wrote it."""
    read: list[str] = []
    inner = vectors.read

    def noted(io: FileIO, path: str, wanted: Sequence[Vector]) -> Iterator[tuple[Vector, positions.Positions]]:
        read.append(path)
        return inner(io, path, wanted)

    bed.load(*((at, "a", "x") for at in range(10)))
    for turn in range(3):
        _flush(bed, turn, *(insert(turn * 10 + at, "a", "x") for at in range(10, 20)))
    monkeypatch.setattr(vectors, "read", noted)
    _flush(bed, 3, *(delete(at, None, None) for at in (1, 11, 21, 31)))
    _flush(bed, 4, *(delete(at, None, None) for at in (2, 12, 22, 32)))
    assert read == []
    deletes = manifests.live(table_of(bed, TABLE)).deletes
    assert len(deletes) == 4
    with monkeypatch.context() as patch:
        patch.setattr(positions, "_kept", positions._Kept())
        _flush(bed, 5, *(delete(at, None, None) for at in (3, 13)))
    assert read == [deletes[0].path]
    left = [at for at in range(40) if at not in (1, 11, 21, 31, 2, 12, 22, 32, 3, 13)]
    agree(bed, [(at, "a", "x") for at in left])


def test_a_file_of_vectors_stays_until_the_last_of_them_goes(bed: Bed) -> None:
    """A commit writes vectors of two data files into one file; one of them is replaced, the other stays."""
    bed.load(*((at, "a", "x") for at in range(10)))
    _flush(bed, 0, *(insert(at, "a", "x") for at in range(20, 30)))
    _flush(bed, 1, delete(1, None, None), delete(21, None, None))
    [shared] = {item.path for item in manifests.live(table_of(bed, TABLE)).deletes}
    for turn in range(2, 6):
        _flush(bed, turn, delete(turn, None, None))
    while expiry.expire(place_of(bed, TABLE), retention_s=0, at_least=1):
        pass
    assert shared in {item.path for item in _checked(table_of(bed, TABLE)).deletes}
    left = [at for at in range(30) if at not in (1, 2, 3, 4, 5, 21) and not 10 <= at < 20]
    agree(bed, [(at, "a", "x") for at in left])
    _flush(bed, 6, delete(22, None, None))
    _flush(bed, 7, delete(23, None, None))
    while expiry.expire(place_of(bed, TABLE), retention_s=0, at_least=1):
        pass
    assert not Path(shared.removeprefix("file://")).exists()
    agree(bed, [(at, "a", "x") for at in left if at not in (22, 23)])


def test_rows_that_move_keep_their_ids(bed: Bed) -> None:
    bed.load(*((at, "a", "x") for at in range(20)))
    for turn in range(4):
        _flush(bed, turn, delete(turn * 3, None, None), insert(100 + turn, "n", "y"))
    before = _ids(bed)
    assert len(set(before.values())) == len(before) == 20
    rewrite.rewrite(place_of(bed, TABLE), _thorough())
    assert _ids(bed) == before
    assert not manifests.live(table_of(bed, TABLE)).deletes
    _flush(bed, 4, delete(100, None, None), *(insert(200 + at, "n", "y") for at in range(5)))
    before.pop(100)
    before |= {200 + at: _ids(bed)[200 + at] for at in range(5)}
    rewrite.rewrite(place_of(bed, TABLE), _thorough())  # one file stores the ids of its rows, another does not
    assert _ids(bed) == before
    assert len(set(before.values())) == len(before)


def _thorough() -> Plan:
    return Plan(1 << 20).thorough()


def _ids(bed: Bed) -> dict[int, int]:
    """Return the id of each row, by its key."""
    table, found = table_of(bed, TABLE), {}
    live = _checked(table)
    gone = positions.deleted(table, live.deletes)
    for item in live.data:
        first = row_ids.first_id_of(item.file)
        assert first is not None
        schema = Schema(table.schema().find_field("id"), row_ids.LINEAGE[0])
        with rows.opened(table.io, item.path, schema) as file:
            for begin, batch in file.batches():
                for at, row in enumerate(batch.to_pylist(), begin):
                    if at not in gone.get(item.path, positions.NONE):
                        found[row["id"]] = first + at if row["_row_id"] is None else row["_row_id"]
    return found


def _upgraded(bed: Bed) -> None:
    """As other engines do it: the metadata alone changes."""
    assert table_of(bed, TABLE).metadata.format_version == 2
    edit_metadata(bed, TABLE, lambda found: found | {"format-version": 3, "next-row-id": 0})


def _by_a_flush(bed: Bed) -> None:
    _flush(bed, 6, delete(7, None, None))


def _by_care(bed: Bed) -> None:
    rewrite.merge_deletes(place_of(bed, TABLE))
    _flush(bed, 6, delete(7, None, None))


def _by_rewriting(bed: Bed) -> None:
    rewrite.rewrite(place_of(bed, TABLE), _thorough())
    _flush(bed, 6, delete(7, None, None))


def _by_a_copy(bed: Bed) -> None:
    sink = bed.open()
    assert isinstance(sink, Replaces)
    sink.replace(bed.copied(160, *((at, "a", "x") for at in range(20) if at > 5)))
    _flush(bed, 6, delete(7, None, None))


@pytest.mark.parametrize("goes_on", [_by_a_flush, _by_care, _by_rewriting, _by_a_copy])
def test_position_deletes_of_a_table_that_is_upgraded_become_vectors(
    tmp_path: Path, goes_on: Callable[[Bed], None]
) -> None:
    bed = Bed(f"iceberg+file://{tmp_path}/lake", SinkMode.UPSERT)
    bed.load(*((at, "a", "x") for at in range(20)))
    for turn in range(6):
        _flush(bed, turn, delete(turn, None, None))
    assert len(manifests.live(table_of(bed, TABLE)).deletes) == 6
    _upgraded(bed)
    agree(bed, [(at, "a", "x") for at in range(6, 20)])
    goes_on(bed)
    _checked(table_of(bed, TABLE))
    agree(bed, [(at, "a", "x") for at in range(6, 20) if at != 7])
    _flush(bed, 7, update(8, "b", "y"))
    _checked(table_of(bed, TABLE))
    agree(bed, [(8, "b", "y"), *((at, "a", "x") for at in range(6, 20) if at not in (7, 8))])


def test_the_option_is_of_new_tables(tmp_path: Path) -> None:
    """A table stays at its version until its owner upgrades it."""
    old = Bed(f"iceberg+file://{tmp_path}/lake", SinkMode.UPSERT)
    old.load((1, "a", "x"))
    new = Bed(f"{old.uri}?format_version=3", SinkMode.UPSERT)
    assert new.flush(100, 200, [update(1, "b", "x")]).committed
    assert table_of(new, TABLE).metadata.format_version == 2
    agree(new, [(1, "b", "x")])


@pytest.mark.parametrize("version", ["1", "4", "three"])
def test_other_versions_are_refused(version: str, tmp_path: Path) -> None:
    with pytest.raises(SinkUriError, match="format_version"):
        open_sink(f"iceberg+file://{tmp_path}?format_version={version}", changefeed="feed", mode=SinkMode.UPSERT)


def test_readers_that_may_not_know_the_vectors_are_refused(tmp_path: Path) -> None:
    uri = f"iceberg+file://{tmp_path}?format_version=3&readers=duckdb,"
    open_sink(f"{uri}pyiceberg", changefeed="feed", mode=SinkMode.UPSERT)
    with pytest.raises(SinkUriError, match="'presto' of readers is not known to read format_version=3"):
        open_sink(f"{uri}presto", changefeed="feed", mode=SinkMode.UPSERT)
