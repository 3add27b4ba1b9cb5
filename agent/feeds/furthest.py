"""Furthest records: how far this process has seen each span recorded at the sink, however often its changefeed was run.

A record at the sink only ever grows. One that is behind what was seen belongs to a table that was set back, for
instance by a directory that was restored while the changefeed was paused. Only a span that is written from its record
on (after a rewind) may have such a record: then nothing between the two is missing.
"""

from collections.abc import Iterable

from agent.control.runtime import SpanPosition
from agent.errors import TableForeignError
from reactor.ids import TableSpan, Ts
from reactor.records.changefeed import TableRecord

#: what tells one changefeed's tables at one sink from all others
FeedKey = tuple[str, ...]

_furthest: dict[FeedKey, dict[TableSpan, Ts]] = {}


class FurthestRecords:
    """The furthest records of one changefeed at one sink."""

    def __init__(self, key: FeedKey) -> None:
        self._seen = _furthest.setdefault(key, {})

    def check(self, table: TableRecord, span: TableSpan, recorded: Ts, wanted: Ts) -> None:
        """``wanted``: from where on the span shall be written.

        :raises TableForeignError: the table was set back, and what it lacks would not be written again.
        """
        written = self._seen.get(span, recorded)
        if recorded < min(written, wanted):
            raise TableForeignError(
                f"the sink's table {table.schema_name}.{table.name} was set back: it records {recorded}, and {written} "
                "was written; bring the newer one back and resume the changefeed, or pause it, and rewind it to a Ts "
                "that is not past the record"
            )
        self._seen[span] = recorded

    def note(self, positions: Iterable[SpanPosition]) -> None:
        """What has been written since."""
        self._seen.update((position.span, position.committed_ts) for position in positions)
