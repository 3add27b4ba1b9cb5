"""Supervision: which crashed actors start again, how often, and who is notified when that does not help.

One for one: a crashed child is built again by its factory and continues with the same mailbox and reference; its
siblings do not notice. The message it crashed on is gone (it would crash on it again), every other one is still there.
A child that crashes more than ``restarts_max`` times within ``period_s`` takes its supervisor down: all its children
end at once, and the supervisor's parent decides, by the same rules if it is a supervisor (then the whole family starts
again, with its mailboxes), by crashing if it is an actor or the actor system.

The budget is per child: a thousand table spans are not one actor with a thousand crashes. What the errors mean (wait,
warn, fail the changefeed) is the owner's to decide; here they are only counted and logged.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import anyio
import structlog
from anyio.abc import TaskGroup

from capture.actors.actor import MAILBOX_SIZE, Actor, ActorRef, Cell, M
from capture.actors.children import Child, ChildT
from capture.errors import root_cause

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """How much crashing is tolerable. The n-th restart within the period waits ``delay_s * 2**(n-1)``, at most
    ``delay_s_max``: a database that is down is not hammered."""

    restarts_max: int = 5
    period_s: float = 60.0
    delay_s: float = 0.1
    delay_s_max: float = 10.0

    def delay_of(self, restart: int) -> float:
        return min(self.delay_s * 2.0 ** (restart - 1), self.delay_s_max)


class RestartBudget:
    """The restarts of one child; pure: the clock comes as an argument."""

    def __init__(self, policy: RestartPolicy) -> None:
        self._policy = policy
        self._times: deque[float] = deque()

    def spend(self, now: float) -> float | None:
        """Seconds to wait before the next start, or ``None`` when the child has crashed too often."""
        while self._times and self._times[0] <= now - self._policy.period_s:
            self._times.popleft()
        if len(self._times) >= self._policy.restarts_max:
            return None
        self._times.append(now)
        return self._policy.delay_of(len(self._times))


@dataclass(frozen=True, slots=True)
class SupervisorStatistics:
    """``restarts``: of all children, since the supervisor was made."""

    name: str
    children: int
    restarts: int


class Supervisor:
    """Runs children and starts them again; children may be added before and while it runs.

    It is a child itself: give it to ``adopt`` of an actor system, of an actor's context, or of another supervisor.
    """

    def __init__(self, name: str, policy: RestartPolicy | None = None) -> None:
        self._name = name
        self._policy = policy or RestartPolicy()
        self._children: dict[int, Child] = {}
        self._tasks: TaskGroup | None = None
        self._stopping = anyio.Event()
        self._is_cancelled = False
        self._restarts = 0

    @property
    def name(self) -> str:
        return self._name

    def spawn(self, factory: Callable[[], Actor[M]], name: str, *, mailbox_size: int = MAILBOX_SIZE) -> ActorRef[M]:
        """An actor that ``factory`` builds now and after every crash."""
        return self.adopt(Cell(factory, f"{self.name}/{name}", mailbox_size=mailbox_size)).ref

    def adopt(self, child: ChildT) -> ChildT:
        """Take care of any child, also another supervisor. After ``stop`` it is closed at once."""
        if self._stopping.is_set():
            child.close()
            return child
        self._children[id(child)] = child
        if self._tasks is not None:
            self._tasks.start_soon(self._keep, child, name=child.name)
        return child

    async def run(self) -> None:
        """Run all children until they have ended after ``stop``; raises the crash that was one too many."""
        try:
            async with anyio.create_task_group() as self._tasks:
                for child in list(self._children.values()):
                    self._tasks.start_soon(self._keep, child, name=child.name)
                await self._stopping.wait()
                if self._is_cancelled:
                    self._tasks.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            raise root_cause(group) from None
        finally:
            self._tasks = None

    def stop(self, *, drain: bool = True) -> None:
        """End the children, and so this; at once if not ``drain``, without waiting for one that is about to restart."""
        self._stopping.set()
        for child in list(self._children.values()):
            child.stop(drain=drain)
        if not drain:
            self._is_cancelled = True
            if self._tasks is not None:
                self._tasks.cancel_scope.cancel()

    def close(self) -> None:
        self._stopping.set()
        while self._children:
            self._children.popitem()[1].close()

    def statistics(self) -> SupervisorStatistics:
        return SupervisorStatistics(name=self.name, children=len(self._children), restarts=self._restarts)

    async def _keep(self, child: Child) -> None:
        """Run one child, again after every crash that the budget allows. Only a normal end closes it here: after an
        escalation the child's mailbox is still needed by the next life of this supervisor."""
        budget = RestartBudget(self._policy)
        while True:
            try:
                await child.run()
            except Exception as error:
                await self._wait_restart(child, budget, error)
            else:
                break
        self._children.pop(id(child), None)
        child.close()

    async def _wait_restart(self, child: Child, budget: RestartBudget, error: Exception) -> None:
        cause = f"{type(error).__name__}: {error}"
        delay_s = budget.spend(anyio.current_time())
        if delay_s is None:
            _log.error("crashed too often, escalating", actor=child.name, to=self.name, cause=cause)
            raise error
        self._restarts += 1
        _log.warning("restarting", actor=child.name, delay_s=delay_s, cause=cause)
        await anyio.sleep(delay_s)
