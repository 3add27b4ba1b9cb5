"""Which spans a table is cut into.

Today each table is one span. A table's spans are kept as they are once they are known (a new owner learns them from
the captures), and only holes are filled: cutting a table anew would need the sink's records to be cut too.
"""

from collections.abc import Iterable

from reactor.ids import KEY_SPACE, TableSpan


def spans_of(table_id: int, known: Iterable[TableSpan] = ()) -> list[TableSpan]:
    """The spans that together are the whole table: the ``known`` ones and one for each hole between them."""
    result: list[TableSpan] = []
    covered_to = 0
    for span in sorted(span for span in known if span.table_id == table_id):
        if span.start > covered_to:
            result.append(TableSpan(table_id, covered_to, span.start))
        result.append(span)
        covered_to = max(covered_to, span.end)
    if covered_to < KEY_SPACE:
        result.append(TableSpan(table_id, covered_to, KEY_SPACE))
    return result
