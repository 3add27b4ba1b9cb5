"""Supervision: one for one, within a restart budget; mailboxes and references survive."""

from collections.abc import Callable

import anyio
import pytest
from structlog.testing import capture_logs

from benchmarks.support.actor_system import ActorSystem
from capture.actors.actor import Actor, ActorRef, Cell, Context
from capture.actors.supervised import OnCrash, Supervised
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


def supervise(
    system: ActorSystem,
    factory: Callable[[], Actor[object]],
    name: str = "worker",
    *,
    policy: RestartPolicy | None = None,
    on_crash: OnCrash | None = None,
) -> ActorRef[object]:
    cell = Cell(factory, name)
    system.adopt(Supervised(cell, policy or RestartPolicy(), on_crash))
    return cell.ref


def test_the_budget_ignores_crashes_older_than_its_period() -> None:
    budget = RestartBudget(RestartPolicy(restarts_max=2, period_s=10, delay_s=1, delay_s_max=5))
    assert budget.spend(now=0) == 1
    assert budget.spend(now=1) == 2
    assert budget.spend(now=9) is None
    assert budget.spend(now=10.5) == 2


def test_delays_double_up_to_the_limit() -> None:
    policy = RestartPolicy(delay_s=0.5, delay_s_max=3)
    assert [policy.delay_of(restart) for restart in (1, 2, 3, 4, 5)] == [0.5, 1, 2, 3, 3]


async def test_a_restarted_actor_keeps_its_reference_and_mailbox() -> None:
    seen: list[object] = []
    async with ActorSystem("test") as system:
        ref = supervise(system, lambda: Worker(seen))
        first = await ref.ask("before", timeout_s=1)
        for message in ("crash", "unread 1", "unread 2"):
            ref.tell_nowait(message)
        second = await ref.ask("after", timeout_s=10)
        assert ref.statistics().starts == 2
    assert seen == ["before", "unread 1", "unread 2", "after"]
    assert first != second


async def test_siblings_are_not_affected_by_a_restart() -> None:
    seen: list[object] = []
    async with ActorSystem("test") as system:
        crashing, calm = (supervise(system, lambda: Worker(seen), name) for name in ("crashing", "calm"))
        first = await calm.ask(1, timeout_s=1)
        crashing.tell_nowait("crash")
        await anyio.sleep(1)
        assert await calm.ask(2, timeout_s=1) == first
        assert calm.statistics().starts == 1


async def test_an_ask_that_crashes_the_actor_is_answered() -> None:
    async with ActorSystem("test") as system:
        ref = supervise(system, lambda: Worker([]))
        with pytest.raises(ActorDeadError, match="half done"):
            await ref.ask("crash", timeout_s=60)
        assert anyio.current_time() < 60
        assert await ref.ask("again", timeout_s=1)


async def test_too_many_crashes_escalate_and_every_ask_is_answered() -> None:
    starts: list[int] = []

    async def scenario() -> None:
        async with ActorSystem("test") as system:
            ref = supervise(system, lambda: Worker([]), policy=RestartPolicy(restarts_max=2, delay_s=1))
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
    assert {log["actor"] for log in logs} == {"worker"}
    assert logs[-1]["cause"] == "ZeroDivisionError: boom"


async def test_a_factory_that_fails_counts_as_a_crash() -> None:
    attempts: list[float] = []

    def build() -> Actor[object]:
        attempts.append(anyio.current_time())
        if len(attempts) < 3:
            raise OSError("not yet")
        return Worker([])

    async with ActorSystem("test") as system:
        assert await supervise(system, build, policy=RestartPolicy(delay_s=1)).ask("hello", timeout_s=10)
    assert attempts == pytest.approx([0, 1, 3], abs=0.01)


async def test_stop_ends_a_child_that_waits_for_its_restart() -> None:
    async with ActorSystem("test") as system:
        ref = supervise(system, lambda: Worker([]), policy=RestartPolicy(delay_s=1000, delay_s_max=1000))
        ref.tell_nowait("crash")
        await anyio.sleep(1)
        system.stop(drain=False)
        await ref.wait_dead()
    assert anyio.current_time() < 1000


async def test_a_watched_child_that_crashes_too_often_ends_alone() -> None:
    seen: list[object] = []
    crashes: list[tuple[str, bool]] = []

    def on_crash(error: Exception, is_final: bool) -> None:
        crashes.append((str(error), is_final))

    async with ActorSystem("test") as system:
        policy = RestartPolicy(restarts_max=2)
        bad = supervise(system, lambda: Worker(seen), "bad", policy=policy, on_crash=on_crash)
        good = supervise(system, lambda: Worker(seen), "good", policy=policy, on_crash=on_crash)
        for _ in range(3):
            bad.tell_nowait("crash")
        await bad.wait_dead()
        assert crashes == [("boom", False), ("boom", False), ("boom", True)]
        await good.ask("still here", timeout_s=1)
        with pytest.raises(ActorDeadError):
            bad.tell_nowait("anybody?")
    assert seen == ["still here"]


async def test_a_supervised_child_does_not_crash_its_parent() -> None:
    seen: list[object] = []
    crashes: list[Exception] = []

    class Parent:
        def __init__(self) -> None:
            self.child: ActorRef[object] | None = None

        async def on_start(self, context: Context) -> None:
            self.child = context.spawn_supervised(
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
