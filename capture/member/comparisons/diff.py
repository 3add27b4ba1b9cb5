"""Diff and repair of a running changefeed: source and sink are compared, and rows made equal, at one Ts.

    hold at the log's position ─► every span arrives ─► snapshot of the source at L ─► hold at L-1 ─► every span
    arrives ─► compare the tables with the snapshot ─► release

A comparison of more than a minute works in parts, each at a Ts of its own, and releases the changefeed in between. Its
progress is recorded (``Kept``), and the next comparison continues from it.

Only replicated tables are compared, not those that the filter matches but that have not been added yet. Tables that are
held, or do not reach the Ts (``capture.member.comparisons.arrival``), are shown with their reason; the others are
compared all the same.

The first hold keeps every span behind L until the second one is in force. A transaction is in the snapshot exactly if
its commit record starts before L, so the sink has the same transactions at L-1. A table is compared in the next part if
it was added or changed meanwhile, or if one of its spans passed the hold (by a flush in progress). A lost hold (the
changefeed restarted) is detected: then everything is repeated.
"""

import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import anyio
import structlog

from agent.errors import SinkFencedError, TableLockedError
from agent.feeds.progress import Progress
from agent.filter import expressions
from capture.api import port as views
from capture.errors import JobRefusedError
from capture.member.comparisons import arrival
from capture.member.comparisons.comparison import Comparison
from owner import jobs
from owner.progress.units import tables_of
from reactor.ids import ChangefeedId, Ts
from reactor.records.changefeed import ChangefeedInfo, UnitRecord
from reactor.records.log_head import LogHead
from reactor.records.schedules import ComparedTable, DiffProgress
from reactor.records.tables.partitioning import TablePartitioning
from reactor.records.tables.table import TableRecord
from reactor.views import ChangefeedView

if TYPE_CHECKING:
    from capture.member.services import DataPlane

_log = structlog.get_logger()

_ATTEMPTS = 5
_HOLD_S = 600.0
#: of one part of a comparison: so long the changefeed waits at most, but for a table that is compared by rows
_PART_S = 45.0
#: between two records of the progress
_KEEP_S = 2.0

_MOVED = "it was changed while the other tables were brought to one position; compare it again"

Waiting = dict[int, views.TableDiff]
T = TypeVar("T")
#: also whether it counts even if the sink has moved meanwhile
Work = Callable[[Comparison, Collection[int]], Awaitable[tuple[list[T], bool]]]


@dataclass(slots=True)
class _LeftOut:
    """Tables that are not compared, as results. ``waiting``: they do not reach the Ts. ``moved``: they were added
    or changed while the others reached it."""

    waiting: Waiting = field(default_factory=dict)
    moved: Waiting = field(default_factory=dict)

    def shown(self) -> dict[str, views.TableDiff]:
        return {one.table: one for one in (*self.waiting.values(), *self.moved.values())}


class OwnerQueries(Protocol):
    """Access to the owner: the part of ``capture.member.cluster_service`` that a comparison needs."""

    async def ask(self, job: jobs.Job) -> Any: ...

    async def query(self, changefeed_id: str, *, tables: bool = True) -> ChangefeedView: ...

    def unit_of(self, changefeed_id: str) -> UnitRecord | None: ...

    def cuts_of(self, changefeed_id: str) -> Mapping[int, TablePartitioning]: ...

    def head_of(self, changefeed_id: str) -> LogHead: ...


class Kept(Protocol):
    """The record of the progress of a changefeed's comparison."""

    def load(self) -> DiffProgress | None: ...

    async def save(self, progress: DiffProgress | None) -> None:
        """Errors of the store are logged: a comparison does not end because of them."""
        ...


async def compare(
    operations: OwnerQueries,
    data_plane: "DataPlane",
    info: ChangefeedInfo,
    asked: views.DiffAsked = views.WHOLE,
    kept: Kept | None = None,
) -> list[views.TableDiff]:
    """Compare table by table.

    :raises JobRefusedError: the changefeed is not replicating, or its tables are not known in time.
    """
    before = kept.load() if kept and asked.resume else None
    known = before.tables if before and before.sample == asked.sample else ()
    limits = [rate for rate in (asked.rows_per_second, info.config.read_rows_per_second) if rate]
    progress = Progress(known, sample=asked.sample, rows_per_second=min(limits, default=None))
    began = before.began if before and known else time.time()
    failure: Exception | None = None
    found: dict[str, views.TableDiff] = {}
    async with anyio.create_task_group() as tasks:
        if kept is not None:
            tasks.start_soon(_keep, kept, progress, began)
        try:
            found = await _in_parts(operations, data_plane, info, asked, progress)
        except Exception as error:  # the group would wrap it
            failure = error
        tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure
    if kept is not None:
        await kept.save(None)
    return sorted(found.values(), key=lambda one: one.table)


