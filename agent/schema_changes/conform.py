"""Conforming: converts rows of a table's old schema to its new one, for a transaction that has both.

A transaction that changes a table may have written rows before, under the old schema. They are flushed after the
change (``reactor.records.tables.schema_change.DdlRecord``), into the changed table, so their columns follow the change:
names, types, and for a new column the value that the source gave to existing rows.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import pyarrow as pa

from agent.errors import RESYNC, DecodeError, UnknownValuesError
from agent.rows.changes import BEFORE_FULL, DELETE, TRUNCATE, Changes
from agent.rows.schema import TableSchema
from agent.rows.schema_change import Exact, Mask, Refused, WrittenConversion, converted
from agent.sources.registry import arrow_schema, conversions, fill_value
from reactor.records.tables.schema_change import SchemaChangeKind, TableChange


@dataclass(frozen=True, slots=True)
class Target:
    """The table after a change. ``renames``: new name → old name; ``fills``: values of new columns in existing rows.
    ``is_new``: the transaction created the table, so the sink has no columns but these."""

    schema: TableSchema
    arrow: pa.Schema
    renames: Mapping[str, str]
    added: frozenset[str]
    fills: Mapping[str, pa.Scalar]
    context: Mapping[str, str]
    is_new: bool


@lru_cache(maxsize=64)
def _target(text: str) -> Target:
    change = TableChange.model_validate_json(text)
    schema = TableSchema.from_json(change.after)
    fills = {name: fill_value(schema, name, value) for name, value in change.fills.items()}
    is_new = change.kind is SchemaChangeKind.CREATE
    return Target(schema, arrow_schema(schema), change.renames, frozenset(change.added), fills, change.context, is_new)


def conform(changes: Changes, change: str, *, keeps_gone: bool) -> Changes:
    """Return ``changes`` under the schema after ``change`` (JSON of a ``TableChange``); they may already have it.

    ``keeps_gone``: dropped columns stay, after the others.

    :raises UnknownValuesError: a value does not fit its column's new type.
    """
    target = _target(change)
    origins = _origins(changes.schema, target)
    found = conversions(changes.schema, target.schema, origins, target.context)
    if changes.after.schema.equals(target.arrow) and not any(item is not None for item in found.values()):
        return changes
    gone = [name for name in changes.after.schema.names if name not in origins.values()]
    gone = [name for name in gone if keeps_gone and not target.is_new and name not in target.arrow.names]
    before = changes.before
    unchanged = {name: changes.unchanged[old] for name, old in origins.items() if old in changes.unchanged}
    unchanged |= {name: changes.unchanged[name] for name in gone if name in changes.unchanged}
    return replace(
        changes,
        schema=target.schema,
        after=_image(changes.after, changes, target, origins, gone, found),
        before=None if before is None else _image(before, changes, target, origins, gone, found),
        unchanged=unchanged,
    )


def _origins(schema: TableSchema, target: Target) -> dict[str, str]:
    """Return new name → name in ``schema``, which may be any version on the way to the target: by number, else by
    name."""
    numbers = {column.place: column.name for column in schema.columns if column.place}
    names = {column.name for column in schema.columns}
    found = {}
    for column in target.schema.columns:
        if column.place and numbers:
            origin = numbers.get(column.place)
        else:
            origin = target.renames.get(column.name, None if column.name in target.added else column.name)
        if origin in names:
            found[column.name] = origin
    return found


def _image(
    image: pa.RecordBatch,
    changes: Changes,
    target: Target,
    origins: Mapping[str, str],
    gone: list[str],
    found: Mapping[str, WrittenConversion],
) -> pa.RecordBatch:
    arrays = [_column(image, item, changes, target, origins, found.get(item.name)) for item in target.arrow]
    fields = [*target.arrow, *(image.schema.field(name) for name in gone)]
    return pa.RecordBatch.from_arrays([*arrays, *(image.column(name) for name in gone)], schema=pa.schema(fields))


def _column(
    image: pa.RecordBatch,
    wanted: pa.Field,
    changes: Changes,
    target: Target,
    origins: Mapping[str, str],
    conversion: WrittenConversion,
) -> pa.Array:
    if wanted.name not in origins:
        fill = target.fills.get(wanted.name)
        return pa.nulls(len(image), wanted.type) if fill is None else pa.repeat(fill, len(image))
    column = image.column(origins[wanted.name])
    try:
        if isinstance(conversion, Refused):
            raise DecodeError(conversion.reason)
        if isinstance(conversion, Exact):
            return converted(conversion.convert, column, _left_out(image, column, changes, origins[wanted.name]))
        return column.cast(wanted.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, DecodeError) as error:
        raise UnknownValuesError(
            f"column {wanted.name} of {changes.schema.qualified_name} has become {wanted.type}, and older changes do "
            f"not fit ({str(error).splitlines()[0][:200]}); {RESYNC}"
        ) from error


def _left_out(image: pa.RecordBatch, column: pa.Array, changes: Changes, name: str) -> Mask:
    """Return a mask of the rows for which the image has no value, not even NULL."""
    if image is not changes.after:  # one with only the key, or with the whole row
        return np.asarray(np.asarray(column.is_null()) & (changes.before_kind != BEFORE_FULL), np.bool_)
    is_gone: Mask = np.isin(changes.op, (DELETE, TRUNCATE))
    return is_gone | changes.unchanged.get(name, np.zeros(len(image), np.bool_))
