"""Watermark: a changefeed's progress: its slowest span, limited by its barrier.

The checkpoint advances only when every table's whole key space is known: while a span is missing, the last checkpoint
stays. ``owner.scheduler.span_index`` knows the slowest span, and whether one is missing.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from owner.progress.barrier import Limits
from reactor.ids import KEY_SPACE, TableSpan, Ts
from reactor.records.changefeed import ChangefeedStatus
from reactor.records.log_head import LogHead

_NOWHERE = Ts(0)


@dataclass(frozen=True, slots=True)
class SpanPosition:
    """A span's last report. ``checkpoint_time``: commit time at its checkpoint, 0 if not known."""

    span: TableSpan
    checkpoint_ts: Ts
    checkpoint_time: float = 0.0


@dataclass(frozen=True, slots=True)
class Watermark:
    checkpoint_ts: Ts
    checkpoint_time: float
    resolved_ts: Ts


def advance(
    slowest: tuple[Ts, float] | None, head: LogHead | None, limits: Limits, *, start_ts: Ts = _NOWHERE
) -> Watermark:
    """Return the changefeed's watermark. ``slowest``: checkpoint and commit time of the slowest span, None if there is
    none.

    Captures may see the log's head before the owner does. Progress beyond the owner's own head does not count: a schema
    change there may hold a table that the owner does not know of yet. ``start_ts``: where the log begins.
    """
    known_ts = head.resolved_ts if head else start_ts
    resolved_ts = min(head.resolved_ts if head else Ts(0), limits.barrier.global_ts)
    if slowest is None:
        return Watermark(min(resolved_ts, limits.min_table_ts), head.resolved_time if head else 0.0, resolved_ts)
    slowest_ts, slowest_time = slowest
    checkpoint_ts = min(slowest_ts, limits.min_table_ts, known_ts)
    is_at_head = head is not None and checkpoint_ts == head.resolved_ts and head.resolved_time > 0
    time = head.resolved_time if head is not None and is_at_head else slowest_time
    return Watermark(checkpoint_ts, time, max(resolved_ts, checkpoint_ts))


def under(watermark: Watermark, ceiling_ts: Ts | None) -> Watermark:
    """Return ``watermark``, limited by a table that is about to reach it."""
    if ceiling_ts is None or watermark.checkpoint_ts <= ceiling_ts:
        return watermark
    return Watermark(ceiling_ts, 0.0, watermark.resolved_ts)


def merged(status: ChangefeedStatus, watermark: Watermark, limits: Limits) -> ChangefeedStatus:
    """Return ``status`` advanced to ``watermark``; nothing in it ever goes back."""
    checkpoint_ts = max(status.checkpoint_ts, watermark.checkpoint_ts)
    is_new = watermark.checkpoint_ts == checkpoint_ts and watermark.checkpoint_time > 0
    changes = {
        "checkpoint_ts": checkpoint_ts,
        "checkpoint_time": max(status.checkpoint_time, watermark.checkpoint_time) if is_new else status.checkpoint_time,
        "resolved_ts": max(status.resolved_ts, watermark.resolved_ts, checkpoint_ts),
        "min_table_barrier_ts": max(checkpoint_ts, limits.min_table_ts),
    }
    before = (status.checkpoint_ts, status.checkpoint_time, status.resolved_ts, status.min_table_barrier_ts)
    return status if before == tuple(changes.values()) else status.with_(**changes)


def covers(tables: Collection[int], positions: Iterable[SpanPosition]) -> bool:
    """Return whether every table's spans together cover its key space."""
    covered_to = dict.fromkeys(tables, 0)
    for span in sorted(position.span for position in positions):
        if span.start <= covered_to[span.table_id]:
            covered_to[span.table_id] = max(covered_to[span.table_id], span.end)
    return all(end == KEY_SPACE for end in covered_to.values())


def has_advanced(known: ChangefeedStatus | None, status: ChangefeedStatus) -> bool:
    """Return whether more than its time differs."""
    return known is None or known.with_(checkpoint_time=status.checkpoint_time) != status


def validate(status: ChangefeedStatus) -> None:
    """Assert the invariants of every published status."""
    assert status.checkpoint_ts <= status.resolved_ts, f"checkpoint {status.checkpoint_ts} is past {status.resolved_ts}"
    assert status.checkpoint_ts <= status.min_table_barrier_ts, f"{status} is past its barrier"


class Arrivals:
    """The positions of tables, by table. One that is not ``known`` has no spans, and nothing to wait for."""

    def __init__(self, known: Collection[int], positions: Callable[[], Iterable[SpanPosition]]) -> None:
        self._known = known
        self._positions = positions

    def is_at(self, table_id: int, ts: Ts) -> bool:
        """Return whether everything of the table before ``ts`` is in the sink."""
        if table_id not in self._known:
            return True
        spans = self._by_table.get(table_id, ())
        return all(at.checkpoint_ts >= ts for at in spans) and covers({table_id}, spans)

    def are_all_at(self, table_ids: Iterable[int], ts: Ts) -> bool:
        """Return whether this holds for all of the tables."""
        return all(self.is_at(id, ts) for id in table_ids)

    @cached_property
    def _by_table(self) -> Mapping[int, Sequence[SpanPosition]]:
        found: dict[int, list[SpanPosition]] = {}
        for at in self._positions():
            found.setdefault(at.span.table_id, []).append(at)
        return found
