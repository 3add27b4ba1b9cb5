"""Changes of one table, read from its log: for readers that are no sink. The rows are those of a changelog table."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from agent.errors import DecodeError
from agent.ports.sink import FeedContext, FlushTask
from agent.rows.batches import SegmentRef
from agent.rows.changes import Changes
from agent.rows.schema import TableSchema
from agent.sinks.common.changelog import CHANGELOG_FIELDS, changelog_rows, changelog_schema, snapshot_rows
from agent.sinks.common.forms import Forms, plain_type
from agent.sources.registry import arrow_schema
from reactor.ids import TableSpan, Ts
from reactor.records.changefeed import FilterConfig, SinkMode
from reactor.records.tables.table import TableRecord


@dataclass(frozen=True, slots=True)
class LogSlice:
    """The files with a table's changes in ``(from_ts, to_ts]``, in order, and what is needed to decode them."""

    table: TableRecord
    filter: FilterConfig
    segments: tuple[SegmentRef, ...]
    from_ts: Ts
    to_ts: Ts


def read(part: LogSlice) -> Iterator[pa.Table]:
    """Yield the changes in log order. Each table has the columns that its changes had: those of
    ``agent.sinks.common.changelog`` behind the source's.

    :raises LogError: a segment is missing or damaged.
    """
    from agent.flush.task import read_changes  # whoever only plans needs no kernels

    span = TableSpan(part.table.table_id)
    feed = FeedContext("", "", SinkMode.CHANGELOG, part.filter)
    task = FlushTask(feed, span, part.table, part.segments, part.from_ts, part.to_ts)
    for changes in read_changes(task):
        if len(changes):
            yield changelog_rows(changes, span, key=_key_then(changes, part.table.key), forms=_PLAIN)


def _key_then(changes: Changes, key: Sequence[str]) -> list[str]:
    """Return the key that the table had when it was changed like this. ``key``: the one that it has now."""
    found = changes.schema.key or key
    return [name for name in found if name in changes.after.schema.names]


def inserted(rows: pa.Table, ts: Ts) -> pa.Table:
    """Return rows of a sink's table as the inserts of a snapshot at ``ts``."""
    return snapshot_rows(rows, ts, forms=_PLAIN)


def source_names(schema: pa.Schema) -> set[str]:
    """Return the names of the columns of ``schema`` that a change has from its source."""
    return {*schema.names} - {item.name for item in CHANGELOG_FIELDS}


def schema_of(schema: TableSchema) -> pa.Schema:
    """Return the columns of ``read`` for a table that has ``schema``."""
    return changelog_schema(_PLAIN.schema(arrow_schema(schema)))


def conformed(rows: pa.Table, wanted: pa.Schema, *, leaves_out: bool) -> pa.Table:
    """Return ``rows`` with the columns of ``wanted``; one that they lack is NULL. ``leaves_out``: columns that
    ``wanted`` lacks are left out.

    :raises DecodeError: the rows have a column that ``wanted`` lacks, or has with a type that does not keep its values.
    """
    extra = [name for name in rows.schema.names if name not in wanted.names]
    if extra and not leaves_out:
        raise DecodeError(f"the source has a column that the reader does not know: {extra[0]}")
    columns = []
    for item in wanted:
        column = rows.column(item.name) if item.name in rows.schema.names else pa.nulls(rows.num_rows, item.type)
        try:
            columns.append(column if column.type == item.type else _cast(column, item.type))
        except pa.ArrowException:
            raise DecodeError(
                f"column {item.name} is {column.type} at the source, and {item.type} to the reader"
            ) from None
    return pa.table(columns, schema=wanted)


def _cast(column: Any, wanted: pa.DataType) -> Any:
    """:raises pa.ArrowException: a value of ``column`` would not be the same."""
    if not _keeps_values(column.type, wanted):
        raise pa.ArrowTypeError(f"{column.type} is no {wanted}")
    return column.cast(wanted)


def _keeps_values(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Return whether Arrow's cast of a value keeps it or fails. Others bend it: a text that looks like a number becomes
    one, a time without a zone one of UTC, a number a moment."""
    types = pa.types
    if found == wanted or types.is_null(found):
        return True
    if _is_any_list(found):
        return _is_any_list(wanted) and _keeps_values(found.value_type, wanted.value_type)
    if _is_bytes(found) or _is_bytes(wanted):
        return _is_bytes(found) and _is_bytes(wanted)
    if _is_text(wanted):
        return True
    if types.is_integer(found) or types.is_boolean(found):
        return bool(types.is_integer(wanted) or types.is_decimal(wanted) or types.is_floating(wanted))
    if types.is_decimal(found):
        return bool(types.is_decimal(wanted) or types.is_integer(wanted))
    if types.is_floating(found):
        return bool(types.is_integer(wanted) or (types.is_floating(wanted) and wanted.bit_width >= found.bit_width))
    if types.is_timestamp(wanted):
        zone = found.tz if types.is_timestamp(found) else None
        return bool(types.is_timestamp(found) or types.is_date(found)) and (zone is None) == (wanted.tz is None)
    return False


def _is_text(found: pa.DataType) -> bool:
    return bool(pa.types.is_string(found) or pa.types.is_large_string(found) or pa.types.is_string_view(found))


def _is_bytes(found: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_binary(found) or types.is_large_binary(found) or types.is_binary_view(found))


def _is_any_list(found: pa.DataType) -> bool:
    return bool(pa.types.is_list(found) or pa.types.is_large_list(found))


def divided(segments: Sequence[SegmentRef], bytes_max: int) -> Iterator[tuple[SegmentRef, ...]]:
    """Yield consecutive segments in parts of about ``bytes_max``, at least one segment each."""
    part: list[SegmentRef] = []
    size = 0
    for item in segments:
        if part and size + item.bytes > bytes_max:
            yield tuple(part)
            part, size = [], 0
        part.append(item)
        size += item.bytes
    if part:
        yield tuple(part)


def _type(arrow: pa.DataType) -> pa.DataType:
    return pa.string() if pa.types.is_time(arrow) else plain_type(arrow)


def _column(column: Any) -> Any:
    wanted = _type(column.type)
    if pa.types.is_time(column.type):
        return pc.replace_substring_regex(column.cast(pa.string()), r"\.0+$", "")
    return column if column.type == wanted else column.cast(wanted)


#: times of day as text (Spark has no such type everywhere), all else in Arrow's own types
_PLAIN = Forms(_type, _column)
