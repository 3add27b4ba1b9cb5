"""Table spans placed on captures by the two-phase protocol, and what a round costs when all is quiet.

The real coordinator and real agents, without a network: every message is handed over at once. The peer is the least
that an assignment could be, safe against nothing: one round-robin order and one "it runs" for each span, in plain
dictionaries.
"""

import itertools
import time
from collections.abc import Sequence

from agent import effects
from agent.agent import Agent
from agent.gate import Gate
from owner.scheduler.coordinator import Coordinator, Identity
from owner.scheduler.replication import SetState
from owner.settings import SchedulerSettings
from reactor.effects import Send
from reactor.ids import CaptureId, ChangefeedId, TableSpan, Ts
from reactor.messages import AddSpan, Barrier, Message, SpanCheckpoint, SpanState, SpanStatus

_FEED = ChangefeedId("benchmark")
_QUIET_ROUNDS = 200
_ROUND_S = 0.05


class _Captures:
    """Agents whose executors obey at once."""

    def __init__(self, ids: Sequence[CaptureId]) -> None:
        self._agents = {id: Agent(id, _FEED, gate=Gate(f"run-{id}", 1, version="0.1.0")) for id in ids}
        self.inbox: list[Message] = []

    def deliver(self, sends: Sequence[Send], now: float) -> None:
        for send in sends:
            agent = self._agents[send.message.receiver]
            self._take(agent, agent.handle(send.message, now), now)

    def _take(self, agent: Agent, done: list[effects.AgentEffect], now: float) -> None:
        for effect in done:
            match effect:
                case Send():
                    self.inbox.append(effect.message)
                case effects.PrepareSpan():
                    self._take(agent, agent.handle_event(effects.SpanPrepared(effect.span), now), now)
                case effects.RunSpan():
                    self._take(agent, agent.handle_event(effects.SpanRunning(effect.span), now), now)


def run(spans: int = 10_000, captures: int = 10) -> dict[str, object]:
    placing_s, quiet_ms = _two_phase(spans, captures)
    peer_s = _one_phase(spans, captures)
    return {
        "spans": spans,
        "captures": captures,
        "spans_per_second": round(spans / placing_s),
        "quiet_round_ms": round(quiet_ms, 2),
        "peer_spans_per_second": round(spans / peer_s),
        "ratio": round(peer_s / placing_s, 3),
        "peer": "one round-robin order and one answer for each span, in plain dictionaries",
    }


def _two_phase(spans: int, captures: int) -> tuple[float, float]:
    """Seconds until every span is written by somebody; milliseconds of one round after that."""
    ids = [CaptureId(f"capture-{number}") for number in range(captures)]
    identity = Identity(ids[0], _FEED, "0.1.0", 1, 1)
    coordinator = Coordinator(identity, SchedulerSettings(add_table_batch_size=1_000))
    fleet, now = _Captures(ids), 0.0
    tables = {number: Ts(1) for number in range(spans)}

    def round_() -> None:
        nonlocal now
        now += _ROUND_S
        inbox, fleet.inbox = fleet.inbox, []
        fleet.deliver(coordinator.poll(tables, ids, inbox, Barrier(), now), now)

    started = time.perf_counter()
    while len(coordinator.sets) < spans or coordinator.inflight.running:
        round_()
    placed = time.perf_counter()
    assert all(known.state is SetState.REPLICATING for known in coordinator.sets.values())
    for _ in range(_QUIET_ROUNDS):
        round_()
    return placed - started, (time.perf_counter() - placed) / _QUIET_ROUNDS * 1_000


def _one_phase(spans: int, captures: int) -> float:
    ids = itertools.cycle([CaptureId(f"capture-{number}") for number in range(captures)])
    started = time.perf_counter()
    known: dict[TableSpan, tuple[CaptureId, SpanStatus]] = {}
    for number in range(spans):
        capture, order = next(ids), AddSpan(TableSpan(number), False, SpanCheckpoint(Ts(1), Ts(1)))
        known[order.span] = (capture, SpanStatus(order.span, SpanState.REPLICATING, order.checkpoint))
    assert len(known) == spans
    return time.perf_counter() - started
