"""Key bounds: whether a file may hold one of some keys, by the least and the greatest value of a key column."""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


class KeyBounds:
    """``keys``: key columns. Dates and times are compared as numbers."""

    def __init__(self, keys: pa.Table) -> None:
        self._sorted = {name: _sorted(keys.column(name)) for name in keys.schema.names}

    def numbers(self, column: str) -> pa.Array | None:
        """Return a column's values as bounds are, sorted; None if its type has no bounds."""
        return self._sorted[column]

    def has_between(self, column: str, least: Any, most: Any) -> bool:
        """Return whether one of the keys is between the bounds; True if that is not known."""
        values = self._sorted[column]
        if values is None or least is None or most is None:
            return True
        if pa.types.is_integer(values.type):
            numbers = values.to_numpy()
            return bool(np.searchsorted(numbers, least) < np.searchsorted(numbers, most, side="right"))
        inside = pc.and_(pc.greater_equal(values, least), pc.less_equal(values, most))
        return bool(pc.any(inside).as_py())


def _sorted(column: pa.ChunkedArray) -> pa.Array | None:
    array = column.combine_chunks()
    array = array.chunk(0) if isinstance(array, pa.ChunkedArray) else array
    if pa.types.is_date(array.type):
        array = array.cast(pa.int32())
    if pa.types.is_temporal(array.type):
        array = array.cast(pa.int64())
    if not (pa.types.is_integer(array.type) or pa.types.is_decimal(array.type) or pa.types.is_string(array.type)):
        return None
    if array.null_count:
        return None
    return array.take(pc.sort_indices(array))
