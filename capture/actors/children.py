"""Children: what runs in the task group of an actor or the actor system.

A child's crash cancels the task group, and with it parent and siblings, unless the child is a
``capture.actors.supervised.Supervised``.
"""

from typing import Protocol, TypeVar

from anyio.abc import TaskGroup

ChildT = TypeVar("ChildT", bound="Child")


class Child(Protocol):
    """Something a parent runs: an actor's cell, or a supervised one."""

    @property
    def name(self) -> str: ...

    async def run(self) -> None:
        """Run once, from start to end; raise what it crashed with. Running again after that is a restart."""
        ...

    def stop(self, *, drain: bool = True) -> None:
        """End: after unread messages, or at once."""
        ...

    def close(self) -> None:
        """End for good: answer waiting senders with an error."""
        ...


class Children:
    """The children in one task group: added at any time, closed when they end, stopped together."""

    def __init__(self, tasks: TaskGroup) -> None:
        self._tasks = tasks
        self._children: dict[int, Child] = {}

    def adopt(self, child: ChildT) -> ChildT:
        """Start running the child."""
        self._children[id(child)] = child
        self._tasks.start_soon(self._keep, child, name=child.name)
        return child

    def stop(self, *, drain: bool = True) -> None:
        for child in list(self._children.values()):
            child.stop(drain=drain)

    async def _keep(self, child: Child) -> None:
        try:
            await child.run()
        finally:
            del self._children[id(child)]
            child.close()
