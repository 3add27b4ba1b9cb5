"""A comparison states a difference only if source and sink stood at one Ts from its beginning to its end."""

from collections.abc import AsyncIterator, Awaitable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast
from unittest.mock import AsyncMock

import anyio
import pytest

from agent.errors import SinkFencedError, TableLockedError
from agent.feeds.progress import Progress
from agent.feeds.progress import compared as compared_ranges
from agent.feeds.range_diff import Ranges
from capture.api import port as views
from capture.errors import JobRefusedError
from capture.member.comparisons.diff import compare, repair
from capture.member.services import DataPlane
from owner import jobs
from reactor.errors import WeirError
from reactor.ids import ChangefeedId, Ts
from reactor.records.changefeed import ChangefeedInfo, FeedState, RunningError, SealedUri, Unit, UnitRecord, UnitStage
from reactor.records.log_head import LogHead
from reactor.records.schedules import DiffProgress
from reactor.records.tables.partitioning import TablePartitioning
from reactor.records.tables.table import TableRecord
from reactor.views import ChangefeedView, HeldView, SpanView, TableView

pytestmark = pytest.mark.looptime

FEED = ChangefeedId("feed")
URI = SealedUri(masked="x", sealed="x")


class Owner:
    """Holds one changefeed, whose only span is wherever it is held; also the works that compare it.

    ``losing``: in so many comparisons the hold is lost, and the sink moves on. ``growing``: for so many comparisons
    another table comes as soon as the source is held on to.
    """

    def __init__(self, *, losing: int = 0, differs: bool = False, growing: int = 0) -> None:
        self.held: Ts | None = None
        self.compared: list[tuple[int, ...]] = []
        self.read: list[tuple[int, ...]] = []
        self._growing = growing
        self._tables: tuple[TableRecord, ...] = (TableRecord(table_id=1, schema_name="public", name="t"),)
        self.comparisons = 0
        self._losing = losing
        self._differs = differs

    async def ask(self, job: jobs.Job) -> Any:
        if isinstance(job, jobs.HoldAt):
            self.held = job.ts
            return job.ts
        held, self.held = self.held, None
        return held

    async def query(self, changefeed_id: str, *, tables: bool = True) -> ChangefeedView:
        span = SpanView(span="1", checkpoint_ts=self.held or 0)
        found = tuple(
            TableView(table=f"public.{table.name}", table_id=table.table_id, spans=(span,)) for table in self._tables
        )
        return ChangefeedView(id=changefeed_id, state=FeedState.NORMAL, tables=found)

    def unit_of(self, changefeed_id: str) -> UnitRecord:
        return UnitRecord(unit=Unit.SYNC, stage=UnitStage.RUNNING, tables=self._tables)

    def cuts_of(self, changefeed_id: str) -> dict[int, TablePartitioning]:
        return {}

    def head_of(self, changefeed_id: str) -> LogHead:
        return LogHead(resolved_ts=Ts(100))

    @asynccontextmanager
    async def comparison(
        self, info: ChangefeedInfo, tables: Sequence[TableRecord], head: LogHead
    ) -> AsyncIterator["Owner"]:
        self.compared.append(tuple(table.table_id for table in tables))
        if self._growing:
            self._growing -= 1
            number = len(self._tables)
            self._tables += (TableRecord(table_id=1 + number, schema_name="public", name="tuv"[number]),)
        yield self

    @property
    def ts(self) -> Ts:
        return Ts(110)

    async def run(
        self, ids: Collection[int], asked: views.DiffAsked = views.WHOLE, progress: Progress | None = None
    ) -> list[views.TableDiff]:
        self.comparisons += 1
        self.read.append(tuple(sorted(ids)))
        is_lost = self.comparisons <= self._losing
        if is_lost:
            self.held = None
        return [views.TableDiff(table="public.t", equal=not (is_lost or self._differs), ts=self.ts)]

    async def repair(
        self, ids: Collection[int], partitionings: Mapping[int, TablePartitioning], asked: views.RepairAsked
    ) -> list[views.TableRepair]:
        dry_run = asked.dry_run
        [*_] = await self.run(ids)
        if self.held is None and not dry_run:
            raise SinkFencedError("the sink is further")
        return [views.TableRepair(table=f"public.{'tu'[id - 1]}", ts=self.ts, dry_run=dry_run) for id in sorted(ids)]


