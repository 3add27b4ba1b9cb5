"""Text columns: turn the places of a column's values in a result set into an Arrow array.

The Arrow type alone decides how: a ``SELECT`` (``rows_text``) asks for every column in the one spelling that its type
has here. Leaves to ``rows_text`` where values lie and the naming of the row that is bad.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from agent.kernels.columns import Texts, allocate, array, check
from agent.sources.mysql.snapshot import kernels_text


def build(arrow: pa.DataType, values: Texts, *, skip: int = 0, is_strict: bool = False) -> pa.Array:
    """The Arrow array; ``skip`` leaves out the first bytes of each value.

    ``is_strict``: a date that no calendar has is an error, not NULL.

    :raises BadValueError: a value that is not of the type.
    """
    if pa.types.is_integer(arrow):
        return values.integers(arrow)
    if pa.types.is_string(arrow) or pa.types.is_binary(arrow):
        return values.strings(arrow, skip=skip)
    if pa.types.is_decimal(arrow):
        return values.decimals(arrow)
    if pa.types.is_floating(arrow):
        # By way of float64: that is what the server sends, and what is exact.
        return values.floats(pa.float64()).cast(arrow, safe=False)
    if pa.types.is_boolean(arrow):
        return values.flags("0", "1")
    if pa.types.is_date32(arrow):
        return _calendar(kernels_text.parse_dates, arrow, values, np.int32, is_strict=is_strict)
    if pa.types.is_timestamp(arrow):
        return _calendar(kernels_text.parse_timestamps, arrow, values, np.int64, is_strict=is_strict)
    raise AssertionError(f"no MySQL column becomes {arrow}")


def _calendar(
    kernel: Callable[..., int], arrow: pa.DataType, values: Texts, dtype: npt.DTypeLike, *, is_strict: bool
) -> pa.Array:
    out = allocate(len(values.starts), dtype)
    row = kernel(values.data, values.starts, values.lengths, is_strict, out)
    check(row, "a date that no calendar has")
    return array(arrow, values.starts, out)
