"""Forwarding: any capture gives the owner's answers and errors, and ends what it asked of it with its caller."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import TypeVar, cast

import anyio
import httpx
import pytest
import uvicorn
from anyio import to_thread

from capture.api.client import Client
from capture.api.connection import Connection
from capture.api.http import create_app
from capture.api.port import ChangefeedSpec, RepairAsked
from capture.errors import ChangefeedExistsError, ChangefeedNotFoundError, StillRunningError
from capture.member.access import OwnToken
from capture.member.cluster_service import ClusterService
from capture.member.ownership.gathering import HttpOwners
from capture.member.services import CaptureState
from capture.server import _HttpServer, _listener
from reactor.errors import NotOwnerError, WeirError
from reactor.records.changefeed import FeedState
from reactor.state import ClusterState
from reactor.store.memory import MemoryClient, MemoryEtcd
from tests.patience import HANG_S
from tests.unit.capture.fakes import MemoryAccess, MemoryCluster

T = TypeVar("T")
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
    async with served(owner) as address, served(MemoryCluster(is_owner=False, owner=address)) as other:
        connection = Connection(f"http://{other}", token="secret")

        async def ask(question: Callable[[Client], T]) -> T:
            return await to_thread.run_sync(connection.call, question)

        spec = ChangefeedSpec(changefeed_id="shop", source_uri=SOURCE, sink_uri=SINK)
        assert (await ask(lambda client: client.check(spec))).source == "postgresql://u:***@h/d"
        assert owner.specs == {}
        created = await ask(lambda client: client.create(spec))
        assert (created.id, list(owner.specs)) == ("shop", ["shop"])
        assert owner.specs["shop"].source_uri == SOURCE
        assert [feed.id for feed in await ask(lambda client: client.list())] == ["shop"]
        assert (await ask(lambda client: client.pause("shop"))).state is FeedState.STOPPED
        assert (await ask(lambda client: client.resume("shop"))).state is FeedState.NORMAL
        await ask(lambda client: client.pause("shop"))
        assert (await ask(lambda client: client.resume("shop", resync=True))).state is FeedState.NORMAL
        assert await ask(lambda client: client.diff("shop")) == []
        assert (await ask(lambda client: client.resync_table("shop", "public.t", rows_per_second=500))).resyncing
        assert owner.resynced == ["shop", "public.t"]
        rows = RepairAsked(tables=("public.t",), where="id = 7", rows_per_second=700)
        assert await ask(lambda client: client.repair("shop", rows)) == []
        assert (owner.limits, owner.conditions) == ([None, 500, 700], ["id = 7"])
        assert not (await ask(lambda client: client.cancel_resync("shop", "public.t"))).resyncing
        assert (await ask(lambda client: client.pause_table("shop", "public.t"))).ts == 7
        assert (await ask(lambda client: client.resume_table("shop", "public.t"))).ts == 7
        skipped = await ask(lambda client: client.skip_table("shop", "public.t", 9, confirmed=True))
        assert skipped.notices == ("changes are left out",)
        assert owner.steps == ["pause public.t", "resume public.t", "skip to 9 public.t"]
        assert (await ask(lambda client: client.add_table("shop", "public.t"))).changefeed.id == "shop"
        assert (await ask(lambda client: client.remove_table("shop", "public.t"))).changefeed.id == "shop"
        assert (await ask(lambda client: client.maintain_table("shop", "public.t"))).joined == 9
        assert (await ask(lambda client: client.table_files("shop", "public.t"))).rows == 200
        assert owner.steps[3:] == ["add public.t", "remove public.t", "maintain public.t"]
        with pytest.raises(ChangefeedExistsError):
            await ask(lambda client: client.create(spec))
        await ask(lambda client: client.remove("shop"))
        with pytest.raises(ChangefeedNotFoundError):
            await ask(lambda client: client.query("shop"))
        owner.breaks_with = StillRunningError("what was asked for is still running")
        with pytest.raises(StillRunningError, match="still running"):
            await ask(lambda client: client.query("nobody"))


async def test_a_changefeed_that_is_called_as_a_route_is_its_owners() -> None:
    """``POST /changefeeds/check`` alone is for the controller."""
    owner, controller = MemoryCluster(), MemoryCluster()
    controller.owned_ids = {"another"}
    async with served(owner) as controller.owner, served(controller) as address:
        spec = ChangefeedSpec(changefeed_id="check", source_uri=SOURCE, sink_uri=SINK)
        there, here = (Connection(f"http://{one}", token="secret") for one in (controller.owner, address))
        await to_thread.run_sync(there.call, lambda client: client.create(spec))
        assert (await to_thread.run_sync(here.call, lambda client: client.query("check"))).id == "check"
        await to_thread.run_sync(here.call, lambda client: client.remove("check"))
        with pytest.raises(ChangefeedNotFoundError):
            await to_thread.run_sync(there.call, lambda client: client.query("check"))


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
    async with served(MemoryCluster(is_owner=False)) as address:
        connection = Connection(f"http://{address}", token="secret")
        spec = ChangefeedSpec(changefeed_id="shop", source_uri=SOURCE, sink_uri=SINK)
        with pytest.raises(WeirError, match="no owner is elected"):
            await to_thread.run_sync(connection.call, lambda client: client.create(spec))


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
