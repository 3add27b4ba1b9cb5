"""A capture whose etcd was away for long: it is a member again soon after, and does not flood the cluster either."""

from pathlib import Path

import anyio
import pytest

from capture.capture import Capture
from reactor.store.memory import MemoryClient, MemoryEtcd
from tests.unit.capture.test_capture import capture_of
from tests.unit.reactor.membership.test_session import Full, Silence

pytestmark = pytest.mark.looptime

EVERYTHING = ("get", "get_prefix", "put", "delete", "txn", "grant", "revoke", "keep_alive")


async def next_life(capture: Capture) -> None:
    while capture.membership is None:  # noqa: ASYNC110 - virtual time jumps
        await anyio.sleep(0.05)


async def test_it_is_back_within_two_seconds_after_etcd_is(tmp_path: Path) -> None:
    """Attempts that nobody has seen do not count as lives."""
    cut = Silence(*EVERYTHING)
    capture = capture_of(MemoryClient(MemoryEtcd(), fault=cut), tmp_path)
    async with anyio.create_task_group() as group:
        group.start_soon(capture.run)
        await capture.ready()
        cut.is_on = True
        await anyio.sleep(100)
        assert capture.membership is None
        assert (await capture.cluster.health()).problem.startswith("this capture lost its session")
        cut.is_on = False
        healed = anyio.current_time()
        await next_life(capture)
        assert anyio.current_time() - healed < 2.0
        await capture.leave()


async def test_a_store_that_is_full_ends_no_capture(tmp_path: Path) -> None:
    """It ended all captures of a cluster at once, and each that was started again."""
    store = Full("put", "delete", "txn", "grant", "keep_alive")
    capture = capture_of(MemoryClient(MemoryEtcd(), fault=store), tmp_path)
    async with anyio.create_task_group() as group:
        group.start_soon(capture.run)
        await capture.ready()
        store.is_on = True
        while capture.membership is not None:  # noqa: ASYNC110 - virtual time jumps
            await anyio.sleep(0.05)
        await anyio.sleep(3600)
        assert (await capture.cluster.health()).problem == (
            "this capture lost its session with the metadata store and starts again: the store is full; make room"
        )
        store.is_on = False
        freed = anyio.current_time()
        await next_life(capture)
        assert anyio.current_time() - freed < 2.0
        await capture.leave()


async def test_the_third_life_in_a_row_waits(tmp_path: Path) -> None:
    etcd = MemoryEtcd()
    capture = capture_of(MemoryClient(etcd), tmp_path)
    async with anyio.create_task_group() as group:
        group.start_soon(capture.run)
        await capture.ready()
        started = anyio.current_time()
        for _ in range(2):
            await next_life(capture)
            membership = capture.membership
            for lease in list(etcd._leases):
                etcd.revoke(lease)
            while capture.membership is membership:  # noqa: ASYNC110 - virtual time jumps
                await anyio.sleep(0.05)
        await next_life(capture)
        assert anyio.current_time() - started >= 20.0 - 0.1
        await capture.leave()
