"""Copy: a sink's table, made from what the stream of a rig has read, and compared with the source's."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from agent.control.runtime import FlushLimits, SpanPosition
from agent.errors import TableHeldError
from agent.flush.job import FlushContext, flush
from agent.log.reader import LogReader
from agent.ports.sink import FeedContext, ReadsBack
from agent.rows.schema import TableSchema
from agent.rows.survivors import Survivors
from agent.schema_changes.apply import Terms, apply
from agent.sinks import open_sink
from agent.sources.postgres.decode.types import arrow_schema
from agent.sources.postgres.publication.slots import all_publications
from agent.sources.postgres.server.catalog import read_schemas
from agent.sources.postgres.server.connection import connect
from agent.sources.postgres.server.terms import ALL_ROWS, read_terms
from agent.sources.postgres.snapshot import survivors
from agent.sources.postgres.snapshot.chunks import WHOLE_TABLE
from agent.sources.postgres.snapshot.rows import read_chunk
from agent.units.load import create_empty
from reactor.ids import TableSpan, Ts
from reactor.messages import Barrier
from reactor.records.changefeed import ChangefeedConfig, SinkMode
from reactor.records.tables.schema_change import TableChange
from tests.integration.agent.flush.test_job import Inline
from tests.integration.agent.sources.compared import Row, differences
from tests.integration.agent.sources.postgres.sync_rig import SyncRig

_MODE = SinkMode.UPSERT


class SinkCopy:
    """The sink's table, made from what the stream has read. ``number``: of the rig's table. ``rows``: which of its rows
    are published, a condition."""

    def __init__(self, rig: SyncRig, lake: Path, number: int = 0, *, rows: str = ALL_ROWS) -> None:
        uri = f"delta+file://{lake}"
        sink = open_sink(uri, changefeed="feed", mode=_MODE)
        assert isinstance(sink, ReadsBack)
        self._sink = sink
        self._rig, self._start_ts, self._head = rig, rig.start.ts, rig.head()
        self._changes: dict[int, tuple[Ts, TableChange]] = {}
        self._rows = rows
        self.record = rig.tables[number].with_(start_ts=self._start_ts, consistent_ts=self._start_ts)
        create_empty(self._sink, [(self.record, rig.first_schemas[self.record.table_id])])
        self._context = FlushContext(
            FeedContext("feed", uri, _MODE), sink=self._sink, reader=LogReader(rig.directory), executor=Inline()
        )
        self._at = SpanPosition(TableSpan(self.record.table_id), self.record, self._start_ts, self._start_ts)

    def bring_up(self) -> None:
        """Apply everything that has been read.

        :raises TableHeldError: the table is held, by the stream or by what its schema change needs.
        """
        for found in sorted(self._rig.ddl(), key=lambda record: record.ts):
            for change in (one for one in found.changes if one.table_id == self.record.table_id):
                self._flush(Ts(found.ts - 1))
                if change.is_hold:
                    raise TableHeldError(change.reason)
                apply(self._sink, found.with_(changes=(change,)), Terms(ChangefeedConfig(), _MODE, self._survivors))
                assert change.table is not None
                self.record = change.table.with_(start_ts=self._start_ts, consistent_ts=self._start_ts)
                self._changes[self.record.table_id] = found.ts, change
                committed_ts = self._sink.committed_ts(self.record, self._at.span)
                assert committed_ts is not None
                self._at = SpanPosition(self._at.span, self.record, committed_ts, self._at.checkpoint_ts)
        self._flush(self._head.resolved_ts)

    def differences(self) -> tuple[list[Row], list[Row]]:
        """Return the rows that only the source has, and those that only the sink has."""
        with connect(self._rig.uri) as connection:
            terms = read_terms(connection, all_publications(self._rig.names), with_rows=False)
            schema = read_schemas(connection, [self.record.table_id], terms)[self.record.table_id]
        columns = sorted(column.name for column in schema.columns)
        there = map(self._sink.as_stored, read_chunk(self._rig.uri, None, schema, WHOLE_TABLE, rows=self._rows))
        return differences(there, self._sink.read_rows(self.record, schema, arrow_schema(schema)), columns)

    def _flush(self, to_ts: Ts) -> None:
        limits = FlushLimits(
            self._head, Barrier(to_ts), tables={self.record.table_id: self.record}, changes=self._changes
        )
        is_behind = True
        while is_behind:
            flushed = flush(self._context, [self._at], limits)
            for span in flushed.spans:
                assert span.error is None, span.error
                self._at = span.position
            is_behind = flushed.is_behind

    def _survivors(
        self, before: TableSchema, after: TableSchema, origins: Mapping[str, str], key: Sequence[str]
    ) -> Survivors | None:
        return survivors.read(self._rig.uri, before, after, origins, key, "true")
