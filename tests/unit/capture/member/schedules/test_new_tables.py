"""New tables: those that a source's stream cannot follow are copied by themselves, on the owner, until it works."""

import itertools
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from capture.errors import JobRefusedError
from capture.member.schedules.new_tables import NewTables
from reactor import keys
from reactor.errors import NotOwnerError, Scope
from reactor.ids import ChangefeedId, Ts
from reactor.records.changefeed import (
    ChangefeedConfig,
    ChangefeedInfo,
    FeedState,
    RunningError,
    SealedUri,
    TableRecord,
    Unit,
    UnitRecord,
    UnitStage,
)
from reactor.records.held import HeldTable, HoldOrigin, HoldStage
from reactor.state import ClusterState

pytestmark = pytest.mark.looptime

FEED = ChangefeedId("feed")
URI = SealedUri(masked="x", sealed="x")
OLD = TableRecord.new(1, "public", "old", key=("id",), start_ts=Ts(1), consistent_ts=Ts(1))


def hold(table_id: int, name: str, **changes: Any) -> HeldTable:
    error = RunningError(
        code="NotFollowed", message="why", time=0.0, retryable=False, table_id=table_id, scope=Scope.TABLE
    )
    return HeldTable(table_id=table_id, name=name, error=error, origin=HoldOrigin.SOURCE).with_(**changes)


class Bed:
    """A capture with one changefeed that has ``OLD``, and a cluster service whose answers are ``answers``, then good
    ones."""

    def __init__(self, *held: HeldTable, **unit: Any) -> None:
        self.state = ClusterState("c")
        self.asked: list[tuple[float, str]] = []
        self.answers: list[Exception | None] = []
        self.candidacy = SimpleNamespace(is_owner=True)
        self.info = ChangefeedInfo(
            id=FEED, source=URI, sink=URI, config=ChangefeedConfig(), created_at=1.0, state=FeedState.NORMAL
        )
        self.put(keys.InfoKey("c", "default", FEED), self.info.encode())
        record = UnitRecord(unit=Unit.SYNC, stage=UnitStage.RUNNING, tables=(OLD,)).with_(**unit)
        self.put(keys.UnitKey("c", "default", FEED, "main"), record.encode())
        for one in held:
            self.put(keys.HeldKey("c", "default", FEED, one.table_id), one.encode())
        capture: Any = SimpleNamespace(membership=self)
        self.new_tables = NewTables(capture, self)

    def put(self, key: keys.Key, value: bytes) -> None:
        self.state.update(str(key), value, mod_revision=1, create_revision=1)

    async def take_in(self, changefeed_id: str, tables: Sequence[str]) -> None:
        assert changefeed_id == FEED
        self.asked.append((anyio.current_time(), " ".join(tables)))
        if self.answers and (answer := self.answers.pop(0)) is not None:
            raise answer

    async def run(self, seconds: float) -> list[str]:
        with anyio.move_on_after(seconds):
            await self.new_tables.run()
        return [table for _, table in self.asked]


async def test_new_tables_are_copied_at_once() -> None:
    """The changefeed begins again with them, so all together."""
    assert await Bed(hold(2, "public.new"), hold(3, "public.a.b")).run(1.5) == ["public.new public.a.b"]


async def test_one_that_cannot_be_copied_keeps_no_other_back() -> None:
    bed = Bed(hold(2, "public.new"), hold(3, "public.keyless"))
    bed.answers = [JobRefusedError("no key"), None, JobRefusedError("no key")]
    assert await bed.run(1.5) == ["public.new public.keyless", "public.new", "public.keyless"]


async def test_one_whose_name_another_table_has_yet_waits_for_that() -> None:
    assert await Bed(hold(2, "public.old")).run(1_000) == []


@pytest.mark.parametrize(
    "held",
    [
        hold(1, "public.old"),
        hold(2, "public.new", origin=HoldOrigin.WRITE),
        hold(2, "public.new", origin=HoldOrigin.PAUSE),
        hold(2, "public.new", stage=HoldStage.TRIED),
    ],
)
async def test_a_table_that_the_changefeed_had_is_left_to_its_operator(held: HeldTable) -> None:
    assert await Bed(held).run(1_000) == []


async def test_one_that_joins_is_not_asked_for_again() -> None:
    assert await Bed(hold(2, "public.new"), joining=(("public", "new"),)).run(1_000) == []


@pytest.mark.parametrize("change", [{"state": FeedState.STOPPED}, {"state": FeedState.FAILED}, {"target_ts": Ts(9)}])
async def test_only_changefeeds_that_run_without_end_take_tables_in(change: dict[str, Any]) -> None:
    bed = Bed(hold(2, "public.new"))
    bed.put(keys.InfoKey("c", "default", FEED), bed.info.with_(**change).encode())
    assert await bed.run(1_000) == []


async def test_only_the_owner_copies_and_a_snapshot_comes_first() -> None:
    bed = Bed(hold(2, "public.new"))
    bed.candidacy.is_owner = False
    assert await bed.run(1_000) == []
    assert await Bed(hold(2, "public.new"), unit=Unit.DUMP).run(1_000) == []


async def test_what_prevents_it_is_tried_again_less_and_less_often() -> None:
    bed = Bed(hold(2, "public.new"))
    bed.answers = [JobRefusedError("not the owner of table new"), KeyError("x")] * 9
    await bed.run(2_000)
    times = [at for at, _ in bed.asked]
    pauses = [later - sooner for sooner, later in itertools.pairwise(times)]
    assert pauses[:3] == pytest.approx([5, 10, 20], abs=1.1)
    assert max(pauses) == pytest.approx(300, abs=1.1)


async def test_the_next_owner_continues() -> None:
    bed = Bed(hold(2, "public.new"), hold(3, "public.other"))
    bed.answers = [NotOwnerError("another is the owner")]
    assert await bed.run(2.5) == ["public.new public.other"] * 2
