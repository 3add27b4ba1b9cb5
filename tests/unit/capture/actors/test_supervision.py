"""Supervision: one for one, a budget per period, escalation; mailboxes and references stay."""

import anyio
import pytest
from structlog.testing import capture_logs

from capture.actors.actor import Actor, ActorRef, Context
from capture.actors.supervision import Supervisor
from capture.actors.system import ActorSystem
from capture.errors import ActorDeadError
from reactor.restarts import RestartBudget, RestartPolicy

pytestmark = pytest.mark.looptime


class Worker:
    """Crashes when asked to; its answers tell one life from the next."""

    def __init__(self, seen: list[object]) -> None:
        self.seen = seen

    async def handle(self, message: object) -> object:
        if message == "crash":
            raise ZeroDivisionError("boom")
        self.seen.append(message)
        return id(self)


def test_the_budget_forgets_what_is_older_than_the_period() -> None:
    budget = RestartBudget(RestartPolicy(restarts_max=2, period_s=10, delay_s=1, delay_s_max=5))
    assert budget.spend(now=0) == 1
    assert budget.spend(now=1) == 2
    assert budget.spend(now=9) is None
    assert budget.spend(now=10.5) == 2


def test_delays_double_up_to_their_limit() -> None:
    policy = RestartPolicy(delay_s=0.5, delay_s_max=3)
    assert [policy.delay_of(restart) for restart in (1, 2, 3, 4, 5)] == [0.5, 1, 2, 3, 3]


async def test_a_restarted_actor_keeps_its_reference_and_mailbox() -> None:
    seen: list[object] = []
    async with ActorSystem("test") as system:
        family = system.adopt(Supervisor("family"))
        ref = family.spawn(lambda: Worker(seen), "worker")
        first = await ref.ask("before", timeout_s=1)
        for message in ("crash", "unread 1", "unread 2"):
            ref.tell_nowait(message)
        second = await ref.ask("after", timeout_s=10)
        assert ref.statistics().starts == 2
        assert family.statistics().restarts == 1
    assert seen == ["before", "unread 1", "unread 2", "after"]
    assert first != second


async def test_siblings_do_not_notice_a_restart() -> None:
    seen: list[object] = []
    async with ActorSystem("test") as system:
        family = system.adopt(Supervisor("family"))
        crashing, calm = (family.spawn(lambda: Worker(seen), name) for name in ("crashing", "calm"))
        first = await calm.ask(1, timeout_s=1)
        crashing.tell_nowait("crash")
        await anyio.sleep(1)
        assert await calm.ask(2, timeout_s=1) == first
        assert calm.statistics().starts == 1


async def test_the_asker_of_a_crashing_message_is_answered() -> None:
    async with ActorSystem("test") as system:
        ref = system.adopt(Supervisor("family")).spawn(lambda: Worker([]), "worker")
        with pytest.raises(ActorDeadError, match="half done"):
            await ref.ask("crash", timeout_s=60)
        assert anyio.current_time() < 60
        assert await ref.ask("again", timeout_s=1)


async def test_too_many_crashes_reach_the_system_and_every_asker_is_answered() -> None:
    starts: list[int] = []

    async def scenario() -> None:
        async with ActorSystem("test") as system:
            family = system.adopt(Supervisor("family", RestartPolicy(restarts_max=2, delay_s=1)))
            ref = family.spawn(lambda: Worker([]), "worker")
            for _ in range(3):
                ref.tell_nowait("crash")
            try:
                await ref.ask("never read", timeout_s=60)
            finally:
                starts.append(ref.statistics().starts)

    with pytest.raises(ZeroDivisionError), capture_logs() as logs:
        await scenario()
    assert starts == [3]
    assert [log["event"] for log in logs] == [
        "actor crashed",
        "restarting",
        "actor crashed",
        "restarting",
        "actor crashed",
        "crashed too often",
    ]
    assert {log["actor"] for log in logs} == {"family/worker"}
    assert logs[-1]["cause"] == "ZeroDivisionError: boom"


async def test_an_escalation_restarts_the_whole_family_with_its_mailboxes() -> None:
    seen: list[object] = []
    async with ActorSystem("test") as system:
        parent = system.adopt(Supervisor("parent"))
        family = parent.adopt(Supervisor("family", RestartPolicy(restarts_max=0)))
        crashing, calm = (family.spawn(lambda: Worker(seen), name) for name in ("crashing", "calm"))
        first = await calm.ask(1, timeout_s=1)
        crashing.tell_nowait("crash")
        crashing.tell_nowait("unread")
        await anyio.sleep(0.01)
        calm.tell_nowait("sent while nobody runs")
        assert await calm.ask(2, timeout_s=10) != first
        assert (crashing.statistics().starts, calm.statistics().starts) == (2, 2)
        assert parent.statistics().restarts == 1
    assert sorted(map(str, seen)) == ["1", "2", "sent while nobody runs", "unread"]


