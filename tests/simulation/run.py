"""Run: a cluster starts, is exposed to faults for a while, left alone, and must recover.

``simulate(seed)`` is a pure function of its seed and returns the outcome.
"""

import math
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any
from unittest import mock

import anyio
import structlog

from owner import agenda
from reactor.division import divided
from reactor.division.divided import Limits
from reactor.ids import ChangefeedId
from reactor.records import formats
from reactor.records.changefeed import FeedState
from reactor.records.formats import Feature
from reactor.records.tables.held import CAPTURE_ENDED
from tests.simulation.faults import Faults
from tests.simulation.loop import SimulationLoop, StandstillError
from tests.simulation.node import Node
from tests.simulation.operator import Operator
from tests.simulation.outside import Sink
from tests.simulation.world import World, closed_world

_POLL_S = 0.25
_NEWEST = formats.NEWEST
_CALM_TRAFFIC_S = 3.0
#: share of runs that end with a comparison, which takes long
_COMPARED_SHARE = 0.25
_COMPARE_S = 60.0
#: share of runs that also have bugs in actors
_CRASHING_SHARE = 0.6
#: time to recover after the faults: lease, grace period, the longest delay of a changefeed that has failed a few times
_RECOVERY_S = 150.0
#: time until a table that kills its writers is held; and how many processes that may cost: the second may take the
#: table over before etcd has shown it what ended the first
_POISONED_S = 90.0
_CALM_S = 30.0
#: time until changefeeds flow without a capture that is deaf or dead: until owners are moved, and twice until a deaf
#: capture gives up
_FLOW_S = 40.0
_ENDS_MAX = 3


@dataclass(frozen=True, slots=True)
class Outcome:
    """``digest``: a fingerprint of the whole run. ``recovery_s``: until everything was replicated again."""

    seed: int
    digest: str
    violations: tuple[str, ...]
    story: tuple[str, ...]
    virtual_s: float
    recovery_s: float
    commits: int


class Run:
    def __init__(self, world: World) -> None:
        self._world = world
        self._random = world.chance("run")
        self._operator = Operator(world)
        self._faults = Faults(world)
        self.recovery_s = 0.0

    async def play(self) -> None:
        world = self._world
        for number in range(_cluster_size(self._random)):
            node = Node(f"n{number + 1}", world)
            world.nodes.append(node)
            node.start()
        world.spawn(self._look())
        world.spawn(self._operator.create_feeds())
        traffic = world.spawn(self._traffic())
        world.spawn(self._illness())
        world.spawn(self._poison())
        if world.is_upgraded:
            world.spawn(self._upgrade())
        await anyio.sleep(self._random.uniform(2.0, 6.0))
        if world.chance("crashing").random() < _CRASHING_SHARE:
            world.spawn(world.crashes.rage())
        await self._faults.rage(self._random.uniform(8.0, 26.0) * _haste(len(world.nodes)), self._operator)
        world.note("--- the faults are over")
        self._faults.end()
        started = world.loop.time()
        world.spawn(self._operator.put_in_order())
        await anyio.sleep(_CALM_TRAFFIC_S)
        traffic.cancel()
        with anyio.move_on_after(_RECOVERY_S):
            while self._unsettled() and not world.violations:  # noqa: ASYNC110 - it polls all machines
                await anyio.sleep(_POLL_S)
        self.recovery_s = world.loop.time() - started
        for what in self._unsettled() if not world.violations else ():
            world.violate(f"not settled after {self.recovery_s:.0f} s: {what}")
        if self._random.random() < _COMPARED_SHARE and not world.violations:
            await self._compare()

    async def _compare(self) -> None:
        """Compare source and sink while replication continues."""
        traffic = self._world.spawn(self._traffic())
        with anyio.move_on_after(_COMPARE_S) as waiting:
            await self._operator.compare_all()
        traffic.cancel()
        if waiting.cancelled_caught:
            self._world.violate(f"not compared within {_COMPARE_S:.0f} s")

    async def _upgrade(self) -> None:
        """Replace all captures by newer ones, one after the other; ``simulate`` puts back what they know."""
        world, random = self._world, self._world.chance("upgrading")
        await anyio.sleep(random.uniform(2.0, 12.0))
        world.note("--- the captures are upgraded")
        formats.NEWEST = _NEWEST
        for node in world.nodes:
            node.kill(quietly=random.random() < 0.5)
            await anyio.sleep(random.uniform(0.2, 2.0))
            node.start()

    async def _look(self) -> None:
        while True:
            await anyio.sleep(_POLL_S)
            self._world.etcd.expire()
            self._world.checks.look()

    async def _traffic(self) -> None:
        """Let sources commit, at a varying rate."""
        random = self._world.chance("traffic")
        while True:
            await anyio.sleep(random.choice((0.05, 0.2, 0.5, 2.0)) * random.random())
            for upstream in self._world.outside.upstreams.values():
                if random.random() < 0.8:
                    upstream.commit()
                else:
                    upstream.move()

    async def _illness(self) -> None:
        """Make tables of sinks fail, each for a while, until the weather clears up."""
        world, random = self._world, self._world.chance("illness")
        while True:
            await anyio.sleep(1.0)
            sinks = [sink for sink in world.outside.sinks.values() if sink.tables]
            if not sinks or random.random() >= world.weather.sicken:
                continue
            sink = random.choice(sinks)
            table = random.choice(sorted(sink.tables))
            sink.sick[table] = random.random() < 0.5
            world.note(f"table {table} of {list(world.outside.sinks.values()).index(sink)} falls ill")
            world.later(random.random() * world.weather.sick_s, partial(sink.sick.pop, table, None))

    async def _poison(self) -> None:
        """Make rows of some tables kill their writers, until the weather clears up."""
        world, random = self._world, self._world.chance("poison")
        while True:
            await anyio.sleep(1.0)
            sinks = [sink for sink in world.outside.sinks.values() if sink.tables]
            if sinks and random.random() < world.weather.poison:
                sink = random.choice(sinks)
                table = random.choice(sorted(sink.tables))
                sink.poisoned.add(table)
                world.note(f"table {table} of {list(world.outside.sinks.values()).index(sink)} is poisoned")

    def _unsettled(self) -> list[str]:
        """Return what is not yet as it should be in the end."""
        left = [f"{node.name} is down" for node in self._world.nodes if node.is_wanted and not node.is_up]
        if not self._operator.is_done:
            left.append("the operator is at work")
        left += [f"the owner of {id} is being removed" for id in self._world.checks.removing()]
        for id, feed in sorted(self._world.checks.feeds.items()):
            position, target = feed.upstream.position, feed.info.target_ts
            checkpoint_ts = feed.status.checkpoint_ts if feed.status else 0
            if target is not None and target <= position:
                if feed.info.state is not FeedState.FINISHED:
                    left.append(f"{id} is {feed.info.state} at {checkpoint_ts}, its target is {target}")
            elif feed.info.state is not FeedState.NORMAL or checkpoint_ts < position or feed.held:
                left.append(f"{id} is {feed.info.state} at {checkpoint_ts}, its source at {position}")
        return left


