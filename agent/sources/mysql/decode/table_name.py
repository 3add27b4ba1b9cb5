"""Table name: reads the database and table of a TABLE_MAP event."""

import contextlib
import struct
from collections.abc import Iterator

from agent.errors import DecodeError

#: bytes of the event before the name
_TABLE_MAP_HEAD = 8


@contextlib.contextmanager
def reading(what: str) -> Iterator[None]:
    """:raises DecodeError: what is read within is no such event."""
    try:
        yield
    except (struct.error, IndexError, ValueError) as error:
        raise DecodeError(f"{what} in the binlog cannot be read ({error}); report this") from None


@reading("a table map")
def parse_table_name(body: bytes) -> tuple[str, str]:
    """Schema and table of a table map."""
    at = _TABLE_MAP_HEAD
    schema_name = body[at + 1 : at + 1 + body[at]]
    at += body[at] + 2
    return schema_name.decode(errors="replace"), body[at + 1 : at + 1 + body[at]].decode(errors="replace")