async def compared(owner: Owner) -> list[bool]:
    info = ChangefeedInfo(id=FEED, source=URI, sink=URI)
    return [one.equal for one in await compare(owner, cast("DataPlane", owner), info)]


async def test_a_hold_that_was_lost_makes_no_difference() -> None:
    owner = Owner(losing=2)
    assert await compared(owner) == [True]
    assert owner.comparisons == 3


class Pending(Owner):
    """Pending from the ``since``-th query on, for ``queries`` of them."""

    def __init__(self, since: int, queries: int) -> None:
        super().__init__()
        self._queries, self._pending = 0, range(since, since + queries)

    async def query(self, changefeed_id: str, *, tables: bool = True) -> ChangefeedView:
        self._queries += 1
        state = FeedState.PENDING if self._queries in self._pending else FeedState.NORMAL
        return (await super().query(changefeed_id, tables=tables)).model_copy(update={"state": state})


@pytest.mark.parametrize("since", range(1, 8))
async def test_a_changefeed_that_is_pending_for_a_moment_is_waited_for(since: int) -> None:
    assert await compared(Pending(since, 20)) == [True]


class Locked(Owner):
    """A statement keeps the tables locked from so many snapshots."""

    def __init__(self, snapshots: int) -> None:
        super().__init__()
        self._locked = snapshots

    @asynccontextmanager
    async def comparison(
        self, info: ChangefeedInfo, tables: Sequence[TableRecord], head: LogHead
    ) -> AsyncIterator[Owner]:
        self._locked -= 1
        if self._locked >= 0:
            raise TableLockedError("a table is locked")
        async with super().comparison(info, tables, head) as snapshot:
            yield snapshot


async def test_a_table_that_is_locked_for_a_moment_is_waited_for() -> None:
    assert await compared(Locked(2)) == [True]


async def test_a_table_that_stays_locked_ends_the_comparison() -> None:
    with pytest.raises(JobRefusedError, match="try again when fewer changes are under way, and no table is locked"):
        await compared(Locked(10**6))


async def test_one_that_stays_pending_is_named() -> None:
    with pytest.raises(JobRefusedError, match="feed is pending, and tries again by itself; compare when it runs"):
        await compared(Pending(1, 10**6))


async def test_one_that_has_failed_is_named_with_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    owner, error = Owner(), RunningError(code="SinkUriError", message="no bucket", retryable=False)
    failed = ChangefeedView(id=FEED, state=FeedState.FAILED, error=error)
    monkeypatch.setattr(owner, "query", AsyncMock(return_value=failed))
    with pytest.raises(
        JobRefusedError, match=r"^feed is failed \(no bucket\): only a running changefeed .*; resume it$"
    ):
        await compared(owner)


async def test_a_difference_under_the_hold_is_one() -> None:
    owner = Owner(losing=0, differs=True)
    assert await compared(owner) == [False]
    assert owner.comparisons == 1
    assert owner.held is None


class Growing(Owner):
    """Another table comes as soon as the source is read, ``growing`` times."""

    async def run(
        self, ids: Collection[int], asked: views.DiffAsked = views.WHOLE, progress: Progress | None = None
    ) -> list[views.TableDiff]:
        assert progress is not None
        self.read.append(tuple(sorted(ids)))
        for table in self._tables:
            if table.table_id in ids:
                progress.note(compared_ranges(progress.start(table, Ranges("", 0, 0, 1)), (0,), (5, 5), (), self.ts))
        return []


async def test_tables_that_come_meanwhile_are_compared_in_the_next_part() -> None:
    owner = Growing(growing=2)
    assert await compared(owner) == [True, True, True]
    assert owner.compared == [(1,), (1, 2), (1, 2, 3)]
    assert owner.read == [(1,), (2,), (3,)]


