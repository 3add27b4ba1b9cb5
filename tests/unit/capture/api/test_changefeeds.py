"""The Python interface: on any capture the same answers and errors, for what the owner alone can do goes to it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import anyio
import pytest
import uvicorn

from capture.api.changefeeds import Changefeeds
from capture.api.http import create_app
from capture.api.port import ChangefeedSpec
from capture.errors import ChangefeedExistsError, ChangefeedNotFoundError, StillRunningError
from capture.member.cluster_service import CaptureState, ClusterService
from capture.server import _HttpServer, _listener
from reactor.errors import NotOwnerError, OwnerNotFoundError
from reactor.records.changefeed import FeedState
from reactor.state import ClusterState
from reactor.store.memory import MemoryClient, MemoryEtcd
from tests.unit.capture.fakes import MemoryCluster

SOURCE, SINK = "postgresql://u:geheim@h/d", "delta+file:///lake"


@asynccontextmanager
async def served(owner: MemoryCluster) -> AsyncIterator[str]:
    """The owner's capture, at this address."""
    with _listener("127.0.0.1:0") as listener:
        http = _HttpServer(uvicorn.Config(create_app(owner), log_config=None, lifespan="off"))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(http.serve, [listener])
            yield f"127.0.0.1:{listener.getsockname()[1]}"
            http.should_exit = True


async def test_a_capture_that_is_not_the_owner_asks_the_owner() -> None:
    owner = MemoryCluster()
    async with served(owner) as address:
        changefeeds = Changefeeds(MemoryCluster(is_owner=False, owner=address))
        created = await changefeeds.create("shop", source=SOURCE, sink=SINK)
        assert (created.id, list(owner.specs)) == ("shop", ["shop"])
        assert owner.specs["shop"].source_uri == SOURCE
        assert [feed.id for feed in await changefeeds.list()] == ["shop"]
        assert (await changefeeds.pause("shop")).state is FeedState.STOPPED
        assert (await changefeeds.resume("shop")).state is FeedState.NORMAL
        assert await changefeeds.diff("shop") == []
        with pytest.raises(ChangefeedExistsError):
            await changefeeds.create("shop", source=SOURCE, sink=SINK)
        await changefeeds.remove("shop")
        with pytest.raises(ChangefeedNotFoundError):
            await changefeeds.query("shop")
        owner.breaks_with = StillRunningError("what was asked for is still running")
        with pytest.raises(StillRunningError, match="still running"):
            await changefeeds.query("nobody")


async def test_without_an_owner_nothing_is_asked() -> None:
    with pytest.raises(OwnerNotFoundError):
        await Changefeeds(MemoryCluster(is_owner=False)).create("shop", source=SOURCE, sink=SINK)


class NoSeat:
    is_owner = False


class ALife:
    """A membership without a candidacy, over an etcd in memory."""

    def __init__(self, etcd: MemoryEtcd) -> None:
        self.client, self.state, self.candidacy = MemoryClient(etcd), ClusterState("c"), NoSeat()


class AHouse:
    def __init__(self, etcd: MemoryEtcd) -> None:
        self.life = ALife(etcd)


async def test_the_service_stores_nothing_that_it_then_cannot_answer_for() -> None:
    etcd = MemoryEtcd()
    spec = ChangefeedSpec(changefeed_id="shop", source_uri=SOURCE, sink_uri=SINK)
    with pytest.raises(NotOwnerError, match="ask the owner"):
        await ClusterService(cast("CaptureState", AHouse(etcd))).create(spec)
    assert etcd.get_prefix("/").items == ()
