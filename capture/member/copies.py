"""Copies in progress on this capture: runs each until it is finished or no longer wanted, and reports its progress.

The owner requests copies from its own capture, so the capture that answers queries also knows their progress; it is not
stored.
"""

import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass

import anyio

from agent.feeds.copies import CopyOrder
from agent.units.dump import DumpProgress
from capture.errors import GoneError
from owner.questions import CopyTable, TableCopied
from reactor.errors import WeirError
from reactor.ids import ChangefeedId
from reactor.records.changefeed import RunningError
from reactor.records.tables.resync import ResyncStage
from reactor.records.tables.table import TableRecord
from reactor.state import ClusterState
from reactor.views import ChangefeedView, HeldView, ResyncView, TableView

#: how soon an unwanted copy ends
_POLL_S = 0.5

#: a changefeed, and the id of one of its tables
CopyPlace = tuple[ChangefeedId, int]
Copy = Callable[[CopyOrder, Callable[[DumpProgress], None]], Awaitable[tuple[TableRecord, int]]]


@dataclass(slots=True)
class CopyProgress:
    """``began``: rows copied before this run began, and when it began (monotonic seconds)."""

    rows_done: int = 0
    rows_total: int = 0
    bytes_done: int = 0
    began: tuple[int, float] | None = None
    #: what its beginning waits for
    trouble: RunningError | None = None

    def note(self, at: DumpProgress) -> None:
        """Called on the copy's own thread."""
        self.trouble = at.trouble
        if self.began is None and at.trouble is None:
            self.began = at.rows_done, time.monotonic()
        self.rows_done, self.rows_total, self.bytes_done = at.rows_done, at.rows_total, at.bytes_done

    @property
    def rows_per_second(self) -> float | None:
        """The average of this run; None if nothing was done yet."""
        if self.began is None or self.rows_done <= self.began[0]:
            return None
        rows, since = self.began
        return (self.rows_done - rows) / max(time.monotonic() - since, 1e-6)

    @property
    def seconds_left(self) -> float | None:
        """Estimate from the average speed; None if unknown."""
        speed = self.rows_per_second
        return None if speed is None else max(self.rows_total - self.rows_done, 0) / speed

    def shown(self, view: ResyncView) -> ResyncView:
        known = {name: getattr(self, name) for name in ("rows_done", "rows_total", "seconds_left", "rows_per_second")}
        if self.trouble is not None:
            known |= {"code": self.trouble.code, "message": self.trouble.message}
        return view.model_copy(update=known)


class Copies:
    """The copies of one membership."""

    def __init__(self, state: ClusterState) -> None:
        self.progress: dict[CopyPlace, CopyProgress] = {}
        self._state = state

    async def run(self, changefeed: ChangefeedId, question: CopyTable, copy: Copy) -> TableCopied:
        """:raises GoneError: the copy is no longer wanted.
        :raises WeirError: it cannot continue.
        """
        place = changefeed, question.table.table_id
        progress = self.progress[place] = CopyProgress()
        order = CopyOrder(question.table, question.number, question.epoch, question.log, question.rows_per_second)
        failure: WeirError | None = None
        copied: TableCopied | None = None
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._stop_when_unwanted, changefeed, question, tasks.cancel_scope)
                try:
                    copied = TableCopied(*await copy(order, progress.note))
                except WeirError as error:
                    failure = error  # raised below: the group would wrap it
                tasks.cancel_scope.cancel()
        finally:
            if self.progress.get(place) is progress:
                del self.progress[place]
        if failure is not None:
            raise failure
        if copied is None:
            raise GoneError(f"the copy of {question.table.schema_name}.{question.table.name} is not wanted any more")
        return copied

    async def _stop_when_unwanted(
        self, changefeed: ChangefeedId, question: CopyTable, scope: anyio.CancelScope
    ) -> None:
        while self._is_wanted(changefeed, question):  # noqa: ASYNC110  # a state has no event for one key
            await anyio.sleep(_POLL_S)
        scope.cancel()

    def _is_wanted(self, changefeed: ChangefeedId, question: CopyTable) -> bool:
        feed = self._state.changefeeds.get(changefeed)
        resync = feed.resyncs.get(question.table.table_id) if feed else None
        return resync is not None and (resync.stage, resync.number) == (ResyncStage.COPYING, question.number)


def with_progress(view: ChangefeedView, copies: Mapping[CopyPlace, CopyProgress]) -> ChangefeedView:
    """Add the progress of the changefeed's copies on this capture."""
    if not view.resyncs:
        return view
    resyncs = tuple(_with_copy(view.id, resync, copies) for resync in view.resyncs)
    return view.model_copy(update={"resyncs": resyncs, "tables": with_copies(view.id, view.tables, copies)})


def with_copies(
    changefeed: str, tables: Iterable[TableView], copies: Mapping[CopyPlace, CopyProgress]
) -> tuple[TableView, ...]:
    """As ``with_progress``, of tables."""
    return tuple(
        table
        if table.resync is None
        else table.model_copy(update={"resync": _with_copy(changefeed, table.resync, copies)})
        for table in tables
    )


def with_problems(view: ChangefeedView, problems: Mapping[CopyPlace, str]) -> ChangefeedView:
    """Add to held tables what prevents their copies."""

    def shown(held: HeldView) -> HeldView:
        problem = problems.get((ChangefeedId(view.id), held.table_id))
        return held.model_copy(update={"message": f"{held.message}; not copied yet: {problem}"}) if problem else held

    if not any(problems.values()):
        return view
    tables = (one.model_copy(update={"held": shown(one.held)}) if one.held else one for one in view.tables)
    return view.model_copy(update={"held": tuple(map(shown, view.held)), "tables": tuple(tables)})


def _with_copy(changefeed: str, resync: ResyncView, copies: Mapping[CopyPlace, CopyProgress]) -> ResyncView:
    at = copies.get((ChangefeedId(changefeed), resync.table_id))
    return resync if at is None else at.shown(resync)