async def _keep(kept: Kept, progress: Progress, began: float) -> None:
    """Record the progress every few seconds, as long as there is some."""
    saved = -1
    while True:
        if progress.version != saved:
            saved = progress.version
            await kept.save(DiffProgress(began=began, sample=progress.sample, tables=progress.tables))
        await anyio.sleep(_KEEP_S)


async def _in_parts(
    operations: OwnerQueries,
    data_plane: "DataPlane",
    info: ChangefeedInfo,
    asked: views.DiffAsked,
    progress: Progress,
) -> dict[str, views.TableDiff]:
    """Compare until nothing is left, or nothing of what is left can be compared."""

    async def work(snapshot: Comparison, ids: Collection[int]) -> tuple[list[views.TableDiff], bool]:
        progress.begin(_PART_S)
        found = await snapshot.run(frozenset(ids) - progress.done(), asked, progress)
        return found, all(one.equal or one.waiting for one in found)

    results: dict[str, views.TableDiff] = {}
    while True:
        before = progress.version
        found, left_out = await _at_one_ts(operations, data_plane, info, work)
        progress.accept()
        results |= {one.table: one for one in found}
        flowing = _ids(_tables(operations, info.id)) - left_out.waiting.keys()
        if progress.version == before or not flowing - progress.done():
            return results | left_out.shown() | {one.name: shown(one) for one in progress.tables if one.done}


def shown(table: ComparedTable) -> views.TableDiff:
    return views.TableDiff(
        table=table.name,
        equal=not table.differences,
        source_rows=table.rows_source,
        sink_rows=table.rows_sink,
        ts=table.ts,
        differences=table.differences,
        by_rows=table.by_rows,
        share=table.share,
    )


async def repair(
    operations: OwnerQueries, data_plane: "DataPlane", info: ChangefeedInfo, asked: views.RepairAsked
) -> list[views.TableRepair]:
    """Make rows of the sink equal to the source's, table by table; with ``dry_run`` only say which.

    :raises JobRefusedError: as for ``compare``; also a table that there is none of.
    :raises FilterError: the condition cannot be read.
    """
    if asked.where:
        if len(asked.tables) != 1:
            raise JobRefusedError("a condition is over the columns of one table; name that table")
        expressions.parse(asked.where)
    unit = operations.unit_of(info.id)
    there = {f"{table.schema_name}.{table.name}" for table in unit.tables} if unit else set()
    if unit and (unknown := sorted(set(asked.tables) - there)):
        raise JobRefusedError(f"changefeed {info.id} has no table {unknown[0]}; see `weir tables -c {info.id}`")

    async def work(snapshot: Comparison, ids: Collection[int]) -> tuple[list[views.TableRepair], bool]:
        names = {table.table_id: f"{table.schema_name}.{table.name}" for table in _tables(operations, info.id)}
        wanted = frozenset(id for id in ids if not asked.tables or names[id] in asked.tables)
        found = await snapshot.repair(wanted, operations.cuts_of(info.id), asked)
        return found, not asked.dry_run  # the sink refuses what is of an earlier Ts than its own

    found, left_out = await _at_one_ts(operations, data_plane, info, work)
    shown = [views.TableRepair(table=one.table, waiting=one.waiting) for one in left_out.shown().values()]
    shown = [one for one in shown if not asked.tables or one.table in asked.tables]
    return sorted([*found, *shown], key=lambda one: one.table)


async def _at_one_ts(
    operations: OwnerQueries, data_plane: "DataPlane", info: ChangefeedInfo, work: Work[T]
) -> tuple[list[T], _LeftOut]:
    """The findings of ``work`` on the tables that were at one Ts, and the others."""
    left_out = _LeftOut()
    try:
        for _ in range(_ATTEMPTS):
            await _begin(operations, info)
            # in the middle, as after an error that passes; or the source is about to change a table
            with suppress(arrival.PendingError, TableLockedError):
                found = await _attempt(operations, data_plane, info, left_out, work)
                if found is not None:
                    return found, left_out
    finally:
        with anyio.CancelScope(shield=True):
            await operations.ask(jobs.Release("", info.id))
    raise JobRefusedError(
        f"{info.id} could not be held at one position; try again when fewer changes are under way, and no table is "
        "locked"
    )


