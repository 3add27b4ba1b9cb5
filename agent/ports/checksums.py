"""Checksum port: how a source sums hashes of rows by ranges of their key, in SQL, and how others compute the same.

A checksum claims equality only: whoever finds two that differ reads the rows, which decide. So a form may have values
that look different on both sides, and none that look the same and are not.
"""

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final, Protocol

from agent.rows.row_forms import RowForm


@dataclass(frozen=True, slots=True)
class KeyRange:
    """Rows whose ``column`` is in ``[low, high)``; None: no end on that side. ``column`` empty: all rows."""

    column: str = ""
    low: int | None = None
    high: int | None = None

    def conditions(self, identifier: str) -> list[str]:
        """In SQL, with the column's name as it is written there."""
        lowest = [] if self.low is None else [f"{identifier} >= {self.low}"]
        return lowest + ([] if self.high is None else [f"{identifier} <= {self.high - 1}"])


ALL_KEYS: Final = KeyRange()


@dataclass(frozen=True, slots=True)
class RangeSum:
    """The number of rows, and the sum of their hashes, modulo 2^64."""

    rows: int
    sum: int


class ChecksumSession(Protocol):
    """One connection of its own, or the snapshot's; for one thread."""

    def has_more_rows(self, count: int) -> bool:
        """Whether the table has more rows than ``count``, which costs no more than reading so many."""
        ...

    def bounds(self, column: str) -> tuple[int, int] | None:
        """The smallest and the largest value; None in an empty table."""
        ...

    def sum(self, keys: KeyRange) -> RangeSum: ...


class SourceChecksums(Protocol):
    """Checksums of one table under a snapshot. ``sessions``: so many may be open at a time."""

    @property
    def form(self) -> RowForm: ...

    @property
    def sessions(self) -> int: ...

    def open(self) -> AbstractContextManager[ChecksumSession]: ...


@dataclass(frozen=True, slots=True)
class NoChecksums:
    """The reason why the rows of a table have to be compared one by one."""

    why: str
