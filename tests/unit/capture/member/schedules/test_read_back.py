"""Read back: tables whose rows the log does not tell are copied by themselves, on the owner, until it works."""

import itertools
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from agent.errors import LogError, SinkFencedError
from capture.errors import JobRefusedError
from capture.member.copies import CopyPlace, with_problems
from capture.member.schedules.read_back import ReadBack
from reactor import keys
from reactor.errors import NotOwnerError, Scope, WeirError
from reactor.ids import ChangefeedId, Ts
from reactor.records.changefeed import (
    ChangefeedConfig,
    ChangefeedInfo,
    EventFilter,
    FeedState,
    FilterConfig,
    Mode,
    RunningError,
    SealedUri,
    Unit,
    UnitRecord,
    UnitStage,
)
from reactor.records.tables.held import HeldTable, HoldOrigin, HoldStage
from reactor.records.tables.resync import TableResync
from reactor.records.tables.schema_change import DdlRecord, SchemaChangeKind, TableChange
from reactor.records.tables.table import TableRecord
from reactor.state import ClusterState
from reactor.views import ChangefeedView, HeldView, TableView

pytestmark = pytest.mark.looptime

FEED = ChangefeedId("feed")
URI = SealedUri(masked="x", sealed="x")
ASKS = ChangefeedConfig(on_unknown_values="resync")
OLD = TableRecord.new(1, "public", "old", key=("id",), start_ts=Ts(1), consistent_ts=Ts(1))


def error_of(code: str) -> RunningError:
    return RunningError(code=code, message="why", time=0.0, retryable=False, table_id=1, scope=Scope.TABLE)


def hold(table_id: int, name: str, **changes: Any) -> HeldTable:
    error = error_of("NotFollowed").with_(table_id=table_id)
    return HeldTable(table_id=table_id, name=name, error=error, origin=HoldOrigin.SOURCE).with_(**changes)


class Bed:
    """A capture with one changefeed that has ``OLD``, and a cluster service whose answers are ``answers``, then good
    ones."""

    def __init__(self, *held: HeldTable, **unit: Any) -> None:
        self.state = ClusterState("c")
        self.asked: list[tuple[float, str]] = []
        self.answers: list[Exception | dict[int, WeirError]] = []
        #: rows that are read back, time after time; then none
        self.rows: list[int | Exception] = []
        self.candidacy = SimpleNamespace(is_owner=True)
        self.info = ChangefeedInfo(id=FEED, source=URI, sink=URI, config=ASKS, created_at=1.0, state=FeedState.NORMAL)
        self.put(keys.InfoKey("c", "default", FEED), self.info.encode())
        record = UnitRecord(unit=Unit.SYNC, stage=UnitStage.RUNNING, tables=(OLD,)).with_(**unit)
        self.put(keys.UnitKey("c", "default", FEED, "main"), record.encode())
        for one in held:
            self.put(keys.HeldKey("c", "default", FEED, one.table_id), one.encode())
        capture: Any = SimpleNamespace(membership=self)
        self.copy_problems: dict[CopyPlace, str] = {}
        self.read_back = ReadBack(capture, self)

    def put(self, key: keys.Key, value: bytes | None) -> None:
        self.state.update(str(key), value, mod_revision=1, create_revision=1)

    async def take_in(self, changefeed_id: str, tables: Sequence[HeldTable]) -> dict[int, WeirError]:
        assert changefeed_id == FEED
        self.asked.append((anyio.current_time(), " ".join(held.name for held in tables)))
        answer = self.answers.pop(0) if self.answers else {}
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def read_rows(self, changefeed_id: str, held: HeldTable) -> int:
        assert changefeed_id == FEED
        self.asked.append((anyio.current_time(), f"rows of {held.name}"))
        rows = self.rows.pop(0) if self.rows else 0
        if isinstance(rows, Exception):
            raise rows
        return rows

    async def run(self, seconds: float) -> list[str]:
        with anyio.move_on_after(seconds):
            await self.read_back.run()
        return [table for _, table in self.asked]


