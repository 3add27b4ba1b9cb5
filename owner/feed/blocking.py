"""Blocking cause: names the first thing that prevents a running changefeed's progress, and why."""

import heapq
from collections.abc import Collection

from owner.feed.run import Run
from owner.feed.workers import Stage
from owner.progress.barrier import Limits
from owner.progress.facts import Facts
from owner.progress.units import SOURCE
from owner.scheduler.replication import SetState
from reactor.ids import CaptureId
from reactor.records.changefeed import Unit
from reactor.records.tables.held import HeldTable, HoldStage

#: nothing is reported as blocked before it has made no progress for this long, which is longer than a quiet log's head
#: may stay where it is (``agent.log.quiet``)
STILL_S = 8.0
#: held tables in one line, and characters of the reason of each
_NAMED, _REASON_LENGTH = 10, 500


def blocked_by(run: Run, facts: Facts, limits: Limits, now: float) -> str:
    """Return the cause; empty if it makes progress."""
    return _blocking_captures(run) or _blocking_worker(run, facts) or _blocking_flow(run, facts, limits, now)


def _blocking_captures(run: Run) -> str:
    captures = run.coordinator.captures
    if captures.is_initialized:
        return ""
    silent = sorted(known.id for known in captures.captures.values() if not known.epoch)
    return f"waiting for the first answer of {_names(silent)}" if silent else "no capture serves"


def _blocking_worker(run: Run, facts: Facts) -> str:
    """Check that the snapshot is finished, and the source is being read."""
    unit = facts.unit
    if unit is None:
        return ""
    worker = run.workers.workers.get(SOURCE)
    if worker is None:
        return f"no capture to run unit {unit} on"
    if worker.stage is Stage.OFFLINE:
        return f"unit {unit} on capture {worker.capture} is offline, a new one is due"
    if worker.stage is Stage.CREATING:
        return f"unit {unit} is starting on capture {worker.capture}"
    if worker.trouble is not None:
        return f"unit {unit} on capture {worker.capture}: {worker.trouble.message}"
    if unit is Unit.SYNC:
        return ""
    record = facts.record
    rows_done = max(worker.rows_done, record.rows_done if record else 0)
    rows_total = max(worker.rows_total, record.rows_total if record else 0)
    bytes_done = max(worker.bytes_done, record.bytes_done if record else 0)
    has_estimate = worker.seconds_left is not None and unit is Unit.DUMP
    left = f", {worker.seconds_left:.0f} s left" if has_estimate else ""
    done = f"{rows_done} of {rows_total} rows, {bytes_done} bytes"
    return f"unit {unit} on capture {worker.capture}: {done}{left}"


def _blocking_flow(run: Run, facts: Facts, limits: Limits, now: float) -> str:
    """Check that the log advances, and that spans have a writer that is allowed to advance and does."""
    if facts.tables is None:
        return "the tables are not known yet"
    head, status = facts.head, facts.status
    if head is None:
        return "sync: the change log has not begun"
    if repartitioned := run.repartitions.waiting(facts.partitionings):
        return repartitioned
    without_writer = [span for span in run.coordinator.span_index.without_writer() if span.table_id not in facts.held]
    is_known = any(span.table_id not in facts.held for span in run.coordinator.sets)
    if without_writer or (not is_known and facts.flowing):
        return f"table spans without a writer yet: {len(without_writer) or 'all'}"
    if status.checkpoint_ts >= limits.lowest_ts:
        return _with_trouble(limits.reason, run, facts)
    if run.head_stall.still_s(now) > STILL_S:
        why = f" ({facts.info.warning.message})" if facts.info.warning else ""
        return f"sync: nothing heard from the source for {run.head_stall.still_s(now):.0f} s{why}"
    if status.checkpoint_ts < head.resolved_ts and run.checkpoint_stall.still_s(now) > STILL_S:
        return _slowest(run, facts, now)
    return _held(facts)


def _held(facts: Facts) -> str:
    """All other tables flow."""
    return f"held: {named(facts.held.values())}" if facts.held else ""


def named(tables: Collection[HeldTable]) -> str:
    """Return names of held tables, with reasons: the first ones, as this is stored with the changefeed's state."""
    first = heapq.nsmallest(_NAMED, tables, key=lambda table: table.name)
    shown = [f"{table.name} ({_shortened(describe(table))})" for table in first]
    more = f"{len(tables) - _NAMED} more, `weir tables` shows them"
    return "; ".join([*shown, more] if len(tables) > _NAMED else shown)


def _shortened(text: str) -> str:
    return text if len(text) <= _REASON_LENGTH else f"{text[:_REASON_LENGTH]}…"


def describe(held: HeldTable) -> str:
    """Return the reason of a held table in one line."""
    stage = " is tried again:" if held.stage is HoldStage.TRIED else ""
    return f"{stage} {held.error.code}: {held.error.message}".strip()


def _with_trouble(reason: str, run: Run, facts: Facts) -> str:
    """Add what a schema change that stops its table is waiting for."""
    trouble = [run.schemas.trouble[ts] for ts in sorted(run.schemas.trouble) if ts == facts.status.checkpoint_ts + 1]
    return f"{reason}: {trouble[0]}" if trouble else reason


def _slowest(run: Run, facts: Facts, now: float) -> str:
    sets = [known for known in run.coordinator.sets.values() if known.span.table_id not in facts.held]
    slowest = min(sets, key=lambda known: (known.checkpoint.checkpoint_ts, known.span))
    doing = "" if slowest.state is SetState.REPLICATING else f", which is in {slowest.state}"
    still_s = run.checkpoint_stall.still_s(now)
    name = facts.name_of(slowest.span.table_id)
    where = f"{name} (span {slowest.span}) on capture {slowest.primary}"
    return f"flush: {where} has not moved for {still_s:.0f} s{doing}"


def _names(captures: list[CaptureId]) -> str:
    return ", ".join(captures)
