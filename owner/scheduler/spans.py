"""Span layout: divides a table into the number of spans that its record says, all of one size.

Keys are hashed, so spans of one size hold about as many rows. A table's spans do not change when captures come and go,
since each has a record of its own in the sink. Other spans that a new owner finds reported are leftovers; missing ones
are filled. ``owner.tables.repartition`` changes a table's spans.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import pairwise

from owner.errors import InconsistentSpanError
from reactor.ids import KEY_SPACE, TableSpan

#: maximum number of spans per table
SPANS_MAX = 100

#: the spans of tables that are not one whole span; empty: the table must not be written now
TableSpans = Mapping[int, tuple[TableSpan, ...]]


@lru_cache(maxsize=4096)
def even_spans(table_id: int, count: int) -> tuple[TableSpan, ...]:
    """Return ``count`` equal spans that cover the table."""
    ends = [at * KEY_SPACE // count for at in range(count + 1)]
    return tuple(TableSpan(table_id, start, end) for start, end in pairwise(ends))


def spans_of(table_id: int, table_spans: TableSpans) -> tuple[TableSpan, ...]:
    """Return the wanted spans of one table."""
    spans = table_spans.get(table_id)
    return (TableSpan(table_id),) if spans is None else spans


def wanted_spans(tables: Iterable[int], table_spans: TableSpans) -> Iterator[TableSpan]:
    """Yield the wanted spans of ``tables``, sorted."""
    for table in sorted(tables):
        yield from spans_of(table, table_spans)


def shared_spans(captures: int) -> int:
    """Return a span count that distributes evenly over that many captures, also when one of them leaves."""
    return min(captures * max(captures - 1, 3), SPANS_MAX)


def span_count(rows: int, captures: int, *, rows_per_span: int) -> int:
    """Return how many spans a table of ``rows`` should have: none smaller than ``rows_per_span``."""
    return max(1, min(shared_spans(captures), rows // rows_per_span))


def assert_whole(table_id: int, spans: Collection[TableSpan]) -> None:
    """Assert that ``spans`` are adjacent and cover the table, or that there are none, so that the table is not
    written."""
    ends = [0, *(span.end for span in spans)]
    for span, end in zip(spans, ends, strict=False):
        assert (span.table_id, span.start) == (table_id, end), f"{span} does not follow on {end} of table {table_id}"
    assert not spans or ends[-1] == KEY_SPACE, f"the spans of table {table_id} end at {ends[-1]:x}"


def refuse_overlap(leftovers: Iterable[TableSpan], known: Collection[TableSpan], table_spans: TableSpans) -> None:
    """Check that no span of ``leftovers``, which are not wanted, overlaps a known wanted span.

    :raises InconsistentSpanError: a range of keys would have two writers.
    """
    for span in leftovers:
        for other in spans_of(span.table_id, table_spans):
            if other != span and other in known and other.start < span.end and span.start < other.end:
                raise InconsistentSpanError(f"spans {span} and {other} of one table overlap; the changefeed runs again")
