"""Injected crashes: bugs in the actors of one changefeed, which must affect no other changefeed and lose nothing.

The next call of a handler method, on one machine and for one changefeed, raises an unexpected exception: before it has
done anything, or after it has done everything. Crashes are far enough apart for the restart budgets.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any
from unittest import mock

import anyio

from agent.control.flusher import Flusher
from agent.control.processor import Processor
from agent.control.span_writer import SpanWriter
from capture.member.ownership.controller_actor import ControllerActor
from capture.member.ownership.owners import OwnersActor
from owner.controller.controller import Controller
from owner.feed.changefeed import Changefeed
from owner.owner import Owner

if TYPE_CHECKING:
    from tests.simulation.world import World

#: budgets are five crashes a minute, and faults last for less than half a minute
_APART_S = 5.0
_PACE_S = 3.0
#: contained in the log line of an injected crash
INJECTED = "injected crash"

#: method → the actor it belongs to; coroutines first
_ASYNC: tuple[tuple[type, str, str], ...] = (
    (SpanWriter, "handle", "span"),
    (SpanWriter, "_prepare", "span"),
    (SpanWriter, "_run", "span"),
    (SpanWriter, "_stop", "span"),
    (SpanWriter, "_handle", "span"),
    (Flusher, "_flush", "processor"),
    (Flusher, "handle", "processor"),
    (Processor, "handle", "processor"),
    (ControllerActor, "handle", "controller"),
    (OwnersActor, "handle", "owner"),
)
_PLAIN: tuple[tuple[type, str, str], ...] = (
    (Processor, "_on_moved", "processor"),
    (Processor, "_prepare", "processor"),
    (Changefeed, "tick", "owner"),
    (Changefeed, "_judge", "owner"),
    (Changefeed, "handle_answer", "owner"),
    (Owner, "tick", "owner"),
    (Controller, "tick", "controller"),
)


class InjectedCrash(Exception):
    """An unexpected exception."""


@dataclass(slots=True)
class _Wanted:
    method: str
    is_after: bool


class Crashes:
    """``rage`` injects crashes one after the other; ``planted`` instruments the methods."""

    def __init__(self, world: "World", random: Random) -> None:
        self._world = world
        self._random = random
        self._wanted: _Wanted | None = None
        #: most runs use only a few methods: otherwise frequent ones would hide rare ones
        methods = [*_ASYNC, *_PLAIN]
        self._methods = random.sample(methods, min(len(methods), random.choice((1, 2, 4, 100))))
        self._last_s = float("-inf")
        self._is_over = False

    async def rage(self) -> None:
        """Inject crashes until the faults are over."""
        while not self._is_over:
            await anyio.sleep(self._random.expovariate(1 / _PACE_S))
            self._strike()

    def _strike(self) -> None:
        if self._is_over or self._world.loop.time() - self._last_s < _APART_S:
            return
        owner, name, _ = self._random.choice(self._methods)
        self._wanted = _Wanted(f"{owner.__name__}.{name}", self._random.random() < 0.5)

    def end(self) -> None:
        self._is_over, self._wanted = True, None

    @contextmanager
    def planted(self) -> Iterator[None]:
        with ExitStack() as stack:
            for owner, name, _ in _ASYNC:
                method = self._watched(owner, name)
                stack.enter_context(mock.patch.object(owner, name, method))
            for owner, name, _ in _PLAIN:
                method = self._watched_plain(owner, name)
                stack.enter_context(mock.patch.object(owner, name, method))
            yield

    def _watched(self, owner: type, name: str) -> Callable[..., Any]:
        original, label = getattr(owner, name), f"{owner.__name__}.{name}"

        async def watched(actor: Any, *args: Any, **kwargs: Any) -> Any:
            wanted = self._take(label)
            if wanted is not None and not wanted.is_after:
                self._crash(label, wanted)
            done = await original(actor, *args, **kwargs)
            if wanted is not None:
                self._crash(label, wanted)
            return done

        return watched

    def _watched_plain(self, owner: type, name: str) -> Callable[..., Any]:
        original, label = getattr(owner, name), f"{owner.__name__}.{name}"

        def watched(actor: Any, *args: Any, **kwargs: Any) -> Any:
            wanted = self._take(label)
            if wanted is not None and not wanted.is_after:
                self._crash(label, wanted)
            done = original(actor, *args, **kwargs)
            if wanted is not None:
                self._crash(label, wanted)
            return done

        return watched

    def _take(self, label: str) -> _Wanted | None:
        wanted = self._wanted
        if wanted is None or wanted.method != label:
            return None
        self._wanted, self._last_s = None, self._world.loop.time()
        return wanted

    def _crash(self, label: str, wanted: _Wanted) -> None:
        self._world.note(f"{INJECTED} {'after' if wanted.is_after else 'before'} {label}")
        raise InjectedCrash(f"{INJECTED} of {label}")
