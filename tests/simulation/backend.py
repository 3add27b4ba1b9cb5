"""Backend patches: removes nondeterminism of anyio and asyncio, and overhead.

They keep tasks and scopes in sets, which are iterated in the order of addresses and so differ between runs. They also
detect the running library and loop on every call, which includes a system call for the process id; here both are known.
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
    """A set that iterates in the order of insertion."""

    def add(self, item: Any) -> None:
        self[item] = None

    def discard(self, item: Any) -> None:
        self.pop(item, None)

    def remove(self, item: Any) -> None:
        del self[item]


@contextmanager
def known_loop(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Return the running loop without a system call."""
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
    """Replace the sets in which anyio keeps tasks and scopes, which iterate in the order of addresses."""
    original = backend.CancelScope.__init__

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        self._child_scopes, self._tasks = _OrderedSet(), _OrderedSet()

    with mock.patch.object(backend.CancelScope, "__init__", init):
        yield
