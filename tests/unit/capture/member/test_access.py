"""Tokens and the trail in the metadata store: only hashes, revoked at once; a server has its own."""

import time
from dataclasses import dataclass
from pathlib import Path

import anyio
import pytest

from capture.api.access import Caller, TokenAsked, hash_of
from capture.errors import TokenNotFoundError
from capture.member import access as subject
from capture.member.access import ClusterAccess, OwnToken
from reactor import keys
from reactor.errors import OwnerNotFoundError
from reactor.ids import CaptureId
from reactor.records.access import Role, TokenRecord
from reactor.state import ClusterState
from reactor.store.memory import MemoryClient, MemoryEtcd

ADMIN = Caller("root", Role.ADMIN, "t0")
A = CaptureId("a")


@dataclass
class Membership:
    client: MemoryClient
    state: ClusterState
    capture_id: CaptureId = A


class Bed:
    """A capture whose watch is read when the test says so."""

    def __init__(self, directory: Path) -> None:
        self.etcd = MemoryEtcd()
        self.own = OwnToken()
        self.own.load(directory)
        self.membership: Membership | None = Membership(MemoryClient(self.etcd), ClusterState("c"))
        self.access = ClusterAccess(self, self.own)

    def see(self) -> None:
        assert self.membership is not None
        self.membership.state.load(self.etcd.get_prefix(keys.cluster_prefix("c")))

    async def register(self) -> None:
        await self.own.register(MemoryClient(self.etcd), "c", A, "host", self.etcd.grant(10))
        self.see()


@pytest.fixture
def bed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bed:
    monkeypatch.setattr(subject, "_NEWS_S", 0.02)
    monkeypatch.setattr(subject, "_POLL_S", 0.01)
    return Bed(tmp_path)


async def test_a_token_is_known_until_it_is_revoked_and_stored_as_a_hash(bed: Bed) -> None:
    made = await bed.access.create(TokenAsked(role=Role.VIEWER, name="grafana"), ADMIN)
    assert made.token is not None
    bed.see()
    assert await bed.access.caller(made.token) == Caller("grafana", Role.VIEWER, made.id)
    assert await bed.access.caller(made.token + "x") is None
    stored = b"".join(item.value for item in bed.etcd.get_prefix(keys.token_prefix("c")).items)
    assert made.token.encode() not in stored
    assert hash_of(made.token).encode() in stored
    assert (await bed.access.revoke(made.id)).revoked_at is not None
    bed.see()
    assert await bed.access.caller(made.token) is None
    (view,) = await bed.access.list()
    assert (view.token, view.created_by) == (None, "root")
    with pytest.raises(TokenNotFoundError, match="no token 'none'; `weir token list`"):
        await bed.access.revoke("none")


async def test_a_token_ends_by_itself(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    made = await bed.access.create(TokenAsked(role=Role.VIEWER, expires_in_seconds=60), ADMIN)
    assert made.token is not None
    bed.see()
    assert await bed.access.caller(made.token) is not None
    later = time.time() + 61
    monkeypatch.setattr(time, "time", lambda: later)
    assert await bed.access.caller(made.token) is None


async def test_a_token_made_elsewhere_a_moment_ago_is_waited_for(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "_NEWS_S", 10)
    made = await bed.access.create(TokenAsked(role=Role.VIEWER), ADMIN)
    assert made.token is not None
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(bed.access.caller, made.token)
        await anyio.wait_all_tasks_blocked()
        bed.see()


async def test_a_servers_own_token_is_known_everywhere_while_it_is_a_member(bed: Bed, tmp_path: Path) -> None:
    other = Bed(tmp_path / "other")
    other.etcd, other.membership = bed.etcd, Membership(MemoryClient(bed.etcd), ClusterState("c"))
    await bed.register()
    other.see()
    caller = await other.access.caller(bed.own.value)
    assert caller == Caller("server host", Role.ADMIN, bed.own.id, is_server=True)
    (item,) = bed.etcd.get_prefix(keys.token_prefix("c")).items
    assert item.lease
    assert bed.own.value.encode() not in item.value
    bed.membership = None
    assert (await bed.access.caller(bed.own.value)) is not None, "also between two memberships"
    with pytest.raises(OwnerNotFoundError):
        await bed.access.caller("another")


async def test_a_servers_token_that_was_revoked_is_replaced(bed: Bed, tmp_path: Path) -> None:
    await bed.register()
    before = bed.own.value
    await bed.access.revoke(bed.own.id)
    bed.see()
    assert await bed.access.caller(before) is None, "also on that server itself"
    await bed.register()
    assert bed.own.value != before
    assert (tmp_path / "api-token").read_text().strip() == bed.own.value
    assert await bed.access.caller(before) is None
    assert await bed.access.caller(bed.own.value) is not None


async def test_a_change_is_in_the_trail_before_it_is_done_and_then_how_it_went(bed: Bed) -> None:
    entry = await bed.access.begin(ADMIN, "DELETE", "/api/v2/changefeeds/shop", "10.0.0.9")
    (begun,) = await bed.access.trail(10)
    assert (begun.name, begun.role, begun.source, begun.status) == ("root", "admin", "10.0.0.9", None)
    await bed.access.end(entry, 204)
    (done,) = await bed.access.trail(10)
    assert done == begun.model_copy(update={"status": 204})


async def test_the_trail_in_the_store_has_a_limit(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "_TRAIL_MAX", 5)
    monkeypatch.setattr(subject, "_TRAIL_SLACK", 10)
    for number in range(20):
        await bed.access.end(await bed.access.begin(ADMIN, "POST", f"/{number}", ""), 200)
    assert [one.path for one in await bed.access.trail(100)] == [f"/{number}" for number in range(15, 20)]


def test_an_unreadable_token_harms_no_other() -> None:
    state = ClusterState("c")
    good = TokenRecord(id="b", name="x", role=Role.VIEWER, hash="h", created_at=1.0)
    state.update(str(keys.TokenKey("c", "a")), b"{", mod_revision=1)
    state.update(str(keys.TokenKey("c", "b")), good.encode(), mod_revision=2)
    state.update(str(keys.TokenKey("c", "d")), good.encode(), mod_revision=3)
    assert state.tokens == {"b": good}
    assert len(state.broken) == 2
