"""A table span as an actor, through its mailbox on virtual time: prepare, run, flushes, stop, and what goes wrong."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise

import anyio
import pytest

from agent.control import effects
from agent.control.flusher import Join, Leave
from agent.control.runtime import SpanPosition
from agent.control.span_writer import GiveUp, SpanOrder, SpanWriter
from agent.errors import SinkPassingError, TableForeignError
from benchmarks.support.actor_system import ActorSystem
from capture.actors.actor import ActorRef
from reactor.ids import TableSpan, Ts
from reactor.messages import SpanCheckpoint
from reactor.records.changefeed import RunningError
from reactor.records.tables.table import TableRecord
from tests.unit.agent.control.test_processor import MemoryParts

pytestmark = pytest.mark.looptime

SPAN = TableSpan(7)
TABLE = TableRecord(table_id=7, schema_name="public", name="t", key=("id",), start_ts=Ts(10))
AT_10 = SpanCheckpoint(Ts(10), Ts(10))


@dataclass
class Flushers:
    """A flusher's mailbox: remembers who is in, answers who leaves after ``leaving_takes_s``."""

    inside: dict[TableSpan, SpanPosition] = field(default_factory=dict)
    leaving_takes_s: float = 0.0

    async def handle(self, message: Join | Leave) -> SpanPosition | None:
        if isinstance(message, Join):
            self.inside[message.position.span] = message.position
            return None
        await anyio.sleep(self.leaving_takes_s)
        return self.inside.pop(message.span, None)


@dataclass
class Rig:
    writer: ActorRef[SpanOrder]
    runtime: MemoryParts
    flusher: Flushers
    events: list[effects.SpanEvent]
    warned: list[RunningError]
    flusher_ref: ActorRef[Join | Leave]

    async def settle(self) -> list[effects.SpanEvent]:
        await anyio.sleep(100)
        return self.events


@asynccontextmanager
async def rig(*, is_settled: bool = True) -> AsyncIterator[Rig]:
    runtime, flusher, events = MemoryParts(), Flushers(), list[effects.SpanEvent]()
    warned: list[RunningError] = []
    async with ActorSystem("test") as system:
        flusher_ref = system.spawn(flusher, "flusher")
        writer = SpanWriter(
            SPAN,
            TABLE,
            runtime=runtime,
            flusher=flusher_ref,
            emit=events.append,
            warn=warned.append,
            is_settled=lambda _: is_settled,
        )
        yield Rig(system.spawn(writer, "writer"), runtime, flusher, events, warned, flusher_ref)


async def test_it_is_prepared_without_writing_and_runs_from_where_the_sink_is() -> None:
    async with rig() as r:
        await r.writer.tell(effects.PrepareSpan(SPAN, AT_10))
        assert await r.settle() == [effects.SpanPrepared(SPAN)]
        assert r.flusher.inside == {}
        r.runtime.recorded[SPAN] = Ts(15)  # the old writer came further before it stopped
        await r.writer.tell(effects.RunSpan(SPAN, Ts(12)))
        at_15 = SpanCheckpoint(Ts(15), Ts(15))
        assert (await r.settle())[1:] == [effects.SpanRunning(SPAN), effects.SpanProgress(SPAN, at_15)]
        assert r.flusher.inside[SPAN].committed_ts == 15


async def test_what_a_flush_did_is_its_last_checkpoint() -> None:
    async with rig() as r:
        await r.writer.tell(effects.PrepareSpan(SPAN, AT_10))
        await r.writer.tell(effects.RunSpan(SPAN, Ts(10)))
        await r.settle()
        r.flusher.inside[SPAN] = replace(r.flusher.inside[SPAN], checkpoint_ts=Ts(30), committed_ts=Ts(20))
        await r.writer.tell(effects.StopSpan(SPAN))
        assert (await r.settle())[-1] == effects.SpanStopped(SPAN, SpanCheckpoint(Ts(30), Ts(30)))


async def test_it_says_stopped_only_when_the_flush_under_way_is_over() -> None:
    async with rig() as r:
        r.flusher.leaving_takes_s = 50.0
        await r.writer.tell(effects.PrepareSpan(SPAN, AT_10))
        await r.writer.tell(effects.RunSpan(SPAN, Ts(10)))
        await r.writer.tell(effects.StopSpan(SPAN))
        await anyio.sleep(40)
        assert not any(isinstance(event, effects.SpanStopped) for event in r.events)
        assert (await r.settle())[-1] == effects.SpanStopped(SPAN, AT_10)


