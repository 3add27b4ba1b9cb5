"""Partitionings: the records of how many spans a table has in the sink, and of a repartition in progress; and of
tables that have left their changefeed, and are still in the sink."""

from typing import Final

from reactor.ids import Ts
from reactor.records.base import Count, Record, SpanCount, StoredTs, TableId, later
from reactor.records.tables import locations


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


#: the newest that are remembered; earlier ones keep their mark at the sink
LEFT_MAX: Final = 500


class LeftTable(Record):
    """A table that left a changefeed, by a changed filter or in a lost range of the log, and is in the sink as it was.

    ``location``: as in ``TableRecord``. ``ts``: nothing above it was ever written. ``time``: Unix seconds. ``marked``:
    the sink's table says that it is no longer replicated; ``message``: why it cannot."""

    table_id: TableId
    schema_name: str
    name: str
    location: str = later("", pattern=locations.PATTERN)
    ts: StoredTs = Ts(0)
    time: float = 0.0
    marked: bool = False
    message: str = ""
