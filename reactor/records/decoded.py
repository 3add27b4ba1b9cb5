"""Decoded values: reads records from stored values, each value once for all states of the cluster in a process.

A capture keeps a state for its owners, one for its processors, and one for the controller if it is elected. All are
shown the same values within moments.
"""

from collections.abc import MutableMapping
from functools import lru_cache
from typing import Any, Final, TypeVar

from reactor.errors import InvalidRecordError
from reactor.records.base import Record

R = TypeVar("R", bound=Record)
K = TypeVar("K")

#: the latest values whose records are kept, and the size in bytes up to which they are
_KEPT: Final = 256
_KEPT_BYTES_MAX: Final = 1 << 16


def record_of(model: type[R], key: str, value: bytes, **named: object) -> R:
    """Return the record in ``value``, which is not to be changed: others have the same one.

    :raises InvalidRecordError: the value cannot be read, or belongs under another key than the one ``named``.
    """
    record = _read(model, key, value)
    wrong = sorted(field for field, expected in named.items() if getattr(record, field) != expected)
    if wrong:
        raise InvalidRecordError(f"{key} holds the {model.__name__} of another key (wrong: {', '.join(wrong)})")
    return record


def decode(model: type[R], key: str, value: bytes | None, **named: object) -> R | None:
    """Return the record in ``value``; None if there is no value.

    :raises InvalidRecordError: see ``record_of``.
    """
    return None if value is None else record_of(model, key, value, **named)


def put(known: MutableMapping[K, R], at: K, model: type[R], key: str, value: bytes | None, **named: object) -> None:
    """Set the record in ``value``, or remove the one that is known if there is no value.

    :raises InvalidRecordError: see ``record_of``.
    """
    if (record := decode(model, key, value, **named)) is None:
        known.pop(at, None)
    else:
        known[at] = record


def _read(model: type[R], key: str, value: bytes) -> R:
    if type(value) is not bytes or len(value) > _KEPT_BYTES_MAX:  # one that is divided keeps its elements itself
        return model.decode(value, key=key)
    try:
        record = _kept(model, value)
    except InvalidRecordError:
        return model.decode(value, key=key)  # names the key
    assert isinstance(record, model)
    return record


@lru_cache(_KEPT)
def _kept(model: type[Record], value: bytes) -> Any:
    return model.decode(value, key="a key")
