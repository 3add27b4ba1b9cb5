"""A network in memory, for messengers on virtual time: streams that can be cut with what is on its way lost."""

import math

import anyio
from anyio.abc import ByteStream
from anyio.lowlevel import checkpoint
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from capture.errors import PeerUnreachableError, PortInUseError
from capture.messaging.transport import Handler


class MemoryStream(ByteStream):
    """One end of a connection. ``cut`` ends it for both, and loses what was sent but not received."""

    def __init__(self, outlet: MemoryObjectSendStream[bytes], inlet: MemoryObjectReceiveStream[bytes]) -> None:
        self._outlet, self._inlet = outlet, inlet
        self.other: MemoryStream | None = None
        self.is_stalled = False

    async def send(self, item: bytes) -> None:
        if not self.is_stalled:  # a stalled one swallows everything, like a cable that was pulled out
            await self._outlet.send(item)

    async def receive(self, max_bytes: int = 65536) -> bytes:
        return await self._inlet.receive()

    async def send_eof(self) -> None:
        self._outlet.close()

    async def aclose(self) -> None:
        self.cut()

    def cut(self) -> None:
        for end in (self, self.other):
            if end is not None:
                end._outlet.close()
                end._inlet.close()


class MemoryEndpoint:
    def __init__(self, network: "MemoryNetwork", address: str) -> None:
        self._network = network
        self.address = address
        self.handler: Handler | None = None
        self.tasks = anyio.create_task_group()

    async def serve(self, handler: Handler) -> None:
        async with self.tasks:
            self.handler = handler
            await anyio.sleep_forever()

    async def aclose(self) -> None:
        self._network.endpoints.pop(self.address, None)


class MemoryNetwork:
    """A ``Transport``; every connection ever made is in ``clients``, the end of who connected."""

    def __init__(self) -> None:
        self.endpoints: dict[str, MemoryEndpoint] = {}
        self.clients: list[MemoryStream] = []
        self.attempts = 0
        self.is_down = False

    async def connect(self, address: str) -> ByteStream:
        self.attempts += 1
        await checkpoint()
        endpoint = self.endpoints.get(address)
        if self.is_down or endpoint is None or endpoint.handler is None:
            raise PeerUnreachableError(f"no capture answers at {address}: connection refused")
        there_out, here_in = anyio.create_memory_object_stream[bytes](math.inf)
        here_out, there_in = anyio.create_memory_object_stream[bytes](math.inf)
        here, there = MemoryStream(here_out, here_in), MemoryStream(there_out, there_in)
        here.other, there.other = there, here
        self.clients.append(here)
        endpoint.tasks.start_soon(endpoint.handler, there)
        return here

    async def listen(self, address: str) -> MemoryEndpoint:
        if address in self.endpoints:
            raise PortInUseError(f"cannot listen on {address}: address already in use; stop what does or take another")
        endpoint = self.endpoints[address] = MemoryEndpoint(self, address)
        return endpoint

    def cut_all(self) -> None:
        for stream in self.clients:
            stream.cut()
