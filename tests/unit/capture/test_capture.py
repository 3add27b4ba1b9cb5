"""A capture over an etcd and a network in memory, on virtual time: it leaves whenever it is asked to."""

import asyncio
from pathlib import Path
from typing import Any, ClassVar, cast

import anyio
import pytest

from agent.health.health import Health
from capture.capture import Capture
from capture.config import ServerSettings, load_server_settings
from capture.member.copies import CopyPlace, CopyProgress
from capture.member.services import DataPlane, MemberDataPlane
from capture.security.key_file import new_key
from capture.security.secrets import Keeper
from reactor.ids import CaptureId
from reactor.state import ClusterState
from reactor.store.memory import MemoryClient, MemoryEtcd
from reactor.store.port import MetaStore, TxnResult
from tests.unit.capture.network import MemoryNetwork

pytestmark = pytest.mark.looptime


class NoWorks:
    """For a capture that is given nothing to do."""

    keeper = Keeper(new_key())
    waits_for = ""
    copies: ClassVar[dict[CopyPlace, CopyProgress]] = {}

    def __init__(self) -> None:
        self.health = Health()

    async def start(self, client: MetaStore) -> None: ...

    async def stop(self) -> None: ...

    def for_member(self, client: MetaStore, capture: CaptureId, state: ClusterState) -> MemberDataPlane:
        return cast("MemberDataPlane", self)


class SlowToRegister(MemoryClient):
    async def txn(self, *arguments: Any, **options: Any) -> TxnResult:
        await anyio.sleep(1.0)
        return await super().txn(*arguments, **options)


def capture_of(client: MetaStore, directory: Path) -> Capture:
    async def connect(settings: ServerSettings) -> MetaStore:
        return client

    settings = load_server_settings(data_dir=directory, addr="n1:1")
    return Capture(settings, data_plane=cast("DataPlane", NoWorks()), connect_etcd=connect, transport=MemoryNetwork())


async def test_asked_to_leave_while_a_life_begins_it_leaves(tmp_path: Path) -> None:
    etcd = MemoryEtcd()
    capture = capture_of(SlowToRegister(etcd), tmp_path)
    with anyio.fail_after(20):
        async with anyio.create_task_group() as group:
            group.start_soon(capture.run)
            await anyio.sleep(0.5)
            assert capture.membership is None
            assert (await capture.cluster.health()).problem.startswith("this capture is starting")
            await capture.leave()
    left = await MemoryClient(etcd).get_prefix("/weir/")
    assert [item.key.rsplit("/", 2)[-2:] for item in left.items] == [["meta", "format"]], (
        "nobody is registered, nobody stands for election"
    )


async def test_asked_to_leave_while_it_waits_for_its_next_life_it_leaves_at_once(tmp_path: Path) -> None:
    etcd = MemoryEtcd()
    capture = capture_of(MemoryClient(etcd), tmp_path)
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(capture.run)
            for _ in range(2):
                await capture.ready()
                while capture.membership is None:  # noqa: ASYNC110 - virtual time jumps
                    await anyio.sleep(0.1)
                membership = capture.membership
                for lease in list(etcd._leases):
                    etcd.revoke(lease)
                while capture.membership is membership:  # noqa: ASYNC110
                    await anyio.sleep(0.1)
            started = anyio.current_time()
            await capture.leave()
    assert anyio.current_time() - started < 1.0


class SlowToUnregister(MemoryClient):
    def __init__(self, server: MemoryEtcd) -> None:
        super().__init__(server)
        self.begun = anyio.Event()

    async def delete(self, key: str) -> bool:
        self.begun.set()
        await anyio.sleep(1.0)
        return await super().delete(key)


@pytest.mark.parametrize("after_s", [0.1, 1.1, 2.5])
async def test_cancelled_by_asyncio_while_a_lost_life_is_cleaned_up_it_ends(after_s: float, tmp_path: Path) -> None:
    """A task's own ``cancel`` comes once, and a task group that has an error to raise forgets it."""
    etcd = MemoryEtcd()
    client = SlowToUnregister(etcd)
    task = asyncio.ensure_future(capture_of(client, tmp_path).run())
    with anyio.fail_after(30):
        await anyio.sleep(2.0)
        for lease in list(etcd._leases):
            etcd.revoke(lease)
        await client.begun.wait()
        await anyio.sleep(after_s)
        task.cancel()
        await asyncio.wait([task])
    assert task.cancelled()
