"""Actor system: the root of a tree of actors and supervisors."""

from types import TracebackType
from typing import Self

import anyio

from capture.actors.actor import MAILBOX_SIZE, Actor, ActorRef, Cell, M
from capture.actors.children import ChildT, Family
from capture.errors import root_cause


class ActorSystem:
    """The root of a tree of actors: ``async with`` runs them; leaving waits until all have read their mailboxes.

    A crash that no supervisor takes care of cancels everything and is raised where the system was entered: a system
    that continues without one of its parts would look healthy and not be.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._group = anyio.create_task_group()
        self._family = Family(self._group)

    def spawn(self, actor: Actor[M], name: str, *, mailbox_size: int = MAILBOX_SIZE) -> ActorRef[M]:
        return self.adopt(Cell(lambda: actor, f"{self.name}/{name}", mailbox_size=mailbox_size)).ref

    def adopt(self, child: ChildT) -> ChildT:
        """Run a supervisor, or anything else that runs, stops and closes."""
        return self._family.adopt(child)

    def stop(self, *, drain: bool = True) -> None:
        self._family.stop(drain=drain)

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
