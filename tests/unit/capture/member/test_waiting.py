"""A capture that cannot join yet is shown to its cluster, with what it waits for, and no longer than it waits."""

import anyio
import pytest

from agent.errors import JobError
from capture.config import ServerSettings
from capture.member import waiting
from reactor import keys
from reactor.records.waiting import WaitingCapture
from reactor.state import ClusterState
from reactor.store.memory import MemoryClient, MemoryEtcd
from reactor.store.port import MetaStore

SETTINGS = ServerSettings(addr="10.0.0.7:8300", cluster_id="c")


class SlowPlane:
    """Waits for what the test reports, until it has come."""

    def __init__(self) -> None:
        self.waits_for = ""
        self.came = anyio.Event()
        self.failure: Exception | None = None

    async def start(self, _: MetaStore) -> None:
        await self.came.wait()
        if self.failure is not None:
            raise self.failure


async def shown(client: MetaStore) -> list[WaitingCapture]:
    state = ClusterState("c")
    state.load(await client.get_prefix(state.prefix))
    return list(state.waiting.values())


@pytest.mark.looptime
async def test_what_it_waits_for_is_shown_as_long_as_it_waits() -> None:
    plane, client = SlowPlane(), MemoryClient(MemoryEtcd())
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(waiting.start, plane, client, SETTINGS)
        await anyio.sleep(2)
        assert await shown(client) == []
        for text in ("waits for Spark", "waits for executors"):
            plane.waits_for = text
            await anyio.sleep(2)
            [record] = await shown(client)
            assert (record.waits_for, record.address) == (text, "10.0.0.7:8300")
        plane.waits_for = ""
        await anyio.sleep(2)
        assert await shown(client) == []
        plane.waits_for = "waits for executors"
        await anyio.sleep(2)
        assert len(await shown(client)) == 1
        plane.came.set()
    assert await shown(client) == []


async def test_why_it_will_never_start_comes_out_as_it_is() -> None:
    plane = SlowPlane()
    plane.failure = JobError("no Spark")
    plane.came.set()
    with pytest.raises(JobError, match="no Spark"):
        await waiting.start(plane, MemoryClient(MemoryEtcd()), SETTINGS)


def test_its_key_is_read_as_it_is_written() -> None:
    text = "/weir/c/__meta__/waiting/x"
    assert str(keys.parse(text)) == text
