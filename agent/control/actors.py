"""Actor protocols: what the actors of this package need of whoever runs them, stated structurally.

``capture.actors.actor`` satisfies it; nothing here imports it.
"""

from collections.abc import Awaitable, Callable
from typing import Any, Protocol


class Handler(Protocol):
    """An actor: one message at a time."""

    def handle(self, message: Any, /) -> Awaitable[object]: ...


class Reference(Protocol):
    """The only way to an actor."""

    def tell_nowait(self, message: Any) -> None:
        """Never waits; raises when the mailbox is full or the actor has ended."""
        ...

    async def tell(self, message: Any) -> None:
        """Waits for room in the mailbox."""
        ...

    async def ask(self, message: Any, timeout_s: float) -> Any: ...

    def stop(self, *, drain: bool = True) -> None: ...


class Surroundings(Protocol):
    """What an actor gets when it starts: itself, children, timers. All of it ends with the actor."""

    @property
    def me(self) -> Reference: ...

    def spawn(self, actor: Handler, name: str, *, mailbox_size: int = 1024) -> Reference: ...

    def keep(
        self,
        factory: Callable[[], Handler],
        name: str,
        *,
        on_crash: Callable[[Exception, bool], None],
        mailbox_size: int = 1024,
    ) -> Reference:
        """An actor that ``factory`` builds now and after every crash. ``on_crash``: with what, and whether it was one
        too many: it is not built again."""
        ...

    def schedule(self, after_s: float, message: object) -> object: ...
