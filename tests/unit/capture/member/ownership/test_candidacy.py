"""Candidacy over the in-memory etcd, on virtual time: elected, asked, given up, lost, taken over."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import anyio
import pytest

from capture.errors import ChangefeedNotFoundError, JobRefusedError, StillRunningError
from capture.member.ownership.candidacy import Candidacy
from capture.member.ownership.performer import OwnerSite
from owner import jobs
from owner.owner import Owner
from reactor import keys
from reactor.effects import CONFLICT, Answer, Effect, Send
from reactor.errors import NotOwnerError, SessionDoneError
from reactor.ids import CaptureId, ChangefeedId
from reactor.membership.session import Session, open_session
from reactor.messages import Header, Heartbeat, Message
from reactor.records.capture import CaptureInfo
from reactor.settings import ReactorSettings
from reactor.store.memory import MemoryClient, MemoryEtcd
from reactor.store.port import Compare, Target
from reactor.worker.loop import ReactorWorker

pytestmark = pytest.mark.looptime


class NoPeers:
    """Nobody to talk to."""

    def set_peers(self, peers: Mapping[CaptureId, str]) -> None: ...

    def send_nowait(self, topic: str, message: Message) -> None: ...


@asynccontextmanager
async def member(etcd: MemoryEtcd, name: str) -> AsyncIterator[tuple[Candidacy, Session]]:
    """A registered capture with a candidacy whose ``run`` is under way."""
    client, capture = MemoryClient(etcd), CaptureId(name)
    async with open_session(client) as session, anyio.create_task_group() as tasks:
        info = CaptureInfo(id=capture, address="", peer_address="", version="0.1.0", cluster_id="c", started_at=0.0)
        key = str(keys.CaptureKey("c", capture))
        await client.put(key, info.encode(), lease=session.lease)
        registered = await client.get(key)
        assert registered is not None
        site = OwnerSite(
            capture=capture,
            cluster="c",
            client=client,
            session=session,
            registered=Compare(key, Target.CREATE_REVISION, registered.create_revision),
            peers=NoPeers(),
            settings=ReactorSettings(),
            ask=lambda _ask, _post: None,
        )
        candidacy = Candidacy(site)
        tasks.start_soon(candidacy.run)
        yield candidacy, session
        tasks.cancel_scope.cancel()


async def until_owner(candidacy: Candidacy) -> None:
    with anyio.fail_after(60):
        while not candidacy.is_owner:  # noqa: ASYNC110 - virtual time
            await anyio.sleep(0.05)


async def test_the_owner_answers_jobs() -> None:
    async with member(MemoryEtcd(), "a") as (candidacy, _):
        await until_owner(candidacy)
        assert await candidacy.submit(jobs.List("")) == ()
        with pytest.raises(ChangefeedNotFoundError):
            await candidacy.submit(jobs.Query("", ChangefeedId("nobody")))


async def test_a_job_that_met_another_change_is_decided_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of it is stored, so nobody need ask again; one that never gets through is refused."""
    answers: list[Answer] = []

    def tick(_self: Owner, _state: object, inbox: Sequence[object], _now: float) -> Sequence[Effect]:
        return [replace(answers.pop(), job_id=job.job_id) for job in inbox if isinstance(job, jobs.Pause)]

    monkeypatch.setattr(Owner, "tick", tick)
    conflict = Answer("", "not done: it has changed", CONFLICT)
    async with member(MemoryEtcd(), "a") as (candidacy, _):
        await until_owner(candidacy)
        answers[:] = [Answer("", value="done"), conflict, conflict]
        assert await candidacy.submit(jobs.Pause("", ChangefeedId("f"))) == "done"
        answers[:] = [conflict] * 100
        with pytest.raises(JobRefusedError, match="not done: it has changed"):
            await candidacy.submit(jobs.Pause("", ChangefeedId("f")))


