"""Operator: issues commands: creates changefeeds, changes them at random, and restores order in the end.

All commands go through the cluster service that the HTTP API uses, and may fail as they would there: what counts is
their effect.
"""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import anyio

from capture.api import port as views
from capture.errors import ChangefeedExistsError
from capture.member.cluster_service import ClusterService
from owner import jobs
from reactor.errors import WeirError
from reactor.ids import CaptureId, ChangefeedId, Ts
from reactor.records.changefeed import ChangefeedConfig, FeedState, Mode
from reactor.records.tables.held import HoldStage
from tests.simulation.outside import Sink, Upstream

if TYPE_CHECKING:
    from tests.simulation.node import Node
    from tests.simulation.world import World

_RETRY_S = 1.0
_RETENTION_S = 5
#: share of commands that remove a changefeed and create another of its name
_REPLACED = 0.08
#: how often a source loses its log, of all commands
_LOSSES = 0.03
#: share of commands that are for the controller
_FOR_THE_CLUSTER = 0.25


class Operator:
    """``is_done``: no command is unfinished, and every changefeed is supposed to run."""

    def __init__(self, world: "World") -> None:
        self.is_done = False
        self._world = world
        self._random = world.chance("operator")
        self._losses = world.chance("losses")
        self._created = 0
        self._names = [ChangefeedId(f"feed{number + 1}") for number in range(self._random.choice((1, 1, 2, 3)))]
        self._doomed: set[ChangefeedId] = set()
        self._compared: set[ChangefeedId] = set()
        #: what the next command is about; empty: the cluster
        self._next = ""

    async def create_feeds(self) -> None:
        for name in self._names:
            await self._create(name)

    def meddle(self) -> None:
        """Issue one random command, whether it makes sense or not."""
        commands: list[Callable[[ClusterService], Awaitable[object]]] = [
            lambda service: self._pause(self._name(), service),
            lambda service: self._resume(self._name(), service),
            lambda service: self._resume(self._name(), service),
            self._go_back,
            self._rewind,
            self._amend,
            self._amend,
            self._hold,
            self._hold,
            self._compare,
            self._compare,
            lambda service: service.ask(jobs.Rebalance("", self._name())),
            self._move_table,
            self._move_table,
            self._repartition,
            self._repartition,
            self._resync,
            self._resync,
            self._resync,
        ]
        of_the_cluster: list[Callable[[ClusterService], Awaitable[object]]] = [
            self._drain,
            self._move_owner,
            self._move_owner,
            self._move_owner,
            lambda service: service.ask(jobs.ResignOwner("")),
            lambda service: service.ask(jobs.ResignOwner("")),
        ]
        self._next = "" if self._random.random() < _FOR_THE_CLUSTER else self._random.choice(self._names)
        command = self._random.choice(commands if self._next else of_the_cluster)
        chance = self._random.random()
        if self._losses.random() < _LOSSES:
            self._lose_position(self._losses.choice(self._names))
        if chance < _REPLACED:
            self._world.spawn(self._replace(self._name()))
        elif chance < _REPLACED + 0.08:
            self._pause_all()
        elif node := self._answering(self._next):
            self._world.spawn(self._try(node, command))

    async def put_in_order(self) -> None:
        """After the faults: resume what was stopped, and finish partial creations and removals."""
        while True:
            self.is_done = not self._doomed
            for name in self._names:
                feed = self._world.checks.feeds.get(name)
                if feed is None:
                    self.is_done = False
                    if name not in self._doomed:
                        await self._create(name)
                elif feed.info.state in (FeedState.STOPPED, FeedState.FAILED):
                    self.is_done = False
                    if node := self._answering(name):
                        await self._try(node, partial(self._resume, name))
                elif feed.info.state is FeedState.REMOVED or feed.resyncs or feed.is_lost:
                    self.is_done = False
                    if feed.is_lost and feed.info.target_ts is not None and (node := self._answering(name)):
                        await self._try(node, partial(self._pause, name), is_quiet=True)
                elif any(table.stage is HoldStage.HELD for table in feed.held.values()):
                    self.is_done = False
                    if node := self._answering(name):
                        await self._try(node, _resume(name), is_quiet=True)
            await anyio.sleep(_RETRY_S)

    async def _create(self, name: ChangefeedId) -> None:
        """Create a changefeed with its own source and sink; retry until it exists."""
        self._created += 1
        number, world = self._created, self._world
        upstream = Upstream(self._random.randint(1, 4), world.chance("source", number), world.chance("whims", number))
        world.outside.upstreams[f"sim://source{number}"] = upstream
        if len(upstream.tables) > 1 and self._losses.random() < 0.5:
            upstream.come_later(len(upstream.tables), Ts(upstream.position + self._losses.randint(100, 900)))
        for _ in range(self._random.randint(0, 5)):
            upstream.commit()
        target_ts = upstream.position + self._random.randint(0, 1500) if self._random.random() < 0.3 else None
        sink = Sink(upstream, lambda text: world.note(f"{name} {text}"))
        world.outside.sinks[f"sim://sink{number}"] = sink
        spec = views.ChangefeedSpec(
            changefeed_id=name,
            source_uri=f"sim://source{number}",
            sink_uri=f"sim://sink{number}",
            mode=self._random.choice((Mode.ALL, Mode.INCREMENTAL)),
            target_ts=target_ts,
            config=ChangefeedConfig(
                log_retention_seconds=_RETENTION_S,
                sync_point_interval_seconds=self._random.choice((0, 1, 5)),
                on_lost_position=self._losses.choice(("fail", "resync")),
            ),
        )
        while name not in world.checks.feeds:
            if node := self._answering():
                await self._try(node, lambda service: service.create(spec), is_quiet=True)
            await anyio.sleep(_RETRY_S)

    async def _replace(self, name: ChangefeedId) -> None:
        """Remove a changefeed, and create another of the same name."""
        feed = self._world.checks.feeds.get(name)
        if feed is None or name in self._doomed:
            return
        self._doomed.add(name)
        self._world.note(f"{name} is to be replaced")
        while self._world.checks.feeds.get(name) is feed:
            if node := self._answering(name):
                await self._try(node, lambda service: service.remove(name), is_quiet=True)
            await anyio.sleep(_RETRY_S)
        await self._create(name)
        self._doomed.discard(name)

    def _lose_position(self, name: ChangefeedId) -> None:
        feed = self._world.checks.feeds.get(name)
        if feed is not None:
            self._world.note(f"the source of {name} loses its log")
            feed.upstream.lose_log()

    async def _resume(self, name: ChangefeedId, service: ClusterService) -> None:
        """Also one that has lost its position: without a target it may take another one."""
        feed = self._world.checks.feeds.get(name)
        is_lost = feed is not None and feed.info.error is not None and feed.info.error.code == "PositionLost"
        if feed is not None and (is_lost or feed.is_lost) and feed.info.target_ts is not None:
            await service.update(name, views.ChangefeedUpdate(target_ts=0))
        await service.ask(jobs.Resume("", name, is_resync=is_lost))

    def _pause_all(self) -> None:
        """Pause all at one instant, so that one tick has to handle all of it."""
        for name in self._names:
            if node := self._answering(name):
                self._world.spawn(self._try(node, partial(self._pause, name)))

    async def _pause(self, name: ChangefeedId, service: ClusterService) -> None:
        """The changefeed is paused once the owner says so."""
        feed = self._world.checks.feeds.get(name)
        before = len(feed.states) if feed else 0
        await service.ask(jobs.Pause("", name))
        if feed is not None and FeedState.STOPPED not in feed.states[before:]:
            self._world.violate(f"{name} was said to be paused, but etcd does not say so")

    async def _go_back(self, service: ClusterService) -> None:
        """Resume it at an earlier Ts."""
        name = self._name()
        feed = self._world.checks.feeds.get(name)
        if feed is not None and feed.status is not None:
            ts = Ts(max(0, feed.status.checkpoint_ts - self._random.randint(0, 200)))
            feed.rewound_to.add(ts)
            await service.resume(name, overwrite_checkpoint_ts=ts)

    async def _rewind(self, service: ClusterService) -> None:
        """Rewind a paused changefeed; a sink that records its own Ts has to be reset first."""
        name = self._name()
        feed = self._world.checks.feeds.get(name)
        if feed is not None and feed.status is not None:
            ts = Ts(max(0, feed.status.checkpoint_ts - self._random.randint(1, 50)))
            feed.rewound_to.add(ts)
            await service.rewind(name, ts)

    async def _amend(self, service: ClusterService) -> None:
        """Change target or configuration of a paused changefeed."""
        name = self._name()
        feed = self._world.checks.feeds.get(name)
        if feed is None:
            return
        await self._pause(name, service)
        # close to the source's position, so that it ends soon
        target_ts = self._random.choice((None, 0, feed.upstream.position + self._random.randint(1, 800)))
        config = feed.info.config.with_(
            sync_point_interval_seconds=self._random.choice((0, 1, 5)),
            log_retention_seconds=self._random.choice((_RETENTION_S, 2 * _RETENTION_S)),
        )
        await service.update(name, views.ChangefeedUpdate(target_ts=target_ts, config=config))
        await service.resume(name)

    async def _hold(self, service: ClusterService) -> None:
        """Hold it at a Ts for a while; sometimes without releasing it."""
        name = self._name()
        await service.ask(
            jobs.HoldAt("", name, service.head_of(name).resolved_ts, self._random.choice((1.0, 4.0, 10.0)))
        )
        if self._random.random() < 0.5:
            await anyio.sleep(self._random.random() * 4.0)
            await service.ask(jobs.Release("", name))

    async def compare_all(self) -> None:
        """Compare each running changefeed once."""
        self._compared.clear()
        for name in self._names:
            feed = self._world.checks.feeds[name]
            while name not in self._compared and feed.info.state is not FeedState.FINISHED:
                if node := self._answering(name):
                    await self._try(node, partial(self._compare_one, name))
                await anyio.sleep(0.1)

    async def _compare(self, service: ClusterService) -> None:
        await self._compare_one(self._name(), service)

    async def _compare_one(self, name: ChangefeedId, service: ClusterService) -> None:
        """Compare source and sink at one Ts; the result, if there is one, must be equal."""
        out = self._held(name)
        found = await service.diff(name)
        out |= self._held(name)
        found = [one for one in found if one.table not in {f"t{id}" for id in out}]
        if any(not one.equal and not one.waiting for one in found) or not (found or out):
            self._world.violate(f"{name} compared: {found}")
        if not found or any(one.waiting for one in found):
            return  # not everything was compared
        self._compared.add(name)
        self._world.note(f"{name} compared at {max(one.ts for one in found)}")

    def _held(self, name: ChangefeedId) -> set[int]:
        """Return the held tables, for which nothing is guaranteed."""
        feed = self._world.checks.feeds.get(name)
        return set(feed.held) if feed else set()

    async def _move_table(self, service: ClusterService) -> None:
        captures = sorted(service._membership.state.captures)
        capture = self._random.choice(captures) if captures else CaptureId("nobody")
        await service.ask(jobs.MoveTable("", self._name(), self._random.randint(1, 4), capture))

    async def _move_owner(self, service: ClusterService) -> None:
        captures = sorted(service._membership.state.captures)
        await service.move_owner(self._name(), self._random.choice(captures) if captures else "nobody")

    async def _repartition(self, service: ClusterService) -> None:
        """Split a table, or join it again."""
        await service.ask(
            jobs.Repartition("", self._name(), self._random.randint(1, 4), self._random.choice((1, 1, 2, 3, 5)))
        )

    async def _resync(self, service: ClusterService) -> None:
        """Resync a table, or cancel that."""
        name = self._name()
        feed = self._world.checks.feeds.get(name)
        if feed is None:
            return
        wish = jobs.ResyncTable("", name, self._random.choice(feed.upstream.tables).table_id)
        await service.ask(wish)
        if self._random.random() < 0.2:
            await anyio.sleep(self._random.random())
            await service.ask(replace(wish, is_cancelled=True))

    async def _drain(self, service: ClusterService) -> None:
        captures = sorted(service._membership.state.captures)
        if captures:
            await service.drain(self._random.choice(captures))

    async def _try(
        self, node: "Node", command: Callable[[ClusterService], Awaitable[object]], *, is_quiet: bool = False
    ) -> None:
        assert node.capture is not None
        try:
            with anyio.move_on_after(10.0):
                await command(node.capture.cluster)
            outcome = "done"
        except ChangefeedExistsError:
            return
        except WeirError as error:
            outcome = str(error)
        if not is_quiet:
            self._world.note(f"operator: {outcome}")

    def _answering(self, name: str = "") -> "Node | None":
        """Return a machine that considers itself the owner of a changefeed, or the controller."""
        nodes = [node for node in self._world.nodes if node.is_up and node.capture]
        found = [node for node in nodes if node.capture and node.capture.cluster.answers(name)]
        return self._random.choice(found) if found else None

    def _name(self) -> ChangefeedId:
        return ChangefeedId(self._next) if self._next else self._random.choice(self._names)


def _resume(name: ChangefeedId) -> Callable[[ClusterService], Awaitable[object]]:
    return lambda service: service.resume(name)
