"""Packing: a large value is stored compressed, as the records of many tables exceed what a store takes at once.

A packed value begins with ``MAGIC``, which no JSON does, and continues as a zlib stream. What is smaller than
``PACKED_FROM`` bytes stays JSON. Records of tables shrink to between a twelfth (numbered names) and a quarter (random
ones). Captures before format 9 cannot read it (``reactor.records.formats.Feature.PACKED``), so it is the writer's
decision: the transaction plan of a worker, or an agent that writes by itself.
"""

import zlib
from typing import Final

MAGIC: Final = b"\x00weir1"
PACKED_FROM: Final = 64 << 10
#: of one value when unpacked: far more than any record, and little enough for a capture's memory
_UNPACKED_MAX: Final = 64 << 20
#: the fastest level: the others save a tenth
_LEVEL: Final = 1


def packed(value: bytes) -> bytes:
    """Return ``value`` in the form in which it is stored; one that is packed stays as it is."""
    if len(value) < PACKED_FROM or value.startswith(MAGIC):
        return value
    return MAGIC + zlib.compress(value, _LEVEL)


def unpacked(value: bytes) -> bytes:
    """:raises ValueError: it is damaged, or unpacks to more than a record may have."""
    if not value.startswith(MAGIC):
        return value
    return inflated(value[len(MAGIC) :])


def inflated(stored: bytes) -> bytes:
    """:raises ValueError: it is damaged, or unpacks to more than a record may have."""
    stream = zlib.decompressobj()
    try:
        found = stream.decompress(stored, _UNPACKED_MAX)
    except zlib.error as error:
        raise ValueError(f"a packed value is damaged ({error})") from None
    if not stream.eof or stream.unused_data:
        raise ValueError("a packed value is cut, or too large")
    return found
