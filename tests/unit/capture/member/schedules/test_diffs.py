"""Comparisons by schedule: as often as the changefeed asks, by the owner alone, and each leaves its result."""

from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from capture.api import port as views
from capture.errors import JobRefusedError
from capture.member.schedules.diffs import DiffSchedule
from reactor import keys
from reactor.errors import NotOwnerError
from reactor.ids import ChangefeedId, Ts
from reactor.records.changefeed import (
    ChangefeedConfig,
    ChangefeedInfo,
    FeedState,
    SealedUri,
    Unit,
    UnitRecord,
    UnitStage,
)
from reactor.records.schedules import LastDiff
from reactor.state import ClusterState
from reactor.store.memory import MemoryClient, MemoryEtcd
from reactor.store.port import Delete, Put

pytestmark = pytest.mark.looptime

FEED = ChangefeedId("feed")
URI = SealedUri(masked="x", sealed="x")
KEY = keys.LastDiffKey("c", "default", FEED)
EQUAL = views.TableDiff(table="public.t", equal=True, ts=7)


class Bed:
    """A capture with one changefeed, whose tables compare as ``found`` says. Time is the loop's."""

    def __init__(self, **config: Any) -> None:
        self.etcd, self.state = MemoryEtcd(), ClusterState("c")
        self.client = MemoryClient(self.etcd)
        self.found: list[views.TableDiff] | Exception = [EQUAL]
        self.asked: list[views.DiffAsked] = []
        self.times: list[float] = []
        self.candidacy = SimpleNamespace(is_owner=True)
        settings = ChangefeedConfig(**({"diff_every_seconds": 3_600} | config))
        self.info = ChangefeedInfo(id=FEED, source=URI, sink=URI, config=settings, created_at=1_000.0)
        self.unit = UnitRecord(unit=Unit.SYNC, stage=UnitStage.RUNNING)
        self.put(keys.InfoKey("c", "default", FEED), self.info.encode())
        self.put(keys.UnitKey("c", "default", FEED, "main"), self.unit.encode())
        capture: Any = SimpleNamespace(membership=self)
        self.schedule = DiffSchedule(capture, self, wall=self.wall)

        self.began = 0.0

    def wall(self) -> float:
        return 1_000.0 + anyio.current_time() - self.began

    def put(self, key: keys.Key, value: bytes) -> None:
        self.etcd.txn([], [Put(str(key), value)])
        self.see()

    def see(self) -> None:
        for item in self.etcd.get_prefix("/weir/c/").items:
            self.state.update(
                item.key, item.value, mod_revision=item.mod_revision, create_revision=item.create_revision
            )

    async def compare(self, changefeed_id: str, asked: views.DiffAsked) -> list[views.TableDiff]:
        assert changefeed_id == FEED
        self.asked.append(asked)
        self.times.append(self.wall())
        await anyio.sleep(10)
        if isinstance(self.found, Exception):
            raise self.found
        return self.found

    async def run(self, seconds: float) -> LastDiff | None:
        self.began = anyio.current_time()
        with anyio.move_on_after(seconds):
            await self.schedule.run()
        self.see()
        return self.state.changefeeds[FEED].last_diff


async def test_the_result_of_each_comparison_is_stored() -> None:
    bed = Bed(diff_sample=0.25)
    waiting = views.TableDiff(table="public.w", equal=False, waiting="it is held")
    bed.found = [EQUAL, views.TableDiff(table="public.u", equal=False, ts=7), waiting]
    found = await bed.run(3_650)
    assert found is not None
    assert bed.asked == [views.DiffAsked(sample=0.25, resume=True)]
    assert (found.ts, found.compared, found.differ, found.wait) == (7, 2, 1, 1)
    assert (found.differing, found.waiting, found.sample, found.error) == (("public.u",), ("public.w",), 0.25, "")
    assert found.seconds == pytest.approx(10)
    assert not found.is_equal
    assert 4_610 <= found.time <= 4_625


async def test_it_is_as_often_as_it_is_asked_for_also_where_no_result_is_seen_yet() -> None:
    bed = Bed(diff_every_seconds=100)
    await bed.run(1_000)
    assert len(bed.times) == 9
    assert all(later - sooner >= 110 for sooner, later in zip(bed.times, bed.times[1:], strict=False))


async def test_another_owner_continues() -> None:
    bed = Bed()
    bed.put(KEY, LastDiff(time=3_000.0).encode())
    await bed.run(5_590)
    assert bed.asked == []
    bed = Bed()
    bed.put(KEY, LastDiff(time=3_000.0).encode())
    await bed.run(5_620)
    assert len(bed.asked) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"config": ChangefeedConfig()},
        {"state": FeedState.STOPPED},
        {"state": FeedState.FAILED},
    ],
)
async def test_what_is_not_asked_for_or_does_not_run_is_not_compared(change: dict[str, Any]) -> None:
    bed = Bed()
    bed.put(keys.InfoKey("c", "default", FEED), bed.info.with_(**change).encode())
    assert await bed.run(10_000) is None
    assert bed.asked == []


async def test_a_snapshot_is_waited_for_and_only_the_owner_compares() -> None:
    bed = Bed()
    bed.put(keys.UnitKey("c", "default", FEED, "main"), bed.unit.with_(unit=Unit.DUMP).encode())
    assert await bed.run(10_000) is None
    bed = Bed()
    bed.candidacy.is_owner = False
    assert await bed.run(10_000) is None
    assert bed.asked == []


async def test_why_there_was_no_comparison_is_a_result() -> None:
    bed = Bed()
    bed.found = JobRefusedError("feed could not be held at one position")
    found = await bed.run(3_650)
    assert found is not None
    assert (found.error, found.is_equal, found.compared) == ("feed could not be held at one position", False, 0)
    bed = Bed()
    bed.found = KeyError("x")
    found = await bed.run(3_650)
    assert found is not None
    assert "it has crashed (KeyError)" in found.error
    bed = Bed()
    bed.found = NotOwnerError("another is owner now")
    assert await bed.run(3_650) is None


async def test_a_result_does_not_outlive_its_changefeed() -> None:
    bed = Bed()
    info = str(keys.InfoKey("c", "default", FEED))

    async def compare(changefeed_id: str, asked: views.DiffAsked) -> list[views.TableDiff]:
        bed.etcd.txn([], [Delete(info)])
        return [EQUAL]

    bed.compare = compare  # type: ignore[method-assign]
    assert await bed.run(3_650) is None
    assert not bed.etcd.get_prefix(str(KEY)).items


def test_names_are_bounded() -> None:
    many = LastDiff(time=1.0, differing=("x" * 200,) * 20, waiting=("y" * 200,) * 20, error="z" * 4_000)
    assert len(many.encode()) < 64 << 10
    assert LastDiff(time=1.0, ts=Ts(5), compared=1).is_equal
