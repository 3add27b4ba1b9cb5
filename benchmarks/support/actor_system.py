"""Actor system: the root of a tree of actors, for tests and benchmarks; captures run cells in task groups."""

from types import TracebackType
from typing import Self

import anyio

from capture.actors.actor import MAILBOX_SIZE, Actor, ActorRef, Cell, M
from capture.actors.children import Children, ChildT
from capture.errors import root_cause


class ActorSystem:
    """Runs a tree of actors in ``async with``; leaving it waits until all have handled their messages.

    An unsupervised crash cancels all actors and is raised from the ``async with`` block.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._group = anyio.create_task_group()
        self._children = Children(self._group)

    def spawn(self, actor: Actor[M], name: str, *, mailbox_size: int = MAILBOX_SIZE) -> ActorRef[M]:
        return self.adopt(Cell(lambda: actor, f"{self.name}/{name}", mailbox_size=mailbox_size)).ref

    def adopt(self, child: ChildT) -> ChildT:
        """Run any child, for example a supervised one."""
        return self._children.adopt(child)

    def stop(self, *, drain: bool = True) -> None:
        self._children.stop(drain=drain)

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        if error is None:
            self.stop()
        try:
            return await self._group.__aexit__(kind, error, trace)
        except BaseExceptionGroup as group:
            raise root_cause(group) from None
