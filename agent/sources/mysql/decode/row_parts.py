"""Row parts: parses a rows event in Python, for rare cases that need no kernel.

An event is a type byte, the table's id (6), flags (2), in version 2 extra data with its length, the number of columns,
one or two bitmaps of the columns in the images, and the rows.
"""

from agent.sources.mysql.decode import wire

#: type, table id, flags
_FIXED_BYTES = 9


def length_at(data: bytes, at: int) -> tuple[int, int]:
    """Return a length-encoded integer, and the offset after it."""
    first = data[at]
    width = {0xFC: 2, 0xFD: 3, 0xFE: 8}.get(first, 0)
    return (int.from_bytes(data[at + 1 : at + 1 + width], "little") if width else first), at + 1 + width


def count_at(event: bytes, kind: int) -> int:
    """Return the offset of the column count; ``kind``: the event type without compression."""
    at = _FIXED_BYTES
    if kind >= wire.WRITE_V2:
        at += max(2, int.from_bytes(event[at : at + 2], "little"))
    return at


def bitmaps_at(event: bytes, kind: int) -> tuple[int, int]:
    """Return the number of columns, and the offset of the bitmaps; ``kind`` as for ``count_at``."""
    return length_at(event, count_at(event, kind))


def bit(bitmap: bytes, number: int) -> bool:
    return bool(bitmap[number >> 3] >> (number & 7) & 1)


def value_end(data: bytes, at: int, width: int) -> int:
    """Return the offset after the value at ``at``; ``width``: by ``types.wire_width``."""
    if width >= 0:
        return at + width
    return at - width + int.from_bytes(data[at : at - width], "little")
