"""Children: actors and supervisors that run in the task group of an actor or of the actor system.

A family decides nothing about crashes: a child's crash cancels the task group, and with it parent and siblings. Whoever
wants another answer puts a ``capture.actors.supervision.Supervisor`` between.
"""

from typing import Protocol, TypeVar

from anyio.abc import TaskGroup

ChildT = TypeVar("ChildT", bound="Child")


class Child(Protocol):
    """What a parent runs: an actor's cell, or a supervisor."""

    @property
    def name(self) -> str: ...

    async def run(self) -> None:
        """One life, from start to end; raises what it crashed with. To run again after that is a restart."""
        ...

    def stop(self, *, drain: bool = True) -> None:
        """End: after what is unread, or at once."""
        ...

    def close(self) -> None:
        """It will not run again: answer whoever still waits for it."""
        ...


class Family:
    """The children of one task group: adopted at any time, closed when they end, stopped together."""

    def __init__(self, tasks: TaskGroup) -> None:
        self._tasks = tasks
        self._children: dict[int, Child] = {}

    def adopt(self, child: ChildT) -> ChildT:
        """Run it from now on."""
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
