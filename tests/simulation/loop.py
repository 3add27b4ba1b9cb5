"""An event loop on virtual time that runs several machines, each of which can be stopped and continued like a process.

Time jumps to the next timer whenever nothing is ready, so a minute of a quiet cluster costs nothing. Every callback
belongs to the ``Machine`` of the context it was scheduled in, or to the world. The callbacks of a machine that is
stopped are kept; when it goes on they run at once, in order, on a clock that has run on: what a process sees after
SIGSTOP and SIGCONT. Nothing here has a thread, a socket or a random number: the same program runs the same way twice.
"""

import asyncio
from asyncio import base_events, events, mixins, tasks
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import Context, ContextVar, copy_context
from heapq import heappush
from types import SimpleNamespace
from typing import Any
from unittest import mock

from anyio._backends import _asyncio as backend


class Machine:
    """What is stopped and continued as one."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_stopped = False
        self.kept: list[asyncio.Handle] = []


MACHINE: ContextVar[Machine | None] = ContextVar("machine", default=None)


#: rounds of the loop at one instant; a big cluster at its start needs hundreds
_ROUNDS_MAX = 20_000


class _Handle(events.Handle):
    _context: Context

    def _run(self) -> None:
        machine = self._context.get(MACHINE)
        if machine is not None and machine.is_stopped:
            machine.kept.append(self)
        else:
            super()._run()


class _TimerHandle(events.TimerHandle):
    _context: Context

    def _run(self) -> None:
        machine = self._context.get(MACHINE)
        if machine is not None and machine.is_stopped:
            machine.kept.append(self)
        else:
            super()._run()


class StandstillError(Exception):
    """Time does not pass any more: a task runs in a circle without ever waiting, or everybody waits for nothing."""


class _Clock:
    """Stands where a loop has its selector: waiting for events is letting time pass."""

    def __init__(self) -> None:
        self.now = 0.0
        self._rounds = 0

    def select(self, timeout: float | None) -> list[Any]:
        """:raises StandstillError: there is nothing to wait for, or no time passes whatever is done."""
        self._rounds = 0 if timeout else self._rounds + 1
        if timeout is None or self._rounds > _ROUNDS_MAX:
            raise StandstillError(f"time stands still at {self.now:.3f}")
        self.now += timeout
        return []


class SimulationLoop(base_events.BaseEventLoop):
    """``steps``: callbacks so far, a fingerprint of the run."""

    def __init__(self) -> None:
        super().__init__()
        self._selector = _Clock()
        self._ready: Any
        self._scheduled: list[asyncio.TimerHandle]
        self._clock_resolution = 1e-9
        self.steps = 0

    def time(self) -> float:
        return self._selector.now

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        self.steps += 1
        handle = _Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        timer = _TimerHandle(when, callback, args, self, context)
        heappush(self._scheduled, timer)
        timer._scheduled = True  # type: ignore[attr-defined]
        return timer

    def stop_machine(self, machine: Machine) -> None:
        machine.is_stopped = True

    def continue_machine(self, machine: Machine) -> None:
        machine.is_stopped = False
        kept, machine.kept = machine.kept, []
        self._ready.extend(kept)

    def _process_events(self, event_list: list[Any]) -> None:
        """There are none."""

    def _write_to_self(self) -> None:
        """Nobody waits in a selector."""


def context_of(machine: Machine | None) -> Context:
    """A context whose callbacks and tasks belong to ``machine``."""
    context = copy_context()
    context.run(MACHINE.set, machine)
    return context


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
    """Whoever asks which loop runs is told at once: asyncio would ask the system for the process first, each time."""
    of_loop = tasks._current_tasks.get  # type: ignore[attr-defined]

    def running() -> asyncio.AbstractEventLoop:
        return loop

    def current(of: asyncio.AbstractEventLoop | None = None) -> asyncio.Task[Any] | None:
        found: asyncio.Task[Any] | None = of_loop(loop)
        return found

    with ExitStack() as stack:
        for place in (asyncio, backend):
            stack.enter_context(mock.patch.object(place, "get_running_loop", running))
            stack.enter_context(mock.patch.object(place, "current_task", current))
        stack.enter_context(mock.patch.object(mixins, "events", SimpleNamespace(_get_running_loop=running)))
        yield


@contextmanager
def ordered_cancellation() -> Iterator[None]:
    """anyio keeps tasks and scopes in sets, which are walked in the order of their addresses: not twice the same."""
    original = backend.CancelScope.__init__

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        self._child_scopes, self._tasks = _OrderedSet(), _OrderedSet()

    with mock.patch.object(backend.CancelScope, "__init__", init):
        yield
