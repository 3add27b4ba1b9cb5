"""Left tables: tables that left a changefeed by a changed filter, and stay at its sink as they were."""

from reactor.ids import Ts
from reactor.records import locations
from reactor.records.base import Record, StoredTs, TableId, later


class LeftTable(Record):
    """One such table. ``location``: as ``TableRecord.location``. ``ts``: nothing above it was ever written. ``time``:
    Unix seconds. ``marked``: the sink's table says that it is no longer replicated; ``message``: why it cannot."""

    table_id: TableId
    schema_name: str
    name: str
    location: str = later("", pattern=locations.PATTERN)
    ts: StoredTs = Ts(0)
    time: float = 0.0
    marked: bool = False
    message: str = ""
