"""scheduler: how fast spans are assigned to captures, and what the owner's ticks cost when all of them advance.

The real owner over the real state, and real agents whose executors respond at once; time is virtual, in ticks of 50 ms.
Every message is encoded and decoded as between two machines (``capture.messaging.frames``), including those of the
owner's own capture. The tables are in several changefeeds, since the record of one changefeed's tables has to fit into
etcd.

- *cold*: from captures without spans to every span being written, in real time, with all costs.
- *steady*: every span of every capture advances twice a second, each capture at its own time. A tick's time is the
  owner's alone; decoding is counted separately.
- *idle*: twenty quiet changefeeds of ten tables, CPU time of one tick.
- *memory*: what a new owner keeps after it has learnt everything from the captures' first answers (``tracemalloc``),
  and separately what the etcd state keeps per table.

The peer is a minimal assignment without any safety: one round-robin order and one "it runs" per span, in plain
dictionaries.
"""

import gc
import itertools
import time
import tracemalloc
from collections.abc import Sequence
from statistics import median, quantiles

from agent.control import effects
from agent.control.agent import Agent
from agent.control.gate import Gate
from agent.control.gate import Owner as KnownOwner
from capture.gc_settings import collect_seldom
from capture.messaging import frames
from owner.owner import Owner
from owner.settings import OwnerSettings, SchedulerSettings
from reactor import keys
from reactor.effects import Commit, Effect, Send
from reactor.errors import IgnorePatchError
from reactor.ids import CaptureId, ChangefeedId, TableSpan, Ts
from reactor.messages import AddSpan, Message, SpanCheckpoint, SpanState, SpanStatus
from reactor.records.base import Record
from reactor.records.capture import CaptureInfo
from reactor.records.changefeed import ChangefeedInfo, SealedUri, Unit, UnitRecord, UnitStage
from reactor.records.log_head import LogHead
from reactor.records.tables.table import TableRecord
from reactor.state import ClusterState
from reactor.store.port import Event

CLUSTER, NAMESPACE = "benchmark", keys.DEFAULT_NAMESPACE
_TABLES_PER_FEED = 10_000
_TICK_S = 0.05
_FLUSH_TICKS = 10
_STEADY_TICKS = 400
_IDLE_FEEDS, _IDLE_TABLES = 20, 10
_URI = SealedUri(masked="postgresql://h/d", sealed="x")


class _Wire:
    """Encodes and decodes messages. ``seconds``: time spent doing so."""

    def __init__(self) -> None:
        self._decoder = frames.Decoder()
        self.seconds = 0.0
        self.messages = 0

    def carry(self, message: Message) -> Message:
        started = time.perf_counter()
        (frame,) = self._decoder.feed(frames.encode(frames.Data("topic", 1, message)))
        assert isinstance(frame, frames.Data)
        self.seconds += time.perf_counter() - started
        self.messages += 1
        return frame.message


class _Fleet:
    """Agents by capture and changefeed, whose executors respond at once."""

    def __init__(self, captures: Sequence[CaptureId], feeds: Sequence[ChangefeedId]) -> None:
        gates = {(capture, feed): Gate(f"run-{capture}", 1, version="0.1.0") for capture in captures for feed in feeds}
        self._gates = list(gates.values())
        self._agents = {at: Agent(*at, gate=gate) for at, gate in gates.items()}
        self._writing: dict[tuple[CaptureId, ChangefeedId], list[TableSpan]] = {at: [] for at in self._agents}
        self._captures = list(captures)
        self.answers: list[Message] = []

    def elect(self, owner: KnownOwner) -> None:
        """Let every capture see the owner in etcd."""
        for gate in self._gates:
            gate.elect(owner)

    def deliver(self, message: Message, now: float) -> None:
        at = message.receiver, message.changefeed
        self._take(at, self._agents[at].handle(message, now), now)

    def flush(self, tick: int, now: float) -> None:
        """Advance all spans of the captures whose turn it is."""
        ts = Ts(1_000 + tick)
        for number, capture in enumerate(self._captures):
            if (number + tick) % _FLUSH_TICKS == 0:
                for at in self._agents:
                    if at[0] == capture:
                        self._progress(at, SpanCheckpoint(ts, ts), now)

    def tick(self, now: float) -> None:
        for at, agent in self._agents.items():
            self._take(at, agent.tick(now), now)

    def _progress(self, at: tuple[CaptureId, ChangefeedId], checkpoint: SpanCheckpoint, now: float) -> None:
        agent = self._agents[at]
        for span in self._writing[at]:
            agent.handle_event(effects.SpanProgress(span, checkpoint, now), now)

    def _take(self, at: tuple[CaptureId, ChangefeedId], done: list[effects.AgentEffect], now: float) -> None:
        agent = self._agents[at]
        for effect in done:
            match effect:
                case Send():
                    self.answers.append(effect.message)
                case effects.PrepareSpan():
                    self._take(at, agent.handle_event(effects.SpanPrepared(effect.span), now), now)
                case effects.RunSpan():
                    self._writing[at].append(effect.span)
                    self._take(at, agent.handle_event(effects.SpanRunning(effect.span), now), now)


