"""Repartition of an Iceberg table: one commit without data, which changes only records (``ports.sink.Splits``).

The same commit fences stale writers: the old spans' records are set to ``RETIRED``, which no writer expects. A writer
of an old span loses against this commit, or this commit against it, since both require the snapshot they were made
from.
"""

from dataclasses import replace

from pyiceberg.table import Table

from agent.errors import RESYNC, SinkFencedError, TableHeldError
from agent.ports.sink import SpanRepartition
from agent.sinks.common.span_records import RETIRED
from agent.sinks.iceberg.table import commit
from agent.sinks.iceberg.table.catalogs.lake import TablePlace
from agent.sinks.iceberg.table.commit import Step
from agent.sinks.iceberg.table.state import State
from reactor.ids import Ts
from reactor.records.tables.table import TableRecord


def repartition(place: TablePlace, table: TableRecord, order: SpanRepartition) -> Ts:
    """See ``agent.ports.sink.Splits.repartition``."""
    return commit.on_newest(place, lambda opened: _repartition(opened, table, order))


def _repartition(opened: Table, table: TableRecord, order: SpanRepartition) -> Ts:
    state, name = State.of(opened), f"{table.schema_name}.{table.name}"
    if state.cut == order.number:
        return order.ts
    if state.cut > order.number:
        raise SinkFencedError(f"{name} is at repartition {state.cut}, so {order.number} is stale and stops")
    recorded = [state.recorded_ts(span) for span in order.old]
    known = [ts for ts in recorded if ts is not None and ts != RETIRED]
    if state.cut < order.number - 1 or len(known) < len(order.old):
        raise TableHeldError(
            f"the sink has no record of all spans of {name}: its table was set back or replaced; {RESYNC}"
        )
    if max(known) > order.ts:
        return max(known)
    moved = state.at(dict.fromkeys(order.old, RETIRED)).at(dict.fromkeys(order.new, order.ts))
    commit.commit(opened, Step(replace(moved, cut=order.number)))
    return order.ts
