"""The session is over when its lease is, or when it can no longer be proven that it is not."""

import anyio
import pytest

from reactor.errors import LeaseExpiredError, SessionDoneError, StoreFullError, StoreUnreachableError
from reactor.membership.session import open_session
from reactor.store.memory import MemoryClient, MemoryEtcd

pytestmark = pytest.mark.looptime


class Silence:
    """etcd does not answer the named calls while ``is_on``."""

    def __init__(self, *calls: str) -> None:
        self.calls = calls
        self.is_on = False

    async def before(self, call: str) -> None:
        if self.is_on and call in self.calls:
            raise StoreUnreachableError("silence")

    async def after(self, call: str) -> None:
        pass


class Full(Silence):
    """The store has no room for what the named calls write, and says so at once, while ``is_on``."""

    def __init__(self, *calls: str) -> None:
        super().__init__(*calls)
        self.refusals = 0

    async def before(self, call: str) -> None:
        if self.is_on and call in self.calls:
            self.refusals += 1
            raise StoreFullError("the store is full; make room")


class Hang(Silence):
    """As ``Silence``, but for ever."""

    async def before(self, call: str) -> None:
        if self.is_on and call in self.calls:
            await anyio.sleep_forever()


async def test_a_session_that_is_kept_alive_lasts() -> None:
    client = MemoryClient(MemoryEtcd())
    async with open_session(client, ttl_s=10) as session:
        await anyio.sleep(1000)
        session.check()
        assert await client.time_to_live(session.lease) is not None


async def test_leaving_gives_the_lease_back() -> None:
    client = MemoryClient(MemoryEtcd())
    async with open_session(client) as session:
        await client.put("/a", b"", lease=session.lease)
    assert session.is_done
    assert await client.get("/a") is None


async def test_a_lease_revoked_by_others_ends_the_session() -> None:
    client = MemoryClient(MemoryEtcd())
    async with open_session(client, ttl_s=9) as session:
        await client.revoke(session.lease)
        with anyio.fail_after(3.1), pytest.raises(SessionDoneError):
            await session.run(anyio.sleep_forever)
        with pytest.raises(SessionDoneError):
            session.check()


@pytest.mark.parametrize("fault", [Silence("keep_alive"), Hang("keep_alive")])
async def test_a_session_that_cannot_be_renewed_ends_before_its_lease_does(fault: Silence) -> None:
    server = MemoryEtcd()
    client = MemoryClient(server, fault=fault)
    async with open_session(client, ttl_s=10) as session:
        await anyio.sleep(4)  # renewed at 3.3
        fault.is_on = True
        with anyio.fail_after(20), pytest.raises(SessionDoneError):
            await session.run(anyio.sleep_forever)
        assert anyio.current_time() == pytest.approx(13.33, abs=0.05)
        left = server.time_to_live(session.lease)
        assert left is None or left <= 0


async def test_a_short_silence_is_survived() -> None:
    fault = Silence("keep_alive")
    client = MemoryClient(MemoryEtcd(), fault=fault)
    async with open_session(client, ttl_s=10) as session:
        await anyio.sleep(4)  # renewed at 3.3
        fault.is_on = True
        await anyio.sleep(8)
        fault.is_on = False
        await anyio.sleep(100)
        session.check()


async def test_a_process_that_wakes_up_too_late_knows_at_once() -> None:
    """The keep-alive task has not run yet, and nothing was heard from etcd."""
    client = MemoryClient(MemoryEtcd(), fault=Hang())
    async with open_session(client, ttl_s=10) as session:
        session._deadline = anyio.current_time()
        assert session.is_done
        with pytest.raises(SessionDoneError):
            session.check()


async def test_work_is_given_up_when_the_session_ends() -> None:
    client = MemoryClient(MemoryEtcd())
    async with open_session(client, ttl_s=9) as session:
        await client.revoke(session.lease)
        with pytest.raises(SessionDoneError):
            await session.run(anyio.sleep_forever)


async def test_work_brings_its_result_and_its_error() -> None:
    async def work() -> int:
        await anyio.sleep(1)
        return 5

    async def fail() -> None:
        raise LeaseExpiredError("as it is")

    async with open_session(MemoryClient(MemoryEtcd())) as session:
        assert await session.run(work) == 5
        with pytest.raises(LeaseExpiredError):
            await session.run(fail)


async def test_an_error_of_the_block_comes_out_as_it_is() -> None:
    with pytest.raises(LeaseExpiredError):
        async with open_session(MemoryClient(MemoryEtcd())):
            raise LeaseExpiredError("as it is")


async def test_no_lease_no_session() -> None:
    fault = Silence("grant")
    fault.is_on = True
    with pytest.raises(StoreUnreachableError):
        async with open_session(MemoryClient(MemoryEtcd(), fault=fault)):
            pytest.fail("there is no lease")
