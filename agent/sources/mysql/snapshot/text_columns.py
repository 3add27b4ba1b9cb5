"""Text columns: converts a column's text values in a result set into an Arrow array.

The Arrow type alone decides how: a ``SELECT`` (``rows_text``) asks for every column in the one spelling that its type
has here. Leaves to ``rows_text`` where values lie and the naming of the row that is bad.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from agent.kernels.columns import BadValueError, Texts, allocate, array, check
from agent.sources.mysql.snapshot import kernels_text

#: what the zero date consists of
_ZERO = b"0-: ."


def build(
    arrow: pa.DataType, values: Texts, *, skip: int = 0, is_strict: bool = False, is_key: bool = False
) -> pa.Array:
    """Return the Arrow array; ``skip``: number of leading bytes to omit from each value.

    ``is_strict``: a date that no calendar has is an error instead of NULL. ``is_key``: so it is unless it is the zero
    date, as NULL can stand for one value only.

    :raises BadValueError: a value is not of the type.
    """
    if pa.types.is_integer(arrow):
        return values.integers(arrow)
    if pa.types.is_string(arrow) or pa.types.is_binary(arrow):
        return values.strings(arrow, skip=skip)
    if pa.types.is_decimal(arrow):
        return values.decimals(arrow)
    if pa.types.is_floating(arrow):
        # via float64, which the server sends and which is exact
        return values.floats(pa.float64()).cast(arrow, safe=False)
    if pa.types.is_boolean(arrow):
        return values.flags("0", "1")
    if pa.types.is_date32(arrow):
        return _calendar(kernels_text.parse_dates, arrow, values, np.int32, is_strict=is_strict, is_key=is_key)
    if pa.types.is_timestamp(arrow):
        return _calendar(kernels_text.parse_timestamps, arrow, values, np.int64, is_strict=is_strict, is_key=is_key)
    raise AssertionError(f"no MySQL column becomes {arrow}")


def _calendar(
    kernel: Callable[..., int],
    arrow: pa.DataType,
    values: Texts,
    dtype: npt.DTypeLike,
    *,
    is_strict: bool,
    is_key: bool,
) -> pa.Array:
    out = allocate(len(values.starts), dtype)
    before = values.starts.copy() if is_key else values.starts
    row = kernel(values.data, values.starts, values.lengths, is_strict, out)
    check(row, "a date that no calendar has")
    for row in map(int, np.flatnonzero((before >= 0) & (values.starts < 0))):
        text = values.data[before[row] : before[row] + values.lengths[row]].tobytes()
        if text.strip(_ZERO):
            raise BadValueError(row, "a date of the key that no calendar has, and that is not the zero date")
    return array(arrow, values.starts, out)
