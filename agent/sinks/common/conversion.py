"""Column conversion: the stored rows of a table under its columns after a schema change, for sinks of table formats.

A column's type changes only if a cast gives the same values as the source's conversion: numbers to wider or exact ones,
plain text to its value, whole numbers to text. A timestamp as text, for example, is formatted differently everywhere:
such a change is refused, and the table is held. Where a changelog names the columns that an update left out, the names
follow those of the columns.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import Enum

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from agent.errors import RESYNC, DecodeError, TableHeldError, UnknownValuesError
from agent.rows.schema_change import ColumnMove, Mask, SchemaChange, converted
from agent.sinks.common import row_marks
from agent.sinks.common.changelog import CHANGE_TYPE, UNCHANGED
from agent.sinks.common.forms import Forms, plain_type
from agent.sinks.common.history import columns as history


class Copied(Enum):
    """Place of the columns of a table's newest copy among those that it has."""

    ALONE = "it has no others of the source"
    BEFORE_OTHERS = "before those that it keeps"
    BEHIND_OTHERS = "behind those that it keeps, where it lacked them"


def moves(
    stored: pa.Schema, change: SchemaChange, *, keeps_dropped: bool, forms: Forms, copied: Copied | None = None
) -> list[ColumnMove]:
    """Return the table's stored columns after the change, and the origin of each.

    ``keeps_dropped``: a changelog or a history keeps dropped columns, renamed if a new column has taken the name; an
    upserted table only those that its sink adds. ``copied``: no change has come to the table since it was copied.

    :raises TableHeldError: a column has the name of one that sinks add.
    """
    columns = change.columns if copied is None else _since_copy(stored, change, forms, copied)
    wanted = [_stored_move(move, stored, forms) for move in columns]
    if history.IS_CURRENT in stored.names:
        history.refuse_taken([move.name for move in wanted])
    if not keeps_dropped:
        row_marks.refuse_reserved([move.name for move in wanted])
        ours = [item for item in stored if item.name in row_marks.NAMES]
        return [*wanted, *(ColumnMove(item.name, plain_type(item.type), item.name) for item in ours)]
    moved, names = {move.origin for move in wanted}, {move.name.lower() for move in wanted}
    kept = []
    for item in stored:
        if item.name not in moved:
            name = f"{item.name}_before_{int(change.ts):x}" if item.name.lower() in names else item.name
            kept.append(ColumnMove(name, plain_type(item.type), item.name))
    return [*wanted, *kept]


def _since_copy(stored: pa.Schema, change: SchemaChange, forms: Forms, copied: Copied) -> Sequence[ColumnMove]:
    """Return the moves of columns since a copy. A log that has a change of columns only with the next row of the table
    (PostgreSQL's) may have one that came before the copy, which then has these columns: they are not moved again.

    :raises TableHeldError: it is not known whether the copy has them.
    """
    origins = [move.origin for move in change.columns if move.origin is not None]
    renamed = [move.name for move in change.columns if move.origin not in (None, move.name)]
    if not renamed:
        return change.columns
    found = [name for name in stored.names if name in origins]
    if copied is Copied.BEHIND_OTHERS:
        is_before = len(found) == len(origins) and not {*renamed} & {*stored.names}
    else:
        left = {*renamed} & {*stored.names} - {*origins} if copied is Copied.BEFORE_OTHERS else ()
        is_before = found == origins and not left
    if is_before:
        return change.columns
    after = [ColumnMove(move.name, forms.type(move.type), move.name) for move in change.columns]
    there = [(item.name, plain_type(item.type)) for item in stored][: len(after)]
    if copied is not Copied.BEHIND_OTHERS and there == [(move.name, plain_type(move.type)) for move in after]:
        return after
    raise TableHeldError(
        f"columns of {change.name} were renamed, and its copy may have been made before or afterwards; {RESYNC}"
    )


def _stored_move(move: ColumnMove, stored: pa.Schema, forms: Forms) -> ColumnMove:
    """Include what an earlier change could not do."""
    origin = move.origin if move.origin in stored.names else None
    return replace(move, type=forms.type(move.type), origin=origin)


def is_filled(move: ColumnMove) -> bool:
    return move.fill is not None and move.fill.is_valid


def columns_of(moves: Sequence[ColumnMove]) -> pa.Schema:
    return pa.schema([pa.field(move.name, move.type) for move in moves])


def origins_of(stored: pa.Schema, moves: Sequence[ColumnMove]) -> list[str]:
    """Return the stored columns that ``converted_rows`` needs."""
    origins = [move.origin for move in moves if move.origin is not None] or stored.names[:1]
    if any(move.convert for move in moves):
        origins += [name for name in (CHANGE_TYPE, UNCHANGED) if name in stored.names]
    return list(dict.fromkeys(origins))


