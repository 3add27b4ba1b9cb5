"""Text conversions: PostgreSQL's texts under another type of their column, by the server's own rules.

A ``varchar`` takes no longer text but one whose end is blank, which it cuts; a ``char`` is filled up with blanks, and
loses them as it becomes anything else.
"""

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from agent.errors import DecodeError
from agent.rows.schema import Column

BPCHAR: Final = 1042
NAME: Final = 19
#: a typmod counts the header of a value too
_HEADER: Final = 4
_NAME_BYTES_MAX: Final = 63


def length_of(column: Column) -> int | None:
    """Return the maximum length of a ``char`` or ``varchar`` in characters; None if unlimited."""
    return column.modifier - _HEADER if column.modifier >= _HEADER else None


def without_blanks(values: pa.Array) -> pa.Array:
    """Convert ``char`` values to another text type."""
    return pc.utf8_rtrim(values, characters=" ")


def fitted(values: pa.Array, after: Column) -> pa.Array:
    """Convert texts to a text column's values."""
    if after.type_id == NAME:
        if pc.any(pc.greater(pc.binary_length(values), _NAME_BYTES_MAX)).as_py():
            raise DecodeError(f"a name is truncated to {_NAME_BYTES_MAX} bytes of the database's encoding")
        return values
    length = length_of(after)
    if length is None:
        return values
    cut = pc.utf8_slice_codeunits(values, 0, length)
    return pc.utf8_rpad(cut, length, " ") if after.type_id == BPCHAR else cut
