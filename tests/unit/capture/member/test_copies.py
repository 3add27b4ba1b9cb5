"""Copies under way on a capture: how far they are is shown, and one that nobody wants any more ends."""

from collections.abc import Callable
from dataclasses import replace

import anyio
import pytest

from agent.errors import SourceUnreachableError
from agent.feeds.copies import CopyOrder
from agent.ports.source import Position
from agent.units.dump import DumpProgress
from capture.errors import GoneError
from capture.member import copies
from capture.member.copies import Copies, with_progress
from owner.questions import CopyTable
from reactor import keys
from reactor.ids import ChangefeedId, Ts
from reactor.records.changefeed import FeedState, RunningError
from reactor.records.tables.resync import ResyncStage, TableResync
from reactor.records.tables.table import TableRecord
from reactor.state import ClusterState
from reactor.views import ChangefeedView, ResyncView

FEED = ChangefeedId("shop")
TABLE = TableRecord(table_id=7, schema_name="public", name="t", start_ts=Ts(5))
QUESTION = CopyTable(TABLE, 3, 100, "")
KEY = keys.ResyncKey("c", "default", FEED, 7)
Note = Callable[[DumpProgress], None]


def wanted(state: ClusterState, **fields: object) -> None:
    record = TableResync(table_id=7, name="public.t", stage=ResyncStage.COPYING, number=3).with_(**fields)
    state.update(str(KEY), record.encode(), mod_revision=state.revision + 1)


def progress(done: int, total: int) -> DumpProgress:
    return DumpProgress((TABLE,), Position(Ts(9)), done, total, 0, "")


@pytest.fixture
def state() -> ClusterState:
    found = ClusterState("c")
    wanted(found)
    return found


async def test_how_far_it_is_is_shown_until_it_is_done(state: ClusterState) -> None:
    running = Copies(state)
    view = ChangefeedView(
        id="shop", state=FeedState.NORMAL, resyncs=(ResyncView(table="public.t", table_id=7, stage="copying"),)
    )
    seen: list[ResyncView] = []

    async def copy(order: CopyOrder, note: Note) -> tuple[TableRecord, int]:
        assert (order.table, order.number, order.epoch, order.log) == (TABLE, 3, 100, "")
        for done in (10, 30):
            note(progress(done, 90))
            seen.extend(with_progress(view, running.progress).resyncs)
        return TABLE, 90

    copied = await running.run(FEED, QUESTION, copy)
    assert (copied.table, copied.rows) == (TABLE, 90)
    assert [(one.rows_done, one.rows_total) for one in seen] == [(10, 90), (30, 90)]
    assert seen[0].seconds_left is None, "nothing was done yet in this run"
    assert seen[1].seconds_left is not None
    assert with_progress(view, running.progress) == view


async def test_what_its_beginning_waits_for_is_shown(state: ClusterState) -> None:
    running = Copies(state)
    view = ChangefeedView(
        id="shop", state=FeedState.NORMAL, resyncs=(ResyncView(table="public.t", table_id=7, stage="copying"),)
    )
    seen: list[ResyncView] = []
    trouble = RunningError(code="OpenTransactions", message="process 7 has one open")

    async def copy(order: CopyOrder, note: Note) -> tuple[TableRecord, int]:
        for at in (replace(progress(0, 0), trouble=trouble), progress(10, 90), progress(30, 90)):
            note(at)
            seen.extend(with_progress(view, running.progress).resyncs)
        return TABLE, 90

    await running.run(FEED, QUESTION, copy)
    assert [(one.code, one.message) for one in seen] == [
        ("OpenTransactions", "process 7 has one open"),
        *[("", "")] * 2,
    ]
    assert [one.seconds_left is None for one in seen] == [True, True, False], "the wait is no part of the speed"


@pytest.mark.parametrize("change", [{"stage": ResyncStage.STOPPING}, {"number": 4}, None])
async def test_one_that_nobody_wants_any_more_ends(
    state: ClusterState, change: dict[str, object] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies, "_POLL_S", 0.001)
    is_cancelled = False

    async def copy(_: CopyOrder, __: Note) -> tuple[TableRecord, int]:
        nonlocal is_cancelled
        if change is None:
            state.update(str(KEY), None, mod_revision=9)
        else:
            wanted(state, **change)
        try:
            await anyio.sleep_forever()
        finally:
            is_cancelled = True
        return TABLE, 0

    with pytest.raises(GoneError, match=r"the copy of public\.t is not wanted any more"):
        await Copies(state).run(FEED, QUESTION, copy)
    assert is_cancelled


async def test_what_fails_is_its_own_error(state: ClusterState) -> None:
    async def copy(_: CopyOrder, __: Note) -> tuple[TableRecord, int]:
        raise SourceUnreachableError("the source is away")

    with pytest.raises(SourceUnreachableError):
        await Copies(state).run(FEED, QUESTION, copy)