def converted_rows(
    batch: pa.RecordBatch, moves: Sequence[ColumnMove], change: SchemaChange, *, forms: Forms
) -> pa.Table:
    """Return rows that have the columns ``origins_of``, converted.

    :raises UnknownValuesError: the values of a column do not fit its new type.
    """
    arrays = [_column(batch, move, change, forms) for move in moves]
    renamed = renames(moves)
    for at, move in enumerate(moves):
        if renamed and _is_names(move):
            arrays[at] = _renamed(arrays[at], renamed)
    return pa.Table.from_arrays(arrays, schema=columns_of(moves))


def renames(moves: Sequence[ColumnMove]) -> dict[str, str]:
    """Return old name → new name of the stored columns that get another one."""
    return {move.origin: move.name for move in moves if move.origin is not None and move.origin != move.name}


def are_named(names: pa.Array, renamed: Mapping[str, str]) -> bool:
    """Return whether a changelog's rows name a renamed column among those that an update left out."""
    return bool(pc.any(pc.is_in(_flat(names), value_set=pa.array(list(renamed), pa.string()))).as_py())


def _is_names(move: ColumnMove) -> bool:
    return move.origin == move.name == UNCHANGED and pa.types.is_list(move.type)


def _flat(names: pa.Array) -> pa.Array:
    """Return all names in one array. Those of rows that are NULL do not count."""
    return pc.list_flatten(names).cast(pa.string())


def _renamed(names: pa.Array, renamed: Mapping[str, str]) -> pa.Array:
    if not are_named(names, renamed):
        return names
    flat = _flat(names)
    place = pc.index_in(flat, value_set=pa.array(list(renamed), pa.string()))
    current = pc.coalesce(pa.array(list(renamed.values()), pa.string()).take(place), flat)
    lengths = pc.fill_null(pc.list_value_length(names), 0).to_numpy(zero_copy_only=False)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    lists = pa.ListArray.from_arrays(pa.array(offsets), current, mask=names.is_null())
    return lists.cast(names.type)


def _column(batch: pa.RecordBatch, move: ColumnMove, change: SchemaChange, forms: Forms) -> pa.Array:
    if move.origin is None:
        if move.fill is None or not is_filled(move):
            return pa.nulls(batch.num_rows, move.type)
        return forms.column(pa.repeat(move.fill, batch.num_rows)).cast(move.type)
    column = batch.column(move.origin)
    column = column.cast(plain_type(column.type))
    if move.convert is not None:
        return _converted_by_source(batch, column, move, change, forms)
    if not _follows(column.type, move.type):
        raise _unfit(move, change, f"{column.type} is written in another way there")
    try:
        return column.cast(move.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise _unfit(move, change, str(error).splitlines()[0][:120]) from error


def _converted_by_source(
    batch: pa.RecordBatch, column: pa.Array, move: ColumnMove, change: SchemaChange, forms: Forms
) -> pa.Array:
    assert move.convert is not None
    assert move.origin is not None
    try:
        return forms.column(converted(move.convert, column, _left_out(batch, column, move.origin)))
    except (
        DecodeError,
        pa.ArrowException,
        ValueError,
        TypeError,
    ) as error:  # the last two: it does not have the expected type yet
        raise _unfit(move, change, str(error).splitlines()[0]) from error


def _left_out(batch: pa.RecordBatch, column: pa.Array, name: str) -> Mask | None:
    """Return a mask of a changelog's rows without a value, not even NULL."""
    if CHANGE_TYPE not in batch.schema.names or not column.null_count:
        return None
    kinds = batch.column(CHANGE_TYPE).cast(pa.string())
    is_image = pc.is_in(kinds, value_set=pa.array(["insert", "update_postimage"]))
    listed = batch.column(UNCHANGED).to_pylist() if UNCHANGED in batch.schema.names else []
    is_unchanged = np.array([name in (names or ()) for names in listed], np.bool_) if listed else False
    return np.asarray(column.is_null()) & (~np.asarray(is_image) | is_unchanged)


def _follows(old: pa.DataType, new: pa.DataType) -> bool:
    """Return whether casting ``old`` to ``new`` gives the values of a source's conversion, if it succeeds."""
    if pa.types.is_string(new):
        is_whole = pa.types.is_integer(old) or pa.types.is_decimal(old) or old == pa.bool_()
        return bool(is_whole or pa.types.is_string(old))
    if _is_number(old) and _is_number(new):
        return True
    zones = {arrow.tz for arrow in (old, new) if pa.types.is_timestamp(arrow)}
    is_moment = all(pa.types.is_date(arrow) or pa.types.is_timestamp(arrow) for arrow in (old, new))
    return bool(old == new or pa.types.is_string(old) or (is_moment and zones <= {None}))


def _is_number(arrow: pa.DataType) -> bool:
    return bool(pa.types.is_integer(arrow) or pa.types.is_decimal(arrow) or pa.types.is_floating(arrow))


def _unfit(move: ColumnMove, change: SchemaChange, reason: str) -> UnknownValuesError:
    return UnknownValuesError(
        f"column {move.name} of {change.name} has become {move.type}, and what the sink holds does not fit "
        f"({reason.removesuffix(f'; {RESYNC}')[:300]}); {RESYNC}"
    )
