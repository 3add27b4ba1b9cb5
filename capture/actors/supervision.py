"""Supervision: which crashed actors start again, how often, and who is notified when that does not help.

One for one: a crashed child is built again by its factory and continues with the same mailbox and reference; its
siblings do not notice. The message it crashed on is gone (it would crash on it again), every other one is still there.
A child that crashes more than ``restarts_max`` times within ``period_s`` takes its supervisor down: all its children
end at once, and the supervisor's parent decides, by the same rules if it is a supervisor (then the whole family starts
again, with its mailboxes), by crashing if it is an actor or the actor system.

The budget is per child: a thousand table spans are not one actor with a thousand crashes. What the errors mean (wait,
warn, fail the changefeed) is the owner's to decide; here they are only counted and logged.
"""

from collections.abc import Callable
from dataclasses import dataclass

import anyio
from anyio.abc import TaskGroup

from capture.actors.actor import MAILBOX_SIZE, Actor, ActorRef, Cell, M
from capture.actors.children import ChildT
from capture.actors.supervised import OnCrash, Supervised
from capture.errors import root_cause
from reactor.restarts import RestartPolicy


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
        self._children: dict[int, Supervised] = {}
        self._tasks: TaskGroup | None = None
        self._stopping = anyio.Event()
        self._is_cancelled = False
        self._restarts_before = 0

    @property
    def name(self) -> str:
        return self._name

    def spawn(
        self,
        factory: Callable[[], Actor[M]],
        name: str,
        *,
        mailbox_size: int = MAILBOX_SIZE,
        on_crash: OnCrash | None = None,
    ) -> ActorRef[M]:
        """An actor that ``factory`` builds now and after every crash. ``on_crash``: see
        ``capture.actors.supervised``."""
        return self.adopt(Cell(factory, f"{self.name}/{name}", mailbox_size=mailbox_size), on_crash=on_crash).ref

    def adopt(self, child: ChildT, *, on_crash: OnCrash | None = None) -> ChildT:
        """Take care of any child, also another supervisor. After ``stop`` it is closed at once."""
        if self._stopping.is_set():
            child.close()
            return child
        kept = Supervised(child, self._policy, on_crash)
        self._children[id(kept)] = kept
        if self._tasks is not None:
            self._tasks.start_soon(self._keep, kept, name=child.name)
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
        restarts = self._restarts_before + sum(child.restarts for child in self._children.values())
        return SupervisorStatistics(name=self.name, children=len(self._children), restarts=restarts)

    async def _keep(self, child: Supervised) -> None:
        """Only a normal end, or one that is watched, closes it here: after an escalation the child's mailbox is still
        needed by the next life of this supervisor."""
        await child.run()
        self._children.pop(id(child), None)
        self._restarts_before += child.restarts
        child.close()
