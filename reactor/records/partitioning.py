"""Partitionings: the records of how many spans a table has in the sink, and of a repartition that is under way."""

from reactor.records.base import Count, Record, SpanCount, StoredTs, TableId


class RepartitionUnderWay(Record):
    """The sink is being asked to have ``spans`` spans at ``ts`` instead of those it has."""

    spans: SpanCount
    ts: StoredTs


class TablePartitioning(Record):
    """How many spans of one size a table has; a table without this record is one span.

    ``spans``: those that have records in the sink. ``wanted``: what an operator or the policy asked for. While
    ``under_way`` is there, nobody writes the table, and whoever is owner carries it through. ``number``: of the last
    repartition that was carried through; the sink refuses an older one.
    """

    table_id: TableId
    spans: SpanCount = 1
    wanted: SpanCount = 1
    number: Count = 0
    under_way: RepartitionUnderWay | None = None
