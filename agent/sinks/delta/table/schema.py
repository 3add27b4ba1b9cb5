"""Delta columns: turn a source's columns into those of a Delta table, for the sink and for ``agent.feeds.diff``.

Delta has no type for a time of day: it is written as text, ``HH:MM:SS`` with a fraction where there is one. Everything
else that ``agent.rows.changes.Changes`` may hold has its own type. A ``changelog`` table has five columns more
(``agent.sinks.common.changelog``).
"""

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from agent.errors import TableHeldError
from agent.sinks.common import changelog, forms
from agent.sinks.common.forms import Forms
from agent.sinks.common.row_marks import NO_MARKS, Marks

CHANGE_TYPE = changelog.CHANGE_TYPE
COMMIT_VERSION = changelog.COMMIT_VERSION
COMMIT_TIMESTAMP = changelog.COMMIT_TIMESTAMP
COMMIT_SEQ = changelog.COMMIT_SEQ
UNCHANGED = changelog.UNCHANGED
CHANGELOG_FIELDS = changelog.CHANGELOG_FIELDS


def delta_type(arrow: pa.DataType) -> pa.DataType:
    """Return the stored Arrow type of a source column of type ``arrow``."""
    if pa.types.is_time(arrow):
        return pa.string()
    if pa.types.is_timestamp(arrow):
        return pa.timestamp("us", "UTC" if arrow.tz else None)
    return arrow


def delta_schema(arrow: pa.Schema, *, is_changelog: bool = False, marks: Marks = NO_MARKS) -> pa.Schema:
    """Return the Delta table's schema for a source table's Arrow schema; every column is nullable.

    :raises TableHeldError: a source column has the name of one that the sink adds.
    """
    stored = FORMS.schema(arrow)
    return changelog.changelog_schema(stored) if is_changelog else marks.schema(stored)


def refuse_alike(names: Sequence[str], *, table: str) -> None:
    """:raises TableHeldError: two names differ only in case, which Delta and its readers ignore."""
    seen: dict[str, str] = {}
    for name in names:
        other = seen.setdefault(name.lower(), name)
        if other != name:
            raise TableHeldError(
                f"columns {other} and {name} of {table} are one to Delta, for which case does not count; "
                "rename one, or leave it out by a column selector"
            )


def delta_column(column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Convert a source column to its stored type."""
    wanted = delta_type(column.type)
    if wanted == column.type:
        return column
    if pa.types.is_time(column.type):
        return pc.replace_substring_regex(column.cast(pa.string()), r"\.0+$", "")
    return column.cast(wanted)


def delta_table(data: pa.Table | pa.RecordBatch) -> pa.Table:
    """Convert every column of ``data`` to its stored type."""
    return FORMS.table(data)


FORMS = Forms(delta_type, delta_column)
plain_type = forms.plain_type


def source_keys(stored: pa.RecordBatch, keys: pa.Schema) -> pa.RecordBatch:
    """Convert key columns of stored rows to the source's types (``keys``), for hashing."""
    columns = [_source_column(stored.column(item.name), item.type) for item in keys]
    return pa.RecordBatch.from_arrays(columns, schema=keys)


def _source_column(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Inverse of ``delta_column``."""
    if pa.types.is_time(wanted):
        column = pc.binary_join_element_wise(pa.scalar("1970-01-01 "), column, "").cast(pa.timestamp("us"))
    return column.cast(wanted)