async def test_a_factory_that_fails_counts_as_a_crash() -> None:
    attempts: list[float] = []

    def build() -> Actor[object]:
        attempts.append(anyio.current_time())
        if len(attempts) < 3:
            raise OSError("not yet")
        return Worker([])

    async with ActorSystem("test") as system:
        family = system.adopt(Supervisor("family", RestartPolicy(delay_s=1)))
        assert await family.spawn(build, "worker").ask("hello", timeout_s=10)
    assert attempts == pytest.approx([0, 1, 3], abs=0.01)


async def test_stop_ends_children_also_one_that_waits_for_its_restart() -> None:
    async with ActorSystem("test") as system:
        family = system.adopt(Supervisor("family", RestartPolicy(delay_s=1000, delay_s_max=1000)))
        ref = family.spawn(lambda: Worker([]), "worker")
        ref.tell_nowait("crash")
        await anyio.sleep(1)
        system.stop(drain=False)
        await ref.wait_dead()
    assert anyio.current_time() < 1000


async def test_children_added_late_run_and_added_too_late_are_closed() -> None:
    seen: list[object] = []
    async with ActorSystem("test") as system:
        family = system.adopt(Supervisor("family"))
        await anyio.sleep(1)
        late = family.spawn(lambda: Worker(seen), "late")
        await late.ask("hello", timeout_s=1)
        family.stop()
        await late.wait_dead()
        with pytest.raises(ActorDeadError):
            family.spawn(lambda: Worker(seen), "too late").tell_nowait("hello")
    assert seen == ["hello"]


async def test_a_child_that_ends_by_itself_is_forgotten() -> None:
    async with ActorSystem("test") as system:
        family = system.adopt(Supervisor("family"))
        ref = family.spawn(lambda: Worker([]), "worker")
        ref.stop()
        await ref.wait_dead()
        assert family.statistics().children == 0


async def test_an_actor_may_keep_a_supervisor() -> None:
    seen: list[object] = []

    class Manager:
        async def on_start(self, context: Context) -> None:
            self.worker = context.adopt(Supervisor(f"{context.name}/workers")).spawn(lambda: Worker(seen), "one")

        async def handle(self, message: object) -> None:
            await self.worker.tell(message)

    async with ActorSystem("test") as system:
        manager = system.spawn(Manager(), "manager")
        for message in (1, "crash", 2):
            manager.tell_nowait(message)
    assert seen == [1, 2]


async def test_a_watched_child_that_crashes_too_often_ends_alone() -> None:
    seen: list[object] = []
    crashes: list[tuple[str, bool]] = []

    def on_crash(error: Exception, is_final: bool) -> None:
        crashes.append((str(error), is_final))

    async with ActorSystem("test") as system:
        family = system.adopt(Supervisor("family", RestartPolicy(restarts_max=2)))
        bad = family.spawn(lambda: Worker(seen), "bad", on_crash=on_crash)
        good = family.spawn(lambda: Worker(seen), "good", on_crash=on_crash)
        for _ in range(3):
            bad.tell_nowait("crash")
        await bad.wait_dead()
        assert crashes == [("boom", False), ("boom", False), ("boom", True)]
        await good.ask("still here", timeout_s=1)
        with pytest.raises(ActorDeadError):
            bad.tell_nowait("anybody?")
        assert family.statistics().restarts == 2
    assert seen == ["still here"]


async def test_an_actor_keeps_children_whose_crashes_are_not_its_own() -> None:
    seen: list[object] = []
    crashes: list[Exception] = []

    class Parent:
        def __init__(self) -> None:
            self.child: ActorRef[object] | None = None

        async def on_start(self, context: Context) -> None:
            self.child = context.keep(
                lambda: Worker(seen), "child", on_crash=lambda error, _: crashes.append(error), mailbox_size=2
            )

        async def handle(self, message: object) -> None:
            assert self.child is not None
            self.child.tell_nowait(message)

    async with ActorSystem("test") as system:
        parent = system.spawn(Parent(), "parent")
        for message in ("crash", "a", "b"):
            await parent.tell(message)
            await anyio.sleep(1)
        assert (seen, len(crashes)) == (["a", "b"], 1)
        parent.stop()