async def test_new_tables_are_copied_at_once() -> None:
    """The changefeed begins again with them, so all together."""
    assert await Bed(hold(2, "public.new"), hold(3, "public.a.b")).run(1.5) == ["public.new public.a.b"]


@pytest.mark.parametrize(
    ("stage", "name", "is_copied", "is_taken_in"),
    [
        (HoldStage.LOST, "new", False, True),
        (HoldStage.LOST, "old", False, False),
        (HoldStage.LOST, "new", True, False),
        (HoldStage.HELD, "new", False, False),
    ],
    ids=["renamed", "only altered", "copied", "of an operator"],
)
async def test_a_lost_table_that_was_renamed_before_its_copy_is_copied_under_its_new_name(
    stage: HoldStage, name: str, is_copied: bool, is_taken_in: bool
) -> None:
    """Its copy waited for the old name for good: the change of the name waits for the copy."""
    bed = Bed(hold(1, "public.old", origin=HoldOrigin.RESYNC, stage=stage, error=error_of("PositionLost")))
    resync = TableResync(table_id=1, name="public.old", number=1, table=OLD if is_copied else None)
    bed.put(keys.ResyncKey("c", "default", FEED, 1), resync.encode())
    change = TableChange(kind=SchemaChangeKind.RENAME, table_id=1, table=OLD.with_(name=name))
    bed.put(keys.DdlKey("c", "default", FEED, Ts(9)), DdlRecord(ts=Ts(9), changes=(change,)).encode())
    assert await bed.run(1.5) == ["public.old"] * is_taken_in


async def test_hundreds_of_new_tables_are_copied_some_at_a_time() -> None:
    """As many as the owner takes in one transaction."""
    bed = Bed(*(hold(n, f"public.t{n}") for n in range(10, 210)))
    await bed.run(1.5)
    assert [len(tables.split()) for _, tables in bed.asked] == [45, 45, 45, 45, 20]


async def test_one_that_cannot_be_copied_keeps_no_other_back() -> None:
    bed = Bed(hold(2, "public.new"), hold(3, "public.keyless"))
    bed.answers = [{3: JobRefusedError("no key")}] * 9
    await bed.run(8)
    assert [(round(at - bed.asked[0][0]), tables) for at, tables in bed.asked] == [
        (0, "public.new public.keyless"),
        (5, "public.new public.keyless"),
    ]


async def test_what_prevents_a_copy_is_shown_while_the_table_is_held() -> None:
    bed = Bed(hold(2, "public.new"), hold(3, "public.keyless"))
    bed.answers = [{3: JobRefusedError("no key")}]
    await bed.run(1.5)
    named = ((2, "new"), (3, "keyless"))
    held = tuple(HeldView(table=name, table_id=number, stage="held", message="why") for number, name in named)
    view = ChangefeedView(
        id="feed", state=FeedState.WARNING, held=held, tables=(TableView(table="keyless", table_id=3, held=held[1]),)
    )
    shown = with_problems(view, bed.copy_problems)
    assert [one.message for one in shown.held] == ["why", "why; not copied yet: no key"]
    assert [one.held for one in shown.tables] == [shown.held[1]]
    for table, _ in named:
        bed.put(keys.HeldKey("c", "default", FEED, table), None)
    await bed.run(1.5)
    assert with_problems(view, bed.copy_problems) == view


async def test_one_that_crashes_keeps_no_other_back() -> None:
    bed = Bed(hold(2, "public.new"), hold(3, "public.strange"))
    bed.answers = [KeyError("x"), {}, KeyError("x")]
    assert await bed.run(1.5) == ["public.new public.strange", "public.new", "public.strange"]


async def test_one_whose_name_another_table_has_yet_waits_for_that() -> None:
    assert await Bed(hold(2, "public.old")).run(100) == []


