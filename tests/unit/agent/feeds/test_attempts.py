"""Attempts: what is under way is in etcd before it begins, at the price of a write now and then."""

from collections.abc import Sequence

import anyio
import pytest

from agent.feeds.attempts import Attempts
from reactor import keys
from reactor.errors import StoreUnreachableError
from reactor.ids import CaptureId, ChangefeedId
from reactor.records.attempts import Attempt
from reactor.store.memory import MemoryClient, MemoryEtcd
from reactor.store.port import Compare, Operation, Target, TxnResult

KEY = keys.AttemptKey("c", "default", ChangefeedId("f"), CaptureId("a"))
OTHER = keys.AttemptKey("c", "default", ChangefeedId("g"), CaptureId("a"))


class Client(MemoryClient):
    writes = 0
    is_away = False
    loses_answers = False

    async def txn(self, compares: Sequence[Compare], operations: Sequence[Operation]) -> TxnResult:
        if self.is_away:
            raise StoreUnreachableError("no endpoint answers; start one")
        self.writes += 1
        done = await super().txn(compares, operations)
        if self.loses_answers:
            raise StoreUnreachableError("no answer in time; try again")
        return done


class Rig:
    def __init__(self, *conditions: Compare) -> None:
        self.client = Client(MemoryEtcd())
        self.now = 100.0
        self.trials = anyio.Lock()
        self.attempts = Attempts(self.client, KEY, conditions, trials=self.trials, clock=lambda: self.now)

    async def begin(self, *tables: int) -> None:
        async with self.attempts.under_way(is_trial=False):
            await self.attempts.begin(frozenset(tables), False)

    async def try_alone(self, *tables: int) -> Attempt | None:
        """What is noted while they are written."""
        async with self.attempts.under_way(is_trial=True):
            await self.attempts.begin(frozenset(tables), True)
            return await self.noted()

    async def noted(self) -> Attempt | None:
        item = await self.client.get(str(KEY))
        return Attempt.decode(item.value, key=item.key) if item else None


async def test_the_same_tables_again_and_again_cost_one_write() -> None:
    rig = Rig()
    for _ in range(50):
        await rig.begin(1, 2)
        await rig.begin(2)
        rig.now += 0.1
    assert await rig.noted() == Attempt(tables=(1, 2))
    assert rig.client.writes == 1


async def test_another_table_is_noted_before_it_is_written() -> None:
    rig = Rig()
    await rig.begin(1)
    rig.now += 8
    await rig.begin(3)
    assert await rig.noted() == Attempt(tables=(1, 3)), "both of the last seconds"
    rig.now += 8
    await rig.begin(2)
    assert await rig.noted() == Attempt(tables=(2, 3)), "the first was written long ago"


async def test_nothing_under_way_for_a_while_is_noted_too() -> None:
    rig = Rig()
    await rig.begin(1)
    await rig.begin()
    assert await rig.noted() == Attempt(tables=(1,)), "it may be written again soon"
    rig.now += 11
    await rig.begin()
    assert await rig.noted() is None
    writes = rig.client.writes
    await rig.begin()
    assert rig.client.writes == writes


async def test_suspects_are_noted_exactly_and_only_while_they_are_written() -> None:
    rig = Rig()
    await rig.begin(1, 2, 3)
    assert await rig.try_alone(2) == Attempt(tables=(2,), is_trial=True)
    assert await rig.noted() is None
    await rig.begin(2)
    assert await rig.noted() == Attempt(tables=(1, 2, 3))


async def test_who_stops_leaves_no_note() -> None:
    rig = Rig()
    await rig.begin(1)
    await rig.attempts.close()
    assert await rig.noted() is None


async def test_without_etcd_suspects_are_not_written() -> None:
    rig = Rig()
    rig.client.is_away = True
    await rig.begin(1)
    with pytest.raises(StoreUnreachableError):
        await rig.try_alone(2)
    await rig.attempts.close()
    rig.client.is_away = False
    await rig.begin(1)
    assert await rig.noted() == Attempt(tables=(1, 2))


async def test_a_note_whose_answer_was_lost_is_taken_back() -> None:
    """Nobody knows whether it is there."""
    rig = Rig()
    rig.client.loses_answers = True
    with pytest.raises(StoreUnreachableError):
        await rig.try_alone(2)
    assert await rig.noted() is None
    await rig.begin(3)
    rig.client.loses_answers = False
    await rig.begin(3)
    await rig.attempts.close()
    assert await rig.noted() is None


async def test_one_changefeed_writes_suspects_at_a_time() -> None:
    """Else an innocent table is noted, alone, when another changefeed's ends the process."""
    rig = Rig()
    other = Attempts(rig.client, OTHER, (), trials=rig.trials, clock=lambda: rig.now)
    order: list[str] = []

    async def write_other() -> None:
        async with other.under_way(is_trial=False):
            await other.begin(frozenset({5}), False)
            order.append("not suspected")
        async with other.under_way(is_trial=True):
            order.append("suspected")

    async with anyio.create_task_group() as tasks, rig.attempts.under_way(is_trial=True):
        tasks.start_soon(write_other)
        await anyio.wait_all_tasks_blocked()
        order.append("first")
    assert order == ["not suspected", "first", "suspected"]


async def test_a_capture_that_is_gone_notes_nothing() -> None:
    member = str(keys.CaptureKey("c", CaptureId("a")))
    rig = Rig(Compare(member, Target.CREATE_REVISION, 7))
    await rig.begin(1)
    assert await rig.noted() is None
