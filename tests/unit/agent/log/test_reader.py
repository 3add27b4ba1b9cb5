"""Reader of the log: the head decides which segments hold a range, not the directory."""

from pathlib import Path

import pytest

from agent.errors import LogError
from agent.log.reader import LogReader
from agent.log.storage import LogDirectory
from reactor.ids import Ts
from reactor.records.log_head import Era
from tests.unit.agent.log_build import batch, directory, head, name, put


def seqs(reader: LogReader, at: object, from_ts: int, to_ts: int) -> list[int]:
    return [ref.seq for ref in reader.segments(at, Ts(from_ts), Ts(to_ts))]  # type: ignore[arg-type]


def test_a_range_is_covered_by_the_segments_that_overlap_it(tmp_path: Path) -> None:
    place = directory(tmp_path)
    for seq in range(1, 6):
        put(place, name(seq), batch(seq % 2, (10 * seq, 0)))
    reader, at = LogReader(place), head(last_seq=5)
    assert seqs(reader, at, 0, 50) == [1, 2, 3, 4, 5]
    assert seqs(reader, at, 10, 30) == [2, 3]
    assert seqs(reader, at, 15, 21) == [2, 3]
    assert seqs(reader, at, 50, 50) == []
    first = reader.segments(at, Ts(0), Ts(10))[0]
    assert first.tables == {1}
    assert first.bytes == Path(first.path).stat().st_size


def test_a_transaction_over_several_segments_is_taken_whole(tmp_path: Path) -> None:
    place = directory(tmp_path)
    put(place, name(1, first=5, last=10))
    for seq in (2, 3, 4):
        put(place, name(seq, first=20, last=20 if seq < 4 else 25, resolved=10 if seq < 4 else 29))
    reader, at = LogReader(place), head(last_seq=4, resolved_ts=Ts(29))
    assert seqs(reader, at, 10, 20) == [2, 3, 4]
    assert seqs(reader, at, 20, 29) == [4]


def test_what_a_replaced_writer_left_is_no_part_of_the_log(tmp_path: Path) -> None:
    place = directory(tmp_path)
    for seq in (1, 2, 3, 4):
        put(place, name(seq))
    for seq in (3, 4):
        put(place, name(seq, epoch=2))
    put(place, name(5, epoch=1))
    at = head(last_seq=4, epoch=2, eras=(Era(epoch=1, first_seq=1), Era(epoch=2, first_seq=3)))
    found = LogReader(place).segments(at, Ts(0), Ts(40))
    assert [(ref.seq, ref.epoch) for ref in found] == [(1, 1), (2, 1), (3, 2), (4, 2)]


def test_a_hole_is_an_error_but_a_shorter_front_is_not(tmp_path: Path) -> None:
    place = directory(tmp_path)
    for seq in (3, 4, 6):
        put(place, name(seq))
    reader = LogReader(place)
    with pytest.raises(LogError, match=r"segment 5 of the change log in .* is missing"):
        seqs(reader, head(last_seq=6), 0, 60)
    with pytest.raises(LogError, match="segment 1 of the change log"):
        seqs(LogReader(directory(tmp_path / "elsewhere")), head(last_seq=6), 0, 60)


@pytest.mark.parametrize("known_ts", [0, 20])
def test_a_front_that_is_gone_is_an_error_where_it_may_hold_what_is_wanted(tmp_path: Path, known_ts: int) -> None:
    """Files that were deleted by mistake must not look like tables without changes."""
    place = directory(tmp_path)
    for seq in (3, 4):
        put(place, name(seq))
    reader = LogReader(place)
    with pytest.raises(LogError, match="segments 1 to 2 of the change log"):
        reader.segments(head(last_seq=4), Ts(0), Ts(40), known_ts=Ts(known_ts))
    found = reader.segments(head(last_seq=4), Ts(0), Ts(40), known_ts=Ts(25))
    assert [ref.seq for ref in found] == [3, 4]


def test_what_was_removed_is_not_read_over(tmp_path: Path) -> None:
    place = directory(tmp_path)
    for seq in (3, 4):
        put(place, name(seq))
    reader, at = LogReader(place), head(last_seq=4, first_seq=3, removed_ts=Ts(20))
    assert seqs(reader, at, 20, 40) == [3, 4]
    with pytest.raises(LogError, match="changes after 19 are wanted, but those up to 20 were removed"):
        seqs(reader, at, 19, 40)


class CountingDirectory(LogDirectory):
    """Counts how often it is listed."""

    listings = 0

    def names(self) -> list[str]:
        self.listings += 1
        return super().names()


def test_the_directory_is_listed_only_when_the_head_has_moved(tmp_path: Path) -> None:
    place = CountingDirectory(str(tmp_path), changefeed="feed", source="main")
    put(place, name(1))
    reader = LogReader(place)
    for _ in range(3):
        seqs(reader, head(last_seq=1), 0, 10)
        seqs(reader, head(last_seq=1, resolved_ts=Ts(15)), 10, 15)
    assert place.listings == 1
    put(place, name(2))
    assert seqs(reader, head(last_seq=2), 0, 20) == [1, 2]
    assert place.listings == 2


def test_two_segments_of_one_number_and_epoch_are_an_error_that_names_it(tmp_path: Path) -> None:
    place = directory(tmp_path)
    put(place, name(1))
    put(place, name(1, first=5, last=7))
    with pytest.raises(LogError, match="segment 1 "):
        LogReader(place).segments(head(last_seq=1), Ts(0), Ts(10))
