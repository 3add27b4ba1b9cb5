"""Segments go in order, when every span has passed them and nobody may rewind to them any more."""

import pytest

from agent.log.retention import Needs, Removal, plan
from agent.log.segment import SegmentName
from agent.ports.log_storage import Entry
from reactor.ids import Ts
from reactor.records.log_head import Era, LogHead
from tests.unit.agent.log_build import head, name


def entry(found: SegmentName | str, *, age_s: float = 100.0) -> Entry:
    return Entry(str(found), 1, 1000.0 - age_s)


def planned(at: LogHead, entries: list[Entry], *, checkpoint: int, retention_s: float = 50.0) -> Removal:
    return plan(at, entries, Needs(Ts(checkpoint), retention_s), now=1000.0)


@pytest.mark.parametrize(("checkpoint", "first_seq"), [(0, 1), (9, 1), (10, 2), (29, 3), (50, 6), (999, 6)])
def test_only_what_every_span_has_passed(checkpoint: int, first_seq: int) -> None:
    removal = planned(head(last_seq=5), [entry(name(seq)) for seq in range(1, 6)], checkpoint=checkpoint)
    assert removal.first_seq == first_seq
    assert removal.removed_ts == 10 * (first_seq - 1)
    assert removal.names == tuple(str(name(seq)) for seq in range(1, first_seq))


def test_young_segments_stay_and_hold_back_what_follows() -> None:
    entries = [entry(name(1)), entry(name(2), age_s=10.0), entry(name(3))]
    assert planned(head(last_seq=3), entries, checkpoint=30).first_seq == 2
    assert planned(head(last_seq=3), entries, checkpoint=30, retention_s=5.0).first_seq == 4


def test_an_open_transaction_stays() -> None:
    at = head(last_seq=3, complete_seq=1)
    assert planned(at, [entry(name(seq)) for seq in (1, 2, 3)], checkpoint=999).first_seq == 2


def test_what_an_interrupted_removal_left_goes() -> None:
    at = head(last_seq=3, first_seq=3)
    removal = planned(at, [entry(name(seq)) for seq in (1, 2, 3)], checkpoint=0)
    assert removal.names == (str(name(1)), str(name(2)))
    assert removal.first_seq == 3


def test_orphans_of_replaced_writers_go_but_nothing_that_is_being_written() -> None:
    at = head(last_seq=4, epoch=2, eras=(Era(epoch=1, first_seq=1), Era(epoch=2, first_seq=3)))
    kept = [name(1), name(2), name(3, epoch=2), name(4, epoch=2), name(5, epoch=2), name(5, epoch=3)]
    orphans: list[SegmentName | str] = [name(3), name(4), name(5), f".part-{name(2)}", f".part-{name(5)}"]
    others = ["weir-log", f".part-{name(5, epoch=2)}"]
    removal = planned(at, [entry(found) for found in (*kept, *orphans, *others)], checkpoint=0)
    assert sorted(removal.names) == sorted(str(found) for found in orphans)


@pytest.mark.parametrize(
    ("held_s", "held_bytes", "first_seq"),
    [(1000.0, 100, 3), (1000.0, 3, 3), (1000.0, 2, 4), (1000.0, 0, 6), (100.0, 100, 6), (95.0, 1, 6)],
)
def test_what_a_held_table_needs_stays_up_to_a_bound(held_s: float, held_bytes: int, first_seq: int) -> None:
    """All others are at 50, one table is held at 20: of the segments of one byte each, 3 to 5 are its own."""
    entries = [entry(name(seq)) for seq in range(1, 7)]
    needs = Needs(Ts(50), 50.0, held_ts=Ts(20), held_retention_s=held_s, held_bytes=held_bytes)
    removal = plan(head(last_seq=6), entries, needs, now=1000.0)
    assert removal.first_seq == first_seq
    assert removal.removed_ts == 10 * (first_seq - 1)


def test_a_held_table_keeps_nothing_that_is_needed_anyway_and_nothing_before_it() -> None:
    entries = [entry(name(seq)) for seq in range(1, 6)]
    needs = Needs(Ts(20), 50.0, held_ts=Ts(40), held_retention_s=0.0, held_bytes=0)
    assert plan(head(last_seq=5), entries, needs, now=1000.0).first_seq == 3
