"""Barrier: how far spans may write: the lowest of several limits, and its name.

There are five limits: the changefeed's target, an operator's hold (for example to compare source and sink at one Ts), a
sync point, and pending schema changes and repartitions, which wait for all spans of their table. The last two limit
only their tables, the others all tables. At most 256 tables are listed by name, more are limited globally, so that
heartbeats stay small.

Held tables (``owner.feed.holds.held``) are in no barrier: nothing waits for them, and captures know from the schema
changes themselves how far each may be written. What is created under the number of one of them is another table, which
flows from its beginning, so the checkpoint waits for that.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from reactor.ids import MAX_TS, Ts
from reactor.messages import Barrier
from reactor.records.tables.schema_change import DdlRecord, SchemaChangeKind

TABLE_BARRIERS_MAX = 256


@dataclass(frozen=True, slots=True)
class Hold:
    """An operator's hold: no span may pass ``ts`` until ``until`` (the tick's clock) or a release."""

    ts: Ts
    until: float


@dataclass(frozen=True, slots=True)
class Limits:
    """``barrier``: as sent to captures; no checkpoint may pass ``min_table_ts``; ``reason``: the lowest limit's
    name."""

    barrier: Barrier
    min_table_ts: Ts
    reason: str = ""

    @property
    def lowest_ts(self) -> Ts:
        return min(self.barrier.global_ts, self.min_table_ts)


_FREE = Limits(Barrier(), MAX_TS)


def limits(
    target_ts: Ts | None,
    hold: Hold | None,
    ddl: Collection[DdlRecord],
    *,
    repartitions: Mapping[int, Ts] = MappingProxyType({}),
    sync_point_ts: Ts | None = None,
    held: Collection[int] = (),
    names: Mapping[int, str] = MappingProxyType({}),
) -> Limits:
    """Combine all limits into a barrier. ``repartitions``: tables that wait for new spans, and at which Ts. ``held``:
    tables that nothing waits for. ``names``: schema.name of tables."""
    if target_ts is None and hold is None and sync_point_ts is None and not repartitions and not ddl:
        return _FREE
    changes = _first_by_table(ddl, held)
    repartitions = {table: ts for table, ts in repartitions.items() if table not in held}
    tables = {
        table: min(changes.get(table, MAX_TS), repartitions.get(table, MAX_TS)) for table in {**changes, **repartitions}
    }
    named = sorted(tables.items(), key=lambda item: (item[1], item[0]))
    kept, rest = named[:TABLE_BARRIERS_MAX], named[TABLE_BARRIERS_MAX:]
    globals_ = {
        "target-ts": target_ts,
        "hold": hold.ts if hold else None,
        "sync point": sync_point_ts,
        "more tables than it names": rest[0][1] if rest else None,
    }
    everything = {name: ts for name, ts in globals_.items() if ts is not None}
    global_ts = min(everything.values(), default=MAX_TS)
    min_table_ts = min([global_ts, *tables.values()])
    assert all(min_table_ts <= ts for ts in everything.values()), f"{min_table_ts} is past one of {everything}"
    barrier = Barrier(global_ts, tuple((table, ts) for table, ts in kept if ts < global_ts))
    return Limits(barrier, min_table_ts, _reason(everything, changes, repartitions, min_table_ts, names))


def _first_by_table(ddl: Collection[DdlRecord], held: Collection[int]) -> dict[int, Ts]:
    """Includes tables about to be created: the changefeed's checkpoint waits for them. Of a held table, only a creation
    that follows other pending changes counts: it makes another table with the same number."""
    tables: dict[int, Ts] = {}
    of_held: dict[int, Ts] = {}
    for record in ddl:
        for table in record.pending_ids:
            first = of_held if table in held else tables
            first[table] = min(record.barrier_ts, first.get(table, record.barrier_ts))
    for record in ddl if of_held else ():
        for change in record.changes:
            table, ts = change.table_id, record.barrier_ts
            is_created = change.kind is SchemaChangeKind.CREATE and table in record.pending_ids
            if is_created and ts > of_held.get(table, MAX_TS):
                tables[table] = min(ts, tables.get(table, ts))
    return tables


def _reason(
    everything: Mapping[str, Ts],
    changes: Mapping[int, Ts],
    repartitions: Mapping[int, Ts],
    lowest_ts: Ts,
    names: Mapping[int, str],
) -> str:
    if lowest_ts == MAX_TS:
        return ""
    for name, ts in sorted(everything.items()):
        if ts == lowest_ts:
            return f"barrier {name} at {ts}"
    changing = [table for table, ts in changes.items() if ts == lowest_ts]
    if changing:
        return f"barrier schema change of {_tables(changing, names)} at {lowest_ts}"
    repartitioned = [table for table, ts in repartitions.items() if ts == lowest_ts]
    return f"barrier new spans of {_tables(repartitioned, names)} at {lowest_ts}"


def _tables(ids: Iterable[int], names: Mapping[int, str]) -> str:
    return ", ".join(names.get(id, f"table {id}") for id in sorted(ids))