@pytest.mark.parametrize("how", ["changes", "passes"])
async def test_a_table_that_changes_meanwhile_keeps_no_other_from_being_compared(how: str) -> None:
    class Changing(Growing):
        """Its second table is changed with each look at the source, or is past the position."""

        @asynccontextmanager
        async def comparison(
            self, info: ChangefeedInfo, tables: Sequence[TableRecord], head: LogHead
        ) -> AsyncIterator[Owner]:
            async with super().comparison(info, tables, head) as snapshot:
                if how == "changes":
                    first, second = self._tables
                    self._tables = first, second.with_(key=(*second.key, "k"))
                yield snapshot

        async def query(self, changefeed_id: str, *, tables: bool = True) -> ChangefeedView:
            view = await super().query(changefeed_id)
            past = SpanView(span="2", checkpoint_ts=(self.held or 0) + (how == "passes"))
            second = view.tables[1].model_copy(update={"spans": (past,)})
            return view.model_copy(update={"tables": (view.tables[0], second)})

    owner = Changing()
    owner._tables += (TableRecord(table_id=2, schema_name="public", name="u"),)
    found = await compare(owner, cast("DataPlane", owner), ChangefeedInfo(id=FEED, source=URI, sink=URI))
    assert [(one.table, one.equal, one.waiting) for one in found] == [
        ("public.t", True, ""),
        ("public.u", False, "it was changed while the other tables were brought to one position; compare it again"),
    ]
    assert {id for ids in owner.read for id in ids} == {1}


@pytest.mark.parametrize("others", [True, False])
async def test_held_tables_are_named_and_not_waited_for(others: bool) -> None:
    class Holding(Owner):
        async def query(self, changefeed_id: str, *, tables: bool = True) -> ChangefeedView:
            view = await super().query(changefeed_id)
            held = HeldView(table="public.h", table_id=9, stage="held", message="no room; make some")
            table = TableView(table="public.h", table_id=9, spans=(SpanView(span="9"),), held=held)
            return view.model_copy(update={"tables": tuple(table if t.table_id == 9 else t for t in view.tables)})

    owner = Holding()
    held = TableRecord(table_id=9, schema_name="public", name="h")
    owner._tables = (*owner._tables, held) if others else (held,)
    found = await compare(owner, cast("DataPlane", owner), ChangefeedInfo(id=FEED, source=URI, sink=URI))
    assert [(one.table, one.equal, one.waiting) for one in found] == [
        ("public.h", False, "no room; make some"),
        *([("public.t", True, "")] if others else []),
    ]
    assert owner.compared == ([(1,)] if others else [])


class Stuck(Owner):
    """A second table, which does not pass ``stops_at``, or comes forward by one at each look (``moves``).

    ``why``: what the owner knows of it.
    """

    def __init__(self, *, stops_at: int = 90, why: str = "", moves: bool = False, spans: int = 1) -> None:
        super().__init__()
        self._tables += (TableRecord(table_id=2, schema_name="public", name="u"),)
        self._stops_at = stops_at
        self._why = why
        self._moves = moves
        self._spans = spans
        self.blocked_by = "flush: public.u has not moved"

    async def query(self, changefeed_id: str, *, tables: bool = True) -> ChangefeedView:
        view = await super().query(changefeed_id)
        self._stops_at += self._moves and self.held is not None and self._stops_at < self.held - 1
        at = min(self._stops_at, self.held or 0)
        spans = tuple(SpanView(span=f"2/{i}", checkpoint_ts=at) for i in range(self._spans))
        stuck = TableView(table="public.u", table_id=2, spans=spans, waiting_for=self._why)
        return view.model_copy(update={"tables": (view.tables[0], stuck), "blocked_by": self.blocked_by})


WHY = "schema change at 91 is not in the sink yet"


@pytest.mark.parametrize(
    ("stops_at", "why", "spans", "reason", "limit_s"),
    [
        (90, WHY, 1, f"at 90, not yet at 100: {WHY}", 25.0),
        (90, "", 1, "at 90, not yet at 100: flush: public.u has not moved", 45.0),
        (105, WHY, 1, f"at 105, not yet at 110: {WHY}", 25.0),
        (0, "getting other spans", 0, "at 0, not yet at 100: getting other spans", 25.0),
    ],
)
async def test_a_table_that_does_not_come_waits_and_the_others_are_compared(
    stops_at: int, why: str, spans: int, reason: str, limit_s: float
) -> None:
    owner = Stuck(stops_at=stops_at, why=why, spans=spans)
    started = anyio.current_time()
    found = await compare(owner, cast("DataPlane", owner), ChangefeedInfo(id=FEED, source=URI, sink=URI))
    assert anyio.current_time() - started < limit_s
    assert [(one.table, one.equal, one.waiting) for one in found] == [
        ("public.t", True, ""),
        ("public.u", False, reason),
    ]
    assert owner.read == [(1,)]
    assert owner.compared == [(1, 2) if stops_at > 100 else (1,)], "the source is read for what can be compared"
    assert owner.held is None


