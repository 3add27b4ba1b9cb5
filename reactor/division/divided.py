"""Divided values: a large value is stored in parts, which have keys of their own, and a pointer that names them.

    pointer   under the value's key                     ``MAGIC`` and JSON: [[token, first number, parts], …]
    parts     part/{changefeed}/{token}/{number}        at most ``PART_BYTES`` each, never changed

A value is divided into *groups*: the first is the record without its elements (``Divisible.ELEMENTS``), each other one
a run of elements. A change writes new groups for the elements that have changed, and names the others again; so one
table of twenty thousand costs one group. A group is JSON, compressed, in one part or more.

The *token* of new parts is a hash of their content and of the pointer before, or else of the key. So writing again what
got no answer writes the same keys, and a part that no pointer names any more is never named again.

Pure. ``reactor.store.writes`` has the keys and the order of writing.
"""

import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from hashlib import blake2b
from typing import Any, ClassVar, Final, Self, TypeVar

from pydantic import BaseModel, TypeAdapter

from reactor.division.packing import inflated

R = TypeVar("R", bound="Divisible")

MAGIC: Final = b"\x00weir2"
#: of a value that stays whole, and of a part: below 64 KiB with its key
WHOLE_BYTES: Final = 60 << 10
PART_BYTES: Final = 60 << 10
#: of the JSON of a group with more than one element
GROUP_BYTES: Final = 48 << 10
TOGETHER_BYTES: Final = 1 << 20
#: the fastest level: the others save a tenth
_LEVEL: Final = 1


@dataclass(frozen=True, slots=True)
class Limits:
    """Sizes in bytes. ``together``: of new parts that are written in the pointer's own transaction."""

    whole: int = WHOLE_BYTES
    part: int = PART_BYTES
    group: int = GROUP_BYTES
    together: int = TOGETHER_BYTES


#: replaced only in tests, where small values are to be divided
LIMITS = Limits()


class Divisible(BaseModel):
    """A record that is stored in parts if it is large."""

    #: the field with one element per table, by which it is divided; "": by none
    ELEMENTS: ClassVar[str] = ""

    def encode(self) -> bytes:
        return self.model_dump_json(exclude_none=True).encode()

    def __eq__(self, other: object) -> bool:
        """Compare fields, of records of one kind; pydantic's own comparison costs two to five times as much."""
        if type(self) is not type(other):
            return NotImplemented
        mine, others = self.__dict__, other.__dict__
        if mine != others:
            if not (derived := _derived(type(self))):
                return False
            mine, others = ({name: at[name] for name in at.keys() - derived} for at in (mine, others))
        return mine == others and (self.__pydantic_extra__ or {}) == (other.__pydantic_extra__ or {})

    def with_(self, **changes: object) -> Self:
        """Return a copy with some fields changed (not validated: callers pass typed values)."""
        copied = self.model_copy(update=changes)
        for name in _derived(type(self)):
            copied.__dict__.pop(name, None)  # they are of the record before
        return copied


@cache
def _derived(model: type[Divisible]) -> frozenset[str]:
    """Return the names of values that are derived once from the fields."""
    members = (item for base in model.__mro__ for item in vars(base).items())
    return frozenset(name for name, member in members if isinstance(member, cached_property))


@dataclass(slots=True, eq=False)
class Group:
    """``json``: of the record's fields, or of a list of elements. ``pieces``: what its parts hold, if they are new."""

    json: bytes
    token: str = ""
    number: int = 0
    parts: int = 0
    pieces: tuple[bytes, ...] = ()
    _elements: tuple[Any, ...] | None = None

    @property
    def names(self) -> list[str]:
        return [f"{self.token}/{self.number + part}" for part in range(self.parts)]

    def elements(self, model: type[Divisible]) -> tuple[Any, ...]:
        """Return its elements, which are kept. :raises ValueError: they cannot be read."""
        if self._elements is None:
            self._elements = _adapter(model).validate_json(self.json, context={"stored": True})
        return self._elements


class Divided(bytes):
    """The pointer, with the groups that it names."""

    groups: tuple[Group, ...]
    _record: Any

    @classmethod
    def of(cls, groups: Iterable[Group]) -> "Divided":
        found = tuple(groups)
        places = [[group.token, group.number, group.parts] for group in found]
        value = cls(MAGIC + json.dumps(places, separators=(",", ":")).encode())
        value.groups, value._record = found, None
        return value

    @property
    def names(self) -> list[str]:
        """The names of all its parts."""
        return [name for group in self.groups for name in group.names]

    @property
    def pieces(self) -> dict[str, bytes]:
        """What is new in it: part → value, in the order in which they are written."""
        new = (group for group in self.groups if group.pieces)
        return dict(pair for group in new for pair in zip(group.names, group.pieces, strict=True))

    def read(self, model: type[R]) -> R:
        """:raises ValueError: it holds no such record."""
        if self._record is None or type(self._record) is not model:
            record = model.model_validate_json(self.groups[0].json, context={"stored": True})
            if model.ELEMENTS:
                elements = tuple(one for group in self.groups[1:] for one in group.elements(model))
                record = record.with_(**{model.ELEMENTS: elements})
            self._record = record
        found: R = self._record
        return found


