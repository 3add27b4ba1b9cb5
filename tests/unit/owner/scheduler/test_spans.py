"""Spans of one size: they are the table, whatever their number; how many are worth it; overlaps are refused."""

from itertools import pairwise

import pytest

from owner.errors import InconsistentSpanError
from owner.scheduler.spans import SPANS_MAX, even_spans, refuse_overlap, span_count, spans_of, wanted_spans
from reactor.ids import KEY_SPACE, TableSpan

HALF = KEY_SPACE // 2


@pytest.mark.parametrize("count", range(1, SPANS_MAX + 1))
def test_spans_lie_side_by_side_from_end_to_end(count: int) -> None:
    spans = even_spans(7, count)
    assert len(spans) == count
    assert (spans[0].start, spans[-1].end) == (0, KEY_SPACE)
    assert all(left.end == right.start for left, right in pairwise(spans))
    sizes = [span.end - span.start for span in spans]
    assert max(sizes) - min(sizes) <= 1


def test_two_cuts_of_a_table_have_no_span_in_common() -> None:
    """Each span has a record of its own in the sink: an old one must never be taken for a new one."""
    seen = [span for count in range(1, SPANS_MAX + 1) for span in even_spans(7, count)]
    assert len(set(seen)) == len(seen)


def test_a_table_without_a_cut_is_one_span_and_one_being_cut_has_none() -> None:
    table_spans = {2: even_spans(2, 2), 3: ()}
    assert spans_of(1, table_spans) == (TableSpan(1),)
    assert list(wanted_spans([3, 2, 1], table_spans)) == [TableSpan(1), TableSpan(2, 0, HALF), TableSpan(2, HALF)]


@pytest.mark.parametrize(
    ("parts", "captures", "spans"), [(1, 10, 1), (100, 2, 6), (100, 3, 9), (100, 5, 20), (10_000, 11, 100), (0, 3, 1)]
)
def test_how_many_spans_are_worth_it(parts: int, captures: int, spans: int) -> None:
    assert span_count(parts * 1000, captures, rows_per_span=1000) == spans


def test_a_leftover_across_a_known_span_is_refused() -> None:
    table_spans = {1: even_spans(1, 2), 2: ()}
    whole, half = TableSpan(1), TableSpan(1, 0, HALF)
    refuse_overlap([whole], [whole], table_spans)
    refuse_overlap([TableSpan(2)], [TableSpan(2), half], table_spans)
    with pytest.raises(InconsistentSpanError, match="overlap"):
        refuse_overlap([whole], [whole, half], table_spans)
