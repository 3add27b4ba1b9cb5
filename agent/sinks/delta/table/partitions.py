"""Partitions of a Delta table: which columns divide its rows, and the values of a file's partition.

Delta has no other partitions than by the values of columns. The log has a file's values, as texts; here the file has
the columns, too, as Delta's protocol allows, so its rows are found and read like those of any other table. Files that
other writers have made, or delta-rs, may lack them. All files lie directly in the table's directory: where a file lies
says nothing, and no value has to be a directory's name.

An empty text is NULL in a partition by the protocol, and one that names the directory of NULL is to delta-rs's MERGE
(seen with 1.6.6) and to Spark, so a table with one in such a column is held.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa

from agent.errors import RESYNC, TableHeldError
from agent.sinks.common import row_groups
from agent.sinks.common.layouts import IDENTITY, Wanted

#: by column; None is NULL
Partition = Mapping[str, str | None]
#: texts that readers take for NULL
_NULLS: Final = ("", "__HIVE_DEFAULT_PARTITION__")
_CURE: Final = f"choose other columns in partition-by of its [[layout]], and {RESYNC}"


def wanted_columns(wanted: Wanted, columns: pa.Schema, *, table: str) -> tuple[str, ...]:
    """Return the columns that divide a table with these ``columns``.

    :raises TableHeldError: it cannot have the layout that is wanted.
    """
    for what, is_there in (
        ("sort-by", wanted.order),
        ("cluster-by", wanted.clusters),
        ("properties", wanted.properties),
    ):
        if is_there:
            raise TableHeldError(f"the layout of {table} has {what}, which Weir's Delta tables lack; leave it out")
    for term in wanted.partitions:
        if term.transform != IDENTITY:
            raise TableHeldError(f"the layout of {table} has {term}, and Delta divides by columns alone; name a column")
        if term.column not in columns.names:
            raise TableHeldError(
                f"the layout of {table} names column {term.column}, which it lacks; it has {', '.join(columns.names)}"
            )
        if not is_fit(arrow := columns.field(term.column).type):
            raise TableHeldError(
                f"the layout of {table} has {term}, which is {arrow}: no partition of Delta; choose another column"
            )
    if wanted.partitions and len(wanted.partitions) == len(columns):
        raise TableHeldError(f"the layout of {table} names all of its columns; Delta needs one that divides nothing")
    return tuple(term.column for term in wanted.partitions)


def is_fit(arrow: pa.DataType) -> bool:
    """Return whether rows may be divided by a column of this type: NaN, and bytes that are no text, are no value."""
    is_exact = pa.types.is_integer(arrow) or pa.types.is_decimal(arrow) or pa.types.is_boolean(arrow)
    is_time = pa.types.is_date(arrow) or pa.types.is_timestamp(arrow)
    return bool(is_exact or is_time or pa.types.is_string(arrow))


def divided(rows: pa.Table, columns: Sequence[str]) -> Iterator[tuple[tuple[str | None, ...], pa.Table]]:
    """Yield the rows of each partition, in their order, with its values. A column that the rows lack is NULL.

    :raises TableHeldError: a value cannot be that of a partition.
    """
    if not rows.num_rows:
        return
    keys = [_key(rows, name) for name in columns]
    for at, piece in row_groups.divided(rows, keys):
        yield tuple(_text(key, at, name) for key, name in zip(keys, columns, strict=True)), piece


def _key(rows: pa.Table, name: str) -> pa.Array:
    if name not in rows.schema.names:
        return pa.nulls(rows.num_rows, pa.string())
    column = rows.column(name).combine_chunks()
    return pa.concat_arrays(column.chunks) if isinstance(column, pa.ChunkedArray) else column


def refuse_unfit(rows: pa.Table, columns: Sequence[str]) -> None:
    """:raises TableHeldError: a value cannot be that of a partition."""
    for _ in divided(rows.select(columns), columns):
        pass


def _text(key: pa.Array, at: int, name: str) -> str | None:
    try:
        text = value_text(key[at].as_py())
    except (ValueError, OverflowError) as error:
        raise TableHeldError(f"column {name} has a time that Delta has no partition for; {_CURE}") from error
    if text in _NULLS:
        raise TableHeldError(f"column {name} has the text {text!r}, which readers of partitions take for NULL; {_CURE}")
    return text


def value_text(value: Any) -> str | None:
    """Return a value as the log has it."""
    match value:
        case None:
            return None
        case bool():
            return str(value).lower()
        case datetime(tzinfo=None):
            return value.isoformat(" ", "microseconds")
        case datetime():
            return f"{value.replace(tzinfo=None).isoformat(timespec='microseconds')}Z"
        case date():
            return value.isoformat()
        case Decimal():
            return f"{value:f}"
        case _:
            return str(value)


def column(partition: Partition, item: pa.Field, rows: int) -> pa.Array:
    """Return a column that a file lacks: its value in the file's partition, or NULL."""
    text = partition.get(item.name) or None
    if text is None:
        return pa.nulls(rows, item.type)
    return pa.repeat(pa.array([text], pa.string()).cast(item.type)[0], rows)
