"""Held tables of one changefeed: a table that cannot continue is held alone, and all others flow.

    flows ──error of the table, schema change refused, source cannot follow──► held ──time, or an operator──► tried
      ▲                                                                         ▲ │                           │ │
      │                                                                         │ └─the log is gone──► lost   │ │
      │                                                                         └──────────error──────────────┘ │
      └────────────────────────────────as far as the changefeed's checkpoint────────────────────────────────────┘

``owner.feed.holds.hold_stages`` has the table. Stored records (``HeldTable``) are authoritative: a *held* table has no
spans, and until it flows again it is in no barrier, no checkpoint and no sync point. A *tried* table gets spans again
at its position, by the sink's own record, and catches up. It flows again in the commit that publishes a checkpoint it
has reached, so the checkpoint never goes back; to make this possible, the checkpoint waits for a table that is about to
reach it.

The log is kept for held tables up to a limit (``agent.log.retention``); a table whose part of it is gone is *lost*. A
cause that stops all tables alike is reported as one error of the changefeed.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from owner.feed import renewal
from owner.feed.holds.hold_stages import SAID, Trigger, note_step
from owner.tables.refusal import Refusal
from owner.tables.verdict import Verdict
from reactor import keys, patches
from reactor.effects import Effect, Log
from reactor.errors import Scope
from reactor.ids import ChangefeedId, Ts
from reactor.records.changefeed import ChangefeedStatus, RunningError
from reactor.records.tables.held import CAPTURE_ENDED, HeldTable, HoldOrigin, HoldStage, is_parked
from reactor.records.tables.resync import ResyncStage, TableResync
from reactor.records.tables.table import TableRecord
from reactor.transitions import History

if TYPE_CHECKING:
    from owner.progress.facts import Facts

#: code of a table that flowed until it was to be copied again
RESYNC = "Resync"
#: codes that may be due to the sink as a whole, though each table reports them for itself
_OF_SINK = frozenset({"TableHeld", "TablePassing", "TableForeign"})
#: if this many tables report the same while none can be written, it is one error of the changefeed
_SAME_MAX = 16
#: while no table can be written, wait this long for others to report the same
_DOUBT_S = 3.0
_RETRY_S, _RETRY_MAX_S = 5.0, 300.0
#: a catch-up shorter than this is the last: the checkpoint waits for the table
_LAST_LAP_S = 10.0
#: how often the position of a table that catches up is stored
_STORE_S = 5.0


class Spans(Protocol):
    """The positions of spans in a changefeed's run."""

    def reached(self, ids: Iterable[int], *, is_written: bool = False) -> Mapping[int, Ts]:
        """Return the position that all spans of each table have reached; without tables of which a span is missing, or
        not being written (``is_written``)."""
        ...

    def writes_others(self, failing: Collection[int]) -> bool:
        """Return whether any other table is being written at the moment."""
        ...


@dataclass(slots=True)
class _CatchUp:
    """A retried table that follows the checkpoint from mark to mark."""

    mark: Ts
    since: float
    is_last: bool = False
    stored_at: float = 0.0