async def test_who_is_not_elected_sends_askers_away() -> None:
    etcd = MemoryEtcd()
    async with member(etcd, "a") as (first, _):
        await until_owner(first)
        async with member(etcd, "b") as (second, _):
            await anyio.sleep(5)
            assert not second.is_owner
            with pytest.raises(NotOwnerError):
                await second.submit(jobs.List(""))


async def test_a_seat_given_up_goes_to_the_next_and_its_askers_are_answered() -> None:
    etcd = MemoryEtcd()
    async with member(etcd, "a") as (first, _):
        await until_owner(first)
        async with member(etcd, "b") as (second, _), anyio.create_task_group() as tasks:
            refused: list[NotOwnerError] = []

            async def ask() -> None:
                try:
                    await first.submit(jobs.Remove("", ChangefeedId("x")))
                except NotOwnerError as error:
                    refused.append(error)
                except ChangefeedNotFoundError:
                    pass  # it was answered a moment before

            tasks.start_soon(ask)
            await anyio.lowlevel.checkpoint()
            first.resign()
            await until_owner(second)
            await anyio.sleep(3)
            assert second.is_owner
            assert not first.is_owner, "it stands again, behind the new owner"
        await until_owner(first)


async def test_who_asks_while_the_owner_ends_hears_so_at_once() -> None:
    """The request is in the mailbox of an actor that will never look at it: an operator would wait for a minute."""
    heard: list[float] = []

    async def ask(candidacy: Candidacy) -> None:
        with pytest.raises(NotOwnerError, match="before it answered"):
            await candidacy.submit(jobs.List(""))
        heard.append(anyio.current_time())

    async with anyio.create_task_group() as tasks, member(MemoryEtcd(), "a") as (candidacy, _):
        await until_owner(candidacy)
        tasks.start_soon(ask, candidacy)
        ended_at = anyio.current_time()
    assert heard == [ended_at]


async def test_who_leaves_never_campaigns_again() -> None:
    etcd = MemoryEtcd()
    async with member(etcd, "a") as (candidacy, _):
        await until_owner(candidacy)
        candidacy.leave()
        await anyio.sleep(30)
        assert not candidacy.is_owner
        assert etcd.get_prefix(keys.owner_prefix("c")).items == ()


async def test_an_ownership_ends_with_its_session() -> None:
    etcd = MemoryEtcd()

    async def be_owner_until_the_session_ends() -> None:
        async with member(etcd, "a") as (candidacy, session):
            await until_owner(candidacy)
            await session.revoke()
            await anyio.sleep(30)

    with pytest.RaisesGroup(SessionDoneError, flatten_subgroups=True):
        await be_owner_until_the_session_ends()
    async with member(etcd, "b") as (candidacy, _):
        await until_owner(candidacy)


