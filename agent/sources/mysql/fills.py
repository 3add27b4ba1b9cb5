"""A default that a statement tells, as the Arrow value that its column holds in rows that were there.

The text is what ``agent.sources.mysql.ddl`` writes: numbers and moments as SQL spells them, binary values in hex.
"""

import pyarrow as pa

from agent.errors import DecodeError
from agent.schema import TableSchema
from agent.sources.mysql.types import arrow_schema


def fill_value(schema: TableSchema, name: str, text: str) -> pa.Scalar:
    """What ``text`` is in the column ``name``.

    :raises DecodeError: it is no value of it.
    """
    arrow = arrow_schema(schema).field(name).type
    try:
        if pa.types.is_binary(arrow):
            return pa.scalar(bytes.fromhex(text), arrow)
        if arrow == pa.bool_():
            return pa.scalar(text not in ("", "0"))
        return pa.scalar(text).cast(arrow)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError) as error:
        raise DecodeError(
            f"default {text[:60]!r} of column {name} of {schema.qualified_name} is no {arrow}; load the table anew"
        ) from error
