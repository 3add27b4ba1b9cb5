"""Ids and names in paths: whatever one is, the request is about it or is refused; it is never about something else."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from capture.api.client import Client
from capture.api.http import create_app
from capture.api.port import ChangefeedSpec
from capture.api.subscriptions import AdvanceAsked, LogAsked
from capture.errors import ConfigError
from reactor.errors import WeirError
from tests.unit.capture.api.test_forwarding import served
from tests.unit.capture.fakes import MemoryAccess, MemoryCluster

IDS = [
    "",
    ".",
    "..",
    "\ud800",
    "../tokens",
    "shop/..",
    "shop?",
    "shop?x=1",
    "shop#",
    "shop%3f",
    "shop/pause",
    "shop;",
    "a b",
    "%2e%2e",
]
SPEC = ChangefeedSpec(changefeed_id="shop", source_uri="postgresql://h/d", sink_uri="delta+file:///lake")
CALLS: list[Callable[[Client, str], object]] = [
    Client.query,
    Client.pause,
    Client.remove,
    Client.tables,
    Client.diff,
    Client.drain,
    Client.revoke_token,
    lambda client, name: client.close_subscription("shop", name),
    lambda client, name: client.close_subscription(name, "reader"),
    lambda client, name: client.read_log("shop", name, LogAsked(session="s", after_ts=1)),
    lambda client, name: client.advance("shop", name, AdvanceAsked(session="s", ts=1)),
]


@pytest.mark.parametrize("name", IDS, ids=ascii)
@pytest.mark.parametrize("call", CALLS)
def test_a_name_is_one_part_of_the_clients_path(call: Callable[[Client, str], object], name: str) -> None:
    paths: list[bytes] = []

    def note(request: httpx.Request) -> httpx.Response:
        paths.append(request.url.raw_path)
        return httpx.Response(404, json={"error_code": "x", "error_msg": "x"})

    with Client("http://x", transport=httpx.MockTransport(note)) as client:
        with pytest.raises(WeirError):
            call(client, "usual")
        with pytest.raises(WeirError) as found:
            call(client, name)
    usual, *others = paths
    assert bool(others) is not isinstance(found.value, ConfigError)
    usual, _, query = usual.partition(b"?")
    for path in others:
        path, _, added = path.partition(b"?")
        assert added == query
        assert len(path.split(b"/")) == len(usual.split(b"/"))
        assert not {b".", b"..", b""} & set(path.split(b"/")[1:])


@asynccontextmanager
async def behind_another(owner: MemoryCluster) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a capture that forwards to the owner."""
    async with served(owner) as address:
        cluster = MemoryCluster(is_owner=False, owner=address)
        app = create_app(cluster, MemoryAccess(), names=("weir",), own_token=lambda: "secret")
        headers = {"authorization": "Bearer secret"}
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(app), base_url="http://weir", headers=headers
        ) as client:
            yield client


@pytest.mark.sample(0.2)
@pytest.mark.parametrize(
    "part",
    ["shop%3F", "shop%3Fx=1", "shop%23", "shop%23x", "shop%2F", "shop%253F", "shop%3B", "%2e%2e", "x%2F..%2Fshop"],
)
async def test_a_forwarded_request_is_about_what_was_named(part: str) -> None:
    owner = MemoryCluster()
    await owner.create(SPEC)
    async with behind_another(owner) as client:
        for method, path in (("DELETE", ""), ("POST", "/pause"), ("PUT", "")):
            body: dict[str, Any] = {"json": {}} if method == "PUT" else {}
            answer = await client.request(method, f"/api/v2/changefeeds/{part}{path}", **body)
            assert 300 <= answer.status_code < 500, (method, part, answer.text)
        answer = await client.delete(f"/api/v2/changefeeds/shop/subscriptions/{part}")
        assert 400 <= answer.status_code < 500
        assert list(owner.feeds) == ["shop"]
        assert owner.feeds["shop"].state == "normal"
        good = await client.post("/api/v2/changefeeds/shop/pause")
        assert good.status_code == 200
        assert (await client.get("/api/v2/changefeeds/shop/diff?sample=0.5")).status_code == 200
