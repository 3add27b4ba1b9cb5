"""Actor protocols: what the actors of this package need of their runtime, as structural types.

``capture.actors.actor`` implements them; nothing here imports it.
"""

from collections.abc import Awaitable, Callable
from typing import Any, Protocol


class Handler(Protocol):
    """Handles one message at a time."""

    def handle(self, message: Any, /) -> Awaitable[object]: ...


class Reference(Protocol):
    """A reference to an actor."""

    def tell_nowait(self, message: Any) -> None:
        """Send without waiting; raises if the mailbox is full or the actor has ended."""
        ...

    async def tell(self, message: Any) -> None:
        """Send, waiting for room in the mailbox."""
        ...

    async def ask(self, message: Any, timeout_s: float) -> Any: ...

    def stop(self, *, drain: bool = True) -> None: ...


class ActorContext(Protocol):
    """An actor's view of its runtime: its own reference, its children and its timers. They end when it ends."""

    @property
    def me(self) -> Reference: ...

    def spawn(self, actor: Handler, name: str, *, mailbox_size: int = 1024) -> Reference: ...

    def spawn_supervised(
        self,
        factory: Callable[[], Handler],
        name: str,
        *,
        on_crash: Callable[[Exception, bool], None],
        mailbox_size: int = 1024,
    ) -> Reference:
        """Start a child that ``factory`` creates now and after every crash. ``on_crash`` gets the error, and whether
        the restart budget is exhausted."""
        ...

    def schedule(self, after_s: float, message: object) -> object: ...