async def test_a_table_that_comes_forward_is_waited_for_but_not_without_limit() -> None:
    owner = Stuck(stops_at=0, moves=True)
    owner.head_of = lambda changefeed_id: LogHead(resolved_ts=Ts(10**6))  # type: ignore[method-assign]
    started = anyio.current_time()
    [free, slow] = await compare(owner, cast("DataPlane", owner), ChangefeedInfo(id=FEED, source=URI, sink=URI))
    assert 119.0 < anyio.current_time() - started < 125.0
    assert (free.table, free.equal, free.waiting) == ("public.t", True, "")
    assert (slow.table, slow.equal) == ("public.u", False)
    assert slow.waiting.endswith("not yet at 1000000: flush: public.u has not moved")


async def test_a_table_without_spans_is_not_compared() -> None:
    """Right after an owner has taken over it knows of no spans yet: nothing may be read from that."""

    class Late(Owner):
        looks = 0

        async def query(self, changefeed_id: str, *, tables: bool = True) -> ChangefeedView:
            view = await super().query(changefeed_id)
            self.looks += 1
            if self.looks > 100:
                return view
            return view.model_copy(update={"tables": (view.tables[0].model_copy(update={"spans": ()}),)})

    owner = Late()
    assert await compared(owner) == [True]
    assert owner.looks > 100


async def test_a_changefeed_without_tables_is_equal_and_one_whose_snapshot_lasts_reports_it() -> None:
    class Empty(Owner):
        start_ts = 50

        def unit_of(self, changefeed_id: str) -> UnitRecord:
            return UnitRecord(unit=Unit.SYNC, stage=UnitStage.RUNNING, start_ts=Ts(self.start_ts))

        async def query(self, changefeed_id: str, *, tables: bool = True) -> ChangefeedView:
            return ChangefeedView(id=changefeed_id, state=FeedState.NORMAL, blocked_by="unit dump: 1 of 2 rows")

    owner = Empty()
    assert await compared(owner) == []
    owner.start_ts = 0
    with pytest.raises(JobRefusedError, match=r"feed does not follow its source yet \(unit dump: 1 of 2 rows\)"):
        await compared(owner)


@pytest.mark.parametrize("dry_run", [True, False])
async def test_rows_are_repaired_only_where_the_sink_did_not_move(dry_run: bool) -> None:
    owner = Owner(losing=2)
    info = ChangefeedInfo(id=FEED, source=URI, sink=URI)
    found = await repair(owner, cast("DataPlane", owner), info, views.RepairAsked(dry_run=dry_run))
    assert [(one.table, one.ts, one.dry_run) for one in found] == [("public.t", 110, dry_run)]
    assert owner.comparisons == 3
    assert owner.held is None


async def test_only_the_tables_that_are_asked_for_are_repaired_and_a_waiting_one_says_so() -> None:
    owner = Stuck(stops_at=90, why=WHY)
    info = ChangefeedInfo(id=FEED, source=URI, sink=URI)
    found = await repair(owner, cast("DataPlane", owner), info, views.RepairAsked(tables=("public.u",)))
    assert [(one.table, one.waiting) for one in found] == [("public.u", f"at 90, not yet at 100: {WHY}")]
    assert owner.read == [()]
    with pytest.raises(JobRefusedError, match=r"feed has no table public\.x; see `weir tables -c feed`"):
        await repair(owner, cast("DataPlane", owner), info, views.RepairAsked(tables=("public.x",)))


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (views.RepairAsked(where="v = 1"), "a condition is over the columns of one table; name that table"),
        (views.RepairAsked(tables=("public.t", "public.u"), where="v = 1"), "name that table"),
        (views.RepairAsked(tables=("public.t",), where="v = "), "cannot be read at character"),
        (views.RepairAsked(tables=("public.t",), where="v = 1; DELETE FROM t"), "is not one condition"),
        (
            views.RepairAsked(tables=("public.t",), where="v = (SELECT 1)"),
            "uses '.*SELECT 1.*', which is not supported",
        ),
    ],
)
async def test_a_condition_is_refused_before_anything_is_held(asked: views.RepairAsked, why: str) -> None:
    owner = Owner()
    info = ChangefeedInfo(id=FEED, source=URI, sink=URI)
    with pytest.raises(WeirError, match=why):
        await repair(owner, cast("DataPlane", owner), info, asked)
    assert owner.compared == []