class _Cluster:
    """Owner, state and fleet; ``step`` is one tick of all of them."""

    def __init__(self, spans: int, captures: int, *, tables_per_feed: int = _TABLES_PER_FEED) -> None:
        self.spans = spans
        self.captures = [CaptureId(f"capture-{number:02}") for number in range(captures)]
        self.feeds = [ChangefeedId(f"feed-{number:02}") for number in range(-(-spans // tables_per_feed))]
        self._tables_per_feed = tables_per_feed
        self.state = ClusterState(CLUSTER)
        self.fleet = _Fleet(self.captures, self.feeds)
        self.wire = _Wire()
        self.ticks = 0
        self.tick_s = 0.0
        self._revision = 0
        self._store()
        self.elect()

    @property
    def now(self) -> float:
        return self.ticks * _TICK_S

    @property
    def is_settled(self) -> bool:
        runs = [changefeed.run for changefeed in self.owner.changefeeds.values()]
        known = sum(len(run.coordinator.sets) for run in runs if run)
        return known == self.spans and all(run.coordinator.span_index.is_settled for run in runs if run)

    def elect(self) -> None:
        self._revision += 1
        settings = OwnerSettings(scheduler=SchedulerSettings())
        self.owner = Owner(self.captures[0], self._revision, settings=settings)
        self.fleet.elect(KnownOwner(self.captures[0], self._revision))

    def step(self, *, is_busy: bool = False) -> None:
        self.ticks += 1
        if is_busy:
            self.fleet.flush(self.ticks, self.now)
            self.fleet.tick(self.now)
        self.deliver(self.decide(self.take_answers()))

    def take_answers(self) -> list[Message]:
        answers, self.fleet.answers = self.fleet.answers, []
        return [self.wire.carry(message) for message in answers]

    def decide(self, inbox: Sequence[Message]) -> Sequence[Effect]:
        started = time.perf_counter()
        self.state.begin_tick(self.now)
        done = self.owner.tick(self.state, inbox, self.now)
        self.tick_s = time.perf_counter() - started
        return done

    def deliver(self, done: Sequence[Effect]) -> None:
        for effect in done:
            match effect:
                case Send(message):
                    self.fleet.deliver(self.wire.carry(message), self.now)
                case Commit():
                    self._commit(effect)

    def _commit(self, effect: Commit) -> None:
        for patch in effect.group.patches:
            stored = self.state.raw.get(patch.key)
            try:
                self._put(patch.key, patch.function(stored.value if stored else None))
            except IgnorePatchError:
                continue

    def _store(self) -> None:
        """Store what etcd holds of such a cluster."""
        for capture in self.captures:
            info = CaptureInfo(
                id=capture, address="h:1", peer_address="h:2", version="0.1.0", cluster_id=CLUSTER, started_at=0.0
            )
            self._record(keys.CaptureKey(CLUSTER, capture), info)
        left = self.spans
        for feed in self.feeds:
            self._record(
                keys.InfoKey(CLUSTER, NAMESPACE, feed), ChangefeedInfo(id=feed, source=_URI, sink=_URI, epoch=1)
            )
            self._record(keys.LogKey(CLUSTER, NAMESPACE, feed, "main"), LogHead(resolved_ts=Ts(1 << 40)))
            self._record(keys.UnitKey(CLUSTER, NAMESPACE, feed, "main"), _unit(min(left, self._tables_per_feed)))
            left -= self._tables_per_feed

    def _record(self, key: keys.Key, record: Record) -> None:
        self._put(str(key), record.encode())

    def _put(self, key: str, value: bytes | None) -> None:
        self._revision += 1
        self.state.apply([Event(key, value, self._revision, self._revision)])


def _unit(tables: int) -> UnitRecord:
    known = (
        TableRecord(table_id=16_384 + n, schema_name="public", name=f"table_{n}", key=("id",), start_ts=Ts(100))
        for n in range(tables)
    )
    return UnitRecord(unit=Unit.SYNC, stage=UnitStage.RUNNING, epoch=1, tables=tuple(known), start_ts=Ts(100))


def run(spans: int = 100_000, captures: int = 20, *, more_spans: int = 500_000) -> dict[str, object]:
    figures = _idle() | _measure(spans, captures, ticks=_STEADY_TICKS) | _memory(spans, captures)
    peer_s = _one_phase(spans, captures)
    grown = _measure(more_spans, captures, ticks=_STEADY_TICKS // 4) if more_spans else {}
    return {
        "what": f"{spans} spans on {captures} captures, every message through the codec, ticks of {_TICK_S} s",
        "spans": spans,
        "captures": captures,
        **figures,
        "peer_spans_per_second": round(spans / peer_s),
        "ratio": round(peer_s / float(str(figures["cold_seconds"])), 3),
        "peer": "one round-robin order and one answer for each span, in plain dictionaries",
        **{f"{name}_at_{more_spans}": value for name, value in grown.items()},
    }


def _measure(spans: int, captures: int, *, ticks: int) -> dict[str, object]:
    collect_seldom()  # as a server does
    cluster = _Cluster(spans, captures)
    return {**_cold(cluster), **_steady(cluster, ticks)}


def _cold(cluster: _Cluster) -> dict[str, object]:
    """Measure until every span is being written."""
    started, ticks = time.perf_counter(), []
    while not cluster.is_settled:
        cluster.step()
        ticks.append(cluster.tick_s)
    seconds = time.perf_counter() - started
    return {
        "cold_seconds": round(seconds, 2),
        "cold_spans_per_second": round(cluster.spans / seconds),
        "cold_virtual_seconds": round(cluster.now, 2),
        "cold_messages": cluster.wire.messages,
        "cold_longest_tick_ms": round(1e3 * max(ticks), 1),
    }


def _steady(cluster: _Cluster, count: int) -> dict[str, object]:
    """Advance all spans of all captures twice a second."""
    for _ in range(2 * _FLUSH_TICKS):
        cluster.step(is_busy=True)
    before_s, ticks = cluster.wire.seconds, []
    for _ in range(count):
        cluster.step(is_busy=True)
        ticks.append(1e3 * cluster.tick_s)
    virtual_s = count * _TICK_S
    return {
        "steady_statuses_per_second": round(cluster.spans / (_FLUSH_TICKS * _TICK_S)),
        "steady_tick_p50_ms": round(median(ticks), 2),
        "steady_tick_p99_ms": round(quantiles(ticks, n=100)[98], 2),
        "steady_tick_max_ms": round(max(ticks), 2),
        "steady_owner_share_of_a_core": round(sum(ticks) / 1e3 / virtual_s, 3),
        "steady_codec_share_of_a_core": round((cluster.wire.seconds - before_s) / virtual_s, 3),
    }


def _idle(ticks: int = 400) -> dict[str, object]:
    """Tick twenty small quiet changefeeds; heartbeats are due at intervals."""
    cluster = _Cluster(_IDLE_FEEDS * _IDLE_TABLES, 3, tables_per_feed=_IDLE_TABLES)
    while not cluster.is_settled:
        cluster.step()
    for _ in range(2 * _FLUSH_TICKS):
        cluster.step(is_busy=True)
    started = time.process_time()
    for _ in range(ticks):
        cluster.ticks += 1
        cluster.decide([])
    return {"idle_tick_of_20_changefeeds_ms": round(1e3 * (time.process_time() - started) / ticks, 2)}


def _memory(spans: int, captures: int) -> dict[str, object]:
    """Measure what a new owner keeps; its capture has the etcd state already."""
    cluster = _Cluster(spans, captures)
    _cold(cluster)
    record = _unit(_TABLES_PER_FEED).encode()
    cluster.fleet.answers.clear()
    cluster.elect()
    started = time.perf_counter()
    _learn(cluster)
    seconds = time.perf_counter() - started
    cluster.elect()
    gc.collect()
    tracemalloc.start()
    _learn(cluster)
    gc.collect()
    owner, _ = tracemalloc.get_traced_memory()
    kept = UnitRecord.decode(record, key="unit")
    with_tables, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return {
        "owner_change_seconds": round(seconds, 2),
        "owner_bytes_per_span": round(owner / cluster.spans),
        "state_bytes_per_table": round((with_tables - owner) / len(kept.tables)),
    }


def _learn(cluster: _Cluster) -> None:
    """Let a new owner learn the captures' state."""
    while not cluster.is_settled:
        cluster.step()
    cluster.fleet.answers.clear()


def _one_phase(spans: int, captures: int) -> float:
    ids = itertools.cycle([CaptureId(f"capture-{number}") for number in range(captures)])
    started = time.perf_counter()
    known: dict[TableSpan, tuple[CaptureId, SpanStatus]] = {}
    for number in range(spans):
        capture, order = next(ids), AddSpan(TableSpan(number), False, SpanCheckpoint(Ts(1), Ts(1)))
        known[order.span] = (capture, SpanStatus(order.span, SpanState.REPLICATING, order.checkpoint))
    assert len(known) == spans
    return time.perf_counter() - started
