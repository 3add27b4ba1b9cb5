"""Grouped transactions on virtual time: which of them share one, and which result each gets."""

from collections.abc import Sequence
from typing import cast

import anyio
import pytest

from reactor.errors import StoreUnreachableError
from reactor.store.grouped import GroupedTxns
from reactor.store.memory import MemoryClient, MemoryEtcd
from reactor.store.port import Compare, MetaStore, Operation, Put, Target, TxnResult

pytestmark = pytest.mark.looptime


class Store:
    """Counts transactions; ``takes_s``: how long each takes; ``fails``: it is applied, and the answer is lost."""

    def __init__(self) -> None:
        self.etcd = MemoryEtcd()
        self.sizes: list[int] = []
        self.takes_s = 0.01
        self.fails = False
        self._client = MemoryClient(self.etcd)

    async def txn(self, compares: Sequence[Compare], operations: Sequence[Operation]) -> TxnResult:
        self.sizes.append(len(operations))
        await anyio.sleep(self.takes_s)
        result = await self._client.txn(compares, operations)
        if self.fails:
            raise StoreUnreachableError("no answer")
        return result

    def grouped(self) -> GroupedTxns:
        return GroupedTxns(cast("MetaStore", self))


class Writer:
    """Writes one key again and again, as the head of a log is."""

    def __init__(self, txns: GroupedTxns, key: str) -> None:
        self.txns = txns
        self.key = key
        self.revision = 0
        self.results: list[bool] = []

    async def write(self, value: bytes = b"x") -> None:
        compare = Compare(self.key, Target.MOD_REVISION, self.revision)
        result = await self.txns.txn([compare], [Put(self.key, value)])
        self.results.append(result.succeeded)
        if result.succeeded:
            self.revision = result.revision


def writers(store: Store, count: int) -> list[Writer]:
    txns = store.grouped()
    return [Writer(txns, f"k{number:03}") for number in range(count)]


async def write_all(those: Sequence[Writer]) -> None:
    async with anyio.create_task_group() as tasks:
        for writer in those:
            tasks.start_soon(writer.write)


async def test_those_that_come_together_share_a_transaction_and_each_knows_its_revision() -> None:
    store = Store()
    those = writers(store, 20)
    await write_all(those)
    await write_all(those)
    assert store.sizes == [20, 20]
    for writer in those:
        item = store.etcd.get(writer.key)
        assert item is not None
        assert (writer.results, writer.revision) == ([True, True], item.mod_revision)


async def test_one_alone_hardly_waits() -> None:
    store = Store()
    [writer] = writers(store, 1)
    for _ in range(5):
        began = anyio.current_time()
        await writer.write()
        assert anyio.current_time() - began < store.takes_s + 0.005
        await anyio.sleep(1.0)


async def test_no_wait_is_longer_than_25_milliseconds() -> None:
    store = Store()
    those = writers(store, 60)
    for _ in range(3):
        began = anyio.current_time()
        await write_all(those)
        assert anyio.current_time() - began <= 0.025 + store.takes_s + 1e-6


async def test_one_that_is_refused_prevents_no_other() -> None:
    store = Store()
    those = writers(store, 5)
    await write_all(those)
    store.etcd.txn([], [Put(those[2].key, b"another's")])
    await write_all(those)
    assert [writer.results[-1] for writer in those] == [True, True, False, True, True]
    assert store.sizes == [5, 5, 1, 1, 1, 1, 1]


async def test_a_lost_answer_is_lost_for_all() -> None:
    store = Store()
    those = writers(store, 3)
    store.fails = True
    lost = []

    async def write(writer: Writer) -> None:
        with pytest.raises(StoreUnreachableError, match="no answer"):
            await writer.write()
        lost.append(writer)

    async with anyio.create_task_group() as tasks:
        for writer in those:
            tasks.start_soon(write, writer)
    assert len(lost) == 3
    assert store.etcd.get(those[2].key) is not None


@pytest.mark.parametrize("stopped", [0, 2])
async def test_one_that_is_stopped_before_it_is_sent_writes_nothing(stopped: int) -> None:
    store = Store()
    those = writers(store, 4)
    scope = anyio.CancelScope()

    async def write_in_scope() -> None:
        with scope:
            await those[stopped].write()

    async with anyio.create_task_group() as tasks:
        for number, writer in enumerate(those):
            tasks.start_soon(write_in_scope if number == stopped else writer.write)
        await anyio.sleep(0.001)
        scope.cancel()
    assert store.etcd.get(those[stopped].key) is None
    assert [len(writer.results) for writer in those] == [int(number != stopped) for number in range(4)]
    assert store.sizes == [3]


async def test_a_sender_that_is_stopped_while_it_sends_leaves_others_without_an_answer() -> None:
    store = Store()
    store.takes_s = 5.0
    first, second = writers(store, 2)
    async with anyio.create_task_group() as tasks:
        scope = anyio.CancelScope()

        async def lead() -> None:
            with scope:
                await first.write()

        async def follow() -> None:
            with pytest.raises(StoreUnreachableError, match="stopped"):
                await second.write()

        tasks.start_soon(lead)
        await anyio.sleep(0.001)
        tasks.start_soon(follow)
        await anyio.sleep(1.0)
        scope.cancel()


async def test_a_transaction_has_no_more_than_the_store_takes_and_no_key_twice() -> None:
    store = Store()
    those = writers(store, 300)
    await write_all(those)
    assert max(store.sizes) <= 128
    assert all(writer.results == [True] for writer in those)
    txns = store.grouped()
    await write_all([Writer(txns, "same"), Writer(txns, "same")])
    assert store.sizes[-2:] == [1, 1]
    large = [Writer(txns, name) for name in ("a", "b")]
    async with anyio.create_task_group() as tasks:
        for writer in large:
            tasks.start_soon(writer.write, bytes(400_000))
    assert store.sizes[-2:] == [1, 1]
