"""Repartition of a Delta table: one commit without data, which changes only records (``ports.sink.Splits``).

The same commit fences stale writers: the old spans' records are set to ``RETIRED``, which no writer
expects. A writer of an old span thus loses against this commit, or this commit against it (Delta refuses the second of
two commits with the same application id), and is decided again. The repartition's number is a record too,
``weir/{changefeed}/{table id}/cut``, by which a stale request after a newer repartition is refused.
"""

from deltalake import DeltaTable

from agent.errors import RESYNC, SinkFencedError, TableHeldError
from agent.ports.sink import SpanRepartition
from agent.sinks.common.span_records import RETIRED
from agent.sinks.delta.table import commit
from agent.sinks.delta.table import place as delta_table
from agent.sinks.delta.table.place import TablePlace
from reactor.ids import Ts
from reactor.records.tables.table import TableRecord


def repartition(place: TablePlace, changefeed: str, table: TableRecord, order: SpanRepartition) -> Ts:
    """See ``agent.ports.sink.Splits.repartition``."""
    return commit.with_retries(place, lambda opened: _repartition(opened, changefeed, table, order))


def _repartition(opened: DeltaTable, changefeed: str, table: TableRecord, order: SpanRepartition) -> Ts:
    name = f"{table.schema_name}.{table.name}"
    number = opened.transaction_version(record_id(changefeed, table.table_id)) or 0
    if number == order.number:
        return order.ts
    if number > order.number:
        raise SinkFencedError(f"{name} is at repartition {number}, so {order.number} is stale and stops")
    recorded = [delta_table.committed_ts(opened, changefeed, span) for span in order.old]
    positions = [ts for ts in recorded if ts is not None and ts != RETIRED]
    if number < order.number - 1 or len(positions) < len(order.old):
        raise TableHeldError(
            f"the sink has no record of all spans of {name}: its table was set back or replaced; {RESYNC}"
        )
    if max(positions) > order.ts:
        return max(positions)
    properties = delta_table.commit_properties(opened, _records(changefeed, table, order))
    opened.create_write_transaction([], "append", opened.schema(), commit_properties=properties)
    return order.ts


def _records(changefeed: str, table: TableRecord, order: SpanRepartition) -> dict[str, int]:
    versions = {delta_table.record_id(changefeed, span): int(RETIRED) for span in order.old}
    versions |= {delta_table.record_id(changefeed, span): int(order.ts) for span in order.new}
    versions[record_id(changefeed, table.table_id)] = order.number
    return versions


def record_id(changefeed: str, table_id: int) -> str:
    """Return the name of the record of a table's newest repartition."""
    return f"{delta_table.record_prefix(changefeed)}{table_id}/cut"
