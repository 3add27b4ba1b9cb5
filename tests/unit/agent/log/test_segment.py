"""Segments: what is written is read back table by table, and damage is one line."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.errors import LogError, LogStorageMismatchError
from agent.log import segment, storage
from agent.log.salvage import whole_batches
from agent.log.segment import SegmentName
from agent.log.storage import LogDirectory
from reactor.ids import Ts
from tests.unit.agent.log_build import batch, directory, name, put

_positions = st.integers(0, (1 << 63) - 1).map(Ts)


@given(st.integers(1, 10**13), st.integers(1, 10**6), _positions, _positions, _positions)
def test_names_say_everything(seq: int, epoch: int, first: Ts, last: Ts, resolved: Ts) -> None:
    found = SegmentName(seq, epoch, first, last, resolved)
    assert SegmentName.parse(str(found)) == found


def test_names_sort_as_their_numbers() -> None:
    assert sorted(str(name(seq)) for seq in (10, 9, 100)) == [str(name(seq)) for seq in (9, 10, 100)]


@pytest.mark.parametrize("text", ["", "weir-log", ".part-000000000001-1-1-2-3.arrow", "1-1-1-1-1.arrow", "x.arrow"])
def test_other_names_are_no_segments(text: str) -> None:
    assert SegmentName.parse(text) is None


def test_one_table_is_read_with_its_schemas_in_order(tmp_path: Path) -> None:
    ref = put(
        directory(tmp_path),
        name(1, first=5, last=9),
        batch(7, (5, 0), (6, 0)),
        batch(8, (5, 1), (7, 0), (7, 1), (9, 0)),
        batch(7, (8, 0), columns=("id", "new")),
    )
    assert ref.tables == {7, 8}
    assert ref.bytes == Path(ref.path).stat().st_size
    assert segment.contents_of(ref.path) == (ref.tables, ref.bytes)
    read = [(s.columns[-1].name, b.column(2).to_pylist()) for s, b, _ in segment.read_batches(ref.path, 7)]
    assert read == [("id", [b"5/0", b"6/0"]), ("new", [b"8/0"])]


def test_batches_carry_the_time_of_their_newest_commit(tmp_path: Path) -> None:
    ref = put(directory(tmp_path), name(1), batch(1, (5, 0), (6, 0)))
    assert [time for _, _, time in segment.read_batches(ref.path)] == [1006.0]


def test_a_damaged_or_missing_file_is_named(tmp_path: Path) -> None:
    ref = put(directory(tmp_path), name(1))
    Path(ref.path).write_bytes(Path(ref.path).read_bytes()[:-30])
    with pytest.raises(LogError, match=r"cannot be read .*; is the log storage complete"):
        segment.contents_of(ref.path)
    with pytest.raises(LogError, match=r"it is gone.*shared by all captures"):
        segment.contents_of(ref.path + "x")


def test_a_write_that_fails_leaves_nothing_under_the_name(tmp_path: Path) -> None:
    place = directory(tmp_path)

    def fail(_: object) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(LogError, match="No space left on device"):
        place.write("x", fail)
    assert all(storage.finished_name(found) != found for found in place.names())


def test_a_remote_directory_is_a_directory_like_any_other() -> None:
    place = LogDirectory("memory://weir-test/log", changefeed="feed", source="main")
    assert place.names() == []
    ref = put(place, name(1), batch(3, (5, 0)))
    assert ref.path.startswith("memory://")
    assert [entry.name for entry in place.entries()] == place.names() == [str(name(1))]
    assert [part.num_rows for _, part, _ in segment.read_batches(ref.path, 3)] == [1]
    place.remove([str(name(1)), "gone already"])
    assert place.names() == []


def test_the_marker_tells_one_storage_from_another(tmp_path: Path) -> None:
    first, second = str(tmp_path / "a"), str(tmp_path / "b")
    marker = storage.claim(first, cluster_id="c1", expected=None)
    assert storage.claim(first, cluster_id="c1", expected=marker) == marker
    assert storage.claim(first, cluster_id="c1", expected=None) == marker
    with pytest.raises(LogStorageMismatchError, match=r"lacks this cluster's marker.*shared storage"):
        storage.claim(second, cluster_id="c1", expected=marker)
    with pytest.raises(LogStorageMismatchError, match=r"belongs to another cluster \(c1\)"):
        storage.claim(first, cluster_id="c2", expected=None)
    storage.claim(second, cluster_id="c1", expected=None)
    with pytest.raises(LogStorageMismatchError):
        storage.claim(second, cluster_id="c1", expected=marker)


def test_captures_that_begin_at_once_leave_one_marker(tmp_path: Path) -> None:
    for number in range(20):
        claim = partial(storage.claim, str(tmp_path / str(number)), cluster_id="c", expected=None)
        with ThreadPoolExecutor(4) as threads:
            assert len({one.result() for one in [threads.submit(claim) for _ in range(4)]}) == 1


def test_a_segment_of_a_later_format_is_refused_by_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment, "NEWEST_FORMAT", 2)
    ref = put(directory(tmp_path), name(1, first=5, last=9), batch(7, (5, 0)))
    assert segment.contents_of(ref.path)[0] == {7}
    monkeypatch.setattr(segment, "NEWEST_FORMAT", 1)
    with pytest.raises(LogError, match=r"is of format 2, and this version of Weir reads up to 1: read it with"):
        segment.contents_of(ref.path)
    with pytest.raises(LogError, match="is of format 2"):
        list(whole_batches(ref.path))
