"""World: all state of one run, its clock, random numbers and event log.

A run is a function of its seed. Inputs from the standard library (ids and the time of day) are replaced for the
duration of a run, so that the program under test need not know.
"""

import gc
import hashlib
import random
import uuid
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar
from unittest import mock

import anyio

from agent.control.agent import Agent
from agent.control.processors import Processors
from owner.controller.controller import Controller
from owner.owner import Owner
from reactor.errors import WeirError
from reactor.worker.loop import ReactorWorker
from tests.simulation.backend import known_loop, ordered_cancellation
from tests.simulation.checks import Checks
from tests.simulation.crashes import Crashes
from tests.simulation.etcd import SeenEtcd
from tests.simulation.loop import SimulationLoop, context_of
from tests.simulation.network import Network
from tests.simulation.node import Node
from tests.simulation.outside import Outside, ViolationError
from tests.simulation.weather import Weather

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")

_END_S = 60
#: share of runs whose captures know owners of single changefeeds; in the others the elected one owns all
_SPREAD_SHARE = 0.65
#: share of the others whose captures are upgraded while changefeeds run
_UPGRADED_SHARE = 0.5

_EPOCH_S = 1_750_000_000.0


class World:
    """All state of one run. ``note`` adds to the log, by which runs of a seed are compared."""

    cluster = "sim"

    def __init__(self, seed: int, loop: SimulationLoop) -> None:
        self.seed = seed
        self.loop = loop
        self.story: list[str] = []
        self.violations: list[str] = []
        self.chances = self.chance("world")
        #: changefeeds have owners of their own from the beginning; else the captures may be upgraded
        self.has_owners = self.chance("owners").random() < _SPREAD_SHARE
        self.is_upgraded = not self.has_owners and self.chance("upgrade").random() < _UPGRADED_SHARE
        self.weather = Weather.drawn(self.chance("weather"))
        self.outside = Outside()
        self.etcd = SeenEtcd()
        self.network = Network(loop, self.chance("network"))
        self.checks = Checks(self)
        self.crashes = Crashes(self, self.chance("crashes"))
        self.etcd.on_write = self.checks.on_write
        self.nodes: list[Node] = []
        #: a mapping, because sets of tasks iterate in a different order each time
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._is_over = False

    @property
    def now(self) -> float:
        """Return the time of day."""
        return _EPOCH_S + self.loop.time()

    def chance(self, *names: object) -> random.Random:
        """Return a separate random generator per purpose, so that one more draw here changes nothing there."""
        return random.Random(f"{self.seed}/{'/'.join(map(str, names))}")

    def note(self, text: str) -> None:
        self.story.append(f"{self.loop.time():9.3f} {text}")

    def violate(self, text: str) -> None:
        self.note(f"VIOLATION {text}")
        self.violations.append(f"at {self.loop.time():.3f}: {text}")

    def digest(self) -> str:
        """Return a fingerprint of the run's log: equal for two runs if they went the same way."""
        text = "\n".join([*self.story, str(self.loop.steps), str(self.etcd.revision)])
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def spawn(self, work: Coroutine[Any, Any, None], machine: Node | None = None) -> "asyncio.Task[None]":
        """Start a task of a machine, or of the world."""
        task = self.loop.create_task(work, context=context_of(machine))
        self._tasks[task] = None
        task.add_done_callback(self._on_done)
        return task

    def later(self, after_s: float, action: Callable[[], object]) -> None:
        """Schedule an action in the world, whatever becomes of the caller."""

        async def act() -> None:
            await anyio.sleep(after_s)
            action()

        self.spawn(act())

    async def request(self, action: Callable[[], T], *, after_s: float) -> T:
        """Send a request to where it is applied, and wait for the answer; it is applied even if the caller is gone."""
        done = anyio.Event()
        outcome: list[T] = []
        failure: list[WeirError] = []

        async def carry() -> None:
            await anyio.sleep(after_s)
            try:
                outcome.append(action())
            except WeirError as error:
                failure.append(error)
            except ViolationError as error:
                self.violate(str(error))
            await anyio.sleep(0.002)
            done.set()

        self.spawn(carry())
        await done.wait()
        if failure:
            raise failure[0]
        if not outcome:
            await anyio.sleep_forever()
        return outcome[0]

    async def end(self) -> None:
        """Stop everything."""
        self._is_over = True
        for node in self.nodes:
            node.kill(quietly=True)
        for task in list(self._tasks):
            task.cancel()
        for _ in range(_END_S):
            if not self._tasks:
                return
            await anyio.sleep(1.0)
        self.violate(f"cancelled, but still at work after {_END_S} s: {list(self._tasks)}")

    def _on_done(self, task: "asyncio.Task[None]") -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None and not self._is_over:
            self.violate(f"a task crashed: {type(error).__name__}: {error}")


def _clock_of(world: World) -> Callable[[], float]:
    return lambda: world.now


def _watched(tick: Callable[[ReactorWorker, float], bool], world: World) -> Callable[[ReactorWorker, float], bool]:
    def watched(worker: ReactorWorker, now: float) -> bool:
        world.checks.note_tick(worker)
        done = tick(worker, now)
        if isinstance(worker._reactor, Controller | Owner | Processors):
            world.checks.validate(worker._reactor)
        return done

    return watched


def _validated(method: Callable[..., T], world: World) -> Callable[..., T]:
    """Wrap an agent's method to validate its state afterwards."""

    def validated(self: Agent, *args: Any) -> T:
        done = method(self, *args)
        world.checks.validate(self)
        return done

    return validated


@contextmanager
def _no_collection() -> Iterator[None]:
    """Disable the garbage collector, which closes abandoned generators at moments that depend on earlier runs."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.freeze()  # excludes existing objects, so that the next run's collection costs next to nothing
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def closed_world(world: World) -> Iterator[None]:
    """Derive ids and the time of day from the seed."""
    ids = world.chance("ids")

    def new_id() -> uuid.UUID:
        return uuid.UUID(int=ids.getrandbits(128), version=4)

    with ExitStack() as stack:
        stack.enter_context(_no_collection())
        stack.enter_context(ordered_cancellation())
        stack.enter_context(known_loop(world.loop))
        stack.enter_context(mock.patch("uuid.uuid4", new_id))
        stack.enter_context(mock.patch.object(ReactorWorker, "_tick", _watched(ReactorWorker._tick, world)))
        stack.enter_context(world.crashes.planted())
        for name in ("handle", "handle_event", "tick"):
            stack.enter_context(mock.patch.object(Agent, name, _validated(getattr(Agent, name), world)))
        stack.enter_context(mock.patch("time.time", _clock_of(world)))
        yield
