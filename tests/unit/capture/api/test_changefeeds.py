"""The Python interface: on any capture the same answers and errors, for what the owner alone can do goes to it."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import cast

import anyio
import httpx
import pytest
import uvicorn

from capture.api.changefeeds import Changefeeds
from capture.api.http import create_app
from capture.api.port import ChangefeedSpec
from capture.errors import ChangefeedExistsError, ChangefeedNotFoundError, StillRunningError
from capture.member.access import OwnToken
from capture.member.cluster_service import ClusterService
from capture.member.ownership.gathering import HttpOwners
from capture.member.services import CaptureState
from capture.server import _HttpServer, _listener
from reactor.errors import NotOwnerError, OwnerNotFoundError
from reactor.records.changefeed import FeedState
from reactor.state import ClusterState
from reactor.store.memory import MemoryClient, MemoryEtcd
from tests.patience import HANG_S
from tests.unit.capture.fakes import MemoryAccess, MemoryCluster

SOURCE, SINK = "postgresql://u:geheim@h/d", "delta+file:///lake"


@asynccontextmanager
async def served(owner: MemoryCluster) -> AsyncIterator[str]:
    """The owner's capture, at this address."""
    with _listener("127.0.0.1:0") as listener:
        http = _HttpServer(uvicorn.Config(create_app(owner, MemoryAccess()), log_config=None, lifespan="off"))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(http.serve, [listener])
            yield f"127.0.0.1:{listener.getsockname()[1]}"
            http.should_exit = True


async def test_a_capture_that_is_not_the_owner_asks_the_owner() -> None:
    owner = MemoryCluster()
    async with served(owner) as address:
        changefeeds = Changefeeds(MemoryCluster(is_owner=False, owner=address), token=lambda: "secret")
        assert (await changefeeds.check("shop", source=SOURCE, sink=SINK)).source == "postgresql://u:***@h/d"
        assert owner.specs == {}
        created = await changefeeds.create("shop", source=SOURCE, sink=SINK)
        assert (created.id, list(owner.specs)) == ("shop", ["shop"])
        assert owner.specs["shop"].source_uri == SOURCE
        assert [feed.id for feed in await changefeeds.list()] == ["shop"]
        assert (await changefeeds.pause("shop")).state is FeedState.STOPPED
        assert (await changefeeds.resume("shop")).state is FeedState.NORMAL
        await changefeeds.pause("shop")
        assert (await changefeeds.resume("shop", resync=True)).state is FeedState.NORMAL
        assert await changefeeds.diff("shop") == []
        assert (await changefeeds.resync_table("shop", "public.t", rows_per_second=500)).resyncing
        assert owner.resynced == ["shop", "public.t"]
        assert await changefeeds.repair("shop", tables=["public.t"], where="id = 7", rows_per_second=700) == []
        assert (owner.limits, owner.conditions) == ([None, 500, 700], ["id = 7"])
        assert not (await changefeeds.cancel_resync("shop", "public.t")).resyncing
        assert (await changefeeds.pause_table("shop", "public.t")).ts == 7
        assert (await changefeeds.resume_table("shop", "public.t")).ts == 7
        assert (await changefeeds.skip_table("shop", "public.t", 9, confirmed=True)).notices == (
            "changes are left out",
        )
        assert owner.steps == ["pause public.t", "resume public.t", "skip to 9 public.t"]
        assert (await changefeeds.add_table("shop", "public.t")).changefeed.id == "shop"
        assert (await changefeeds.remove_table("shop", "public.t")).changefeed.id == "shop"
        assert (await changefeeds.maintain_table("shop", "public.t")).joined == 9
        assert owner.steps[3:] == ["add public.t", "remove public.t", "maintain public.t"]
        with pytest.raises(ChangefeedExistsError):
            await changefeeds.create("shop", source=SOURCE, sink=SINK)
        await changefeeds.remove("shop")
        with pytest.raises(ChangefeedNotFoundError):
            await changefeeds.query("shop")
        owner.breaks_with = StillRunningError("what was asked for is still running")
        with pytest.raises(StillRunningError, match="still running"):
            await changefeeds.query("nobody")


@pytest.mark.parametrize("is_forwarded", [False, True])
async def test_a_caller_that_leaves_creates_nothing(is_forwarded: bool) -> None:
    owner = MemoryCluster()
    owner.checking = anyio.Event()
    async with served(owner) as address, served(MemoryCluster(is_owner=False, owner=address)) as other:
        known = {"authorization": "Bearer secret"}
        async with (
            httpx.AsyncClient(base_url=f"http://{other if is_forwarded else address}", headers=known) as client,
            anyio.create_task_group() as tasks,
        ):
            spec = {"changefeed_id": "shop", "source_uri": SOURCE, "sink_uri": SINK}
            tasks.start_soon(partial(client.post, "/api/v2/changefeeds", json=spec))
            await until(lambda: owner.checked == "begun")
            tasks.cancel_scope.cancel()
        await until(lambda: owner.checked == "cancelled")
    assert owner.specs == {}


@pytest.mark.parametrize(("method", "path"), [("GET", "diff?sample=0.5"), ("POST", "repair")])
@pytest.mark.parametrize("is_forwarded", [False, True])
async def test_nothing_is_compared_any_more_for_a_caller_that_has_left(
    is_forwarded: bool, method: str, path: str
) -> None:
    owner, log = MemoryCluster(), list[str]()

    async def compare(*_: object) -> None:
        log.append("begun")
        try:
            await anyio.sleep_forever()
        finally:
            log.append("cancelled")

    owner.diff = owner.repair = compare  # type: ignore[method-assign, assignment]
    async with served(owner) as address, served(MemoryCluster(is_owner=False, owner=address)) as other:
        known = {"authorization": "Bearer secret"}
        async with (
            httpx.AsyncClient(base_url=f"http://{other if is_forwarded else address}", headers=known) as client,
            anyio.create_task_group() as tasks,
        ):
            body = None if method == "GET" else {"dry_run": True}
            tasks.start_soon(partial(client.request, method, f"/api/v2/changefeeds/shop/{path}", json=body))
            await until(lambda: log == ["begun"])
            tasks.cancel_scope.cancel()
        await until(lambda: log == ["begun", "cancelled"])


async def until(condition: Callable[[], bool]) -> None:
    with anyio.fail_after(HANG_S):
        while not condition():  # noqa: ASYNC110 - of another task, behind a socket
            await anyio.sleep(0.01)


async def test_without_an_owner_nothing_is_asked() -> None:
    with pytest.raises(OwnerNotFoundError):
        await Changefeeds(MemoryCluster(is_owner=False)).create("shop", source=SOURCE, sink=SINK)


class NoSeat:
    is_owner = False


class AMembership:
    """A membership without a candidacy, over an etcd in memory."""

    def __init__(self, etcd: MemoryEtcd) -> None:
        self.client, self.state, self.candidacy = MemoryClient(etcd), ClusterState("c"), NoSeat()


class AHouse:
    def __init__(self, etcd: MemoryEtcd) -> None:
        self.membership = AMembership(etcd)


async def test_the_service_stores_nothing_that_it_then_cannot_answer_for() -> None:
    etcd = MemoryEtcd()
    spec = ChangefeedSpec(changefeed_id="shop", source_uri=SOURCE, sink_uri=SINK)
    with pytest.raises(NotOwnerError, match="ask the owner"):
        await ClusterService(cast("CaptureState", AHouse(etcd)), HttpOwners(OwnToken(), "")).create(spec)
    assert etcd.get_prefix("/").items == ()
