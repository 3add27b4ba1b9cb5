"""What anyio and asyncio do in ways that a run must not depend on, or that cost a run too much.

Tasks and scopes are kept in sets there, which are walked in the order of their addresses: not twice the same. And each
call finds out anew which library and which loop are running, asking the system for the process; here it is known.
"""

import asyncio
import sys
from asyncio import mixins, tasks
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

from anyio._backends import _asyncio as backend


class _OrderedSet(dict[Any, None]):
    """A set that is walked in the order of insertion."""

    def add(self, item: Any) -> None:
        self[item] = None

    def discard(self, item: Any) -> None:
        self.pop(item, None)

    def remove(self, item: Any) -> None:
        del self[item]


@contextmanager
def known_loop(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Whoever asks which loop runs has the answer at once."""
    of_loop = tasks._current_tasks.get  # type: ignore[attr-defined]

    def running() -> asyncio.AbstractEventLoop:
        return loop

    def current(of: asyncio.AbstractEventLoop | None = None) -> asyncio.Task[Any] | None:
        found: asyncio.Task[Any] | None = of_loop(loop)
        return found

    def backend_class(name: str | None = None) -> type[backend.AsyncIOBackend]:
        return backend.AsyncIOBackend

    with ExitStack() as stack:
        for place in (asyncio, backend):
            stack.enter_context(mock.patch.object(place, "get_running_loop", running))
            stack.enter_context(mock.patch.object(place, "current_task", current))
        for module in _anyio_modules():
            stack.enter_context(mock.patch.object(module, "get_async_backend", backend_class))
        stack.enter_context(mock.patch.object(mixins, "events", SimpleNamespace(_get_running_loop=running)))
        yield


def _anyio_modules() -> list[Any]:
    found = [module for name, module in sorted(sys.modules.items()) if name.startswith("anyio.")]
    return [module for module in found if hasattr(module, "get_async_backend")]


@contextmanager
def ordered_cancellation() -> Iterator[None]:
    """anyio keeps tasks and scopes in sets, which are walked in the order of their addresses: not twice the same."""
    original = backend.CancelScope.__init__

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        self._child_scopes, self._tasks = _OrderedSet(), _OrderedSet()

    with mock.patch.object(backend.CancelScope, "__init__", init):
        yield