async def test_a_table_is_copied_for_its_partitions_without_being_asked_for() -> None:
    bed = Bed(hold(1, "public.old", error=error_of("PartitionRows")))
    bed.put(keys.InfoKey("c", "default", FEED), bed.info.with_(config=ChangefeedConfig()).encode())
    assert await bed.run(1.5) == ["public.old"]


LEFT_OUT = {"origin": HoldOrigin.WRITE, "error": error_of("LeftOutValue")}
RETYPED = {"origin": HoldOrigin.SCHEMA, "error": error_of("UnknownValues")}


@pytest.mark.parametrize(
    "held",
    [
        hold(1, "public.old"),
        hold(1, "public.old", **RETYPED),
        hold(1, "public.old", **RETYPED | {"origin": HoldOrigin.WRITE}),
    ],
)
async def test_a_table_that_the_changefeed_had_is_copied_again(held: HeldTable) -> None:
    assert await Bed(held).run(1.5) == ["public.old"]


async def test_rows_of_left_out_values_are_read_first() -> None:
    """The table is tried again then, and only copied where that does not help."""
    bed = Bed(hold(1, "public.old", **LEFT_OUT))
    bed.rows = [7]
    assert await bed.run(4) == ["rows of public.old"]
    assert await Bed(hold(1, "public.old", **LEFT_OUT)).run(1.5) == ["rows of public.old", "public.old"]


@pytest.mark.parametrize("error", [LogError("gone"), KeyError("x")])
async def test_a_table_whose_rows_cannot_be_read_is_copied(error: Exception) -> None:
    bed = Bed(hold(1, "public.old", **LEFT_OUT))
    bed.rows = [error]
    assert await bed.run(1.5) == ["rows of public.old", "public.old"]


async def test_a_table_that_moved_meanwhile_is_read_again() -> None:
    bed = Bed(hold(1, "public.old", **LEFT_OUT))
    bed.rows = [SinkFencedError("it is further"), 1]
    assert await bed.run(4) == ["rows of public.old"] * 2


async def test_rows_are_read_again_as_long_as_the_table_moves() -> None:
    bed = Bed(hold(1, "public.old", **LEFT_OUT))
    bed.rows = [1] * 9
    await bed.run(100)
    assert [what for _, what in bed.asked][:4] == ["rows of public.old"] * 3 + ["public.old"]
    bed.put(keys.HeldKey("c", "default", FEED, 1), hold(1, "public.old", ts=Ts(7), **LEFT_OUT).encode())
    bed.asked.clear()
    await bed.run(400)
    assert bed.asked[0][1] == "rows of public.old"


async def test_a_table_with_a_schema_change_ahead_is_copied() -> None:
    """The source's rows do not fit the sink's."""
    bed = Bed(hold(1, "public.old", **LEFT_OUT))
    change = TableChange(table_id=1, kind=SchemaChangeKind.ALTER, table=OLD)
    bed.put(keys.DdlKey("c", "default", FEED, Ts(9)), DdlRecord(ts=Ts(9), changes=(change,)).encode())
    assert await bed.run(1.5) == ["public.old"]


@pytest.mark.parametrize(
    "held",
    [
        hold(1, "public.old", origin=HoldOrigin.WRITE),
        hold(1, "public.old", origin=HoldOrigin.SCHEMA),
        hold(1, "public.old", origin=HoldOrigin.SCHEMA, error=error_of("TableHeld")),
        hold(1, "public.old", **RETYPED | {"origin": HoldOrigin.PAUSE}),
        hold(1, "public.old", origin=HoldOrigin.PAUSE),
        hold(1, "public.old", **LEFT_OUT, stage=HoldStage.TRIED),
        hold(1, "public.old", origin=HoldOrigin.RESYNC),
        hold(2, "public.new", origin=HoldOrigin.WRITE),
        hold(2, "public.new", origin=HoldOrigin.PAUSE),
        hold(2, "public.new", stage=HoldStage.TRIED),
    ],
)
async def test_one_that_is_held_for_anything_else_is_left_to_its_operator(held: HeldTable) -> None:
    assert await Bed(held).run(100) == []


