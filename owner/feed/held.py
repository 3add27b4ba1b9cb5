"""Held tables of one changefeed: what one table cannot do holds that table alone, and all others flow.

    flows ──error of the table, schema change refused, source cannot follow──► held ──time, or an operator──► tried
      ▲                                                                         ▲ │                           │ │
      │                                                                         │ └─the log is gone──► lost   │ │
      │                                                                         └──────────error──────────────┘ │
      └────────────────────────────────as far as the changefeed's checkpoint────────────────────────────────────┘

``owner.feed.hold_stages`` has the table. What is stored (``HeldTable``) is the truth: from *held* on the table has no
spans, and from there until it flows again it is in no barrier, no checkpoint and no sync point. When it is *tried* its
spans are placed again where it was, by the sink's own record, and it catches up. It flows again in the commit that
states a checkpoint it has reached, so the checkpoint never goes back; so that it gets there, the checkpoint waits for a
table that is about to.

The log is kept for held tables up to a bound (``agent.log.retention``); one whose part of it is gone is *lost*.
What stops every table alike is no fault of a table: it becomes one error of the changefeed.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from owner.feed.hold_stages import SAID, Trigger, note_step
from owner.feed.state import HELD_TABLES
from owner.tables.refusal import Refusal
from reactor import keys, patches
from reactor.effects import Effect, Log
from reactor.errors import Scope
from reactor.ids import ChangefeedId, Ts
from reactor.records.changefeed import ChangefeedStatus, RunningError, TableRecord
from reactor.records.held import HeldTable, HoldOrigin, HoldStage
from reactor.transitions import History

if TYPE_CHECKING:
    from owner.progress.facts import Facts

#: code of a table whose log is gone
POSITION_LOST = "PositionLost"
#: codes that may be the sink's fault as a whole, though each table says it of itself
_OF_SINK = frozenset({"TableHeld", "TablePassing", "TableForeign"})
#: so many tables that say the same, while none can be written, are one error of the changefeed
_SAME_MAX = 16
#: while no table can be written, others may be about to say the same
_DOUBT_S = 3.0
_RETRY_S, _RETRY_MAX_S = 5.0, 300.0
#: records that change in one transaction
_AT_ONCE = 40
#: a lap that takes less is the last one: the checkpoint waits for the table
_LAST_LAP_S = 10.0
#: how often the position of a table that catches up is stored
_STORE_S = 5.0


class Spans(Protocol):
    """Where spans are: a run of the changefeed."""

    def reached(self, ids: Iterable[int], *, is_written: bool = False) -> Mapping[int, Ts]:
        """How far all spans of each table are known to be; without those of which a span is missing, or is
        not being written (``is_written``)."""
        ...

    def writes_others(self, failing: Collection[int]) -> bool:
        """Some table is written at the moment that is not one of these."""
        ...


@dataclass(slots=True)
class _Lap:
    """A table that is tried runs after the checkpoint, from mark to mark."""

    mark: Ts
    since: float
    is_last: bool = False
    stored_at: float = 0.0


@dataclass(slots=True)
class Verdict:
    """What one round comes to. ``errors``: of the changefeed."""

    changes: list[patches.Patch] = field(default_factory=list)
    errors: list[RunningError] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)
    touched: set[int] = field(default_factory=set)


class HeldTables:
    """For one changefeed, over all its runs."""

    def __init__(self, id: ChangefeedId, *, cluster: str, namespace: str, wall_offset_s: float) -> None:
        self._place = (cluster, namespace, id)
        self._wall_offset_s = wall_offset_s
        self._errors: dict[int, RunningError] = {}
        self._refusals: dict[int, Refusal] = {}
        self._laps: dict[int, _Lap] = {}
        #: since when there are errors that may be of all tables
        self._doubt_since: float | None = None
        self._steps = History(f"a held table of changefeed {id}")

    def note(self, errors: Iterable[RunningError], refusals: Iterable[Refusal] = ()) -> None:
        """What holds tables from now on."""
        self._errors.update({error.table_id: error for error in errors if error.table_id is not None})
        self._refusals.update({refusal.table_id: refusal for refusal in refusals})

    def tick(self, facts: "Facts", spans: Spans, now: float) -> Verdict:
        """One round."""
        verdict = Verdict()
        if not (facts.held or self._errors or self._refusals) or facts.tables is None:
            return verdict
        tables = {table.table_id: table for table in facts.tables}
        at = spans.reached([*(id for id, held in facts.held.items() if held.stage is HoldStage.TRIED), *self._errors])
        self._keep_laps(facts)
        self._forget_gone(facts, tables, verdict)
        self._lose(facts, at, verdict, now)
        self._hold_refused(facts, verdict, now)
        self._hold_failed(facts, tables, at, spans, verdict, now)
        self._try_again(facts, verdict, now)
        return verdict

    def catch_up(self, facts: "Facts", status: ChangefeedStatus, spans: Spans, verdict: Verdict, now: float) -> None:
        """Tables that are as far as ``status``, which is committed with these changes, flow again.

        What has not been written any further has proved nothing, unless there is nothing to write up to the log's end
        or the changefeed's target.
        """
        tried = [id for id in facts.stragglers if id not in self._errors and id not in verdict.touched]
        if not tried or facts.tables is None or facts.head is None:
            return
        at = spans.reached(tried, is_written=True)
        target_ts = facts.info.target_ts
        end_ts = facts.head.resolved_ts if target_ts is None else min(facts.head.resolved_ts, target_ts)
        for table in facts.tables:
            id, ts = table.table_id, at.get(table.table_id)
            if ts is None:
                continue
            has_proved = ts > facts.held[id].ts or ts >= end_ts
            if has_proved and ts >= status.checkpoint_ts and len(verdict.changes) < _AT_ONCE:
                self._change(verdict, Trigger.CAUGHT_UP, facts.held[id], None)
            elif (after := self._run_after(facts.held[id], ts, status.checkpoint_ts, now)) is not None:
                verdict.changes.append(self._patch(facts.held[id], after))

    def ceiling(self, facts: "Facts", spans: Spans) -> Ts | None:
        """How far the checkpoint may come while tables are about to reach it; None: as far as it can."""
        if not self._laps:
            return None
        last = [id for id, lap in self._laps.items() if lap.is_last and id in facts.held]
        return min(spans.reached(last).values(), default=None) if last else None

    def again(self, facts: "Facts", now: float) -> list[patches.Patch]:
        """Try all again, as an operator wishes; what is lost stays lost."""
        waiting = [held for held in facts.held.values() if held.stage is HoldStage.HELD]
        return [self._patch(held, held.with_(retry_at=now + self._wall_offset_s)) for held in waiting]

    def next_at(self, held: Mapping[int, HeldTable]) -> float:
        """When time alone moves it on."""
        if not held and self._doubt_since is None:
            return float("inf")
        times = [table.retry_at for table in held.values() if table.stage is HoldStage.HELD and table.retry_at]
        retry_at = min(times, default=float("inf")) - self._wall_offset_s
        return retry_at if self._doubt_since is None else min(retry_at, self._doubt_since + _DOUBT_S)

    def _keep_laps(self, facts: "Facts") -> None:
        tried = {id for id, held in facts.held.items() if held.stage is HoldStage.TRIED}
        self._laps = {id: lap for id, lap in self._laps.items() if id in tried}

    def _forget_gone(self, facts: "Facts", tables: Mapping[int, TableRecord], verdict: Verdict) -> None:
        coming = {table for record in facts.ddl.values() for table in record.pending_ids}
        for id in [id for id in facts.held if id not in tables and id not in coming]:
            self._change(verdict, Trigger.TABLE_GONE, facts.held[id], None)
        for id in [id for id in self._errors if id not in tables]:
            del self._errors[id]

    def _lose(self, facts: "Facts", at: Mapping[int, Ts], verdict: Verdict, now: float) -> None:
        removed_ts = facts.head.removed_ts if facts.head else Ts(0)
        for id, held in facts.held.items():
            if held.stage is HoldStage.LOST or max(held.ts, at.get(id, held.ts)) >= removed_ts:
                continue
            text = (
                f"the change log reaches back to {removed_ts}, the table is at {held.ts}: it was held for longer than "
                f"held-retention-seconds or -bytes allow ({held.error.code}: {held.error.message}); leave it out by a "
                f"filter rule !{held.name} and create a changefeed for it alone, or create this one again"
            )
            error = held.error.with_(code=POSITION_LOST, message=text, time=self._wall(now), retryable=False)
            after = held.with_(stage=HoldStage.LOST, error=error, retry_at=0.0)
            self._change(verdict, Trigger.LOG_GONE, held, after)

    def _hold_refused(self, facts: "Facts", verdict: Verdict, now: float) -> None:
        for id in list(self._refusals)[:_AT_ONCE]:
            refusal, held = self._refusals.pop(id), facts.held.get(id)
            if not _is_parked(held):
                self._hold(verdict, Trigger.REFUSED, held, refusal, now)

    def _hold_failed(
        self,
        facts: "Facts",
        tables: Mapping[int, TableRecord],
        at: Mapping[int, Ts],
        spans: Spans,
        verdict: Verdict,
        now: float,
    ) -> None:
        for id in [id for id in self._errors if _is_parked(facts.held.get(id))]:
            del self._errors[id]
        if (
            self._errors
            and {error.code for error in self._errors.values()} <= _OF_SINK
            and not spans.writes_others(self._errors)
        ):
            if (same := self._same_of_all(facts, len(tables))) is not None:
                verdict.errors.append(same)
                self._errors.clear()
                self._doubt_since = None
                return
            self._doubt_since = now if self._doubt_since is None else self._doubt_since
            if now < self._doubt_since + _DOUBT_S:
                return  # others may say the same
        self._doubt_since = None
        for id in list(self._errors)[:_AT_ONCE]:
            error, held, table = self._errors.pop(id), facts.held.get(id), tables[id]
            least_ts = held.ts if held else max(facts.status.checkpoint_ts, table.start_ts)
            name = f"{table.schema_name}.{table.name}"
            ts = max(least_ts, at.get(id, least_ts))
            self._hold(verdict, Trigger.ERROR, held, Refusal(id, name, ts, HoldOrigin.WRITE, error), now)

    def _same_of_all(self, facts: "Facts", count: int) -> RunningError | None:
        """The one error that all tables have, if there is one, or that very many have."""
        codes = {error.code for error in self._errors.values()}
        flowing = count - sum(_is_parked(held) for held in facts.held.values())
        if len(codes) != 1 or len(self._errors) < max(2, min(flowing, _SAME_MAX)):
            return None
        first = self._errors[min(self._errors)]
        text = f"{len(self._errors)} of {count} tables cannot be written, and none can: {first.message}"
        return first.with_(message=text, table_id=None, scope=Scope.CHANGEFEED, retryable=True)

    def _hold(self, verdict: Verdict, trigger: Trigger, held: HeldTable | None, refusal: Refusal, now: float) -> None:
        wall, tries = self._wall(now), held.tries + 1 if held else 0
        wait_s = min(_RETRY_S * 2 ** min(tries, 10), _RETRY_MAX_S)
        after = HeldTable(
            table_id=refusal.table_id,
            name=refusal.name,
            ts=max(refusal.ts, held.ts) if held else refusal.ts,
            since=held.since if held else wall,
            error=refusal.error,
            origin=refusal.origin,
            tries=tries,
            retry_at=0.0 if refusal.origin is HoldOrigin.SOURCE else wall + wait_s,
        )
        self._laps.pop(refusal.table_id, None)
        self._change(verdict, trigger, held, after)

    def _try_again(self, facts: "Facts", verdict: Verdict, now: float) -> None:
        due = [held for held in facts.held.values() if held.stage is HoldStage.HELD and held.retry_at]
        for held in [held for held in due if held.retry_at <= self._wall(now)][:_AT_ONCE]:
            self._change(verdict, Trigger.DUE, held, held.with_(stage=HoldStage.TRIED, retry_at=0.0))

    def _run_after(self, held: HeldTable, ts: Ts, checkpoint_ts: Ts, now: float) -> HeldTable | None:
        """One look at a table that catches up; its position is stored now and then, for the log's retention."""
        lap = self._laps.setdefault(held.table_id, _Lap(checkpoint_ts, now, stored_at=now))
        if ts >= lap.mark:
            lap.is_last = lap.is_last or now - lap.since <= _LAST_LAP_S
            lap.mark, lap.since = checkpoint_ts, now
        elif now - lap.since > 3 * _LAST_LAP_S:
            lap.is_last = False
        if ts <= held.ts or now < lap.stored_at + _STORE_S:
            return None
        lap.stored_at = now
        return held.with_(ts=ts)

    def _change(self, verdict: Verdict, trigger: Trigger, before: HeldTable | None, after: HeldTable | None) -> None:
        """:raises InvalidTransitionError: its stage has no row for it."""
        known = after or before
        assert known is not None, "a table that flows does not begin to flow"
        if known.table_id in verdict.touched:
            return  # one change at a time: the next one is due when this one is stored
        note_step(self._steps, trigger, before, after)
        verdict.touched.add(known.table_id)
        verdict.changes.append(self._patch(before, after))
        fields: tuple[tuple[str, object], ...] = (("changefeed", self._place[2]), ("table", known.name))
        if after is not None:
            fields = (*fields, ("ts", after.ts), ("code", after.error.code), ("error", after.error.message))
        verdict.effects.append(Log("warning" if after else "info", SAID[trigger], fields))

    def validate(self) -> None:
        """Assert what holds between two ticks."""
        for id, error in self._errors.items():
            assert error.table_id == id, f"the error of table {id} is of table {error.table_id}"
        for id, refusal in self._refusals.items():
            assert refusal.table_id == id, f"the refusal of table {id} is of table {refusal.table_id}"
        assert self._doubt_since is None or self._errors, "there is a doubt, and no error that it is about"

    def _patch(self, before: HeldTable | None, after: HeldTable | None) -> patches.Patch:
        known = after or before
        assert known is not None
        key = keys.HeldKey(*self._place, known.table_id)
        return patches.delete_record(key, known) if after is None else patches.replace_record(key, before, after)

    def _wall(self, now: float) -> float:
        return now + self._wall_offset_s


def warning(held: Mapping[int, HeldTable]) -> RunningError | None:
    """What a changefeed says of its held tables: all of them, by name."""
    if not held:
        return None
    tables = sorted(held.values(), key=lambda table: table.name)
    named = "; ".join(f"{table.name} ({describe(table)})" for table in tables)
    text = f"{count_of(tables)} held, all others flow: {named}"
    time = max(table.error.time for table in tables)
    return RunningError(code=HELD_TABLES, message=text, time=time)


def describe(held: HeldTable) -> str:
    """Why, in one line."""
    stage = " is tried again:" if held.stage is HoldStage.TRIED else ""
    return f"{stage} {held.error.code}: {held.error.message}".strip()


def count_of(tables: Sequence[object]) -> str:
    return f"{len(tables)} table{'s are' if len(tables) != 1 else ' is'}"


def _is_parked(held: HeldTable | None) -> bool:
    return held is not None and held.stage is not HoldStage.TRIED
