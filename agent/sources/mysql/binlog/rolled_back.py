"""Rollbacks: remembers rows that a server rolled back after some of them had gone into the log. Pure.

Such rows are in the binlog if a transaction also changed temporary or non-transactional tables. Usually they are
removed from the arena. If a transaction is larger than an arena, some may already be in the log, where they cannot be
removed; but no reader sees them before the log is resolved past their transaction. So the stream is opened again before
that transaction, and skips the known ranges; a new writer of the log begins after the last complete transaction, and
what the old one wrote of this transaction is discarded.
"""

from dataclasses import dataclass

from reactor.ids import Ts


@dataclass(frozen=True, slots=True)
class Range:
    """Rows events of the transaction at ``ts``, by ordinals: from ``first`` up to but excluding ``until``."""

    ts: Ts
    first: int
    until: int

    def is_in(self, other: "Range") -> bool:
        return self.ts == other.ts and other.first <= self.first and self.until <= other.until


#: an empty range
NOTHING = Range(Ts(-1), 0, 0)


class RolledBack:
    """Ranges that a stream has found and its successors skip. Two ranges of a transaction are disjoint or nested, as
    a rollback to a savepoint includes later savepoints: then the outer one counts."""

    def __init__(self) -> None:
        self._ranges: list[Range] = []

    def add(self, found: Range) -> bool:
        """Add a range; return whether it was unknown."""
        if any(found.is_in(known) for known in self._ranges):
            return False
        kept = [known for known in self._ranges if not known.is_in(found)]
        self._ranges = sorted([*kept, found], key=lambda known: (known.ts, known.first))
        return True

    def following(self, ts: Ts, ordinal: int) -> Range:
        """Return the first range with rows after this place."""
        return next((known for known in self._ranges if (known.ts, known.until) > (ts, ordinal)), NOTHING)

    def forget(self, until: Ts) -> None:
        """Drop ranges at or below ``until``, which are not read again."""
        self._ranges = [known for known in self._ranges if known.ts > until]
