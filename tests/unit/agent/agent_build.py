"""Dull-field builders for the agent's tests: one owner, one capture, one changefeed."""

from agent.control import effects
from agent.control.agent import Agent
from agent.control.gate import Gate, Owner
from reactor.effects import Send
from reactor.ids import CaptureId, ChangefeedId, TableSpan, Ts
from reactor.messages import (
    AddSpan,
    Body,
    DispatchResponse,
    Header,
    HeartbeatResponse,
    Message,
    RemoveSpan,
    SpanCheckpoint,
    SpanState,
)

OWNER, HERE, FEED = CaptureId("owner"), CaptureId("here"), ChangefeedId("feed")
SPAN = TableSpan(1)
REVISION = 7


def checkpoint(ts: int) -> SpanCheckpoint:
    return SpanCheckpoint(Ts(ts), Ts(ts))


def new_agent(*, run: str = "run", revision: int = REVISION) -> Agent:
    return Agent(HERE, FEED, gate=Gate(run, 1, version="0.1.0", owner=Owner(OWNER, revision)))


def message(
    agent: Agent,
    body: Body,
    *,
    sender: CaptureId = OWNER,
    revision: int | None = None,
    processor_epoch: str | None = None,
    changefeed_epoch: int = 1,
) -> Message:
    """A message of the owner that ``agent`` knows, unless said otherwise."""
    epoch = agent.gate.processor_epoch if processor_epoch is None else processor_epoch
    revision = agent.gate.owner.revision if revision is None else revision
    return Message(sender, HERE, FEED, Header("0.1.0", revision, epoch, changefeed_epoch), body)


def tell(agent: Agent, body: Body) -> list[effects.AgentEffect]:
    return agent.handle(message(agent, body), 0.0)


def prepare(span: TableSpan = SPAN, ts: int = 1) -> AddSpan:
    return AddSpan(span, True, checkpoint(ts))


def run(span: TableSpan = SPAN, ts: int = 1) -> AddSpan:
    return AddSpan(span, False, checkpoint(ts))


def remove(span: TableSpan = SPAN) -> RemoveSpan:
    return RemoveSpan(span)


def bring_to(agent: Agent, state: SpanState, span: TableSpan = SPAN) -> None:
    """Take ``span`` to ``state`` as an owner and an executor would."""
    steps: dict[SpanState, list[AddSpan | RemoveSpan | effects.SpanEvent]] = {
        SpanState.PREPARING: [prepare(span)],
        SpanState.PREPARED: [prepare(span), effects.SpanPrepared(span)],
        SpanState.REPLICATING: [
            prepare(span),
            effects.SpanPrepared(span),
            run(span),
            effects.SpanRunning(span),
        ],
        SpanState.STOPPING: [prepare(span), remove(span)],
    }
    for step in steps.get(state, []):
        if isinstance(step, (AddSpan, RemoveSpan)):
            tell(agent, step)
        else:
            agent.handle_event(step, 0.0)


def answers(done: list[effects.AgentEffect]) -> list[SpanState]:
    """The states reported to the owner by dispatch responses."""
    bodies = [effect.message.body for effect in done if isinstance(effect, Send)]
    return [body.status.state for body in bodies if isinstance(body, DispatchResponse)]


def responses(done: list[effects.AgentEffect]) -> list[HeartbeatResponse]:
    bodies = [effect.message.body for effect in done if isinstance(effect, Send)]
    return [body for body in bodies if isinstance(body, HeartbeatResponse)]


def orders(done: list[effects.AgentEffect]) -> list[effects.AgentEffect]:
    """What the executor is asked to do."""
    kinds = (effects.PrepareSpan, effects.RunSpan, effects.StopSpan, effects.StartUnit, effects.StopUnit)
    return [effect for effect in done if isinstance(effect, kinds)]
