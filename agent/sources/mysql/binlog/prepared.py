"""Prepared transactions (XA): tracks undecided ones: where their rows are, and the rows themselves if they are few.

Pure. Rows are in the binlog where a transaction is prepared; an XA COMMIT or XA ROLLBACK of its name decides later
whether they count. Until then the list has their place. It is part of the stream's position, so that a later stream
knows it. Transactions without replicated rows are listed too, without a place: a name that is not in the list was
prepared before the changefeed began.

Most transactions are small and decided soon: their rows are kept in memory, up to ``KEPT_BYTES``. Others are read from
the binlog again.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np

from agent.kernels.jit import Bytes, Ints
from agent.kernels.row_cells import COMMIT_TIME, COMMIT_TS, LENGTH, OFFSET
from agent.rows.arena import Arena
from agent.sources.mysql.binlog import txn
from reactor.ids import Ts

KEPT_BYTES: Final = 8 << 20
NO_ROWS: Final = Ts(0)
#: names have up to 140 bytes, and the whole list is written with every update of the log's head
_DIGEST_BYTES = 10

#: digest of the name, and the place where the transaction begins
Entry = tuple[str, int]


def digest(name: str) -> str:
    """Return the digest of a name as written in the binlog."""
    return hashlib.blake2b(name.encode(), digest_size=_DIGEST_BYTES).hexdigest()


@dataclass(frozen=True, slots=True)
class KeptRows:
    """Rows events outside of their arena; offsets in ``lines`` are relative to the start of ``data``."""

    data: Bytes
    lines: Ints

    @property
    def size(self) -> int:
        return self.data.nbytes + self.lines.nbytes

    def put_into(self, arena: Arena, state: Ints) -> None:
        """Put them into the arena as rows of the open transaction, whose last event ends at ``POS``. All read bytes
        after the last row are free; if that is too little, unread bytes are moved."""
        first = int(state[txn.ROWS])
        at = int(arena.rows[first - 1, OFFSET] + arena.rows[first - 1, LENGTH]) if first else 0
        if (missing := at + len(self.data) - int(state[txn.POS])) > 0:
            arena.insert(int(state[txn.POS]), missing)
            state[txn.POS] += missing
        arena.data[at : at + len(self.data)] = self.data
        until = first + len(self.lines)
        arena.reserve_rows(until)
        arena.rows[first:until] = self.lines
        arena.rows[first:until, OFFSET] += at
        arena.rows[first:until, COMMIT_TS] = state[txn.COMMIT_TS]
        arena.rows[first:until, COMMIT_TIME] = state[txn.COMMIT_TIME]
        state[txn.ROWS] = until


def take_rows(arena: Arena, state: Ints) -> KeptRows | None:
    """Return a copy of the open transaction's rows; None if they are too many."""
    lines = arena.rows[int(state[txn.DONE_ROWS]) : int(state[txn.ROWS])].copy()
    if lines.nbytes + lines[:, LENGTH].sum() > KEPT_BYTES:
        return None
    pieces = [arena.data[at : at + length] for at, length in lines[:, :2].tolist()]
    lines[:, OFFSET] = np.cumsum(lines[:, LENGTH]) - lines[:, LENGTH]
    return KeptRows(np.concatenate([np.empty(0, np.uint8), *pieces]), lines)


class Prepared:
    """The list, in the order in which transactions were prepared."""

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self._places: dict[str, Ts] = {name: Ts(ts) for name, ts in entries}
        self._kept: dict[str, KeptRows] = {}
        self._kept_bytes = 0
        self._doubted: frozenset[str] = frozenset()
        self._doubted_until = Ts(0)

    @property
    def entries(self) -> tuple[Entry, ...]:
        return tuple(self._places.items())

    def add(self, name: str, place: Ts, rows: KeptRows | None = None) -> None:
        """Add a transaction. A name may be reused after its decision, or after a crash in which the server lost it."""
        key = digest(name)
        self._remove(key)
        self._doubted -= {key}
        self._places[key] = place
        if rows is not None and place != NO_ROWS:
            self._kept[key] = rows
            self._kept_bytes += rows.size
        while self._kept_bytes > KEPT_BYTES:
            self._forget_rows(next(iter(self._kept)))

    def doubt(self, keys: Iterable[str], until: Ts) -> None:
        """Doubt transactions that the server no longer holds: if they are undecided at ``until``, they never will be
        decided. If one is decided after all, its rows are found by its name."""
        self._doubted, self._doubted_until = frozenset(keys), until

    def settle(self, resolved: Ts) -> None:
        """Note that everything up to ``resolved`` has been read."""
        if self._doubted and resolved >= self._doubted_until:
            for key in self._doubted & self._places.keys():
                self._remove(key)
            self._doubted = frozenset()

    def place(self, name: str) -> Ts | None:
        """Return its place: ``NO_ROWS`` if it has no replicated rows; None if the name is unknown."""
        return self._places.get(digest(name))

    def rows(self, name: str) -> KeptRows | None:
        return self._kept.get(digest(name))

    def remove(self, name: str) -> None:
        self._remove(digest(name))

    def _remove(self, key: str) -> None:
        self._places.pop(key, None)
        self._forget_rows(key)

    def _forget_rows(self, key: str) -> None:
        if (rows := self._kept.pop(key, None)) is not None:
            self._kept_bytes -= rows.size
