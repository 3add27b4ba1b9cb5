"""Patches: the only way to change what is in etcd.

A patch is a pure function from the old value of one key to its new value, evaluated again on every attempt; a group
commits atomically. ``None`` means "no such key", on both sides.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from reactor import keys
from reactor.division.divided import after
from reactor.errors import ConflictError
from reactor.records.base import Record

R = TypeVar("R", bound=Record)

#: old value → new value. May raise ``IgnorePatchError`` (skip this patch) or ``ConflictError`` (tick again)
PatchFunction = Callable[[bytes | None], bytes | None]


@dataclass(frozen=True, slots=True)
class Patch:
    """A change of one key."""

    key: str
    function: PatchFunction


@dataclass(frozen=True, slots=True)
class PatchGroup:
    """Patches that commit together. ``requires``: keys that must not have changed either, though they are not
    written."""

    patches: tuple[Patch, ...]
    requires: tuple[str, ...] = ()


def group(patches: Iterable[Patch], *, requires: Iterable[keys.Key] = ()) -> PatchGroup:
    return PatchGroup(tuple(patches), tuple(str(key) for key in requires))


def patch_record(key: keys.Key, model: type[R], function: Callable[[R | None], R | None]) -> Patch:
    """Return a patch on records instead of bytes. If the record is equal, the stored bytes are kept."""
    text = str(key)

    def apply(old: bytes | None) -> bytes | None:
        record = model.decode(old, key=text) if old is not None else None
        new = function(record)
        if new == record:
            return old
        return after(old, new) if new is not None else None

    return Patch(text, apply)


def replace_record(key: keys.Key, seen: R | None, new: R) -> Patch:
    """Return a patch that replaces ``seen`` by ``new``; any other stored value is a conflict."""

    def apply(old: R | None) -> R:
        if old != seen:
            raise ConflictError(f"{key} has changed since it was read; tick again")
        return new

    return patch_record(key, type(new), apply)


def delete_record(key: keys.Key, seen: Record) -> Patch:
    """Return a patch that deletes ``seen``; any other stored value is a conflict."""

    def apply(old: Record | None) -> None:
        if old != seen:
            raise ConflictError(f"{key} has changed since it was read; tick again")

    return patch_record(key, type(seen), apply)


def put_record(key: keys.Key, record: Record) -> Patch:
    """Return a patch that writes ``record`` unconditionally."""
    value = record.encode()
    return Patch(str(key), lambda _old: value)


def delete(key: keys.Key) -> Patch:
    return Patch(str(key), lambda _old: None)
