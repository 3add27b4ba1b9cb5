"""Table name: parses the schema and table name of a table map event."""

import contextlib
import struct
from collections.abc import Iterator

from agent.errors import DecodeError

#: size of the fields before the name
_TABLE_MAP_HEAD = 8


@contextlib.contextmanager
def reading(what: str) -> Iterator[None]:
    """Convert parse errors in the block.

    :raises DecodeError: the event is malformed.
    """
    try:
        yield
    except (struct.error, IndexError, ValueError) as error:
        raise DecodeError(f"{what} in the binlog cannot be read ({error}); report this") from None


@reading("a table map")
def parse_table_name(body: bytes) -> tuple[str, str]:
    """Return schema and table of a table map."""
    at = _TABLE_MAP_HEAD
    schema_name = body[at + 1 : at + 1 + body[at]]
    at += body[at] + 2
    return schema_name.decode(errors="replace"), body[at + 1 : at + 1 + body[at]].decode(errors="replace")