class PoisonedRun(Run):
    """A run without faults, except that the rows of one table kill their writers."""

    async def play(self) -> None:
        world = self._world
        world.weather.clear_up()
        for number in range(_cluster_size(self._random)):
            node = Node(f"n{number + 1}", world)
            world.nodes.append(node)
            node.start()
        await self._operator.create_feeds()
        traffic = world.spawn(self._traffic())
        sinks = list(world.outside.sinks.values())
        while not all(sink.tables for sink in sinks):  # noqa: ASYNC110 - it polls all machines
            await anyio.sleep(_POLL_S)
        endless = [feed.sink for feed in world.checks.feeds.values() if feed.info.target_ts is None]
        if not endless:
            return
        sink = self._random.choice(endless)
        table = self._random.choice(sorted(sink.tables))
        sink.poisoned.add(table)
        world.note(f"--- table {table} is poisoned")
        with anyio.move_on_after(_POISONED_S) as waiting:
            while not self._is_held_alone(sink, table):  # noqa: ASYNC110 - it polls all machines
                await anyio.sleep(_POLL_S)
        if waiting.cancelled_caught:
            world.violate(f"table {table} is not held alone after {_POISONED_S:.0f} s and {sink.ended} ends")
        ended = sink.ended
        if ended > _ENDS_MAX:
            world.violate(f"table {table} has ended {ended} processes")
        await anyio.sleep(_CALM_S)
        if sink.ended > ended or not self._is_held_alone(sink, table):
            world.violate(f"table {table} was held, and has ended {sink.ended - ended} processes since then")
        traffic.cancel()
        sink.poisoned.clear()
        world.spawn(self._operator.put_in_order())
        with anyio.move_on_after(_RECOVERY_S):
            while self._unsettled() and not world.violations:  # noqa: ASYNC110 - it polls all machines
                await anyio.sleep(_POLL_S)
        for what in self._unsettled() if not world.violations else ():
            world.violate(f"not settled: {what}")

    def _is_held_alone(self, sink: Sink, table: int) -> bool:
        for feed in self._world.checks.feeds.values():
            blamed = {id for id, held in feed.held.items() if held.error.code == CAPTURE_ENDED}
            if blamed != ({table} if feed.sink is sink else set()):
                return False
        return True


