"""A comparison states a difference only if source and sink stood at one Ts from its beginning to its end."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from capture.api import port as views
from capture.member.diff import compare
from capture.member.services import DataPlane
from owner import jobs
from reactor.ids import ChangefeedId, Ts
from reactor.records.changefeed import (
    ChangefeedInfo,
    FeedState,
    LogHead,
    SealedUri,
    TableRecord,
    Unit,
    UnitRecord,
    UnitStage,
)

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

    async def query(self, changefeed_id: str) -> views.ChangefeedView:
        span = views.SpanView(span="1", checkpoint_ts=self.held or 0)
        table = views.TableView(table="public.t", table_id=1, spans=(span,))
        return views.ChangefeedView(id=changefeed_id, state=FeedState.NORMAL, tables=(table,))

    def unit_of(self, changefeed_id: str) -> UnitRecord:
        return UnitRecord(unit=Unit.SYNC, stage=UnitStage.RUNNING, tables=self._tables)

    def head_of(self, changefeed_id: str) -> LogHead:
        return LogHead(resolved_ts=Ts(100))

    @asynccontextmanager
    async def comparison(
        self, info: ChangefeedInfo, tables: Sequence[TableRecord], head: LogHead
    ) -> AsyncIterator["Owner"]:
        self.compared.append(tuple(table.table_id for table in tables))
        if self._growing:
            self._growing -= 1
            self._tables += (TableRecord(table_id=1 + len(self._tables), schema_name="public", name="u"),)
        yield self

    @property
    def ts(self) -> Ts:
        return Ts(110)

    async def run(self) -> list[views.TableDiff]:
        self.comparisons += 1
        is_lost = self.comparisons <= self._losing
        if is_lost:
            self.held = None
        return [views.TableDiff(table="public.t", equal=not (is_lost or self._differs), ts=self.ts)]


async def compared(owner: Owner) -> list[bool]:
    info = ChangefeedInfo(id=FEED, source=URI, sink=URI)
    return [one.equal for one in await compare(owner, cast("DataPlane", owner), info)]


async def test_a_hold_that_was_lost_makes_no_difference() -> None:
    owner = Owner(losing=2)
    assert await compared(owner) == [True]
    assert owner.comparisons == 3


async def test_a_difference_under_the_hold_is_one() -> None:
    owner = Owner(losing=0, differs=True)
    assert await compared(owner) == [False]
    assert owner.comparisons == 1
    assert owner.held is None


async def test_the_tables_are_those_that_are_replicated_when_it_is_done() -> None:
    owner = Owner(growing=2)
    assert await compared(owner) == [True]
    assert owner.compared == [(1,), (1, 2), (1, 2, 3)]
    assert owner.comparisons == 1


@pytest.mark.parametrize("others", [True, False])
async def test_held_tables_are_named_and_not_waited_for(others: bool) -> None:
    class Holding(Owner):
        async def query(self, changefeed_id: str) -> views.ChangefeedView:
            view = await super().query(changefeed_id)
            held = views.HeldView(table="public.h", table_id=9, stage="held", message="no room; make some")
            table = views.TableView(table="public.h", table_id=9, spans=(views.SpanView(span="9"),), held=held)
            return view.model_copy(update={"tables": (*view.tables, table) if others else (table,)})

    owner = Holding()
    held = TableRecord(table_id=9, schema_name="public", name="h")
    owner._tables = (*owner._tables, held) if others else (held,)
    found = await compare(owner, cast("DataPlane", owner), ChangefeedInfo(id=FEED, source=URI, sink=URI))
    assert [(one.table, one.equal, one.waiting) for one in found] == [
        ("public.h", False, "no room; make some"),
        *([("public.t", True, "")] if others else []),
    ]
    assert owner.compared == ([(1,)] if others else [])
