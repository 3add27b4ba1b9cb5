"""Deletion vectors: mark rows of a Delta data file as deleted, by a roaring bitmap in the table's log.

Only vectors stored in the log ("inline") are written: delta-rs's vacuum removes vector files that are in use (seen with
1.6.6). They stay small, since files are rewritten in time (``upsert.by_vectors``). The format is that of Delta's
protocol: a roaring bitmap (``bitmaps.roaring``) in base 85.
"""

import struct
from typing import Any

import numpy as np

from agent.errors import RESYNC, TableHeldError
from agent.sinks.common.bitmaps import roaring

Positions = roaring.Positions

_DIGITS = np.frombuffer(
    b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#", np.uint8
)
_VALUES = np.zeros(256, np.uint32)
_VALUES[_DIGITS] = np.arange(85)
_POWERS = np.array([85**4, 85**3, 85**2, 85, 1], np.uint32)


def encode(positions: Positions) -> dict[str, Any]:
    """Return the descriptor of a vector; ``positions`` are strictly increasing."""
    bitmap = roaring.encode(positions)
    text = _base85(bitmap + bytes(-len(bitmap) % 4))
    descriptor = {"storageType": "i", "pathOrInlineDv": text, "sizeInBytes": len(bitmap), "cardinality": len(positions)}
    return descriptor


def decode(descriptor: dict[str, Any]) -> Positions | None:
    """Return the deleted rows; None if the vector is in a file, as other writers store it.

    :raises TableHeldError: it is damaged.
    """
    if descriptor.get("storageType") != "i":
        return None
    try:
        return roaring.decode(_bytes(descriptor["pathOrInlineDv"])[: descriptor["sizeInBytes"]])
    except (ValueError, LookupError, TypeError, AttributeError, struct.error) as error:
        raise TableHeldError(
            f"a deletion vector in the log of a Delta table is damaged ({error}); undo what another writer has added "
            f"and resume the changefeed, or {RESYNC}"
        ) from None


def _base85(data: bytes) -> str:
    words = np.frombuffer(data, ">u4").astype(np.uint32)
    return bytes(_DIGITS[(words[:, None] // _POWERS) % np.uint32(85)]).decode()


def _bytes(text: str) -> bytes:
    digits = _VALUES[np.frombuffer(text.encode(), np.uint8)].reshape(-1, 5)
    return bytes((digits * _POWERS).sum(axis=1, dtype=np.uint32).astype(">u4"))
