"""Copy groups: what waits is copied together, whoever began it, and each table has its own result."""

from collections.abc import Sequence
from typing import Any

import anyio
import pytest
from anyio import wait_all_tasks_blocked

from agent.errors import SourceUnreachableError
from agent.feeds.copies import Copied, CopyOrder
from agent.ports.source import BEGIN
from agent.units.dump import DumpProgress
from capture.member.copy_groups import CopyGroups, OnProgress
from reactor.errors import WeirError
from reactor.ids import ChangefeedId
from reactor.records.changefeed import ChangefeedConfig, ChangefeedInfo, RunningError, SealedUri
from reactor.records.tables.table import TableRecord

URI = SealedUri(masked="x://", sealed="x")
INFO = ChangefeedInfo(id=ChangefeedId("shop"), source=URI, sink=URI)


def order(id: int) -> CopyOrder:
    return CopyOrder(TableRecord.new(id, "public", f"t{id}"), 1, 1, "")


class Source:
    """Copies a group when it is let go."""

    def __init__(self) -> None:
        self.groups: list[list[int]] = []
        self.go = anyio.Event()
        self.error: WeirError | None = None
        self.refused: set[int] = set()

    async def copy(self, orders: Sequence[CopyOrder], note: OnProgress) -> list[Copied | WeirError]:
        self.groups.append([one.table.table_id for one in orders])
        note(DumpProgress((), BEGIN, 5, 9, 0, "", RunningError(code="Locked", message="by 7")))
        await self.go.wait()
        if self.error is not None:
            raise self.error
        return [SourceUnreachableError("no") if id in self.refused else (one.table, id) for id, one in _by_id(orders)]


def _by_id(orders: Sequence[CopyOrder]) -> list[tuple[int, CopyOrder]]:
    return [(one.table.table_id, one) for one in orders]


class Site:
    def __init__(self) -> None:
        self.source, self.groups = Source(), CopyGroups()
        self.results: dict[int, Any] = {}
        self.notes: dict[int, list[DumpProgress]] = {}

    async def copy(self, id: int, info: ChangefeedInfo = INFO) -> None:
        notes = self.notes.setdefault(id, [])
        try:
            self.results[id] = (await self.groups.copy(info, self.source.copy, order(id), notes.append))[1]
        except WeirError as error:
            self.results[id] = str(error)


@pytest.fixture
def site() -> Site:
    return Site()


async def test_what_comes_while_a_group_is_copied_is_the_next_one(site: Site) -> None:
    async with anyio.create_task_group() as tasks:
        for id in (1, 2, 3):
            tasks.start_soon(site.copy, id)
            await wait_all_tasks_blocked()
        assert site.source.groups == [[1]]
        site.source.refused = {3}
        site.source.go.set()
    assert site.source.groups == [[1], [2, 3]]
    assert site.results == {1: 1, 2: 2, 3: "no"}
    assert site.groups._queues == {}, "nothing is kept of what is done"


async def test_a_group_has_a_bound(site: Site) -> None:
    site.source.go.set()
    async with anyio.create_task_group() as tasks:
        for id in range(150):
            tasks.start_soon(site.copy, id)
    assert [len(group) for group in site.source.groups] == [64, 64, 22]
    assert site.results == {id: id for id in range(150)}


async def test_changefeeds_do_not_wait_for_each_other_nor_share_a_group(site: Site) -> None:
    """Nor do tables of one changefeed that are to be read in another way."""
    others = INFO.with_(id=ChangefeedId("other")), INFO.with_(config=ChangefeedConfig(dump_chunk_rows=1_000))
    async with anyio.create_task_group() as tasks:
        for id, info in enumerate((INFO, INFO, *others, INFO.with_(warning=RunningError(code="X", message="x")))):
            tasks.start_soon(site.copy, id, info)
        await wait_all_tasks_blocked()
        assert site.source.groups == [[0, 1, 4], [2]]
        site.source.go.set()
    assert site.source.groups[2:] == [[3]]


async def test_an_error_of_all_is_that_of_each(site: Site) -> None:
    site.source.error = SourceUnreachableError("away")
    site.source.go.set()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(site.copy, 1)
        tasks.start_soon(site.copy, 2)
    assert site.results == {1: "away", 2: "away"}


@pytest.mark.parametrize("cancelled", [1, 2])
async def test_a_table_that_nobody_wants_any_more_takes_none_along(site: Site, cancelled: int) -> None:
    """Table 1 has begun the group: another table begins it again."""
    scopes = {id: anyio.CancelScope() for id in (1, 2, 3)}

    async def copy(id: int) -> None:
        with scopes[id]:
            await site.copy(id)

    async with anyio.create_task_group() as tasks:
        for id in scopes:
            tasks.start_soon(copy, id)
        await wait_all_tasks_blocked()
        scopes[cancelled].cancel()
        await wait_all_tasks_blocked()
        site.source.go.set()
    assert site.results == {id: id for id in scopes if id != cancelled}
    assert site.source.groups == [[1, 2, 3], [2, 3]][: 1 if cancelled == 2 else 2]


async def test_what_a_group_waits_for_is_shown_with_each_table_without_its_rows(site: Site) -> None:
    site.source.go.set()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(site.copy, 1)
        tasks.start_soon(site.copy, 2)
    for notes in site.notes.values():
        assert [(at.rows_done, at.trouble.message if at.trouble else "") for at in notes] == [(0, "by 7")]
