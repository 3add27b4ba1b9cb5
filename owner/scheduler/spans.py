"""Span layout: the spans of a table, as many as its record says and all of one size, so that a count names them all.

Keys are hashed, so spans of one size hold about as many rows. A table's spans stay as they are whatever captures come
and go, since each has a record of its own in the sink; what a new owner finds reported beside them is a leftover, and
what it does not find is a hole that is filled. How a table gets other spans is ``owner.tables.repartition``'s.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import pairwise

from owner.errors import InconsistentSpanError
from reactor.ids import KEY_SPACE, TableSpan

#: spans of one table at most
SPANS_MAX = 100

#: the spans of those tables that are not one whole span; none: nobody may write the table now
TableSpans = Mapping[int, tuple[TableSpan, ...]]


@lru_cache(maxsize=4096)
def even_spans(table_id: int, count: int) -> tuple[TableSpan, ...]:
    """``count`` spans that together are the table."""
    ends = [at * KEY_SPACE // count for at in range(count + 1)]
    return tuple(TableSpan(table_id, start, end) for start, end in pairwise(ends))


def spans_of(table_id: int, table_spans: TableSpans) -> tuple[TableSpan, ...]:
    """The spans of one table that should be replicated."""
    spans = table_spans.get(table_id)
    return (TableSpan(table_id),) if spans is None else spans


def wanted_spans(tables: Iterable[int], table_spans: TableSpans) -> Iterator[TableSpan]:
    """The spans of ``tables`` that should be replicated, sorted."""
    for table in sorted(tables):
        yield from spans_of(table, table_spans)


def shared_spans(captures: int) -> int:
    """How many spans so many captures share well: they go round evenly, also when one of them leaves."""
    return min(captures * max(captures - 1, 3), SPANS_MAX)


def span_count(rows: int, captures: int, *, rows_per_span: int) -> int:
    """How many spans a table of ``rows`` is worth: none of less than ``rows_per_span``."""
    return max(1, min(shared_spans(captures), rows // rows_per_span))


def assert_whole(table_id: int, spans: Collection[TableSpan]) -> None:
    """Assert that ``spans`` lie side by side and are the table, or that there are none: nobody may write it now."""
    ends = [0, *(span.end for span in spans)]
    for span, end in zip(spans, ends, strict=False):
        assert (span.table_id, span.start) == (table_id, end), f"{span} does not follow on {end} of table {table_id}"
    assert not spans or ends[-1] == KEY_SPACE, f"the spans of table {table_id} end at {ends[-1]:x}"


def refuse_overlap(leftovers: Iterable[TableSpan], known: Collection[TableSpan], table_spans: TableSpans) -> None:
    """``leftovers`` should not be replicated (any more): none may lie across one that should be, and is known.

    :raises InconsistentSpanError: a range of keys would have two writers.
    """
    for span in leftovers:
        for other in spans_of(span.table_id, table_spans):
            if other != span and other in known and other.start < span.end and span.start < other.end:
                raise InconsistentSpanError(f"spans {span} and {other} of one table overlap; the changefeed runs again")
