"""messaging: span statuses per second between two captures over loopback, against an asyncio stream of the same bytes.

Both ends run in one process and one event loop, so the figure is for one core and includes encoding, sending, decoding
and checking, the handler, and acknowledgements. The peer does the minimum: it writes bytes that were encoded before the
measurement, and its other end reads and discards them. Its figure is the upper bound that loop and kernel set for a
protocol.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from statistics import median, quantiles

import anyio

from capture.messaging import frames
from capture.messaging.messenger import Messenger
from reactor.ids import CaptureId, ChangefeedId, TableSpan, Ts
from reactor.messages import (
    Body,
    Header,
    HeartbeatResponse,
    Message,
    SpanCheckpoint,
    SpanState,
    SpanStatus,
    StopWorker,
)

_ONE, _OTHER = CaptureId("capture-one"), CaptureId("capture-other")
_TOPIC = "benchmark"
_STATUSES = 200


def _message(body: Body, *, sender: CaptureId = _ONE, receiver: CaptureId = _OTHER) -> Message:
    header = Header("0.1.0", 123_456, "5f2c9e", 7)
    return Message(sender, receiver, ChangefeedId("feed"), header, body)


def _response() -> Message:
    """Return an agent's heartbeat answer for many tables."""
    at = SpanCheckpoint(Ts(0x1_6B37_4D48), Ts(0x1_6B37_9A00))
    spans = (TableSpan(16_384 + number) for number in range(_STATUSES))
    return _message(HeartbeatResponse(tuple(SpanStatus(span, SpanState.REPLICATING, at, 1.7e9) for span in spans)))


class _Counter:
    def __init__(self) -> None:
        self.count = 0
        self.changed = anyio.Event()

    async def __call__(self, message: Message) -> None:
        self.count += 1
        self.changed.set()

    async def wait_for(self, count: int) -> None:
        while self.count < count:
            self.changed = anyio.Event()
            await self.changed.wait()


async def _with_messengers(body: Callable[[Messenger, Messenger], Awaitable[float]]) -> float:
    async with Messenger(_ONE) as one, Messenger(_OTHER) as other:
        for messenger in (one, other):
            messenger.set_peers({_ONE: one.address, _OTHER: other.address})
        figure = await body(one, other)
        for messenger in (one, other):
            messenger.set_peers({})  # or the first to leave would be missed, and a warning logged
        return figure


async def _throughput(message: Message, seconds: float) -> float:
    """Return messages handled per second, limited only by the window."""

    async def body(one: Messenger, other: Messenger) -> float:
        counter = _Counter()
        other.register(_TOPIC, counter)
        await one.send(_TOPIC, message)
        await counter.wait_for(1)
        sent, start = 1, time.perf_counter()
        while time.perf_counter() - start < seconds:
            for _ in range(50):
                await one.send(_TOPIC, message)
            sent += 50
            if sent - counter.count > 500:  # more unacknowledged messages would only fill memory
                await counter.wait_for(sent - 250)
        await counter.wait_for(sent)
        return (sent - 1) / (time.perf_counter() - start)

    return await _with_messengers(body)


async def _round_trips(seconds: float) -> list[float]:
    """Return the round-trip times in seconds, one message at a time."""
    times: list[float] = []

    async def body(one: Messenger, other: Messenger) -> float:
        back = _Counter()

        async def answer(message: Message) -> None:
            await other.send(_TOPIC, _message(message.body, sender=_OTHER, receiver=_ONE))

        one.register(_TOPIC, back)
        other.register(_TOPIC, answer)
        end = time.perf_counter() + seconds
        while (start := time.perf_counter()) < end:
            await one.send(_TOPIC, _message(StopWorker("source", 1)))
            await back.wait_for(len(times) + 1)
            times.append(time.perf_counter() - start)
        return 0.0

    await _with_messengers(body)
    return times[1:]


async def _bare_stream(data: bytes, seconds: float) -> float:
    """Return how often ``data`` arrived per second."""
    received, done = 0, asyncio.Event()

    async def swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal received
        while chunk := await reader.read(65_536):
            received += len(chunk)
        writer.close()
        done.set()

    server = await asyncio.start_server(swallow, "127.0.0.1", 0)
    async with server:
        _, writer = await asyncio.open_connection("127.0.0.1", server.sockets[0].getsockname()[1])
        start = time.perf_counter()
        while time.perf_counter() - start < seconds:
            for _ in range(50):
                writer.write(data)
                await writer.drain()
        writer.close()
        await done.wait()
        return received / len(data) / (time.perf_counter() - start)


def run(seconds: float = 3.0) -> dict[str, object]:
    message = _response()
    data = frames.encode(frames.Data(_TOPIC, 1, message))
    share = seconds / 4
    ours = anyio.run(_throughput, message, share) * _STATUSES
    peer = anyio.run(_bare_stream, data, share) * _STATUSES
    small = anyio.run(_throughput, _message(StopWorker("source", 1)), share)
    trips = anyio.run(_round_trips, share)
    return {
        "what": f"heartbeat responses of {_STATUSES} span statuses ({len(data)} bytes) over loopback, one process",
        "statuses_per_second": round(ours),
        "bare_stream_statuses_per_second": round(peer),
        "ratio": ours / peer,
        "small_messages_per_second": round(small),
        "round_trip_p50_ms": median(trips) * 1e3,
        "round_trip_p99_ms": quantiles(trips, n=100)[98] * 1e3,
    }