async def test_who_waits_long_hears_that_it_is_still_running(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job may take longer than anybody waits; that is no owner that has left."""
    monkeypatch.setattr(Owner, "tick", lambda *_: [])  # it never comes to an answer
    async with member(MemoryEtcd(), "a") as (candidacy, _):
        await until_owner(candidacy)
        with pytest.raises(StillRunningError, match="still running after 60 s, and continues by itself"):
            await candidacy.submit(jobs.List(""))
        assert candidacy.is_owner


async def test_an_order_that_cannot_be_encoded_ends_no_ownership(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object, topic: str, message: Message) -> None:
        raise OverflowError("an integer that no message can carry")

    tick = Owner.tick
    order = Message(CaptureId("a"), CaptureId("b"), ChangefeedId("f"), Header("1", 1, "", 1), Heartbeat())
    monkeypatch.setattr(NoPeers, "send_nowait", refuse)
    monkeypatch.setattr(Owner, "tick", lambda *given: [Send(order), *tick(*given)])
    async with member(MemoryEtcd(), "a") as (candidacy, _):
        await until_owner(candidacy)
        assert await candidacy.submit(jobs.List("")) == ()


class Bug:
    """The owner's reactor raises what nobody foresaw, as often as it is asked to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.times = 0
        original = Owner.tick

        def tick(owner: Owner, *args: Any) -> Any:
            if self.times:
                self.times -= 1
                raise ZeroDivisionError("a bug")
            return original(owner, *args)

        monkeypatch.setattr(Owner, "tick", tick)


def revision(candidacy: Candidacy) -> int:
    return candidacy._election.revision


async def test_an_owner_that_crashes_is_elected_again_under_another_revision(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it had said as owner must be refused from now on: nobody knows what that was."""
    bug = Bug(monkeypatch)
    async with member(MemoryEtcd(), "a") as (candidacy, session):
        await until_owner(candidacy)
        before = revision(candidacy)
        bug.times = 1
        with pytest.raises(NotOwnerError):
            await candidacy.submit(jobs.List(""))
        await until_owner(candidacy)
        assert revision(candidacy) > before
        assert await candidacy.submit(jobs.List("")) == ()
        assert not session.is_done, "the membership and its processors notice nothing"


async def test_another_capture_is_owner_while_one_that_crashed_waits_for_its_next_life(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    etcd, bug = MemoryEtcd(), Bug(monkeypatch)
    async with member(etcd, "a") as (one, _), member(etcd, "b") as (two, _):
        await until_owner(one)
        await anyio.sleep(5)
        bug.times = 1
        with pytest.raises(NotOwnerError):
            await one.submit(jobs.List(""))
        await until_owner(two)
        await anyio.sleep(5)
        assert (one.is_owner, two.is_owner) == (False, True)


async def test_an_owner_that_crashes_too_often_ends_the_membership(monkeypatch: pytest.MonkeyPatch) -> None:
    bug = Bug(monkeypatch)
    bug.times = 1_000
    with pytest.raises(BaseExceptionGroup) as raised:
        async with member(MemoryEtcd(), "a"):
            await anyio.sleep(60)
    assert raised.group_contains(ZeroDivisionError)
    assert bug.times == 1_000 - 6


async def test_an_owner_that_nobody_lets_tick_takes_no_more_than_it_has_room_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """etcd is silent: whoever sends waits, an operator hears it at once, and nothing is lost."""
    async with member(MemoryEtcd(), "a") as (candidacy, _):
        await until_owner(candidacy)
        await anyio.sleep(1)
        monkeypatch.setattr("reactor.worker.loop.INBOX_SIZE", 3)
        original = ReactorWorker._step

        async def never(_worker: ReactorWorker) -> bool:
            await anyio.sleep(0.1)
            return False

        monkeypatch.setattr(ReactorWorker, "_step", never)
        message = Message(CaptureId("b"), CaptureId("a"), ChangefeedId("x"), Header("1", 1, "", 1), Heartbeat())
        sent: list[int] = []

        async def send() -> None:
            for number in range(2_000):
                await candidacy.on_message(message)
                sent.append(number)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(send)
            await anyio.sleep(1)
            assert len(sent) == 3 + 1 + 1024, "the worker's, the one that waits for it, and the mailbox"
            with pytest.raises(JobRefusedError, match="cannot keep up"):
                await candidacy.submit(jobs.List(""))
            monkeypatch.setattr(ReactorWorker, "_step", original)
        assert len(sent) == 2_000
        await anyio.sleep(300)
        assert await candidacy.submit(jobs.List("")) == ()


async def test_a_job_that_nobody_has_read_is_answered_when_the_candidacy_ends() -> None:
    """The session is lost with the job in the mailbox: who asked must not wait for what nobody reads any more."""
    outcome: list[Exception] = []

    async def ask(candidacy: Candidacy) -> None:
        try:
            await candidacy.submit(jobs.List(""))
        except NotOwnerError as error:
            outcome.append(error)

    async with anyio.create_task_group() as tasks, member(MemoryEtcd(), "a") as (candidacy, _):
        await until_owner(candidacy)
        started = anyio.current_time()
        tasks.start_soon(ask, candidacy)
    assert len(outcome) == 1
    assert anyio.current_time() - started < 10