KEEPS_DELETED = EventFilter(matcher=("public.*",), ignore_event=("delete",))


PARTITIONS = {"error": error_of("PartitionRows")}
UNWANTED: dict[str, dict[str, Any]] = {
    "hold": {"config": ChangefeedConfig()},
    "incremental": {"mode": Mode.INCREMENTAL},
    "filter": {"config": ASKS.with_(filter=FilterConfig(event_filters=(KEEPS_DELETED,)))},
}


@pytest.mark.parametrize(
    ("cause", "why"),
    [(cause, why) for cause in ({}, LEFT_OUT, PARTITIONS) for why in UNWANTED if (cause, why) != (PARTITIONS, "hold")],
)
async def test_one_that_the_changefeed_had_is_left_where_a_copy_is_not_wanted(cause: dict[str, Any], why: str) -> None:
    """But new tables come in all the same."""
    bed = Bed(hold(1, "public.old", **cause), hold(2, "public.new"))
    bed.put(keys.InfoKey("c", "default", FEED), bed.info.with_(**UNWANTED[why]).encode())
    assert await bed.run(1.5) == ["public.new"]


async def test_one_that_is_copied_already_is_not_asked_for_again() -> None:
    bed = Bed(hold(1, "public.old", **LEFT_OUT))
    resync = TableResync(table_id=1, name="public.old")
    bed.put(keys.ResyncKey("c", "default", FEED, 1), resync.encode())
    assert await bed.run(100) == []


async def test_one_that_is_held_again_soon_after_its_copy_is_copied_less_and_less_often() -> None:
    """As a statement that runs each second at the source, and cannot be followed."""
    bed = Bed(hold(1, "public.old"))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(bed.run, 600)
        for turn in range(300):
            await anyio.sleep(2)
            stage = (HoldStage.TRIED, HoldStage.HELD)[turn % 2]
            bed.put(keys.HeldKey("c", "default", FEED, 1), hold(1, "public.old", stage=stage).encode())
    times = [at for at, _ in bed.asked]
    assert 4 <= len(times) <= 9
    assert times[-1] - times[-2] > 4 * (times[1] - times[0])


async def test_one_that_joins_is_not_asked_for_again() -> None:
    assert await Bed(hold(2, "public.new"), joining=(("public", "new"),)).run(100) == []


@pytest.mark.parametrize("change", [{"state": FeedState.STOPPED}, {"state": FeedState.FAILED}, {"target_ts": Ts(9)}])
async def test_only_changefeeds_that_run_without_end_take_tables_in(change: dict[str, Any]) -> None:
    bed = Bed(hold(2, "public.new"))
    bed.put(keys.InfoKey("c", "default", FEED), bed.info.with_(**change).encode())
    assert await bed.run(100) == []


async def test_only_the_owner_copies_and_a_snapshot_comes_first() -> None:
    bed = Bed(hold(2, "public.new"))
    bed.candidacy.is_owner = False
    assert await bed.run(100) == []
    assert await Bed(hold(2, "public.new"), unit=Unit.DUMP).run(100) == []


async def test_what_prevents_it_is_tried_again_less_and_less_often() -> None:
    bed = Bed(hold(2, "public.new"))
    bed.answers = [{2: JobRefusedError("not the owner of table new")}, KeyError("x")] * 9
    await bed.run(2_000)
    times = [at for at, _ in bed.asked]
    pauses = [later - sooner for sooner, later in itertools.pairwise(times)]
    assert pauses[:3] == pytest.approx([5, 10, 20], abs=1.1)
    assert max(pauses) == pytest.approx(300, abs=1.1)


async def test_the_next_owner_continues() -> None:
    bed = Bed(hold(2, "public.new"), hold(3, "public.other"))
    bed.answers = [NotOwnerError("another is the owner")]
    assert await bed.run(2.5) == ["public.new public.other"] * 2
