"""Simulated network: a ``capture.messaging.transport.Transport`` whose bytes are delayed, get stuck, and are cut off.

A connection keeps the order of its bytes, as TCP does. Bytes held back by a partition arrive when it is over, even on a
connection that its sender has given up long ago: so an old connection's messages may arrive after a new one's.
"""

from collections import deque
from collections.abc import Callable
from contextvars import Context
from random import Random

import anyio
from anyio.abc import ByteStream

from capture.errors import PeerUnreachableError, PortInUseError
from capture.messaging.transport import Handler
from tests.simulation.loop import SimulationLoop, context_of

_NEVER = float("inf")


class Stream(ByteStream):
    """One end of a connection. ``host``: its machine; ``other``: the other end."""

    def __init__(self, network: "Network", host: str) -> None:
        self.network = network
        self.host = host
        self.other: Stream | None = None
        self.is_broken = False
        self._came: deque[bytes] = deque()
        self._is_ended = False
        self._news = anyio.Event()
        self._arrives_at = 0.0

    async def send(self, item: bytes) -> None:
        await anyio.lowlevel.checkpoint()
        if self.is_broken:
            raise anyio.BrokenResourceError
        assert self.other is not None
        self.network.carry(self, self.other, bytes(item))

    async def receive(self, max_bytes: int = 65536) -> bytes:
        await anyio.lowlevel.checkpoint()
        while not self._came:
            if self._is_ended or self.is_broken:
                raise anyio.EndOfStream
            self._news = anyio.Event()
            await self._news.wait()
        return self._came.popleft()

    async def send_eof(self) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close this end now; the other end sees it after everything sent has arrived."""
        if not self.is_broken:
            self.is_broken = True
            self._news.set()
            assert self.other is not None
            self.network.carry(self, self.other, None)

    def reset(self) -> None:
        """Close this end without notifying the other one; data in flight is lost."""
        self.is_broken = True
        self._came.clear()
        self._news.set()

    def arrive(self, data: bytes | None) -> None:
        if data is None:
            self._is_ended = True
        else:
            self._came.append(data)
        self._news.set()

    def arrival_after(self, at: float) -> float:
        """Return an arrival time that does not overtake earlier data."""
        self._arrives_at = max(self._arrives_at, at)
        return self._arrives_at


class Endpoint:
    """A listening address; connections wait here until the machine accepts them."""

    def __init__(self, network: "Network", address: str) -> None:
        self.address = address
        self._network = network
        self._waiting: deque[Stream] = deque()
        self._news = anyio.Event()

    def knock(self, stream: Stream) -> None:
        self._waiting.append(stream)
        self._news.set()

    async def serve(self, handler: Handler) -> None:
        async with anyio.create_task_group() as tasks:
            while True:
                while self._waiting:
                    tasks.start_soon(handler, self._waiting.popleft())
                self._news = anyio.Event()
                await self._news.wait()

    async def aclose(self) -> None:
        if self._network.endpoints.get(self.address) is self:
            del self._network.endpoints[self.address]


class Network:
    """All links. ``cut(a, b)`` holds back what goes from a to b; ``slow_s``: maximum delay of a chunk; ``slow_links``:
    further seconds by which each chunk from a to b is delayed.
    """

    def __init__(self, loop: SimulationLoop, random: Random) -> None:
        self.endpoints: dict[str, Endpoint] = {}
        self.streams: list[Stream] = []
        self.slow_s = 0.01
        self.slow_links: dict[tuple[str, str], float] = {}
        self.break_chance = 0.0
        self._loop = loop
        self._random = random
        self._cut: dict[tuple[str, str], list[Callable[[], None]]] = {}
        self._context: Context = context_of(None)

    def cut(self, source: str, target: str) -> None:
        self._cut.setdefault((source, target), [])

    def heal(self, source: str, target: str) -> None:
        for release in self._cut.pop((source, target), []):
            release()

    def heal_all(self) -> None:
        for source, target in list(self._cut):
            self.heal(source, target)

    def is_cut(self, source: str, target: str) -> bool:
        return (source, target) in self._cut

    def break_streams(self, host: str, *, quietly: bool) -> None:
        """Reset every connection of ``host``; ``quietly``: the other ends notice only by a timeout."""
        alive, self.streams = self.streams, []
        for stream in alive:
            assert stream.other is not None
            if host in (stream.host, stream.other.host):
                stream.reset()
                if not quietly:
                    stream.other.reset()
            elif not stream.is_broken:
                self.streams.append(stream)

    def carry(self, source: Stream, target: Stream, data: bytes | None) -> None:
        """Deliver bytes (None: the end) to the other side, after a delay."""
        held = self._cut.get((source.host, target.host))
        if held is not None:
            held.append(lambda: self.carry(source, target, data))
            return
        if data is not None and self._random.random() < self.break_chance:
            source.reset()  # the sender does not know what has arrived
        at = self._loop.time() + 0.0002 + self._random.random() * self.slow_s
        at += self.slow_links.get((source.host, target.host), 0.0)
        self._loop.call_at(target.arrival_after(at), target.arrive, data, context=self._context)

    def at(self, host: str) -> "HostTransport":
        return HostTransport(self, host)

    async def connect(self, host: str, address: str) -> Stream:
        await anyio.sleep(0.0005 + self._random.random() * self.slow_s)
        there = address.partition(":")[0]
        while self.is_cut(host, there) or self.is_cut(there, host):  # noqa: ASYNC110 - a SYN is retransmitted, too
            await anyio.sleep(0.5)
        endpoint = self.endpoints.get(address)
        if endpoint is None:
            raise PeerUnreachableError(f"no capture answers at {address}: connection refused")
        here, far = Stream(self, host), Stream(self, there)
        here.other, far.other = far, here
        self.streams.append(here)
        endpoint.knock(far)
        return here


class HostTransport:
    """The network as seen by one host."""

    def __init__(self, network: Network, host: str) -> None:
        self._network = network
        self._host = host

    async def connect(self, address: str) -> ByteStream:
        return await self._network.connect(self._host, address)

    async def listen(self, address: str) -> Endpoint:
        if address in self._network.endpoints:
            raise PortInUseError(f"cannot listen on {address}: address already in use; stop what does or take another")
        endpoint = self._network.endpoints[address] = Endpoint(self._network, address)
        return endpoint
