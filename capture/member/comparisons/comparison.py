"""Comparison: a snapshot of the source beside the sink, whose tables are compared, and rows made equal, at its Ts."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Protocol

import structlog
from anyio import CapacityLimiter

from agent.feeds import diff
from agent.feeds.paced import paced_snapshot
from agent.feeds.progress import Progress
from agent.feeds.read_back import HeldLog, read_back
from agent.feeds.repair import repair_table
from agent.feeds.runtime import Feed
from agent.pacing import Pace, run_stoppable
from agent.ports.executor import Executor
from agent.ports.source import ComparisonSnapshot
from capture.api import port as views
from owner.scheduler.spans import even_spans
from reactor.ids import TableSpan, Ts
from reactor.records.tables.partitioning import TablePartitioning
from reactor.records.tables.table import TableRecord

_log = structlog.get_logger()


class Comparison(Protocol):
    """Comparison of the source's rows at ``ts`` with a sink whose tables are at ``ts`` too."""

    @property
    def ts(self) -> Ts: ...

    async def run(self, ids: Collection[int], asked: views.DiffAsked, progress: Progress) -> list[views.TableDiff]:
        """Compare some of the tables until the time of one part is over; the result of an unfinished table covers a
        share of it."""
        ...

    async def repair(
        self, ids: Collection[int], partitionings: Mapping[int, TablePartitioning], asked: views.RepairAsked
    ) -> list[views.TableRepair]:
        """Make rows of some of the tables equal. :raises SinkFencedError: the sink is further than the source was."""
        ...

    async def read_back(self, table: TableRecord, spans: Sequence[TableSpan], log: HeldLog) -> int:
        """Write rows that the sink lacks; see ``agent.feeds.read_back``."""
        ...


@dataclass(frozen=True, slots=True)
class SnapshotComparison:
    """``Comparison`` of a snapshot of the source with the sink. ``limiter``: of its threads."""

    feed: Feed
    tables: Sequence[TableRecord]
    snapshot: ComparisonSnapshot
    executor: Executor
    limiter: CapacityLimiter

    @property
    def ts(self) -> Ts:
        return self.snapshot.ts

    async def run(self, ids: Collection[int], asked: views.DiffAsked, progress: Progress) -> list[views.TableDiff]:
        pace = self.feed.pace(asked.rows_per_second)
        return await run_stoppable(partial(self._compare, ids, progress, pace), pace.stopped, limiter=self.limiter)

    async def repair(
        self, ids: Collection[int], partitionings: Mapping[int, TablePartitioning], asked: views.RepairAsked
    ) -> list[views.TableRepair]:
        spans = {id: even_spans(id, partitionings[id].spans if id in partitionings else 1) for id in ids}
        pace = self.feed.pace(asked.rows_per_second)
        return await run_stoppable(partial(self._repair, spans, asked, pace), pace.stopped, limiter=self.limiter)

    async def read_back(self, table: TableRecord, spans: Sequence[TableSpan], log: HeldLog) -> int:
        pace = self.feed.pace()
        work = partial(self._read_back, table, spans, log, pace)
        return await run_stoppable(work, pace.stopped, limiter=self.limiter)

    def _read_back(self, table: TableRecord, spans: Sequence[TableSpan], log: HeldLog, pace: Pace) -> int:
        snapshot = paced_snapshot(self.snapshot, pace)
        return read_back(snapshot, self.feed.open_sink(), table, spans, self.feed.config.filter, log)

    def _repair(
        self, spans: Mapping[int, Sequence[TableSpan]], asked: views.RepairAsked, pace: Pace
    ) -> list[views.TableRepair]:
        pushed, found = diff.Pushed(self.executor, self.feed.open_sink), []
        snapshot = paced_snapshot(self.snapshot, pace)
        for table in (table for table in self.tables if table.table_id in spans):
            place = snapshot, self.feed.open_sink(), table, spans[table.table_id], self.feed.config.filter
            done = repair_table(*place, pushed, is_trial=asked.dry_run, where=asked.where)
            one = views.TableRepair(ts=self.ts, dry_run=asked.dry_run, **asdict(done))
            if one.keys and not asked.dry_run:
                _log.info("rows are repaired", changefeed=self.feed.id, table=one.table, keys=len(one.keys), ts=self.ts)
            found.append(one)
        return found

    def _compare(self, ids: Collection[int], progress: Progress, pace: Pace) -> list[views.TableDiff]:
        tables = [table for table in self.tables if table.table_id in ids]
        pushed = diff.Pushed(self.executor, self.feed.open_sink)
        snapshot, sink = paced_snapshot(self.snapshot, pace), self.feed.open_sink()
        found = diff.compare_tables(snapshot, sink, tables, self.feed.config.filter, pushed, progress=progress)
        return [
            views.TableDiff(
                table=one.table,
                equal=one.equal,
                source_rows=one.rows_source,
                sink_rows=one.rows_sink,
                ts=self.ts,
                differences=one.differences,
                waiting=one.waiting,
                by_rows=one.by_rows,
                share=one.share,
            )
            for one in found
        ]
