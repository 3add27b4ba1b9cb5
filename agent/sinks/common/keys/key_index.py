"""Key index: finds the positions of keys in a data file; kept in the host's cache of objects.

A data file never changes, so its index is made once, from its key columns alone, and cannot be stale. It is a file of
the sorted keys and their positions, of which a search reads some pages: its cost grows with the keys that are searched,
and not with the rows. Keys of one integer are in the index themselves. All others (texts, UUIDs, several columns) are
there as digests (``agent.kernels.key_digest``), under a secret that each index has of its own.

The index is a cache: a file whose index is missing, or has another length than its header says, is indexed again.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from agent import host_cache
from agent.errors import RESYNC, TableHeldError
from agent.kernels.key_digest import Digests, key_digests, new_secret

Positions = npt.NDArray[np.int64]
Ints = npt.NDArray[np.int64]
#: rows of a file that is read instead
_ROWS_MIN: Final = 50_000
#: fewer rows than this per key are read too
_ROWS_PER_KEY: Final = 8
#: positions take four bytes
_ROWS_MAX: Final = 1 << 32
#: mark, secret and number of keys, before the keys
_MARK: Final = b"weir-keys-index1"
_HEAD_BYTES: Final = 64
_SECRET_AT, _COUNT_AT = len(_MARK), 32
_INTEGER_BYTES, _DIGEST_BYTES, _POSITION_BYTES = 8, 16, 4

#: yields the key columns of a data file, from its first row on
Read = Callable[[], Iterable[pa.Table]]


@dataclass(frozen=True, slots=True)
class IndexedFile:
    """A data file. ``name``: differs from that of every other file, also of one that had its path before. ``rows``:
    their number, deleted ones included; ``read``: reads its key columns."""

    name: str
    rows: int
    read: Read


class IndexSearch:
    """Finds rows by key in indexed files. ``keys``: unique keys, with the types of the files' columns."""

    def __init__(self, keys: pa.Table) -> None:
        self._keys = keys.combine_chunks()
        column = self._keys.column(0)
        self._is_integer = keys.num_columns == 1 and pa.types.is_integer(column.type) and not column.null_count
        self._kind = "integer" if self._is_integer else ", ".join(str(item.type) for item in keys.schema)
        self._numbers: tuple[Ints, Ints] | None = None
        if self._is_integer:
            numbers = column.cast(pa.int64()).to_numpy()
            order = np.argsort(numbers)
            self._numbers = numbers[order], order

    def is_worth(self, rows: int) -> bool:
        """Return whether these keys are found in the index of a file of so many rows sooner than in the file."""
        least: int = max(_ROWS_MIN, _ROWS_PER_KEY * self._keys.num_rows)
        return least <= rows < _ROWS_MAX

    def run(self, file: IndexedFile) -> tuple[Positions, Positions]:
        """Return where the file has some of the keys, in increasing order, and which of them.

        :raises SinkError: the file cannot be read.
        """
        index = self._opened(file)
        if self._numbers is not None:
            wanted, order = self._numbers
            places, which = _among(index.integers, index.positions, wanted)
            which = order[which]
        else:
            digests = key_digests(self._keys, index.secret)
            order = np.argsort(digests[:, 0])
            sorted_halves = np.ascontiguousarray(digests[order, 0])
            at, which = _ranges(index.first_halves, sorted_halves)
            which = order[which]
            is_same = index.second_halves[at] == digests[which, 1]
            places, which = index.positions[at[is_same]].astype(np.int64), which[is_same]
        rising = np.argsort(places)
        return places[rising], which[rising]

    def _opened(self, file: IndexedFile) -> "_Index":
        name = f"keys-2:{self._kind}:{file.rows}:{file.name}"
        try:
            path = host_cache.fetch_path(name, lambda: self._made(file), is_synced=True)
            content: npt.NDArray[np.uint8] = np.memmap(path, np.uint8, "r")
        except (OSError, ValueError):  # it was evicted just now, is empty, or the cache's disk is full
            content = np.zeros(0, np.uint8)
        index = _Index.of(content, is_integer=self._is_integer)
        if index is None:
            made = self._made(file)
            host_cache.put(name, made)
            index = _Index.of(np.frombuffer(made, np.uint8), is_integer=self._is_integer)
            assert index is not None, "it was just made"
        return index

    def _made(self, file: IndexedFile) -> bytes:
        return _integers(file) if self._is_integer else _digests(file)