@cache
def _adapter(model: type[Divisible]) -> TypeAdapter[tuple[Any, ...]]:
    return TypeAdapter(model.model_fields[model.ELEMENTS].annotation or tuple)


def is_pointer(value: bytes) -> bool:
    return value.startswith(MAGIC)


def names_of(pointer: bytes) -> list[str]:
    """Return the names of the parts that a stored pointer names. :raises ValueError: it is damaged."""
    return [name for group in _places(pointer) for name in group.names]


def _places(pointer: bytes) -> list[Group]:
    try:
        places = json.loads(pointer.removeprefix(MAGIC))
        return [Group(b"", str(token), int(number), int(parts)) for token, number, parts in places]
    except (TypeError, RecursionError) as error:
        raise ValueError(f"a pointer is damaged ({error})") from None


def joined(pointer: bytes, find: Callable[[str], bytes | None], *, before: bytes | None = None) -> Divided:
    """Return a stored pointer with its groups. ``before``: the key's value before, whose groups need not be read again.

    :raises ValueError: it is damaged, or a part is missing.
    """
    known = {group.names[0]: group for group in before.groups} if isinstance(before, Divided) else {}
    found = []
    for place in _places(pointer):
        name = f"{place.token}/{place.number}"
        found.append(known.get(name) or _read(place, find))
    if not found:
        raise ValueError("a pointer names no parts")
    return Divided.of(found)


def _read(place: Group, find: Callable[[str], bytes | None]) -> Group:
    pieces = [find(name) for name in place.names]
    if None in pieces:
        raise ValueError(f"a part is missing ({place.names[pieces.index(None)]})")
    content = inflated(b"".join(piece for piece in pieces if piece is not None))
    return Group(content, place.token, place.number, place.parts)


def divided(value: bytes, elements: str = "", *, key: str = "") -> Divided:
    """Divide the JSON of the record under ``key``; ``elements``: the field that has them, if it has any."""
    if not elements:
        return _named([Group(value)], key.encode())
    content = json.loads(value)
    listed = [_json(one) for one in content.get(elements, ())]
    content[elements] = []
    return _named([Group(_json(content)), *_groups(listed)], key.encode())


def after(old: bytes | None, record: Divisible) -> bytes:
    """Return the value of ``record`` in place of ``old``: divided if that is, with the groups that have not changed.

    One that has shrunk becomes whole again.
    """
    if not isinstance(old, Divided):
        return record.encode()
    model, name = type(record), record.ELEMENTS
    if not name:
        return _shrunk(record, [Group(record.encode())], old)
    head = record.with_(**{name: ()}).encode()
    first = old.groups[0] if old.groups[0].json == head else Group(head)
    groups = _regrouped(old, model, getattr(record, name))
    return _shrunk(record, [first, *groups], old)


def _shrunk(record: Divisible, groups: list[Group], old: Divided) -> bytes:
    if sum(len(group.json) for group in groups) <= LIMITS.whole // 2:
        return record.encode()
    return _named(groups, old)


def _regrouped(old: Divided, model: type[Divisible], elements: Sequence[Any]) -> list[Group]:
    """Keep elements in the groups in which they are; divide all again if that left many small ones."""
    where = {one.table_id: group for group in old.groups[1:] for one in group.elements(model)}
    found: list[Group] = []
    for group, run in _runs(elements, where):
        if group is not None and tuple(run) == group.elements(model):
            found.append(group)
        else:
            found += _groups([one.encode() for one in run])
    size = sum(len(group.json) for group in found)
    if len(found) > 4 + 3 * size // LIMITS.group:
        return list(_groups([one.encode() for one in elements]))
    return found


def _runs(elements: Sequence[Any], where: dict[int, Group]) -> Iterator[tuple[Group | None, list[Any]]]:
    """Yield neighbours of one group; new elements come to the one before them."""
    group: Group | None = None
    run: list[Any] = []
    for one in elements:
        place = where.get(one.table_id, group)
        if run and place is not group and group is not None:
            yield group, run
            run = []
        group = place
        run.append(one)
    if run:
        yield group, run


def store_part(parts: dict[str, bytes], name: str, value: bytes | None) -> None:
    if value is None:
        parts.pop(name, None)
    else:
        parts[name] = value


def _groups(listed: Sequence[bytes]) -> Iterator[Group]:
    run: list[bytes] = []
    size = 0
    for one in listed:
        if run and size + len(one) > LIMITS.group:
            yield Group(b"[" + b",".join(run) + b"]")
            run, size = [], 0
        run.append(one)
        size += len(one) + 1
    if run:
        yield Group(b"[" + b",".join(run) + b"]")


def _named(groups: Sequence[Group], before: bytes) -> Divided:
    """Give the new groups their parts and names."""
    digest = blake2b(bytes(before), digest_size=12)
    new = [group for group in groups if not group.token]
    for group in new:
        digest.update(len(group.json).to_bytes(8, "big") + group.json)
    token, number = digest.hexdigest(), 0
    for group in new:
        content = zlib.compress(group.json, _LEVEL)
        group.pieces = tuple(content[at : at + LIMITS.part] for at in range(0, len(content), LIMITS.part))
        group.token, group.number, group.parts = token, number, len(group.pieces)
        number += group.parts
    return Divided.of(groups)


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
