"""The capture's actor through its mailbox, on virtual time, with memberships that tests end as they like."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import anyio
import pytest

from capture.actors.actor import ActorRef, Cell
from capture.actors.supervised import Supervised
from capture.errors import ActorDeadError, MailboxFullError, PortInUseError
from capture.member import capture_actor
from capture.member.capture_actor import CaptureActor, CaptureMemory, LeaveCluster
from capture.member.membership import Base, Membership
from reactor.errors import SessionDoneError, StoreUnreachableError
from reactor.restarts import RestartPolicy
from reactor.store.port import MetaStore

pytestmark = pytest.mark.looptime


class Life:
    """A membership that ends by leaving, or with what a test lets it fail with."""

    def __init__(self) -> None:
        self.end = anyio.Event()
        self.error: Exception | None = None
        self.leaves = 0
        self.leaving_takes_s = 0.0

    def fail(self, error: Exception) -> None:
        self.error = error
        self.end.set()

    async def wait_end(self) -> None:
        await self.end.wait()
        if self.error is not None:
            raise self.error

    async def leave(self) -> None:
        self.leaves += 1
        await anyio.sleep(self.leaving_takes_s)
        self.end.set()


class Rig:
    def __init__(self) -> None:
        self.lives: list[Life] = []
        self.open = 0
        #: what the next memberships cannot begin with
        self.refuses: list[Exception] = []
        self.memory = CaptureMemory(ready=anyio.Event(), leaving=anyio.Event())
        self.cell: Cell[LeaveCluster] = Cell(self._build, "capture", mailbox_size=2)
        self.supervised = Supervised(self.cell, RestartPolicy())
        self.crash: Exception | None = None

    @property
    def ref(self) -> ActorRef[LeaveCluster]:
        return self.cell.ref

    async def run(self) -> None:
        try:
            await self.supervised.run()
        except Exception as error:
            self.crash = error
        finally:
            self.supervised.close()

    async def settle(self) -> Life:
        await anyio.sleep(60)
        return self.lives[-1]

    @asynccontextmanager
    async def live(self, *_: Any) -> AsyncIterator[Life]:
        if self.refuses:
            raise self.refuses.pop(0)
        self.lives.append(Life())
        self.open += 1
        try:
            yield self.lives[-1]
        finally:
            self.open -= 1

    def _build(self) -> CaptureActor:
        return CaptureActor(cast("Base", None), cast("MetaStore", None), self.memory)


@asynccontextmanager
async def rig(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Rig]:
    made = Rig()
    monkeypatch.setattr(capture_actor, "live", made.live)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(made.run)
        yield made
        tasks.cancel_scope.cancel()


async def test_it_is_a_member_until_it_is_asked_to_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    async with rig(monkeypatch) as r:
        life = await r.settle()
        assert r.memory.membership is cast("Membership", life)
        assert r.open == 1
        life.leaving_takes_s = 30.0
        started = anyio.current_time()
        await r.ref.ask(LeaveCluster(), 60.0)
        assert anyio.current_time() - started == 30.0, "answered when it has left"
        await r.ref.wait_dead()
        assert (len(r.lives), life.leaves, r.open) == (1, 1, 0)
        assert r.memory.failure is None
        assert not r.memory.membership
        with pytest.raises(ActorDeadError):
            r.ref.tell_nowait(LeaveCluster())


async def test_a_lost_session_is_followed_by_the_next_one_and_is_no_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    async with rig(monkeypatch) as r:
        for count in range(1, 12):
            life = await r.settle()
            assert len(r.lives) == count
            life.fail(SessionDoneError("the lease is over"))
        assert (r.supervised.restarts, r.ref.statistics().starts) == (0, 1)


async def test_a_membership_that_crashes_is_followed_by_another_and_its_mailbox_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with rig(monkeypatch) as r:
        first = await r.settle()
        first.fail(ZeroDivisionError("a bug"))
        second = await r.settle()
        assert second is not first
        assert (r.open, r.supervised.restarts, r.ref.statistics().starts) == (1, 1, 2)
        await r.ref.ask(LeaveCluster(), 60.0)
        await r.ref.wait_dead()
        assert (first.leaves, second.leaves, r.crash) == (0, 1, None)


async def test_what_crashes_too_often_ends_the_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    async with rig(monkeypatch) as r:
        await r.settle()
        with anyio.fail_after(60):
            while r.crash is None:
                if r.open:
                    r.lives[-1].fail(ZeroDivisionError("a bug"))
                await anyio.sleep(0.01)
        assert isinstance(r.crash, ZeroDivisionError)
        assert (len(r.lives), r.open) == (6, 0)
        assert r.memory.membership is None


@pytest.mark.parametrize("error", [PortInUseError("it is taken; give another"), OSError("no such device")])
async def test_what_it_cannot_start_with_is_no_crash(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    async with rig(monkeypatch) as r:
        r.refuses = [error]
        await r.ref.wait_dead()
        assert (r.memory.failure, r.supervised.restarts, r.lives) == (error, 0, [])


async def test_an_etcd_that_answers_in_a_moment_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    async with rig(monkeypatch) as r:
        r.refuses = [StoreUnreachableError("it elects a leader") for _ in range(5)]
        await r.settle()
        assert (r.memory.failure, len(r.lives)) == (None, 1)


async def test_a_capture_that_cannot_join_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    async with rig(monkeypatch) as r:
        r.refuses = [StoreUnreachableError(f"attempt {number}") for number in range(100)]
        started = anyio.current_time()
        await r.ref.wait_dead()
        assert isinstance(r.memory.failure, StoreUnreachableError)
        assert 60 <= anyio.current_time() - started <= 62
        assert r.lives == []


async def test_who_asks_while_it_waits_for_its_next_life_is_not_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    async with rig(monkeypatch) as r:
        first = await r.settle()
        first.fail(ZeroDivisionError("a bug"))
        await anyio.sleep(0.01)
        r.ref.tell_nowait(LeaveCluster())
        r.ref.tell_nowait(LeaveCluster())
        with pytest.raises(MailboxFullError):
            r.ref.tell_nowait(LeaveCluster())
        await r.ref.wait_dead()
        assert r.open == 0
        assert r.memory.leaving.is_set()
