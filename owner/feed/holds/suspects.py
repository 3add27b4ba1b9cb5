"""Suspects: tables that were being written when a capture ended; one of them that ends captures is held.

    being written when a capture ended, or alone when processes of Spark's were lost there
        ──► suspect ──its spans pass where the log then was──► cleared
              └──written alone when another capture ended, or lost processes──► held

A process that runs out of memory, crashes or hangs reports nothing. But a capture records in etcd which tables it is
about to write (``agent.feeds.attempts``), and the record outlives its lease. Suspects are written apart from all
others, in a few groups (``agent.control.flusher``); if a group ends another capture, only its tables remain suspects,
and a single table is held. Captures that end at the same time, with their machine, hold nothing. A capture that loses
processes of Spark's reports a fault of its own, with the table (``agent.control.lost_workers``).
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from owner.feed.holds.held import HeldTables, Spans
from owner.feed.state import is_running
from owner.progress.facts import Facts, TickContext
from owner.tables.verdict import Verdict
from reactor import keys, patches
from reactor.effects import Commit, Effect, Log, WakeAt
from reactor.errors import Scope
from reactor.ids import CaptureId, ChangefeedId, Ts
from reactor.messages import Message
from reactor.records.attempts import Attempt, Suspects
from reactor.records.changefeed import RunningError
from reactor.records.formats import Feature
from reactor.records.tables.held import CAPTURE_ENDED


@dataclass(slots=True)
class _Findings:
    """The result of one round. ``errors``: each holds a table."""

    changes: list[patches.Patch] = field(default_factory=list)
    errors: list[RunningError] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)


class CaptureEnds:
    """Captures that ended while they wrote tables of one changefeed."""

    def __init__(self, id: ChangefeedId, *, cluster: str, namespace: str, wall_offset_s: float) -> None:
        self._place = (cluster, namespace, id)
        self._wall_offset_s = wall_offset_s
        self._messages: list[Message] = []
        #: losses of captures that are taken into account
        self._known: dict[CaptureId, RunningError] = {}

    def trace(
        self,
        facts: Facts,
        spans: Spans | None,
        messages: Sequence[Message],
        context: TickContext,
        held: HeldTables,
        now: float,
    ) -> list[Effect]:
        """Return the effects that replace a tick: findings are stored before the work of ended captures is reassigned.

        None if there is nothing to store. ``spans``: None while it does not run. ``messages`` wait for the next tick.
        """
        if spans is None or not is_running(facts.info.state) or context.format < Feature.HELD_TABLES:
            return []
        found = self._judge(facts, spans, context.alive, now + self._wall_offset_s)
        if not found.changes:
            return []
        self._messages += messages
        held.note(found.errors)
        verdict = held.tick(facts, spans, now) if found.errors else Verdict()
        commit = Commit(patches.group([*verdict.changes, *found.changes]))
        return [*verdict.effects, *found.effects, commit, WakeAt(now)]

    def delayed(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Return the messages that waited, and these."""
        waiting, self._messages = self._messages, []
        return [*waiting, *messages] if waiting else messages

    def _judge(self, facts: Facts, spans: Spans, alive: Collection[CaptureId], time: float) -> _Findings:
        found = _Findings()
        kinds = ((keys.AttemptKey, facts.attempts), (keys.SchemaAttemptKey, facts.schema_attempts))
        noted = [(kind(*self._place, capture), attempt) for kind, found in kinds for capture, attempt in found.items()]
        ended = sorted((key.capture, str(key), key, attempt) for key, attempt in noted if key.capture not in alive)
        before = facts.suspects
        if facts.tables is None or facts.head is None:
            return found
        lost = self._news(facts)
        if not (ended or before or lost):
            return found
        tables, ts = set(before.tables if before else ()), before.ts if before else Ts(0)
        if lost:
            tables, ts = tables | {*lost.values()}, facts.head.resolved_ts
        for capture, _, key, attempt in ended:
            found.changes.append(patches.delete_record(key, attempt))
            blamed = set(attempt.tables) & facts.table_ids - facts.parked
            if not _is_conclusive(facts, attempt, blamed, tables):
                tables, ts = tables | blamed, facts.head.resolved_ts
            elif len(blamed) > 1:
                tables, ts = blamed, facts.head.resolved_ts
            else:
                tables -= blamed
                found.errors += [_error(facts, table, capture, time) for table in blamed]
        reached = spans.reached(tables)
        left = sorted(id for id in tables & facts.table_ids - facts.parked if reached.get(id, Ts(0)) < ts)
        last = [*lost, *(capture for capture, *_ in ended)]
        capture = last[-1] if last else before.capture if before else CaptureId("")
        self._put(found, facts, Suspects(tables=tuple(left), ts=ts, capture=capture) if left else None)
        return found

    def _news(self, facts: Facts) -> dict[CaptureId, int]:
        """Return the tables of losses that were not known; a fault is shown until the capture works again."""
        known, self._known = self._known, dict(facts.losses)
        if not facts.losses:
            return {}
        news = ((capture, error.table_id) for capture, error in facts.losses.items() if known.get(capture) != error)
        writable = facts.table_ids - facts.parked
        return {capture: table for capture, table in news if table is not None and table in writable}

    def _put(self, found: _Findings, facts: Facts, after: Suspects | None) -> None:
        before = facts.suspects
        if after == before:
            return
        key = keys.SuspectsKey(*self._place)
        if after is not None:
            found.changes.append(patches.replace_record(key, before, after))
        elif before is not None:
            found.changes.append(patches.delete_record(key, before))
        found.effects.append(_line(facts, self._place[2], before, after))


def _is_conclusive(facts: Facts, attempt: Attempt, blamed: set[int], suspects: set[int]) -> bool:
    """Return whether they were known to be suspects, and nothing else was being written."""
    return attempt.is_trial and bool(blamed) and blamed <= suspects | facts.tried_after_end


def _error(facts: Facts, table_id: int, capture: CaptureId, time: float) -> RunningError:
    text = (
        f"two captures have ended while they wrote {facts.name_of(table_id)}, the last one ({capture}) while it wrote "
        "nothing else: see in that process's log, or the kernel's, whether memory ran out or what crashed; give "
        "captures more memory or leave the table out, then resume"
    )
    return RunningError(
        code=CAPTURE_ENDED, message=text, capture=capture, table_id=table_id, scope=Scope.TABLE, time=time
    )


def _line(facts: Facts, feed: ChangefeedId, before: Suspects | None, after: Suspects | None) -> Log:
    gone, left = set(before.tables if before else ()), set(after.tables if after else ())
    if left - gone or (after and before and after.capture != before.capture):
        assert after is not None
        named = ", ".join(facts.name_of(id) for id in after.tables[:20])
        text = "a capture, or processes of Spark's, ended while tables were written; they are written apart for now"
        return Log(
            "warning",
            text,
            (("changefeed", feed), ("capture", after.capture), ("count", len(left)), ("tables", named)),
        )
    return Log("info", "tables are no longer suspected of ending captures", (("changefeed", feed), ("left", len(left))))
