"""How far spans may write: the lowest of what holds them back, and its name.

Four things hold: the changefeed's target, an operator (who compares source and sink at one Ts, say), a sync point, and
schema changes that wait for all spans of their table. These hold only their table, the others everything - at most 256
tables by name, the rest holds everything, so that a heartbeat stays small (tiflow 1.4.3).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from reactor.ids import MAX_TS, Ts
from reactor.messages import Barrier
from reactor.records import DdlRecord

TABLE_BARRIERS_MAX = 256


@dataclass(frozen=True, slots=True)
class Hold:
    """An operator holds every span at ``ts`` until ``until`` (the tick's clock) or a release."""

    ts: Ts
    until: float


@dataclass(frozen=True, slots=True)
class Limits:
    """``barrier`` as captures get it; no checkpoint may pass ``min_table_ts``; ``reason``: what holds lowest."""

    barrier: Barrier
    min_table_ts: Ts
    reason: str = ""

    @property
    def lowest_ts(self) -> Ts:
        return min(self.barrier.global_ts, self.min_table_ts)


def limits(
    target_ts: Ts | None, hold: Hold | None, ddl: Iterable[DdlRecord], *, sync_point_ts: Ts | None = None
) -> Limits:
    """The barrier that all of them together make."""
    tables = _first_by_table(ddl)
    named = sorted(tables.items(), key=lambda item: (item[1], item[0]))
    kept, rest = named[:TABLE_BARRIERS_MAX], named[TABLE_BARRIERS_MAX:]
    globals_ = {
        "target-ts": target_ts,
        "hold": hold.ts if hold else None,
        "sync point": sync_point_ts,
        "schema change": rest[0][1] if rest else None,
    }
    everything = {name: ts for name, ts in globals_.items() if ts is not None}
    global_ts = min(everything.values(), default=MAX_TS)
    min_table_ts = min([global_ts, *tables.values()])
    barrier = Barrier(global_ts, tuple((table, ts) for table, ts in kept if ts < global_ts))
    return Limits(barrier, min_table_ts, _reason(everything, tables, min_table_ts))


def _first_by_table(ddl: Iterable[DdlRecord]) -> dict[int, Ts]:
    tables: dict[int, Ts] = {}
    for record in ddl:
        if not record.done:
            tables[record.table_id] = min(record.ts, tables.get(record.table_id, record.ts))
    return tables


def _reason(everything: Mapping[str, Ts], tables: Mapping[int, Ts], lowest_ts: Ts) -> str:
    if lowest_ts == MAX_TS:
        return ""
    for name, ts in sorted(everything.items()):
        if ts == lowest_ts:
            return f"barrier {name} at {ts}"
    table = min(table for table, ts in tables.items() if ts == lowest_ts)
    return f"barrier schema change of table {table} at {lowest_ts}"
