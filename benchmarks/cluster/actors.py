"""actors: messages per second from one actor to another, against the bare memory stream they run on, and against pykka.

All three pass the same messages to an object that counts them. The mailbox and the memory stream are bounded; pykka,
the usual actor package for Python, runs each actor in a thread with an unbounded queue.
"""

import contextlib
import time
from collections.abc import Callable
from typing import Any

import anyio
import pykka

from benchmarks.support.actor_system import ActorSystem
from capture.actors.actor import ActorRef

_MAILBOX = 1024
_SLICE = 20_000


class _Counter:
    """The receiver: a minimal handler."""

    def __init__(self) -> None:
        self.count = 0

    async def handle(self, message: int) -> int:
        self.count += 1
        return self.count


class _Feeder:
    """The sender: tells the counter as many messages as requested."""

    def __init__(self, counter: ActorRef[int]) -> None:
        self._counter = counter

    async def handle(self, count: int) -> None:
        tell = self._counter.tell
        for number in range(count):
            await tell(number)


class _Echo:
    """Returns each message until its number is 0."""

    def __init__(self) -> None:
        self.other: ActorRef[int] | None = None
        self.done = anyio.Event()

    async def handle(self, number: int) -> None:
        assert self.other is not None
        if number:
            await self.other.tell(number - 1)
        else:
            self.done.set()


async def _tells(seconds: float) -> float:
    async with ActorSystem("benchmark") as system:
        counter = system.spawn(_Counter(), "counter", mailbox_size=_MAILBOX)
        feeder = system.spawn(_Feeder(counter), "feeder")
        sent, start = 0, time.perf_counter()
        while time.perf_counter() - start < seconds:
            await feeder.ask(_SLICE, timeout_s=60)
            sent += _SLICE
        assert await counter.ask(0, timeout_s=60) == sent + 1
        return sent / (time.perf_counter() - start)


async def _asks(seconds: float) -> float:
    async with ActorSystem("benchmark") as system:
        counter = system.spawn(_Counter(), "counter", mailbox_size=_MAILBOX)
        asked, start = 0, time.perf_counter()
        while time.perf_counter() - start < seconds:
            await counter.ask(asked, timeout_s=60)
            asked += 1
        return asked / (time.perf_counter() - start)


async def _ping_pong(seconds: float) -> float:
    """Return the rate with a single message in flight, so every message costs two task switches."""
    async with ActorSystem("benchmark") as system:
        one, other = _Echo(), _Echo()
        one.other, other.other = system.spawn(other, "other"), system.spawn(one, "one")
        passes, start = 0, time.perf_counter()
        while time.perf_counter() - start < seconds:
            other.done = anyio.Event()
            await one.other.tell(10_000)
            await other.done.wait()
            passes += 10_001
        return passes / (time.perf_counter() - start)


async def _memory_stream(seconds: float) -> float:
    """Return the rate of the stream that mailboxes use, without calling a handler."""
    outlet, inlet = anyio.create_memory_object_stream[int](_MAILBOX)
    received, start = 0, time.perf_counter()

    async def feed() -> None:
        with outlet:
            while time.perf_counter() - start < seconds:
                for number in range(_SLICE):
                    try:
                        outlet.send_nowait(number)
                    except anyio.WouldBlock:
                        await outlet.send(number)

    async with inlet, anyio.create_task_group() as tasks:
        tasks.start_soon(feed)
        async for _ in inlet:
            received += 1
            with contextlib.suppress(anyio.WouldBlock, anyio.EndOfStream):
                while True:
                    inlet.receive_nowait()
                    received += 1
    return received / (time.perf_counter() - start)


class _PykkaCounter(pykka.ThreadingActor):
    count = 0

    def on_receive(self, message: Any) -> int:
        self.count += 1
        return self.count


def _pykka(seconds: float) -> float:
    counter = _PykkaCounter.start()
    try:
        sent, start = 0, time.perf_counter()
        while time.perf_counter() - start < seconds:
            for number in range(_SLICE):
                counter.tell(number)
            sent += _SLICE
            counter.ask(0)  # its mailbox is unbounded: wait, or the queue is measured
            sent += 1
        return sent / (time.perf_counter() - start)
    finally:
        counter.stop()


def run(seconds: float = 3.0) -> dict[str, object]:
    def alone(measure: Callable[[float], Any]) -> float:
        return float(anyio.run(measure, seconds / 5))

    ours, bare = alone(_tells), alone(_memory_stream)
    peer = _pykka(seconds / 5)
    return {
        "what": f"messages sent by one actor to another, mailbox of {_MAILBOX}",
        "messages_per_second": round(ours),
        "asks_per_second": round(alone(_asks)),
        "ping_pong_per_second": round(alone(_ping_pong)),
        "memory_stream_messages_per_second": round(bare),
        "pykka_messages_per_second": round(peer),
        "ratio": ours / peer,
        "ratio_to_memory_stream": ours / bare,
    }
