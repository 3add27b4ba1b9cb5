"""Rollbacks: remembers rows that a server rolled back after a part of them had gone into the log. Pure.

Such rows are in the binlog where a transaction has changed temporary tables too, or some without transactions. Mostly
they leave the arena again. Of a transaction that is larger than an arena some have left it for the log by then, where
nothing can take them back; but nobody looks at them there before the log is resolved past their transaction. So the
stream is opened again, before that transaction, with what is known of it now; a new writer of the log begins behind the
last transaction that is complete, and what the old one has left of this one counts no more.
"""

from dataclasses import dataclass

from reactor.ids import Ts


@dataclass(frozen=True, slots=True)
class Range:
    """Rows events of the transaction at ``ts`` by their ordinals: from ``first`` to before ``until``."""

    ts: Ts
    first: int
    until: int

    def is_in(self, other: "Range") -> bool:
        return self.ts == other.ts and other.first <= self.first and self.until <= other.until


#: of no transaction
NOTHING = Range(Ts(-1), 0, 0)


class RolledBack:
    """What streams have found and their successors leave out. Ranges of one transaction lie apart, or one in the other,
    as a savepoint that is gone back to goes with later ones: then the outer one counts."""

    def __init__(self) -> None:
        self._ranges: list[Range] = []

    def add(self, found: Range) -> bool:
        """Whether it is news."""
        if any(found.is_in(known) for known in self._ranges):
            return False
        kept = [known for known in self._ranges if not known.is_in(found)]
        self._ranges = sorted([*kept, found], key=lambda known: (known.ts, known.first))
        return True

    def following(self, ts: Ts, ordinal: int) -> Range:
        """The first range with rows behind this place."""
        return next((known for known in self._ranges if (known.ts, known.until) > (ts, ordinal)), NOTHING)

    def forget(self, until: Ts) -> None:
        """What lies at or below it is not read again."""
        self._ranges = [known for known in self._ranges if known.ts > until]