async def test_it_does_not_crash_when_the_flusher_ends_before_it() -> None:
    async with rig() as r:
        r.flusher.leaving_takes_s = 50.0
        await r.writer.tell(effects.PrepareSpan(SPAN, AT_10))
        await r.writer.tell(effects.RunSpan(SPAN, Ts(10)))
        await r.writer.tell(effects.StopSpan(SPAN))
        await anyio.sleep(10)
        r.flusher_ref.stop(drain=False)
        await r.settle()
        assert not any(isinstance(event, effects.SpanStopped | effects.SpanFailed) for event in r.events)
        assert r.writer.statistics().is_dead is False, "it ends with its processor"


async def test_a_lasting_error_of_a_flush_ends_it() -> None:
    error = RunningError(code="SinkConfig", message="the table is gone; create it again", retryable=False)
    async with rig() as r:
        await r.writer.tell(effects.PrepareSpan(SPAN, AT_10))
        await r.writer.tell(effects.RunSpan(SPAN, Ts(10)))
        await r.settle()
        await r.writer.tell(GiveUp(SPAN, error))
        assert (await r.settle())[-1] == effects.SpanFailed(SPAN, error)
        assert r.flusher.inside == {}


async def test_a_sink_that_refuses_the_span_fails_it_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(table: TableRecord, span: TableSpan, checkpoint_ts: Ts) -> SpanPosition:
        raise TableForeignError("the sink has no record of it; create the changefeed again")

    async with rig() as r:
        monkeypatch.setattr(r.runtime, "open_span", refuse)
        await r.writer.tell(effects.PrepareSpan(SPAN, AT_10))
        [failed] = await r.settle()
        assert isinstance(failed, effects.SpanFailed)
        assert failed.error.code == "TableForeign"
        assert failed.error.is_of_table
        assert failed.error.table_id == SPAN.table_id


async def test_a_table_that_stays_elsewhere_at_the_sink_is_no_silent_standstill(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A schema change moves it: it is asked for again, and reported if that takes long."""
    asked = []

    async def refuse(table: TableRecord, span: TableSpan, checkpoint_ts: Ts) -> SpanPosition:
        asked.append(span)
        raise TableForeignError("the sink has no record of it; create the changefeed again")

    async with rig(is_settled=False) as r:
        monkeypatch.setattr(r.runtime, "open_span", refuse)
        await r.writer.tell(effects.PrepareSpan(SPAN, AT_10))
        await anyio.sleep(10)
        assert (len(asked) > 2, r.warned) == (True, [])
        await anyio.sleep(60)
        assert {error.code for error in r.warned} == {"TableForeign"}
        assert r.events == []
        await r.writer.tell(effects.StopSpan(SPAN))
        assert [type(event) for event in await r.settle()] == [effects.SpanStopped]


async def test_a_sink_that_is_away_is_asked_until_it_is_back_and_people_are_notified(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither the changefeed nor the table is to blame; and the span can still be stopped meanwhile."""
    asked = []

    async def away(table: TableRecord, span: TableSpan, checkpoint_ts: Ts) -> SpanPosition:
        asked.append(anyio.current_time())
        if len(asked) < 8:
            raise SinkPassingError("the sink's directory is not mounted; mount it")
        return SpanPosition(span, table, Ts(10), Ts(10))

    async with rig() as r:
        monkeypatch.setattr(r.runtime, "open_span", away)
        await r.writer.tell(effects.PrepareSpan(SPAN, AT_10))
        assert await r.settle() == [effects.SpanPrepared(SPAN)]
        waits = [round(after - before) for before, after in pairwise(asked)]
        assert waits == [1, 2, 4, 8, 15, 15, 15]
        assert {error.code for error in r.warned} == {"SinkPassing"}
        asked.clear()
        await r.writer.tell(effects.RunSpan(SPAN, Ts(10)))
        await r.writer.tell(effects.StopSpan(SPAN))
        assert isinstance((await r.settle())[-1], effects.SpanStopped)
        assert len(asked) == 1, "a span that was stopped asks no more"


async def test_after_its_last_word_it_says_and_does_nothing() -> None:
    """Its successor may be writing by now: a stop that crossed with the failure must leave that in the flusher."""
    async with rig() as r:
        await r.writer.tell(effects.PrepareSpan(SPAN, AT_10))
        await r.writer.tell(effects.RunSpan(SPAN, Ts(10)))
        await r.settle()
        error = RunningError(code="Sink", message="refused")
        await r.writer.tell(GiveUp(SPAN, error))
        assert (await r.settle())[-1] == effects.SpanFailed(SPAN, error)
        count, successor = len(r.events), SpanPosition(SPAN, TABLE, Ts(10), Ts(10))
        r.flusher.inside[SPAN] = successor
        await r.writer.tell(effects.StopSpan(SPAN))
        assert len(await r.settle()) == count
        assert r.flusher.inside == {SPAN: successor}