class InParts(Owner):
    """Compares one of four ranges of its table in each part. ``ends_after``: so many parts, then its capture ends."""

    def __init__(self, *, ends_after: int = 99, losing: int = 0, wrong: int = 99) -> None:
        super().__init__(losing=losing)
        self._ends_after = ends_after
        self._wrong = wrong
        self.saved: list[DiffProgress | None] = []

    def load(self) -> DiffProgress | None:
        return self.saved[-1] if self.saved else None

    async def save(self, progress: DiffProgress | None) -> None:
        self.saved.append(progress)

    async def run(
        self, ids: Collection[int], asked: views.DiffAsked = views.WHOLE, progress: Progress | None = None
    ) -> list[views.TableDiff]:
        assert progress is not None
        assert self.held == self.ts, "each part is under a hold"
        self.comparisons += 1
        if self.comparisons > self._ends_after:
            raise OSError("the capture ends")
        table = progress.start(self._tables[0], Ranges("id", 0, 10, 4))
        [number, *_] = table.left
        found = ["id=7: only in the sink"] if number == self._wrong else []
        self.read.append((number,))
        if self.comparisons <= self._losing:
            self.held = None
        table = compared_ranges(table, (number,), (5, 5), found, self.ts)
        progress.note(table)
        await anyio.sleep(3.0)  # the progress is recorded every two seconds
        return [views.TableDiff(table=table.name, equal=not table.differences, ts=self.ts)]


def compare_in_parts(owner: InParts, *, resume: bool = False) -> Awaitable[list[views.TableDiff]]:
    info = ChangefeedInfo(id=FEED, source=URI, sink=URI)
    return compare(owner, cast("DataPlane", owner), info, views.DiffAsked(resume=resume), owner)


async def test_what_takes_long_is_compared_in_parts_and_released_in_between() -> None:
    owner = InParts(wrong=2)
    [found] = await compare_in_parts(owner)
    assert (found.equal, found.source_rows, found.share) == (False, 20, 1.0)
    assert found.differences == ("id=7: only in the sink",)
    assert owner.read == [(0,), (1,), (2,), (3,)]
    assert len(owner.compared) == 4, "four snapshots"
    assert (owner.held, owner.saved[-1]) == (None, None)


async def test_a_comparison_whose_capture_ends_is_continued_with_what_is_left() -> None:
    owner = InParts(ends_after=2, wrong=0)
    with pytest.raises(OSError, match="the capture ends"):
        await compare_in_parts(owner)
    assert owner.held is None
    owner._ends_after = 99
    [found] = await compare_in_parts(owner, resume=True)
    assert (found.equal, found.source_rows) == (False, 20)
    assert owner.read == [(0,), (1,), (2,), (3,)]
    assert owner.saved[-1] is None


async def test_without_being_asked_to_continue_it_begins_again() -> None:
    owner = InParts(ends_after=2)
    with pytest.raises(OSError, match="the capture ends"):
        await compare_in_parts(owner)
    owner._ends_after = 99
    await compare_in_parts(owner)
    assert owner.read == [(0,), (1,), (0,), (1,), (2,), (3,)]


async def test_a_part_whose_hold_was_lost_is_compared_again_if_it_differs() -> None:
    owner = InParts(losing=1, wrong=0)
    [found] = await compare_in_parts(owner)
    assert found.source_rows == 20
    assert owner.read == [(0,), (0,), (1,), (2,), (3,)]
