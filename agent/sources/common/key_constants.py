"""Key constants: writes the keys of rows in SQL, so that a server finds the rows that have them.

Only types are written whose constants a server compares without loss. Of others there is an error, as a row that is not
found would be taken for one that is gone.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from agent.errors import SourceConfigError

_KEYS_AT_ONCE = 1_000


@dataclass(frozen=True, slots=True)
class ConstantWords:
    """The spelling of names, texts, bytes and moments (UTC) on a kind of server."""

    identifier: Callable[[str], str]
    literal: Callable[[str], str]
    binary: Callable[[bytes], str]
    zone: str


def key_conditions(keys: pa.Table, words: ConstantWords) -> Iterator[str]:
    """Yield conditions that together are true for exactly the rows with these keys, each for so many as a statement
    takes. No key is there twice, and none is NULL.

    :raises SourceConfigError: a column's type cannot be written.
    """
    names = ", ".join(map(words.identifier, keys.schema.names))
    for field in keys.schema:
        _refuse_unfit(field)
    for batch in keys.to_batches(max_chunksize=_KEYS_AT_ONCE):
        columns = [_constants(batch.column(at), words) for at in range(batch.num_columns)]
        rows = ", ".join(f"({', '.join(row)})" for row in zip(*columns, strict=True))
        if rows:
            yield f"({names}) IN ({rows})"


def _refuse_unfit(field: pa.Field) -> None:
    kinds = (
        *(pa.types.is_integer, pa.types.is_boolean, pa.types.is_decimal, pa.types.is_date32, pa.types.is_timestamp),
        *(pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary, pa.types.is_time),
    )
    if not any(is_kind(field.type) for is_kind in kinds):
        raise SourceConfigError(
            f"rows cannot be asked for by {field.name}, which is a {field.type}; copy the whole table again instead"
        )


def _constants(column: pa.Array, words: ConstantWords) -> list[str]:
    kind = column.type
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_decimal(kind):
        return [str(value) for value in column.to_pylist()]
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return [words.binary(value) for value in column.to_pylist()]
    if pa.types.is_timestamp(kind):
        zone = words.zone if kind.tz else ""
        moments = column.cast(pa.timestamp(kind.unit)).cast(pa.string()).to_pylist()
        return [words.literal(moment + zone) for moment in moments]
    return [words.literal(str(value)) for value in column.cast(pa.string()).to_pylist()]
