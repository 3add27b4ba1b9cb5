"""Somebody at the command line: creates changefeeds, meddles with them, and tidies up in the end.

All goes through the cluster service that the HTTP API uses, and may fail as it would there: what counts is what it
does to others.
"""

from collections.abc import Awaitable, Callable
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
from reactor.records.held import HoldStage
from tests.simulation.outside import Sink, Upstream

if TYPE_CHECKING:
    from tests.simulation.node import Node
    from tests.simulation.world import World

_RETRY_S = 1.0
_RETENTION_S = 5


class Operator:
    """``is_done``: nothing that was begun is unfinished, and everything is wanted to run."""

    def __init__(self, world: "World") -> None:
        self.is_done = False
        self._world = world
        self._random = world.chance("operator")
        self._created = 0
        self._names = [ChangefeedId(f"feed{number + 1}") for number in range(self._random.choice((1, 1, 2, 3)))]
        self._doomed: set[ChangefeedId] = set()
        self._compared: set[ChangefeedId] = set()

    async def create_feeds(self) -> None:
        for name in self._names:
            await self._create(name)

    def meddle(self) -> None:
        """One command, whether it makes sense or not."""
        commands: list[Callable[[ClusterService], Awaitable[object]]] = [
            lambda service: self._pause(self._name(), service),
            lambda service: service.resume(self._name()),
            lambda service: service.resume(self._name()),
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
            self._drain,
            lambda service: service.ask(jobs.ResignOwner("")),
            lambda service: service.ask(jobs.ResignOwner("")),
        ]
        command = self._random.choice(commands)
        chance = self._random.random()
        if chance < 0.08:
            self._world.spawn(self._replace(self._name()))
        elif chance < 0.16:
            self._pause_all()
        elif node := self._owner():
            self._world.spawn(self._try(node, command))

    async def put_in_order(self) -> None:
        """After the faults: whatever was stopped goes on, whatever is half removed or half created is finished."""
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
                    if node := self._owner():
                        await self._try(node, _resume(name))
                elif feed.info.state is FeedState.REMOVED:
                    self.is_done = False
                elif any(table.stage is HoldStage.HELD for table in feed.held.values()):
                    self.is_done = False
                    if node := self._owner():
                        await self._try(node, _resume(name), is_quiet=True)
            await anyio.sleep(_RETRY_S)

    async def _create(self, name: ChangefeedId) -> None:
        """A changefeed over a source and a sink of its own; asked for again until it is there."""
        self._created += 1
        number, world = self._created, self._world
        upstream = Upstream(self._random.randint(1, 4), world.chance("source", number), world.chance("whims", number))
        world.outside.upstreams[f"sim://source{number}"] = upstream
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
                log_retention_seconds=_RETENTION_S, sync_point_interval_seconds=self._random.choice((0, 1, 5))
            ),
        )
        while name not in world.checks.feeds:
            if node := self._owner():
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
            if node := self._owner():
                await self._try(node, lambda service: service.remove(name), is_quiet=True)
            await anyio.sleep(_RETRY_S)
        await self._create(name)
        self._doomed.discard(name)

    def _pause_all(self) -> None:
        """All in one moment, so that one decision has to do it all."""
        if node := self._owner():
            for name in self._names:
                self._world.spawn(self._try(node, partial(self._pause, name)))

    async def _pause(self, name: ChangefeedId, service: ClusterService) -> None:
        """When the owner says that it is done, it is."""
        feed = self._world.checks.feeds.get(name)
        before = len(feed.states) if feed else 0
        await service.ask(jobs.Pause("", name))
        if feed is not None and FeedState.STOPPED not in feed.states[before:]:
            self._world.violate(f"{name} was said to be paused, but etcd does not say so")

    async def _go_back(self, service: ClusterService) -> None:
        """Resume it somewhere behind."""
        name = self._name()
        feed = self._world.checks.feeds.get(name)
        if feed is not None and feed.status is not None:
            ts = Ts(max(0, feed.status.checkpoint_ts - self._random.randint(0, 200)))
            feed.rewound_to.add(ts)
            await service.resume(name, overwrite_checkpoint_ts=ts)

    async def _rewind(self, service: ClusterService) -> None:
        """While it stands; a sink that records its own Ts has to be set back before."""
        name = self._name()
        feed = self._world.checks.feeds.get(name)
        if feed is not None and feed.status is not None:
            ts = Ts(max(0, feed.status.checkpoint_ts - self._random.randint(1, 50)))
            feed.rewound_to.add(ts)
            await service.rewind(name, ts)

    async def _amend(self, service: ClusterService) -> None:
        """Another target, another configuration: only while it stands."""
        name = self._name()
        feed = self._world.checks.feeds.get(name)
        if feed is None:
            return
        await self._pause(name, service)
        # behind where the source is: what is on its way to the sink ends before
        target_ts = self._random.choice((None, 0, feed.upstream.position + self._random.randint(1, 800)))
        config = feed.info.config.with_(
            sync_point_interval_seconds=self._random.choice((0, 1, 5)),
            log_retention_seconds=self._random.choice((_RETENTION_S, 2 * _RETENTION_S)),
        )
        await service.update(name, views.ChangefeedUpdate(target_ts=target_ts, config=config))
        await service.resume(name)

    async def _hold(self, service: ClusterService) -> None:
        """Let it stand for a while; nobody may come back to let it go."""
        name = self._name()
        await service.ask(
            jobs.HoldAt("", name, service.head_of(name).resolved_ts, self._random.choice((1.0, 4.0, 10.0)))
        )
        if self._random.random() < 0.5:
            await anyio.sleep(self._random.random() * 4.0)
            await service.ask(jobs.Release("", name))

    async def compare_all(self) -> None:
        """Whatever runs, until each has been compared once."""
        self._compared.clear()
        for name in self._names:
            feed = self._world.checks.feeds[name]
            while name not in self._compared and feed.info.state is not FeedState.FINISHED:
                if node := self._owner():
                    await self._try(node, partial(self._compare_one, name))
                await anyio.sleep(0.1)

    async def _compare(self, service: ClusterService) -> None:
        await self._compare_one(self._name(), service)

    async def _compare_one(self, name: ChangefeedId, service: ClusterService) -> None:
        """Source and sink at one Ts: the answer, if there is one, is that they are equal."""
        out = self._held(name)
        found = await service.diff(name)
        out |= self._held(name)
        found = [one for one in found if one.table not in {f"t{id}" for id in out}]
        if any(not one.equal and not one.waiting for one in found) or not (found or out):
            self._world.violate(f"{name} compared: {found}")
        if not found or any(one.waiting for one in found):
            return  # not all of it was compared
        self._compared.add(name)
        self._world.note(f"{name} compared at {max(one.ts for one in found)}")

    def _held(self, name: ChangefeedId) -> set[int]:
        """Tables that nothing is promised of."""
        feed = self._world.checks.feeds.get(name)
        return set(feed.held) if feed else set()

    async def _move_table(self, service: ClusterService) -> None:
        captures = sorted(service._life.state.captures)
        capture = self._random.choice(captures) if captures else CaptureId("nobody")
        await service.ask(jobs.MoveTable("", self._name(), self._random.randint(1, 4), capture))

    async def _repartition(self, service: ClusterService) -> None:
        """Split a table, or join it again."""
        await service.ask(
            jobs.Repartition("", self._name(), self._random.randint(1, 4), self._random.choice((1, 1, 2, 3, 5)))
        )

    async def _drain(self, service: ClusterService) -> None:
        captures = sorted(service._life.state.captures)
        if captures:
            await service.ask(jobs.DrainCapture("", self._random.choice(captures)))

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

    def _owner(self) -> "Node | None":
        """Somebody who thinks it is the owner."""
        found = [node for node in self._world.nodes if node.is_up and node.capture and node.capture.cluster.is_owner]
        return self._random.choice(found) if found else None

    def _name(self) -> ChangefeedId:
        return self._random.choice(self._names)


def _resume(name: ChangefeedId) -> Callable[[ClusterService], Awaitable[object]]:
    return lambda service: service.resume(name)