async def _attempt(
    operations: OwnerQueries, data_plane: "DataPlane", info: ChangefeedInfo, left_out: _LeftOut, work: Work[T]
) -> list[T] | None:
    """Return the comparable tables' results; None: they were not at one Ts. ``left_out`` receives the other tables."""
    waiting, left_out.moved = left_out.waiting, {}
    waiting |= await _held(operations, info.id)
    if not _ids(_tables(operations, info.id)) - waiting.keys():
        return []
    held_ts = await _hold(operations, info.id)
    waiting |= await arrival.reach(operations, info.id, held_ts, _ids(_tables(operations, info.id)) - waiting.keys())
    tables = _without(_tables(operations, info.id), waiting)
    if not tables:
        return []
    async with data_plane.comparison(info, tables, operations.head_of(info.id)) as snapshot:
        try:
            await operations.ask(jobs.HoldAt("", info.id, snapshot.ts, _HOLD_S))
        except JobRefusedError:
            return None
        waiting |= await arrival.reach(operations, info.id, snapshot.ts, _ids(tables))
        flowing = _without(tables, waiting)
        tables = await _at(operations, info.id, snapshot.ts, flowing)
        if flowing and not tables:
            return None
        others = _without(_tables(operations, info.id), waiting.keys() | _ids(tables))
        left_out.moved = {table.table_id: _moved(table) for table in others}
        return await _read(operations, info.id, snapshot, tables, work)


async def _read(
    operations: OwnerQueries,
    changefeed: ChangefeedId,
    snapshot: Comparison,
    tables: Sequence[TableRecord],
    work: Work[T],
) -> list[T] | None:
    """Differences only count if the sink did not change meanwhile, or the work is sure of them."""
    if not tables:
        return []
    try:
        found, is_sure = await work(snapshot, _ids(tables))
    except SinkFencedError:
        return None  # it has moved
    if is_sure:
        return found
    return found if await operations.ask(jobs.Release("", changefeed)) == snapshot.ts else None


async def _begin(operations: OwnerQueries, info: ChangefeedInfo) -> None:
    """Wait until it runs and the tables are in the sink; there may be none."""
    with anyio.move_on_after(arrival.REACH_TIMEOUT_S):
        while True:
            with suppress(arrival.PendingError):
                await arrival.running(operations, info.id, tables=False)
                if tables_of(info.mode, operations.unit_of(info.id)) is not None:
                    return
            await anyio.sleep(arrival.LOOK_S)
    view = await arrival.running(operations, info.id, tables=False)
    raise JobRefusedError(f"{info.id} does not follow its source yet ({view.blocked_by}); compare when it does")


def _tables(operations: OwnerQueries, changefeed: ChangefeedId) -> tuple[TableRecord, ...]:
    """Return the replicated tables, whatever else the filter matches."""
    unit = operations.unit_of(changefeed)
    return tuple(sorted(unit.tables, key=lambda table: (table.schema_name, table.name))) if unit else ()


def _ids(tables: Sequence[TableRecord]) -> frozenset[int]:
    return frozenset(table.table_id for table in tables)


def _without(tables: Sequence[TableRecord], waiting: Collection[int]) -> tuple[TableRecord, ...]:
    return tuple(table for table in tables if table.table_id not in waiting)


async def _held(operations: OwnerQueries, changefeed: ChangefeedId) -> Waiting:
    """Return the held tables as results."""
    view = await operations.query(changefeed)
    return {table.table_id: arrival.shown(table, view, 0) for table in view.tables if table.held is not None}


async def _hold(operations: OwnerQueries, changefeed: ChangefeedId) -> Ts:
    """Hold at the log's position; if a span is already past it, the log has advanced: try again."""
    for _ in range(_ATTEMPTS):
        ts = operations.head_of(changefeed).resolved_ts
        try:
            await operations.ask(jobs.HoldAt("", changefeed, ts, _HOLD_S))
        except JobRefusedError:
            await anyio.sleep(arrival.LOOK_S)
            continue
        return ts
    ts = operations.head_of(changefeed).resolved_ts
    await operations.ask(jobs.HoldAt("", changefeed, ts, _HOLD_S))
    return ts


async def _at(
    operations: OwnerQueries, changefeed: ChangefeedId, ts: Ts, tables: Sequence[TableRecord]
) -> tuple[TableRecord, ...]:
    """Return those of the tables that are as they were and flow, with each of their spans exactly at ``ts``."""
    view = await arrival.running(operations, changefeed)
    flowing = {table.table_id: table.spans for table in view.tables if table.held is None and table.spans}
    at = {id for id, spans in flowing.items() if all(span.checkpoint_ts == ts for span in spans)}
    present = {table.table_id: table for table in _tables(operations, changefeed)}
    return tuple(table for table in tables if table.table_id in at and present.get(table.table_id) == table)


def _moved(table: TableRecord) -> views.TableDiff:
    return views.TableDiff(table=f"{table.schema_name}.{table.name}", equal=False, waiting=_MOVED)
