"""Partitionings: the records of how many spans a table has in the sink, and of a repartition in progress."""

from reactor.records.base import Count, Record, SpanCount, StoredTs, TableId


class RepartitionUnderWay(Record):
    """The sink is asked to replace a table's spans by ``spans`` spans at ``ts``."""

    spans: SpanCount
    ts: StoredTs


class TablePartitioning(Record):
    """The number of equal spans that a table has; a table without this record is one span.

    ``spans``: those that have records in the sink. ``wanted``: as requested by an operator or the policy. While
    ``under_way`` is set, the table is not written, and any owner completes it. ``number``: of the last completed
    repartition; the sink refuses an older one.
    """

    table_id: TableId
    spans: SpanCount = 1
    wanted: SpanCount = 1
    number: Count = 0
    under_way: RepartitionUnderWay | None = None