@dataclass(frozen=True, slots=True, eq=False)
class _Index:
    """An index as it is stored: a head, then keys in their order, then their positions."""

    secret: bytes
    keys: npt.NDArray[np.uint8]
    positions: npt.NDArray[np.uint32]

    @classmethod
    def of(cls, content: npt.NDArray[np.uint8], *, is_integer: bool) -> "_Index | None":
        """Return None if it is damaged."""
        if len(content) < _HEAD_BYTES or content[: len(_MARK)].tobytes() != _MARK:
            return None
        count = int(content[_COUNT_AT : _COUNT_AT + 8].view(np.uint64)[0])
        keys_end = _HEAD_BYTES + count * (_INTEGER_BYTES if is_integer else _DIGEST_BYTES)
        if len(content) != keys_end + count * _POSITION_BYTES:
            return None
        secret = content[_SECRET_AT:_COUNT_AT].tobytes()
        return cls(secret, content[_HEAD_BYTES:keys_end], content[keys_end:].view(np.uint32))

    @property
    def integers(self) -> Ints:
        return self.keys.view(np.int64)

    @property
    def first_halves(self) -> npt.NDArray[np.uint64]:
        return self.keys[: len(self.keys) // 2].view(np.uint64)

    @property
    def second_halves(self) -> npt.NDArray[np.uint64]:
        return self.keys[len(self.keys) // 2 :].view(np.uint64)


def _head(secret: bytes, count: int) -> bytes:
    return (_MARK + secret + count.to_bytes(8, "little")).ljust(_HEAD_BYTES, b"\0")


def _integers(file: IndexedFile) -> bytes:
    """Rows whose key is NULL have no place: no key is."""
    numbers, places, begin = [np.zeros(0, np.int64)], [np.zeros(0, np.uint32)], 0
    for part in file.read():
        column = part.column(0)
        (at,) = np.nonzero(column.is_valid().to_numpy()) if column.null_count else (np.arange(len(column)),)
        numbers.append(column.drop_null().cast(pa.int64()).to_numpy())
        places.append((at + begin).astype(np.uint32))
        begin += part.num_rows
    keys, positions = np.concatenate(numbers), np.concatenate(places)
    _check(file, begin)
    del numbers, places
    if not (keys[1:] >= keys[:-1]).all():
        order = np.argsort(keys, kind="stable")
        keys, positions = keys[order], positions[order]
    return b"".join((_head(bytes(16), len(keys)), keys.data, positions.data))


def _digests(file: IndexedFile) -> bytes:
    secret = new_secret()
    parts: list[Digests] = [np.zeros((0, 2), np.uint64)]
    parts += [key_digests(part, secret) for part in file.read()]
    digests = np.concatenate(parts)
    del parts
    _check(file, len(digests))
    order = np.argsort(digests[:, 0])
    first, second = digests[order, 0], digests[order, 1]
    return b"".join((_head(secret, len(digests)), first.data, second.data, order.astype(np.uint32).data))


def _check(file: IndexedFile, rows: int) -> None:
    if rows != file.rows:
        raise TableHeldError(
            f"{file.name} has {rows} rows, and {file.rows} by its table's metadata; bring the right file back, or "
            f"{RESYNC}"
        )


def _among(known: Ints, positions: npt.NDArray[np.uint32], wanted: Ints) -> tuple[Positions, Positions]:
    """Return the positions of the sorted ``wanted`` among the sorted ``known``, and which each is."""
    at, which = _ranges(known, wanted)
    return positions[at].astype(np.int64), which


def _ranges(known: npt.NDArray[np.generic], wanted: npt.NDArray[np.generic]) -> tuple[Positions, Positions]:
    """Return at which places ``known`` has some of ``wanted``, and which; both are sorted."""
    first, last = np.searchsorted(known, wanted), np.searchsorted(known, wanted, side="right")
    counts = last - first
    which = np.repeat(np.arange(len(wanted)), counts)
    # the n-th row of a key is n after its first
    at = np.repeat(first - np.concatenate([[0], np.cumsum(counts)[:-1]]), counts) + np.arange(counts.sum())
    return at.astype(np.int64), which