class DeafRun(Run):
    """A run without faults, except that one capture reaches the store but no other capture; later, another one that
    owns changefeeds dies, so that new owners begin while the first is deaf."""

    async def play(self) -> None:
        world = self._world
        world.weather.clear_up()
        for number in range(max(3, _cluster_size(self._random))):
            node = Node(f"n{number + 1}", world)
            world.nodes.append(node)
            node.start()
        await self._operator.create_feeds()
        world.spawn(self._look())
        traffic = world.spawn(self._traffic())
        await self._flows("before anything happens")
        deaf, *others = self._random.sample(world.nodes, len(world.nodes))
        world.note(f"--- {deaf.name} loses its peers")
        for node in others:
            world.network.cut(deaf.name, node.name)
            world.network.cut(node.name, deaf.name)
        await self._flows("without the deaf capture")
        await anyio.sleep(self._random.uniform(0.0, 30.0))
        world.checks.look()
        owners = [
            node for node in others if node.capture and any(map(node.capture.cluster.answers, world.checks.feeds))
        ]
        victim = self._random.choice(owners or others)
        victim.kill(quietly=self._random.random() < 0.5)
        await self._flows("after an owner has died")
        traffic.cancel()
        world.network.heal_all()
        victim.start()
        world.spawn(self._operator.put_in_order())
        with anyio.move_on_after(_RECOVERY_S):
            while self._unsettled() and not world.violations:  # noqa: ASYNC110 - it polls all machines
                await anyio.sleep(_POLL_S)
        for what in self._unsettled() if not world.violations else ():
            world.violate(f"not settled: {what}")

    async def _flows(self, when: str) -> None:
        """Wait until all changefeeds have what their sources have committed so far."""
        positions = {id: feed.upstream.position for id, feed in self._world.checks.feeds.items()}
        with anyio.move_on_after(_FLOW_S):
            while self._behind(positions):  # noqa: ASYNC110 - it polls all machines
                await anyio.sleep(_POLL_S)
        for id in self._behind(positions):
            self._world.violate(f"{id} does not flow {when}")

    def _behind(self, positions: Mapping[ChangefeedId, int]) -> list[ChangefeedId]:
        feeds = self._world.checks.feeds
        return [
            id
            for id, position in positions.items()
            if (feed := feeds[id]).info.state is not FeedState.FINISHED
            and (feed.status is None or feed.status.checkpoint_ts < min(position, feed.info.target_ts or position))
        ]


def simulate(seed: int, *, kind: type[Run] = Run) -> Outcome:
    """Run one seed."""
    loop = SimulationLoop()
    world = World(seed, loop)

    def to_story(logger: Any, name: str, event: MutableMapping[str, Any]) -> str:
        event["log_level"] = name
        world.note(" ".join(f"{key}={value}" for key, value in event.items() if key != "exc_info"))
        world.checks.on_log(dict(event))
        raise structlog.DropEvent

    before = structlog.get_config()
    structlog.configure(processors=[to_story])
    try:
        newest = formats.NEWEST if world.has_owners else Feature.OWNERS - 1
        with (
            closed_world(world),
            mock.patch.object(divided, "LIMITS", _limits(world.chance("division"))),
            mock.patch.object(formats, "NEWEST", newest),
            mock.patch.object(agenda, "_MANY", world.chance("agenda").choice((0, agenda._MANY))),
        ):
            return _run(world, loop, kind)
    finally:
        structlog.configure(**before)
        loop.close()


def _limits(random: Random) -> Limits:
    """Return sizes by which most runs divide records of a few tables, and write most of their parts before."""
    if random.random() < 0.3:
        return Limits()
    together = random.choice((0, 500, 10_000))
    return Limits(whole=random.choice((100, 400, 1_000)), part=random.choice((60, 200)), group=300, together=together)


def _run(world: World, loop: SimulationLoop, kind: type[Run]) -> Outcome:
    run: list[Run] = []

    digest = ""

    async def main() -> None:
        nonlocal digest
        run.append(kind(world))
        await run[0].play()
        digest = world.digest()
        await world.end()

    try:
        loop.run_until_complete(main())
        loop.run_until_complete(loop.shutdown_asyncgens())
    except StandstillError as error:
        world.violate(str(error))
    commits = sum(len(table.rows) for sink in world.outside.sinks.values() for table in sink.tables.values())
    return Outcome(
        seed=world.seed,
        digest=digest or world.digest(),
        violations=tuple(world.violations),
        story=tuple(world.story),
        virtual_s=loop.time(),
        recovery_s=run[0].recovery_s,
        commits=commits,
    )


def _cluster_size(random: Random) -> int:
    """Return the cluster's size. Most bugs need three captures at most, and a big cluster takes as long as several
    small ones."""
    return random.choices((3, 4, 5, 7, 10, 15, 20), weights=(60, 16, 10, 7, 4, 2, 1))[0]


def _haste(nodes: int) -> float:
    """Return the rate of faults: more captures see as many faults in a shorter time."""
    return min(1.0, 2.0 / math.sqrt(nodes))
