"""Row parts: take a rows event apart in Python, where kernels are not worth it.

An event is a type byte, the table's id (6), flags (2), with version 2 extra data behind its own length, the count of
columns, one or two bitmaps of the columns that images have, and the rows.
"""

from agent.sources.mysql.decode import wire

#: type, table id, flags
_FIXED_BYTES = 9


def length_at(data: bytes, at: int) -> tuple[int, int]:
    """A length-encoded integer, and the offset behind it."""
    first = data[at]
    width = {0xFC: 2, 0xFD: 3, 0xFE: 8}.get(first, 0)
    return (int.from_bytes(data[at + 1 : at + 1 + width], "little") if width else first), at + 1 + width


def count_at(event: bytes, kind: int) -> int:
    """Where the count of columns lies; ``kind`` as if the event were not compressed."""
    at = _FIXED_BYTES
    if kind >= wire.WRITE_V2:
        at += max(2, int.from_bytes(event[at : at + 2], "little"))
    return at


def bitmaps_at(event: bytes, kind: int) -> tuple[int, int]:
    """How many columns there are, and where the bitmaps begin; ``kind`` as for ``count_at``."""
    return length_at(event, count_at(event, kind))


def bit(bitmap: bytes, number: int) -> bool:
    return bool(bitmap[number >> 3] >> (number & 7) & 1)


def value_end(data: bytes, at: int, width: int) -> int:
    """The offset behind the value at ``at``; ``width`` as ``types.wire_width`` has it."""
    if width >= 0:
        return at + width
    return at - width + int.from_bytes(data[at : at - width], "little")