class HeldTables:
    """The held tables of one changefeed, over all its runs."""

    def __init__(self, id: ChangefeedId, *, cluster: str, namespace: str, wall_offset_s: float) -> None:
        self._place_of = (cluster, namespace, id)
        self._wall_offset_s = wall_offset_s
        self._errors: dict[int, RunningError] = {}
        self._refusals: dict[int, Refusal] = {}
        self._catch_ups: dict[int, _CatchUp] = {}
        #: since when there are errors that may concern all tables
        self._doubt_since: float | None = None
        self._steps = History(f"a held table of changefeed {id}")

    def note(self, errors: Iterable[RunningError], refusals: Iterable[Refusal] = ()) -> None:
        """Record errors that hold tables."""
        self._errors.update({error.table_id: error for error in errors if error.table_id is not None})
        self._refusals.update({refusal.table_id: refusal for refusal in refusals})

    def tick(self, facts: "Facts", spans: Spans, now: float) -> Verdict:
        """Run one round."""
        verdict = Verdict()
        if not (facts.held or facts.resyncs or facts.lost or self._errors or self._refusals) or facts.tables is None:
            return verdict
        tables = facts.by_id
        tried = (id for id, held in facts.held_with_log.items() if held.stage is HoldStage.TRIED)
        copied = (one.table_id for one in facts.resyncs_begun if not is_parked(facts.held.get(one.table_id)))
        at = spans.reached({*tried, *self._errors, *copied})
        self._keep_laps(facts)
        self._forget_gone(facts, tables, verdict)
        self._follow_resyncs(facts, tables, at, verdict, now)
        self._lose(facts, at, verdict, now)
        self._copy_lost(facts, verdict, now)
        self._hold_refused(facts, verdict, now)
        self._hold_failed(facts, tables, at, spans, verdict, now)
        self._try_again(facts, verdict, now)
        return verdict

    def catch_up(self, facts: "Facts", status: ChangefeedStatus, spans: Spans, verdict: Verdict, now: float) -> None:
        """Release tables that have reached ``status``, which is committed together with these changes.

        A table that has not been written any further must not be released, unless there is nothing to write up to the
        log's end or the changefeed's target.
        """
        tried = [id for id in facts.catching_up if id not in self._errors and id not in verdict.touched]
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
            if verdict.is_full:
                return
            if has_proved and ts >= status.checkpoint_ts:
                self._change(verdict, Trigger.CAUGHT_UP, facts.held[id], None)
            elif (after := self._run_after(facts.held[id], ts, status.checkpoint_ts, now)) is not None:
                verdict.put(self._patch(facts.held[id], after), after)

    def ceiling(self, facts: "Facts", spans: Spans) -> Ts | None:
        """Return how far the checkpoint may advance while tables are about to reach it; None: without limit."""
        if not self._catch_ups:
            return None
        last = [id for id, catch_up in self._catch_ups.items() if catch_up.is_last and id in facts.held]
        return min(spans.reached(last).values(), default=None) if last else None

    def again(self, facts: "Facts", now: float, back: Mapping[int, HeldTable] | None = None) -> list[patches.Patch]:
        """Retry all held tables at an operator's request, except those that are lost, paused or being copied. ``back``:
        tables that were set back, as they are now."""
        out = {id for id, resync in facts.resyncs.items() if resync.holds_table}
        out |= {id for id, held in facts.held.items() if held.stage is not HoldStage.HELD or held.is_paused}
        known, retry_at = {**facts.held, **(back or {})}, self._wall(now)
        after = {id: held if id in out else held.with_(retry_at=retry_at) for id, held in known.items()}
        return [self._patch(held, after[id]) for id, held in facts.held.items() if after[id] is not held]

    def wished(self, before: HeldTable | None, after: HeldTable) -> tuple[patches.Patch, list[Effect]]:
        """An operator holds a table, lets it leave out changes, or has it tried again: what that writes and logs."""
        verdict = Verdict()
        trigger = Trigger.PAUSED if after.is_paused and not after.retry_at else Trigger.SKIPPED
        if before is not None and before.ts == after.ts and before.stage is after.stage and after.retry_at:
            return self._patch(before, after), []  # its next try is due
        self._change(verdict, trigger, before, after)
        return verdict.changes[0], verdict.effects

    def next_at(self, facts: "Facts") -> float:
        """Return when the next retry is due."""
        held = facts.held_with_log.values()
        if not held and self._doubt_since is None:
            return float("inf")
        times = [table.retry_at for table in held if table.stage is HoldStage.HELD and table.retry_at]
        retry_at = min(times, default=float("inf")) - self._wall_offset_s
        return retry_at if self._doubt_since is None else min(retry_at, self._doubt_since + _DOUBT_S)

    def _keep_laps(self, facts: "Facts") -> None:
        tried = {id for id, held in facts.held_with_log.items() if held.stage is HoldStage.TRIED}
        self._catch_ups = {id: catch_up for id, catch_up in self._catch_ups.items() if id in tried}

    def _forget_gone(self, facts: "Facts", tables: Mapping[int, TableRecord], verdict: Verdict) -> None:
        gone = sorted(facts.held.keys() - tables.keys())
        coming = {table for record in facts.pending_ddl for table in record.pending_ids} if gone else set[int]()
        for id in [id for id in gone if id not in coming]:
            if verdict.is_full:
                break
            self._change(verdict, Trigger.TABLE_GONE, facts.held[id], None)
        for id in [id for id in self._errors if id not in tables]:
            del self._errors[id]

    def _follow_resyncs(
        self, facts: "Facts", tables: Mapping[int, TableRecord], at: Mapping[int, Ts], verdict: Verdict, now: float
    ) -> None:
        """A table is not written while it is copied; once its copy has replaced it, it catches up from there."""
        for resync in facts.resyncs_begun:
            id, held = resync.table_id, facts.held.get(resync.table_id)
            if verdict.is_full:
                return
            if resync.stage is ResyncStage.PLACED and is_parked(held):
                self._place(held, resync, verdict)
            elif resync.holds_table and id in tables and (not is_parked(held) or _is_due_again(held)):
                self._hold_for_copy(facts, tables[id], held, at, verdict, now)

    def _place(self, held: HeldTable | None, resync: TableResync, verdict: Verdict) -> None:
        assert held is not None, "a copy is put in the place of a table that nobody writes"
        assert resync.table is not None, "what is in its place was copied"
        if held.table_id in verdict.touched:
            return
        after = held.with_(stage=HoldStage.TRIED, ts=resync.table.start_ts, tries=0, retry_at=0.0)
        self._change(verdict, Trigger.PLACED, held, after)
        key = keys.ResyncKey(*self._place_of, resync.table_id)
        follows = resync.with_(stage=ResyncStage.FOLLOWING)
        verdict.put(patches.replace_record(key, resync, follows), follows)

    def _hold_for_copy(
        self,
        facts: "Facts",
        table: TableRecord,
        held: HeldTable | None,
        at: Mapping[int, Ts],
        verdict: Verdict,
        now: float,
    ) -> None:
        id = table.table_id
        if held is not None and held.stage is not HoldStage.TRIED:
            self._change(verdict, Trigger.COPY, held, held.with_(retry_at=0.0))
            return
        least_ts = held.ts if held else max(facts.status.checkpoint_ts, table.start_ts)
        error = RunningError(
            code=RESYNC, message="its rows are copied again", time=self._wall(now), table_id=id, scope=Scope.TABLE
        )
        after = HeldTable(
            table_id=id,
            name=f"{table.schema_name}.{table.name}",
            ts=max(least_ts, at.get(id, least_ts)),
            since=held.since if held else self._wall(now),
            error=held.error if held else error,
            origin=held.origin if held else HoldOrigin.RESYNC,
        )
        self._catch_ups.pop(id, None)
        self._change(verdict, Trigger.COPY, held, after)

    def _lose(self, facts: "Facts", at: Mapping[int, Ts], verdict: Verdict, now: float) -> None:
        removed_ts = facts.head.removed_ts if facts.head else Ts(0)
        for id, held in facts.held_with_log.items():
            if verdict.is_full:
                return
            is_copied = id in facts.resyncs and facts.resyncs[id].holds_table
            if is_copied or max(held.ts, at.get(id, held.ts)) >= removed_ts:
                continue
            text = (
                f"the change log reaches back to {removed_ts}, the table is at {held.ts}: it was held for longer than "
                f"held-retention-seconds or -bytes allow ({held.error.code}: {held.error.message}); cure that, then "
                f"`weir table resync -c {self._place_of[2]} --table {held.name}` copies it again"
            )
            error = held.error.with_(code=renewal.POSITION_LOST, message=text, time=self._wall(now), retryable=False)
            after = held.with_(stage=HoldStage.LOST, error=error, retry_at=0.0)
            self._change(verdict, Trigger.LOG_GONE, held, after)

    def _copy_lost(self, facts: "Facts", verdict: Verdict, now: float) -> None:
        """When there is a new position: tables that have lost the old one, as held tables that are copied again."""
        if not facts.lost or facts.needs_position:
            return
        has_copies = facts.info.target_ts is None
        new = facts.lost - facts.held.keys() | (facts.lost - facts.resyncs.keys() if has_copies else frozenset())
        for table in facts.tables or () if new else ():
            id = table.table_id
            if verdict.is_full:
                return
            if id not in new:
                continue
            if id not in facts.held:
                lost = renewal.lost_table(table, facts.status.checkpoint_ts, time=self._wall(now))
                self._change(verdict, Trigger.LOG_GONE, None, lost)
            if id not in facts.resyncs and has_copies:
                key = keys.ResyncKey(*self._place_of, id)
                limits = facts.record.copy_limits if facts.record else ()
                copy = renewal.copy_of(table, limits, time=self._wall(now))
                verdict.put(patches.replace_record(key, None, copy), copy)

    def _hold_refused(self, facts: "Facts", verdict: Verdict, now: float) -> None:
        for id in list(self._refusals):
            if verdict.is_full:
                return
            refusal, held = self._refusals.pop(id), facts.held.get(id)
            if not is_parked(held):
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
        for id in [id for id in self._errors if is_parked(facts.held.get(id))]:
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
                return  # others may report the same
        self._doubt_since = None
        for id in list(self._errors):
            if verdict.is_full:
                return
            error, held, table = self._errors.pop(id), facts.held.get(id), tables[id]
            least_ts = held.ts if held else max(facts.status.checkpoint_ts, table.start_ts)
            name = f"{table.schema_name}.{table.name}"
            ts = max(least_ts, at.get(id, least_ts))
            self._hold(verdict, Trigger.ERROR, held, Refusal(id, name, ts, HoldOrigin.WRITE, error), now)

    def _same_of_all(self, facts: "Facts", count: int) -> RunningError | None:
        """Return the one error that all tables, or very many, have; None if there is none."""
        codes = {error.code for error in self._errors.values()}
        flowing = count - sum(is_parked(held) for held in facts.held.values())
        if len(codes) != 1 or len(self._errors) < max(2, min(flowing, _SAME_MAX)):
            return None
        first = self._errors[min(self._errors)]
        text = f"{len(self._errors)} of {count} tables cannot be written, and none can: {first.message}"
        return first.with_(message=text, table_id=None, scope=Scope.CHANGEFEED, retryable=True)

    def _hold(self, verdict: Verdict, trigger: Trigger, held: HeldTable | None, refusal: Refusal, now: float) -> None:
        wall, tries = self._wall(now), held.tries + 1 if held else 0
        wait_s = min(_RETRY_S * 2 ** min(tries, 10), _RETRY_MAX_S)
        is_left = refusal.origin is HoldOrigin.SOURCE or refusal.error.code == CAPTURE_ENDED
        after = HeldTable(
            table_id=refusal.table_id,
            name=refusal.name,
            ts=max(refusal.ts, held.ts) if held else refusal.ts,
            since=held.since if held else wall,
            error=refusal.error,
            origin=refusal.origin,
            tries=tries,
            retry_at=0.0 if is_left else wall + wait_s,
        )
        self._catch_ups.pop(refusal.table_id, None)
        self._change(verdict, trigger, held, after)

    def _try_again(self, facts: "Facts", verdict: Verdict, now: float) -> None:
        due = [held for held in facts.held_with_log.values() if held.stage is HoldStage.HELD and held.retry_at]
        for held in [held for held in due if held.retry_at <= self._wall(now)]:
            if verdict.is_full:
                return
            self._change(verdict, Trigger.DUE, held, held.with_(stage=HoldStage.TRIED, retry_at=0.0))

    def _run_after(self, held: HeldTable, ts: Ts, checkpoint_ts: Ts, now: float) -> HeldTable | None:
        """Check a table that catches up; its position is stored at intervals, for the log's retention."""
        catch_up = self._catch_ups.setdefault(held.table_id, _CatchUp(checkpoint_ts, now, stored_at=now))
        if ts >= catch_up.mark:
            catch_up.is_last = catch_up.is_last or now - catch_up.since <= _LAST_LAP_S
            catch_up.mark, catch_up.since = checkpoint_ts, now
        elif now - catch_up.since > 3 * _LAST_LAP_S:
            catch_up.is_last = False
        if ts <= held.ts or now < catch_up.stored_at + _STORE_S:
            return None
        catch_up.stored_at = now
        return held.with_(ts=ts)

    def _change(self, verdict: Verdict, trigger: Trigger, before: HeldTable | None, after: HeldTable | None) -> None:
        """:raises InvalidTransitionError: its stage has no row for it."""
        known = after or before
        assert known is not None, "a table that flows does not begin to flow"
        if known.table_id in verdict.touched:
            return  # one change at a time: the next one is due when this one is stored
        note_step(self._steps, trigger, before, after)
        verdict.touched.add(known.table_id)
        verdict.put(self._patch(before, after), after)
        fields: tuple[tuple[str, object], ...] = (("changefeed", self._place_of[2]), ("table", known.name))
        if after is not None:
            fields = (*fields, ("ts", after.ts), ("code", after.error.code), ("error", after.error.message))
        verdict.effects.append(Log("warning" if after else "info", SAID[trigger], fields))

    def validate(self) -> None:
        """Assert the invariants between two ticks."""
        for id, error in self._errors.items():
            assert error.table_id == id, f"the error of table {id} is of table {error.table_id}"
        for id, refusal in self._refusals.items():
            assert refusal.table_id == id, f"the refusal of table {id} is of table {refusal.table_id}"
        assert self._doubt_since is None or self._errors, "there is a doubt, and no error that it is about"

    def _patch(self, before: HeldTable | None, after: HeldTable | None) -> patches.Patch:
        known = after or before
        assert known is not None
        key = keys.HeldKey(*self._place_of, known.table_id)
        return patches.delete_record(key, known) if after is None else patches.replace_record(key, before, after)

    def _wall(self, now: float) -> float:
        return now + self._wall_offset_s


def _is_due_again(held: HeldTable | None) -> bool:
    return held is not None and held.retry_at > 0
