"""Unification: brings the changes of a range under one schema, the first half of folding them (``agent.rows.fold``).

A column that only some schemas of the range have is *unknown* in the rows of the others, like a large value that an
update left out. A full before image supplies the values that such an update left out.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from agent.errors import RESYNC, UnknownValuesError
from agent.rows.changes import TRUNCATE, Changes
from agent.rows.spans import fill_from_before, key_changes

Mask = npt.NDArray[np.bool_]


def after_truncate(parts: Sequence[Changes]) -> tuple[list[Changes], bool]:
    """Return the part of ``parts`` (in log order) after the last TRUNCATE, and whether there was one."""
    for index in range(len(parts) - 1, -1, -1):
        (at,) = np.nonzero(parts[index].op == TRUNCATE)
        if len(at):
            behind = np.arange(len(parts[index])) > at[-1]
            rest = [parts[index].where(behind), *parts[index + 1 :]]
            return [part for part in rest if len(part)], True
    return [part for part in parts if len(part)], False


@dataclass(frozen=True, slots=True)
class Rows:
    """All changes of a range. ``moved``: updates that changed the key. ``before_keys``: key columns of the before
    images, NULL if there was none. ``unknown[column]``: True where the after image has no value for it, not even NULL.
    ``left_out[column]``: True where the reason is that an update left it out, not that the column was added later."""

    op: npt.NDArray[np.int8]
    moved: Mask
    after: pa.Table
    before_keys: pa.Table | None
    unknown: dict[str, Mask]
    left_out: dict[str, Mask]

    @classmethod
    def of_parts(cls, parts: Sequence[Changes], key: Sequence[str]) -> "Rows":
        parts = [fill_from_before(part) for part in parts]
        schema = _widest_schema(parts)
        before = [_before_keys(part, key) for part in parts]
        return cls(
            op=np.concatenate([part.op for part in parts]),
            moved=np.concatenate([key_changes(part, key) for part in parts]),
            after=pa.Table.from_batches([_widen(part, schema) for part in parts], schema),
            before_keys=None if all(keys is None for keys in before) else _concat_keys(before, parts, schema, key),
            unknown=_by_column(parts, schema, _unknown_in),
            left_out=_by_column(parts, schema, lambda part, name: part.unchanged.get(name)),
        )


def _widest_schema(parts: Sequence[Changes]) -> pa.Schema:
    """Return the newest schema, followed by the columns that only older ones have."""
    fields: dict[str, pa.Field] = {}
    for part in reversed(parts):
        for item in part.after.schema:
            fields.setdefault(item.name, item)
    return pa.schema(list(fields.values()))


def _widen(part: Changes, schema: pa.Schema) -> pa.RecordBatch:
    if part.after.schema.equals(schema):
        return part.after.replace_schema_metadata(None)
    columns = [_column(part.after, item, part) for item in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _column(batch: pa.RecordBatch, wanted: pa.Field, part: Changes) -> pa.Array:
    at = batch.schema.get_field_index(wanted.name)
    if at < 0:
        return pa.nulls(batch.num_rows, wanted.type)
    try:
        return batch.column(at).cast(wanted.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise UnknownValuesError(
            f"column {wanted.name} of {part.schema.qualified_name} has become {wanted.type} and older changes do not "
            f"fit; {RESYNC}"
        ) from error


def _by_column(
    parts: Sequence[Changes], schema: pa.Schema, mask_of: Callable[[Changes, str], Mask | None]
) -> dict[str, Mask]:
    """Return the columns that have a mask in at least one part."""
    found = {}
    for name in schema.names:
        masks = [mask_of(part, name) for part in parts]
        if any(mask is not None for mask in masks):
            filled = [np.zeros(len(p), np.bool_) if m is None else m for p, m in zip(parts, masks, strict=True)]
            found[name] = np.concatenate(filled)
    return found


def _unknown_in(part: Changes, name: str) -> Mask | None:
    if part.after.schema.get_field_index(name) < 0:
        return np.ones(len(part), np.bool_)
    return part.unchanged.get(name)


def _before_keys(part: Changes, key: Sequence[str]) -> pa.RecordBatch | None:
    return None if part.before is None else part.before.select(list(key))


def _concat_keys(
    before: Sequence[pa.RecordBatch | None], parts: Sequence[Changes], schema: pa.Schema, key: Sequence[str]
) -> pa.Table:
    wanted = pa.schema([schema.field(name) for name in key]).remove_metadata()
    filled = [
        pa.table([pa.nulls(len(part), item.type) for item in wanted], schema=wanted)
        if keys is None
        else pa.table([keys.column(item.name).cast(item.type) for item in wanted], schema=wanted)
        for keys, part in zip(before, parts, strict=True)
    ]
    return pa.concat_tables(filled)
