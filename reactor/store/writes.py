"""Writes: the keys that a value is stored in, and the order in which they are written.

If all fit into one transaction, they are. Else new parts come first, in transactions of their own (``early``), and the
last one writes the pointer. It also writes the first part of each token again, and compares that this has not changed
since: so whoever removes parts that no pointer names (``owner.stored_values``), beginning with the first, either is
noticed, or fails. Parts that the value had before are deleted with the pointer's transaction if they fit.

Pure.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from reactor import keys
from reactor.division import divided as division
from reactor.division.divided import Divided, divided
from reactor.division.packing import packed, unpacked
from reactor.errors import InvalidKeyError
from reactor.records.changefeed import UnitRecord
from reactor.records.formats import Feature
from reactor.records.schedules import DiffProgress
from reactor.records.tables.schema_change import DdlRecord
from reactor.store.port import Event, Put

#: what is stored there grows with the number of tables
_DIVISIBLE: Final = (
    keys.UnitKey,
    keys.DdlKey,
    keys.PositionKey,
    keys.AttemptKey,
    keys.SuspectsKey,
    keys.SyncPointKey,
    keys.LastDiffKey,
    keys.DiffProgressKey,
    keys.SignalsKey,
)
#: of one transaction of parts
_PUTS: Final = 100
_BYTES: Final = 1 << 20


def stored_form(key: str, value: bytes, number: int) -> bytes:
    """Return ``value`` as a cluster of format ``number`` stores it: whole, packed or divided."""
    if isinstance(value, Divided):
        return value
    if number >= Feature.DIVIDED and is_too_large(key, value):
        return in_parts(key, value)
    return packed(value) if number >= Feature.PACKED else value


def in_parts(key: str, value: bytes) -> Divided:
    """Divide a value that is stored whole. :raises ValueError: it is damaged."""
    if isinstance(value, Divided):
        return value
    parsed = _divisible(key)
    assert parsed is not None, "only values of changefeeds are divided"
    return divided(unpacked(value), _elements(parsed), key=key)


def is_too_large(key: str, value: bytes) -> bool:
    """Whether it is stored whole, and is larger than what a format with divided values stores."""
    return len(value) > division.LIMITS.whole and not isinstance(value, Divided) and _divisible(key) is not None


def flat(writes: Mapping[str, bytes | None], before: Mapping[str, bytes | None]) -> dict[str, bytes | None]:
    """Return all keys that are written, parts first; None deletes. ``before``: what the keys hold."""
    found: dict[str, bytes | None] = {}
    gone: dict[str, bytes | None] = {}
    for key, value in writes.items():
        old = before.get(key)
        had = set(old.names) if isinstance(old, Divided) else set()
        names = set(value.names) if isinstance(value, Divided) else set()
        if isinstance(value, Divided):
            found |= {part_key(key, name): piece for name, piece in value.pieces.items() if name not in had}
        gone |= {part_key(key, name): None for name in sorted(had - names)}
    return {**found, **writes, **{key: None for key in gone if key not in writes}}


def come_together(all_: Mapping[str, bytes | None], writes: Mapping[str, bytes | None]) -> bool:
    """Whether the new parts among ``all_`` may be written in the transaction of their pointers."""
    return sum(len(value or b"") for key, value in all_.items() if key not in writes) <= division.LIMITS.together


def early(all_: Mapping[str, bytes | None], writes: Mapping[str, bytes | None]) -> tuple[list[Put], list[str]]:
    """Return the new parts among ``all_``, first parts first, and the keys of the latter."""
    parts = {key: value for key, value in all_.items() if key not in writes and value is not None}
    firsts = [key for key in parts if key.endswith("/0")]
    ordered = [*firsts, *(key for key in parts if not key.endswith("/0"))]
    return [Put(key, parts[key] or b"") for key in ordered], firsts


def batches(puts: Sequence[Put]) -> tuple[tuple[Put, ...], ...]:
    """Divide puts into as many as one transaction takes."""
    found: list[list[Put]] = []
    size = 0
    for put in puts:
        if not found or len(found[-1]) == _PUTS or size + len(put.value) > _BYTES:
            found, size = [*found, []], 0
        found[-1].append(put)
        size += len(put.value)
    return tuple(map(tuple, found))


def part_key(key: str, name: str) -> str:
    """Return the key of a part of the value under ``key``."""
    parsed = _divisible(key)
    assert parsed is not None, "only values of changefeeds are divided"
    return str(keys.PartKey(parsed.cluster, parsed.namespace, parsed.changefeed, name))


def _divisible(key: str) -> keys.FeedKey | keys.PositionKey | None:
    try:
        parsed = keys.parse(key)
    except InvalidKeyError:
        return None
    return parsed if isinstance(parsed, _DIVISIBLE) else None


def _elements(key: keys.FeedKey | keys.PositionKey) -> str:
    match key:
        case keys.UnitKey():
            return UnitRecord.ELEMENTS
        case keys.DdlKey():
            return DdlRecord.ELEMENTS
        case keys.DiffProgressKey():
            return DiffProgress.ELEMENTS
        case _:
            return ""


def in_order(events: Iterable[Event]) -> list[Event]:
    """Sort events so that of one revision parts come first, then pointers that name them, then parts that are gone."""
    return sorted(events, key=_order)


def _order(event: Event) -> tuple[int, int]:
    if "/part/" not in event.key:
        return event.mod_revision, 1
    return event.mod_revision, 0 if event.value is not None else 2
