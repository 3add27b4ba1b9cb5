"""Delta columns: turn a source's columns into those of a Delta table, for the sink and for ``agent.feeds.diff``.

Delta has no type for a time of day: it is written as text, ``HH:MM:SS`` with a fraction where there is one. Everything
else that ``agent.rows.changes.Changes`` may hold has its own type. A ``changelog`` table has five columns more:

=====================  ==============================================================================================
``_change_type``       insert, update_preimage, update_postimage, delete (Spark's names), or truncate (all else NULL)
``_commit_version``    the Ts of the transaction
``_commit_timestamp``  when it was committed, as exactly as the log knows; NULL for rows of the first snapshot
``_commit_seq``        the change's place within its transaction
``_unchanged``         names of columns that an update left out: NULL there means "as it was", not NULL
=====================  ==============================================================================================
"""

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from agent.errors import RESYNC, TableHeldError

CHANGE_TYPE = "_change_type"
COMMIT_VERSION = "_commit_version"
COMMIT_TIMESTAMP = "_commit_timestamp"
COMMIT_SEQ = "_commit_seq"
UNCHANGED = "_unchanged"

CHANGELOG_FIELDS = (
    pa.field(CHANGE_TYPE, pa.string()),
    pa.field(COMMIT_VERSION, pa.int64()),
    pa.field(COMMIT_TIMESTAMP, pa.timestamp("us", "UTC")),
    pa.field(COMMIT_SEQ, pa.int64()),
    pa.field(UNCHANGED, pa.list_(pa.string())),
)


def delta_type(arrow: pa.DataType) -> pa.DataType:
    """Return the stored Arrow type of a source column of type ``arrow``."""
    if pa.types.is_time(arrow):
        return pa.string()
    if pa.types.is_timestamp(arrow):
        return pa.timestamp("us", "UTC" if arrow.tz else None)
    return arrow


def delta_schema(arrow: pa.Schema, *, is_changelog: bool = False) -> pa.Schema:
    """Return the Delta table's schema for a source table's Arrow schema; every column is nullable.

    :raises TableHeldError: a source column has the name of a changelog column.
    """
    fields = [pa.field(item.name, delta_type(item.type)) for item in arrow]
    if not is_changelog:
        return pa.schema(fields)
    ours = {item.name for item in CHANGELOG_FIELDS}
    for item in fields:
        if item.name in ours:
            raise TableHeldError(
                f"source column {item.name} has the name of a changelog column; rename it, or use upsert"
            )
    return pa.schema([*fields, *CHANGELOG_FIELDS])


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
    columns = [delta_column(column) for column in data.columns]
    return pa.table(
        columns, schema=pa.schema([pa.field(n, c.type) for n, c in zip(data.schema.names, columns, strict=True)])
    )


def source_keys(stored: pa.RecordBatch, keys: pa.Schema) -> pa.RecordBatch:
    """Convert key columns of stored rows to the source's types (``keys``), for hashing."""
    columns = [_source_column(stored.column(item.name), item.type) for item in keys]
    return pa.RecordBatch.from_arrays(columns, schema=keys)


def _source_column(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Inverse of ``delta_column``."""
    if pa.types.is_time(wanted):
        column = pc.binary_join_element_wise(pa.scalar("1970-01-01 "), column, "").cast(pa.timestamp("us"))
    return column.cast(wanted)


def missing_fields(stored: pa.Schema, wanted: pa.Schema, *, table: str) -> Sequence[pa.Field]:
    """Return the columns of ``wanted`` that the table lacks.

    :raises TableHeldError: a column is stored with another type.
    """
    missing = []
    for item in wanted:
        at = stored.get_field_index(item.name)
        if at < 0:
            missing.append(item)
        elif plain_type(stored.field(at).type) != plain_type(item.type):
            raise TableHeldError(
                f"column {item.name} of {table} is {stored.field(at).type} in the sink and {item.type} in the source; "
                f"{RESYNC}"
            )
    return missing


def plain_type(arrow: pa.DataType) -> pa.DataType:
    """Return one type for types that differ only in layout."""
    if pa.types.is_large_string(arrow) or pa.types.is_string_view(arrow):
        return pa.string()
    if pa.types.is_large_binary(arrow) or pa.types.is_binary_view(arrow):
        return pa.binary()
    if pa.types.is_list(arrow) or pa.types.is_large_list(arrow):
        return pa.list_(plain_type(arrow.value_type))
    return arrow
