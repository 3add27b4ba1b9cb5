"""Faults: what is done to the cluster, one fault after another, many overlapping, all of them healed in the end."""

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

import anyio

from reactor.errors import StoreError
from reactor.ids import CaptureId
from reactor.records.changefeed import Unit

if TYPE_CHECKING:
    from tests.simulation.node import Node
    from tests.simulation.operator import Operator
    from tests.simulation.world import World

_LONG_S = (0.5, 2.0, 6.0, 12.0)
_SLOW_LINK_S = (0.2, 1.0, 3.0)
#: how often a fault is followed by a slow link; in most runs never, since slow links hide what others would show
_SLOW_SHARES = (0.0, 0.0, 0.2)


class Faults:
    """Injects faults with ``rage`` for a while, then heals everything with ``end``."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._random = world.chance("faults")
        self._is_raging = True
        world.network.slow_s = world.weather.slow_network_s
        world.network.break_chance = world.weather.break_stream
        kinds: list[tuple[int, Callable[[], None]]] = [
            (3, self._kill),
            (4, self._stop),
            (3, self._cut_from_etcd),
            (3, self._cut_between),
            (1, self._lose_etcd),
            (1, self._kill_owner),
            (2, self._strike_owner),
            (3, self._strike_worker),
            (2, self._reset_streams),
            (2, self._compact),
            (2, self._leave),
        ]
        # some kinds are left out, since one fault may mask the effects of another
        self._kinds = [kind for weight, kind in kinds for _ in range(weight) if self._random.random() < 0.7]
        self._pace_s = self._random.choice((0.5, 1.2, 2.5))
        self._links = world.chance("links")
        self._slow_share = self._links.choice(_SLOW_SHARES)

    async def rage(self, seconds: float, operator: "Operator") -> None:
        until = self._world.loop.time() + seconds
        pace_s = self._pace_s * (3 / len(self._world.nodes)) ** 0.5
        while self._world.loop.time() < until and not self._world.violations:
            await anyio.sleep(self._random.expovariate(1 / pace_s))
            if self._kinds and self._random.random() < 0.7:
                self._random.choice(self._kinds)()
            else:
                operator.meddle()
            if self._links.random() < self._slow_share:
                self._slow_down_link()

    def end(self) -> None:
        """Heal everything; how the cluster recovers is checked later."""
        world = self._world
        self._is_raging = False
        world.crashes.end()
        world.weather.clear_up()
        world.network.slow_s, world.network.break_chance = world.weather.slow_network_s, 0.0
        world.network.heal_all()
        world.network.slow_links.clear()
        for sink in world.outside.sinks.values():
            sink.sick.clear()
            sink.poisoned.clear()
        for node in world.nodes:
            if node.is_stopped:
                node.carry_on()
            if node.way is not None:
                node.way.heal()
            node.start()

    def _kill(self) -> None:
        self._to_any(self._kill_node)

    def _kill_owner(self) -> None:
        """Kill every capture that considers itself the owner."""
        owners = [node for node in self._world.nodes if node.is_up and node.capture and node.capture.cluster.is_owner]
        if owners:
            self._kill_node(self._random.choice(owners))

    def _strike_owner(self) -> None:
        """Kill, stop or cut off a capture that owns a changefeed."""
        feeds = sorted(self._world.checks.feeds)
        up = [node for node in self._world.nodes if node.is_up and node.capture]
        owners = [node for node in up if node.capture and any(map(node.capture.cluster.answers, feeds))]
        if owners:
            strike = self._random.choice((self._kill_node, self._stop_node, self._cut_node_from_etcd))
            strike(self._random.choice(owners))

    def _strike_worker(self) -> None:
        """Kill a capture in the middle of a dump or a load; otherwise one that reads a source."""
        units = [feed.unit for feed in self._world.checks.feeds.values() if feed.unit is not None]
        begun = [unit for unit in units if unit.unit is not Unit.SYNC] or units
        workers = {unit.worker for unit in begun}
        nodes = [node for node in self._world.nodes if node.is_up and node.capture and _id_of(node) in workers]
        if nodes:
            strike = self._random.choice((self._kill_node, self._stop_node, self._cut_node_from_etcd))
            strike(self._random.choice(nodes))

    def _kill_node(self, node: "Node") -> None:
        node.kill(quietly=self._random.random() < 0.4)
        self._after(node.start)

    def _leave(self) -> None:
        if node := self._any_node():
            node.leave()
            self._after(node.start)

    def _stop(self) -> None:
        """Stop it like SIGSTOP, often for longer than the lease."""
        self._to_any(self._stop_node)

    def _stop_node(self, node: "Node") -> None:
        node.stop()
        self._after(lambda: node.carry_on() if node.is_stopped else None)

    def _cut_from_etcd(self) -> None:
        self._to_any(self._cut_node_from_etcd)

    def _cut_node_from_etcd(self, node: "Node") -> None:
        if node.way is not None and not node.way.is_cut:
            way = node.way
            self._world.note(f"{node.name} cut from etcd")
            way.cut()
            self._after(way.heal, f"{node.name} reaches etcd again")

    def _lose_etcd(self) -> None:
        """Cut off all captures, as when etcd restarts."""
        ways = [node.way for node in self._world.nodes if node.way is not None and not node.way.is_cut]
        self._world.note("etcd is down")
        for way in ways:
            way.cut()

        def heal() -> None:
            for way in ways:
                way.heal()

        self._after(heal, "etcd is up again")

    def _cut_between(self) -> None:
        """Cut one machine from all others, or two from each other; in one or both directions."""
        node = self._random.choice(self._world.nodes)
        others = [other for other in self._world.nodes if other is not node]
        if self._random.random() < 0.5:
            others = [self._random.choice(others)]
        way = self._random.choice(("in", "out", "both"))
        self._world.note(f"{node.name} cut {way} from {', '.join(other.name for other in others)}")
        pairs = [(node.name, other.name) for other in others if way != "in"]
        pairs += [(other.name, node.name) for other in others if way != "out"]
        network = self._world.network

        def heal() -> None:
            for pair in pairs:
                network.heal(*pair)

        for pair in pairs:
            network.cut(*pair)
        self._after(heal, f"{node.name} joined again")

    def _slow_down_link(self) -> None:
        """Delay what one machine sends to the others, or to one of them; their own messages are as fast as before."""
        node = self._links.choice(self._world.nodes)
        others = [other for other in self._world.nodes if other is not node]
        if self._links.random() < 0.5:
            others = [self._links.choice(others)]
        slow_s = self._links.choice(_SLOW_LINK_S)
        self._world.note(f"{node.name} sends {slow_s} s slower to {', '.join(other.name for other in others)}")
        links = self._world.network.slow_links
        pairs = [(node.name, other.name) for other in others]
        links.update(dict.fromkeys(pairs, slow_s))

        def heal() -> None:
            for pair in pairs:
                links.pop(pair, None)

        self._after(heal, f"{node.name} sends at full speed again")

    def _reset_streams(self) -> None:
        if node := self._any_node():
            self._world.note(f"connections of {node.name} reset")
            self._world.network.break_streams(node.name, quietly=self._random.random() < 0.5)

    def _compact(self) -> None:
        self._world.note("etcd compacts")

        async def compact() -> None:
            with suppress(StoreError):  # nothing new since the last compaction
                self._world.etcd.compact(self._world.etcd.revision)

        self._world.spawn(compact())

    def _to_any(self, what: Callable[["Node"], None]) -> None:
        if node := self._any_node():
            what(node)

    def _any_node(self) -> "Node | None":
        up = [node for node in self._world.nodes if node.is_up]
        return self._random.choice(up) if up else None

    def _after(self, action: Callable[[], object], text: str = "") -> None:
        """Schedule the undo of a fault, unless everything has been healed before."""

        def undo() -> None:
            if self._is_raging:
                if text:
                    self._world.note(text)
                action()

        self._world.later(self._random.random() * self._random.choice(_LONG_S), undo)


def _id_of(node: "Node") -> CaptureId | None:
    membership = node.capture.membership if node.capture else None
    return membership.info.id if membership else None
