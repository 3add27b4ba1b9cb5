"""Key values: finds those that their column's Arrow type cannot tell from another value.

Some values have no place in a column's type and are bent to the nearest that has one (``docs/types.md``): an infinite
date to the end of the year 9999, 24:00 to the last microsecond of the day, NaN to NULL. A row may hold such a value;
as a part of its key it would be another row's. Names of objects (``regclass`` and its like) change with the objects,
and nothing in the log tells of the rows that have them as keys.
"""

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from agent.rows.schema import Column
from agent.sources.postgres.decode import types
from agent.sources.postgres.decode.kernels_fixed import (
    DATE_MAX,
    DATE_MIN,
    EPOCH_DAYS,
    EPOCH_US,
    TIME_MAX_US,
    TIMESTAMP_MAX_US,
    TIMESTAMP_MIN_US,
)
from agent.sources.postgres.decode.types import Kind

Positions = npt.NDArray[np.int64]

#: values that others are bent to
_ENDS: Final[dict[Kind, tuple[int, ...]]] = {
    Kind.DATE: (DATE_MIN, DATE_MAX),
    Kind.TIMESTAMP: (TIMESTAMP_MIN_US, TIMESTAMP_MAX_US),
    Kind.TIMESTAMPTZ: (TIMESTAMP_MIN_US, TIMESTAMP_MAX_US),
    Kind.TIME: (TIME_MAX_US,),
}
_EPOCHS: Final = {Kind.DATE: EPOCH_DAYS, Kind.TIMESTAMP: EPOCH_US, Kind.TIMESTAMPTZ: EPOCH_US, Kind.TIME: 0}
#: 0001-01-01, 9999-12-31, 23:59:59.999999: not infinity, -infinity, 294276-12-31, 24:00:00
_FIRST_LETTERS: Final = (ord("0"), ord("9"))
_SECOND_LETTER_OF_TIME: Final = ord("3")


def first_bent(
    column: Column, values: pa.Array, data: npt.NDArray[np.uint8], positions: Positions, *, is_text: bool
) -> int:
    """The first row whose value is not the source's own, or -1. ``values``: what has become of ``positions``."""
    kind = types.kind_of(column)
    has_value = positions >= 0
    if column.type_id in types.NAMES_OF_OBJECTS:
        bent = has_value
    elif pa.types.is_decimal(values.type):
        bent = has_value & values.is_null().to_numpy(zero_copy_only=False)
    elif kind in _ENDS:
        numbers = _numbers(values)
        bent = np.zeros(len(values), np.bool_)
        (at,) = np.nonzero(np.isin(numbers, _ENDS[kind]) & has_value)
        bent[at] = ~_is_exact(kind, numbers[at], data, positions[at], is_text=is_text)
    else:
        return -1
    return int(np.argmax(bent)) if bent.any() else -1


def _is_exact(
    kind: Kind, numbers: Positions, data: npt.NDArray[np.uint8], positions: Positions, *, is_text: bool
) -> npt.NDArray[np.bool_]:
    if not is_text:
        width = 4 if kind is Kind.DATE else 8
        raw = data[positions[:, None] + np.arange(width)].view(f">i{width}").ravel()
        found: npt.NDArray[np.bool_] = raw == numbers - _EPOCHS[kind]
    elif kind is Kind.TIME:
        found = data[positions + 1] == _SECOND_LETTER_OF_TIME
    else:
        found = np.isin(data[positions], _FIRST_LETTERS)
    return found


def _numbers(values: pa.Array) -> Any:
    width = pa.int32() if pa.types.is_date32(values.type) else pa.int64()
    return values.cast(width).fill_null(0).to_numpy().astype(np.int64)
