"""Simulated etcd: the checkers see every write, and the connection is unreliable.

A call may be delayed, lost before it is applied, or applied without an answer; a write whose caller has given up, was
cancelled or is dead may still be applied later. A watch lags, breaks, or stalls while the connection is cut, and finds
its history compacted.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from random import Random

import anyio

from reactor.errors import StoreError, StoreUnreachableError
from reactor.store.memory import MemoryClient, MemoryEtcd
from reactor.store.port import Compare, Event, Operation, Put, TxnResult

_TIMEOUT_S = 5.0
_WATCH_TIMEOUT_S = 15.0
#: writes that may be delayed before they are applied; cancelled meanwhile, they are already in flight
_SENT = ("put", "txn")
_LANDS = 0.5
#: units write only a few times, so faults hit their writes more often
_RARE, _MORE_OFTEN = "/unit/", 20

Later = Callable[[float, Callable[[], object]], None]


@dataclass(slots=True)
class Conditions:
    """How unreliable the connection to etcd is: probabilities per call, and the maximum delay."""

    lose_request: float = 0.0
    lose_answer: float = 0.0
    land_late: float = 0.0
    land_through_cut: float = 0.0
    slow: float = 0.0
    slow_s: float = 0.0
    break_watch: float = 0.0
    watch_lag_s: float = 0.0


class SeenEtcd(MemoryEtcd):
    """``on_write`` is called after every revision. ``expire`` is called at intervals: watchers need no
    timers."""

    def __init__(self) -> None:
        super().__init__()
        #: gets the events of a revision, and what its transaction compared
        self.on_write: Callable[[Sequence[Event], Sequence[Compare]], None] = lambda events, compares: None
        self._compares: Sequence[Compare] = ()

    def txn(self, compares: Sequence[Compare], operations: Sequence[Operation]) -> TxnResult:
        self.expire()
        self._compares = compares
        try:
            return super().txn(compares, operations)
        finally:
            self._compares = ()

    async def wait_changed(self) -> None:
        await self._changed.wait()

    def _apply(self, operations: Sequence[Operation]) -> None:
        before = self.revision
        super()._apply(operations)
        if self.revision > before:
            self.on_write(self._history[-1][1], self._compares)


class Way:
    """One machine's connection to etcd, as ``reactor.store.memory.Fault``. ``is_gone``: the machine is dead, whatever
    still runs."""

    def __init__(self, conditions: Conditions, random: Random) -> None:
        self.conditions = conditions
        self.is_gone = False
        self._random = random
        self._healed: anyio.Event | None = None

    @property
    def is_cut(self) -> bool:
        return self._healed is not None

    def cut(self) -> None:
        self._healed = self._healed or anyio.Event()

    def heal(self) -> None:
        if self._healed is not None:
            self._healed.set()
            self._healed = None

    def chance(self, probability: float) -> bool:
        return probability > 0 and self._random.random() < probability

    async def before(self, call: str) -> None:
        await self._pass(_WATCH_TIMEOUT_S if call == "watch" else _TIMEOUT_S)
        conditions = self.conditions
        if call == "watch":
            if conditions.watch_lag_s:
                await anyio.sleep(self._random.random() * conditions.watch_lag_s)
            if self.chance(conditions.break_watch):
                raise StoreUnreachableError("the watch broke")
            return
        if call not in _SENT:
            await self.take_time()
        if self.chance(conditions.lose_request):
            await self.time_out(call)

    async def after(self, call: str) -> None:
        await self._pass(_TIMEOUT_S)
        if self.chance(self.conditions.lose_answer):
            await self.time_out(call)
        if self.chance(self.conditions.slow):
            await anyio.sleep(self._random.random() * self.conditions.slow_s)

    async def take_time(self) -> None:
        conditions = self.conditions
        latency_s = 0.0005 + self._random.random() * 0.003
        if self.chance(conditions.slow):
            latency_s += self._random.random() * conditions.slow_s
        await anyio.sleep(latency_s)

    async def time_out(self, call: str) -> None:
        await anyio.sleep(self._random.random() * _TIMEOUT_S)
        raise StoreUnreachableError(f"no answer to {call}")

    async def _pass(self, timeout_s: float) -> None:
        """Wait while the connection is cut."""
        healed = self._healed
        if healed is not None and not self.is_gone:
            with anyio.move_on_after(timeout_s):
                await healed.wait()
        if self.is_gone or self.is_cut:
            raise StoreUnreachableError("etcd cannot be reached from here")


class WayClient(MemoryClient):
    """A client over a ``Way``. ``later`` schedules an action in the world, whatever becomes of the machine."""

    def __init__(self, server: SeenEtcd, way: Way, *, random: Random, later: Later) -> None:
        super().__init__(server, fault=way)
        self.way = way
        self._etcd = server
        self._random = random
        self._later = later

    async def put(self, key: str, value: bytes, *, lease: int = 0) -> int:
        await self._send("put", [], [Put(key, value, lease)])
        return await super().put(key, value, lease=lease)

    async def txn(self, compares: Sequence[Compare], operations: Sequence[Operation]) -> TxnResult:
        await self._send("txn", compares, operations)
        return await super().txn(compares, operations)

    async def _send(self, call: str, compares: Sequence[Compare], operations: Sequence[Operation]) -> None:
        """Sometimes delay a write for so long that its caller has given up, or is gone, when it is applied."""
        way, conditions = self.way, self.way.conditions

        def land_late() -> None:
            self._later(self._random.random() * 3 * _TIMEOUT_S, lambda: self._land(compares, operations))

        if way.is_gone:
            return
        late = conditions.land_through_cut if way.is_cut else conditions.land_late
        if way.chance(late * _MORE_OFTEN if any(_RARE in operation.key for operation in operations) else late):
            land_late()
            await way.time_out(call)
        try:
            await way.take_time()
        except anyio.get_cancelled_exc_class():
            if way.chance(_LANDS):
                land_late()
            raise

    def _land(self, compares: Sequence[Compare], operations: Sequence[Operation]) -> None:
        with suppress(StoreError):  # its lease has expired: no one is notified
            self._etcd.txn(compares, operations)
