"""Node: one machine of the simulated cluster; runs the real capture, and is killed, stopped, continued and
restarted."""

from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import anyio

from capture.api.port import Endpoint
from capture.capture import Capture
from capture.config import ServerSettings
from reactor.errors import OwnerNotFoundError, WeirError
from reactor.views import ChangefeedView
from tests.simulation.data_plane import SimulatedDataPlane
from tests.simulation.etcd import Way, WayClient
from tests.simulation.loop import Machine

if TYPE_CHECKING:
    import asyncio

    from reactor.store.port import MetaStore
    from tests.simulation.world import World

T = TypeVar("T")

_SESSION_TTL_S = 5
_RESTART_S = 1.0


class SimulatedOwners:
    """The owners on other machines, which are asked over the network."""

    def __init__(self, world: "World", node: "Node") -> None:
        self._world = world
        self._node = node

    async def owned(self, endpoint: Endpoint, *, tables: bool) -> Sequence[ChangefeedView]:
        return await self._at(endpoint).cluster.owned(tables=tables)

    async def remove(self, endpoint: Endpoint, changefeed: str) -> None:
        await self._at(endpoint).cluster.remove(changefeed)

    def _at(self, endpoint: Endpoint) -> Capture:
        """:raises OwnerNotFoundError: the machine is down, or cut off."""
        network, me = self._world.network, self._node.name
        for node in self._world.nodes:
            is_cut = network.is_cut(me, node.name) or network.is_cut(node.name, me)
            if endpoint.address == f"{node.name}:8300" and node.is_up and node.capture and not is_cut:
                return node.capture
        raise OwnerNotFoundError(f"{endpoint.address} does not answer")


class Node(Machine):
    """``capture``: the running process, or None."""

    def __init__(self, name: str, world: "World") -> None:
        super().__init__(name)
        self.world = world
        self.capture: Capture | None = None
        self.is_wanted = False
        self._way: Way | None = None
        #: a mapping, because sets of tasks iterate in a different order each time
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._starts = 0

    @property
    def is_up(self) -> bool:
        return self.capture is not None and not self.is_stopped

    @property
    def way(self) -> Way | None:
        return self._way

    def start(self) -> None:
        """Start the process, and restart it whenever it ends, as a process supervisor does."""
        if not self.is_wanted:
            self.is_wanted = True
            self._starts += 1
            self.world.note(f"{self.name} starts")
            self.spawn(self._run())

    def kill(self, *, quietly: bool) -> None:
        """Kill the process at once; ``quietly``: its peers' connections are not even reset."""
        self.world.note(f"{self.name} killed")
        if self.is_stopped:
            self.carry_on()
        self.is_wanted = False
        self.capture = None
        if self._way is not None:
            self._way.is_gone = True
            self._way.heal()
            self._way = None
        network = self.world.network
        network.break_streams(self.name, quietly=quietly)
        network.endpoints.pop(self._address, None)
        for task in list(self._tasks):
            task.cancel()

    def stop(self) -> None:
        self.world.note(f"{self.name} stopped")
        self.world.loop.stop_machine(self)

    def carry_on(self) -> None:
        self.world.note(f"{self.name} continues")
        self.world.loop.continue_machine(self)

    def leave(self) -> None:
        """End it gracefully, as with SIGTERM."""
        if self.capture is not None:
            self.world.note(f"{self.name} leaves")
            self.is_wanted = False
            self.spawn(self.capture.leave())

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Start a task of this machine, which dies with it."""
        task = self.world.spawn(work, self)
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))

    async def in_thread(self, work: Coroutine[Any, Any, T]) -> T:
        """Run ``work`` where a cancellation of the caller does not reach it."""
        done = anyio.Event()
        outcome: list[T] = []
        failure: list[WeirError] = []

        async def run() -> None:
            try:
                outcome.append(await work)
            except WeirError as error:
                failure.append(error)
            finally:
                done.set()

        self.spawn(run())
        await done.wait()
        if failure:
            raise failure[0]
        if not outcome:
            await anyio.sleep_forever()  # the machine has died
        return outcome[0]

    @property
    def _address(self) -> str:
        return f"{self.name}:7000"

    async def _run(self) -> None:
        starts = self._starts
        while self.is_wanted and starts == self._starts:
            settings = ServerSettings(
                cluster_id=self.world.cluster,
                addr=f"{self.name}:8300",
                peer_addr=self._address,
                data_dir=Path("nowhere"),
                session_ttl_seconds=_SESSION_TTL_S,
            )
            transport = self.world.network.at(self.name)
            capture = Capture(
                settings,
                data_plane=SimulatedDataPlane(self),
                connect_etcd=self._connect,
                transport=transport,
                remote=SimulatedOwners(self.world, self),
            )
            self.capture = capture
            try:
                await capture.run()
            except WeirError as error:
                self.world.note(f"{self.name} failed: {error}")
            finally:
                if self.capture is capture:
                    self.capture = None
            await anyio.sleep(_RESTART_S)

    async def _connect(self, settings: ServerSettings) -> "MetaStore":
        world = self.world
        self._way = Way(world.weather.etcd, world.chance("etcd", self.name, self._starts, world.loop.time()))
        return WayClient(world.etcd, self._way, random=world.chances, later=self._later)

    def _later(self, after_s: float, action: Callable[[], object]) -> None:
        self.world.later(after_s, action)
