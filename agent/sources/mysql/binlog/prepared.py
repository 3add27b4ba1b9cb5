"""Prepared transactions (XA) that are not decided yet: where their rows are, and the rows where they are few.

Pure. Rows lie in the binlog where a transaction is prepared; whether they count is said later, by an XA COMMIT or XA
ROLLBACK of its name. Until then the list says where they lie. It travels with the stream's position, so whoever goes
on knows it. A transaction without rows of ours is in it too, with no place: so a name that is not in it was prepared
before the changefeed began.

Most transactions are small, and decided in a moment: rows of those are kept here, ``KEPT_BYTES`` at most. Others are
read again.
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
#: names have up to 140 bytes; a list of many is written with every move of the log's head
_DIGEST_BYTES = 10

#: digest of the name, and where it begins
Entry = tuple[str, int]


def digest(name: str) -> str:
    """The digest of a name as the binlog spells it."""
    return hashlib.blake2b(name.encode(), digest_size=_DIGEST_BYTES).hexdigest()


@dataclass(frozen=True, slots=True)
class KeptRows:
    """Rows events outside their arena; offsets of ``lines`` count from the start of ``data``."""

    data: Bytes
    lines: Ints

    @property
    def size(self) -> int:
        return self.data.nbytes + self.lines.nbytes

    def put_into(self, arena: Arena, state: Ints) -> None:
        """As the rows of the open transaction, whose last event ends at ``POS``. Behind the last row all bytes that
        have been read are free; what was not read yet moves on where that is too little."""
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
    """A copy of the open transaction's rows; None where they are too many."""
    lines = arena.rows[int(state[txn.DONE_ROWS]) : int(state[txn.ROWS])].copy()
    if lines.nbytes + lines[:, LENGTH].sum() > KEPT_BYTES:
        return None
    pieces = [arena.data[at : at + length] for at, length in lines[:, :2].tolist()]
    lines[:, OFFSET] = np.cumsum(lines[:, LENGTH]) - lines[:, LENGTH]
    return KeptRows(np.concatenate([np.empty(0, np.uint8), *pieces]), lines)


class Prepared:
    """In the order in which they were prepared."""

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
        """A name may come again once it has been decided, or when the server has lost it in a crash."""
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
        """The server does not hold these: what is not decided at ``until`` never will be. Should it be all the same,
        its rows are found by its name."""
        self._doubted, self._doubted_until = frozenset(keys), until

    def settle(self, resolved: Ts) -> None:
        """Everything up to ``resolved`` has been read."""
        if self._doubted and resolved >= self._doubted_until:
            for key in self._doubted & self._places.keys():
                self._remove(key)
            self._doubted = frozenset()

    def place(self, name: str) -> Ts | None:
        """``NO_ROWS`` where it has none of ours; None where it is not known."""
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
