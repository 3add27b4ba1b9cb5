"""Simulation loop: an event loop on virtual time that runs several machines, each of which can be stopped and
continued.

Time jumps to the next timer whenever nothing is ready, so a minute of a quiet cluster costs nothing. Every callback
belongs to the ``Machine`` of the context it was scheduled in, or to the world. The callbacks of a stopped machine are
kept; when it continues they run at once, in order, on a clock that has advanced: what a process sees after SIGSTOP and
SIGCONT. There are no threads, sockets or random numbers here, so the same program always runs the same way.
"""

import asyncio
from asyncio import base_events, events
from collections import deque
from collections.abc import Callable
from contextvars import Context, ContextVar, copy_context
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Any


class Machine:
    """A unit that is stopped and continued as a whole."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_stopped = False
        self.kept: list[asyncio.Handle] = []


MACHINE: ContextVar[Machine | None] = ContextVar("machine", default=None)


#: maximum rounds of the loop at one instant; a big cluster at its start needs hundreds
_ROUNDS_MAX = 20_000
#: cancelled timers before they are removed all at once
_CANCELLED_MAX = 500


class StandstillError(Exception):
    """Time no longer advances: a task loops without waiting, or nothing is scheduled."""


class _Handle(events.Handle):
    """Like its base, without debugging support; created and run some ten thousand times a second."""

    _context: Context

    def __init__(self, callback: Callable[..., Any], args: Any, loop: Any, context: Context | None) -> None:
        self._context = copy_context() if context is None else context
        self._loop, self._callback, self._args = loop, callback, args
        self._cancelled = False
        self._repr = self._source_traceback = None

    def _run(self) -> None:
        machine = self._context.get(MACHINE)
        if machine is not None and machine.is_stopped:
            machine.kept.append(self)
        else:
            self._context.run(self._callback, *self._args)


class _TimerHandle(events.TimerHandle):
    _context: Context

    def __init__(
        self, when: float, callback: Callable[..., Any], args: Any, loop: Any, context: Context | None
    ) -> None:
        _Handle.__init__(self, callback, args, loop, context)  # type: ignore[arg-type]
        self._when, self._scheduled = when, True

    _run = _Handle._run


class SimulationLoop(base_events.BaseEventLoop):
    """``steps``: callbacks so far, a fingerprint of the run."""

    def __init__(self) -> None:
        super().__init__()
        self._ready: deque[asyncio.Handle] = deque()
        #: numbered, so that timers of one instant fire in the order in which they were set
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._numbers = count()
        self._timer_cancelled_count = 0
        self._now = 0.0
        self._rounds = 0
        self.steps = 0

    def time(self) -> float:
        return self._now

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
        heappush(self._timers, (when, next(self._numbers), timer))
        return timer

    def stop_machine(self, machine: Machine) -> None:
        machine.is_stopped = True

    def continue_machine(self, machine: Machine) -> None:
        machine.is_stopped = False
        kept, machine.kept = machine.kept, []
        self._ready.extend(kept)

    def _run_once(self) -> None:
        """Run one round: everything that is ready, or else the next timer.

        :raises StandstillError: nothing is scheduled, or time does not advance.
        """
        ready = self._ready
        self._rounds = self._rounds + 1 if ready or self._stopping else 0  # type: ignore[attr-defined]
        if self._rounds > _ROUNDS_MAX:
            raise StandstillError(f"time stands still at {self._now:.3f}")
        if not self._rounds:
            self._wait()
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle._cancelled:
                handle._run()

    def _wait(self) -> None:
        """Advance time until something is due."""
        if self._timer_cancelled_count > _CANCELLED_MAX:
            self._timers = [entry for entry in self._timers if not entry[2].cancelled()]
            heapify(self._timers)
            self._timer_cancelled_count = 0
        timers = self._timers
        while timers and timers[0][2].cancelled():
            heappop(timers)
        if not timers:
            raise StandstillError(f"everybody waits for nothing at {self._now:.3f}")
        self._now = max(self._now, timers[0][0])
        while timers and timers[0][0] <= self._now:
            self._ready.append(heappop(timers)[2])

    def _write_to_self(self) -> None:
        """Does nothing: there is no selector to wake up."""


def context_of(machine: Machine | None) -> Context:
    """Return a context whose callbacks and tasks belong to ``machine``."""
    context = copy_context()
    context.run(MACHINE.set, machine)
    return context
