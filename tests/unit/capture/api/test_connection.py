"""A connection to several captures: one that is away, or cannot answer now, is passed over."""

from collections.abc import Callable
from functools import partial

import pytest
from anyio import to_thread

from capture.api.client import Client
from capture.api.connection import Connection, may_pass
from capture.errors import ChangefeedNotFoundError, ServerUnreachableError
from reactor.errors import NotOwnerError, OwnerNotFoundError, WeirError
from reactor.views import ChangefeedView
from tests.unit.capture.api.test_forwarding import served
from tests.unit.capture.fakes import MemoryCluster

NOBODY = "http://127.0.0.1:1"


async def asked(connection: Connection, question: Callable[[Client], list[ChangefeedView]]) -> list[ChangefeedView]:
    return await to_thread.run_sync(partial(connection.call, question))


async def test_the_next_capture_answers_where_one_is_away_or_not_ready() -> None:
    starting, ready = MemoryCluster(is_owner=False), MemoryCluster()
    async with served(starting) as one, served(ready) as other:
        urls = f"{NOBODY}, http://{one},http://{other}"
        assert await asked(Connection(urls, token="secret"), lambda client: client.list()) == []
        with pytest.raises(WeirError, match="no owner is elected") as refused:
            await asked(Connection(f"{NOBODY},http://{one}", token="secret"), lambda client: client.list())
        assert may_pass(refused.value)
        with pytest.raises(ServerUnreachableError, match=r"127\.0\.0\.1:1"):
            await asked(Connection(f"http://{one},{NOBODY}", token="secret"), lambda client: client.list())


async def test_what_a_capture_refuses_is_not_asked_of_another() -> None:
    one, other = MemoryCluster(), MemoryCluster()
    async with served(one) as first, served(other) as second:
        connection = Connection(f"http://{first},http://{second}", token="secret")
        other.breaks_with = AssertionError("it is not asked")
        with pytest.raises(ChangefeedNotFoundError):
            await to_thread.run_sync(lambda: connection.call(lambda client: client.query("nothing")))
        assert other.breaks_with is not None


async def test_the_capture_that_answered_last_is_asked_first() -> None:
    one, other = MemoryCluster(is_owner=False), MemoryCluster()
    async with served(one) as first, served(other) as second:
        connection = Connection(f"http://{first},http://{second}", token="secret")
        await asked(connection, lambda client: client.list())
        one._is_owner = True
        other.breaks_with = WeirError("asked first")
        with pytest.raises(WeirError, match="asked first"):
            await to_thread.run_sync(lambda: connection.call(lambda client: client.query("nothing")))


@pytest.mark.parametrize("error", [NotOwnerError("it has moved"), OwnerNotFoundError("none is elected")])
async def test_a_changefeed_between_two_owners_is_asked_for_again(error: WeirError) -> None:
    owner = MemoryCluster()
    async with served(owner) as address:
        owner.breaks_with = error
        connection = Connection(f"http://{address}", token="secret")
        with pytest.raises(WeirError) as refused:
            await to_thread.run_sync(lambda: connection.call(lambda client: client.query("nothing")))
        assert may_pass(refused.value), refused.value


@pytest.mark.parametrize("servers", ["", " , "])
def test_no_server_is_named(servers: str) -> None:
    with pytest.raises(WeirError):
        Connection(servers, token="secret").call(lambda client: client.list())
