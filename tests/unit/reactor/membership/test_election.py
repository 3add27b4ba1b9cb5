"""At most one owner, in order of candidacy, proven by its create revision."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest

from reactor.errors import NotOwnerError, SessionDoneError, StoreUnreachableError
from reactor.membership.election import Elector
from reactor.membership.session import Session, open_session
from reactor.store.memory import MemoryClient, MemoryEtcd
from reactor.store.port import Put

pytestmark = pytest.mark.looptime

PREFIX = "/weir/c/__meta__/owner"


@asynccontextmanager
async def candidate(server: MemoryEtcd) -> AsyncIterator[tuple[Elector, Session]]:
    client = MemoryClient(server)
    async with open_session(client, ttl_s=10) as session:
        yield Elector(client, session, prefix=PREFIX), session


def leaders(server: MemoryEtcd) -> list[tuple[str, int]]:
    """What each candidate campaigns with, and at which revision; the owner first."""
    items = sorted(server.get_prefix(PREFIX).items, key=lambda item: item.create_revision)
    return [(item.value.decode(), item.create_revision) for item in items]


async def test_a_lone_candidate_wins_at_once() -> None:
    server = MemoryEtcd()
    async with candidate(server) as (election, _):
        await election.campaign("a")
        assert leaders(server) == [("a", election.revision)]


async def test_without_a_campaign_there_is_no_proof() -> None:
    async with candidate(MemoryEtcd()) as (election, _):
        with pytest.raises(NotOwnerError):
            election.proof()


async def test_owners_follow_in_order_of_candidacy_with_growing_revisions() -> None:
    server = MemoryEtcd()
    won: list[tuple[str, int]] = []

    async def stand(name: str, after_s: float) -> None:
        async with candidate(server) as (election, _):
            await anyio.sleep(after_s)
            await election.campaign(name)
            won.append((name, election.revision))
            await anyio.sleep(5)
            await election.resign()
            with pytest.raises(NotOwnerError):
                assert election.revision

    async with anyio.create_task_group() as tasks:
        for after_s, name in enumerate("abc"):
            tasks.start_soon(stand, name, after_s)
    assert [name for name, _ in won] == ["a", "b", "c"]
    revisions = [revision for _, revision in won]
    assert revisions == sorted(set(revisions))


async def test_a_proof_holds_only_while_owner() -> None:
    server = MemoryEtcd()
    client = MemoryClient(server)
    async with candidate(server) as (election, _):
        await election.campaign("a")
        proof = election.proof()
        assert (await client.txn([proof], [Put("/x", b"1")])).succeeded
        await election.resign()
        assert not (await client.txn([proof], [Put("/x", b"2")])).succeeded


async def test_the_next_one_takes_over_when_the_owner_s_lease_runs_out() -> None:
    server = MemoryEtcd()
    lease = server.grant(10)
    server.txn([], [Put(f"{PREFIX}/{lease:x}", b"dead", lease)])
    async with candidate(server) as (election, _):
        await election.campaign("heir")
        assert anyio.current_time() == pytest.approx(10, abs=0.1)


async def test_a_candidacy_given_up_is_withdrawn() -> None:
    server = MemoryEtcd()
    async with candidate(server) as (owner, _), candidate(server) as (waiting, _):
        await owner.campaign("a")
        with anyio.move_on_after(1):
            await waiting.campaign("b")
        assert len(server.get_prefix(PREFIX).items) == 1
        with pytest.raises(NotOwnerError):
            assert waiting.revision


async def test_a_campaign_ends_with_its_session() -> None:
    server = MemoryEtcd()
    async with candidate(server) as (owner, _), candidate(server) as (waiting, session):
        await owner.campaign("a")

        async def lose() -> None:
            await anyio.sleep(1)
            server.revoke(session.lease)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lose)
            with pytest.raises(SessionDoneError):
                await waiting.campaign("b")


async def test_a_candidate_withdrawn_by_hand_campaigns_again() -> None:
    server = MemoryEtcd()
    async with candidate(server) as (owner, _), candidate(server) as (waiting, _):
        await owner.campaign("a")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(waiting.campaign, "b")
            await anyio.sleep(1)
            await MemoryClient(server).delete(waiting.key)
            await owner.resign()
        assert leaders(server) == [("b", waiting.revision)]


async def test_campaigning_survives_compaction() -> None:
    server = MemoryEtcd()
    async with candidate(server) as (owner, _), candidate(server) as (waiting, _):
        await owner.campaign("a")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(waiting.campaign, "b")
            await anyio.sleep(1)
            await owner.resign()
            server.compact(server.revision)
        assert leaders(server) == [("b", waiting.revision)]


class Deaf(MemoryClient):
    """An etcd that takes no deletions for a while."""

    is_deaf = False

    async def delete(self, key: str) -> bool:
        if self.is_deaf:
            raise StoreUnreachableError("no answer")
        return await super().delete(key)


async def test_no_revision_is_won_twice() -> None:
    """A resignation that etcd did not take leaves the key; who stands again must not win with it."""
    client = Deaf(MemoryEtcd())
    async with open_session(client, ttl_s=60) as session:
        election = Elector(client, session, prefix=PREFIX)
        won = []
        for _ in range(3):
            await election.campaign("a")
            won.append(election.revision)
            client.is_deaf = True
            await election.resign()
            client.is_deaf = False
        assert won == sorted(set(won))


async def test_a_resignation_is_tried_until_etcd_takes_it() -> None:
    server = MemoryEtcd()
    client = Deaf(server)
    async with open_session(client, ttl_s=60) as session, candidate(server) as (heir, _):
        election = Elector(client, session, prefix=PREFIX)
        await election.campaign("a")
        client.is_deaf = True
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(election.withdraw)
            tasks.start_soon(heir.campaign, "heir")
            await anyio.sleep(20)
            client.is_deaf = False
        assert leaders(server) == [("heir", heir.revision)]
