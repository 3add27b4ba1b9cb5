"""Chunks of MySQL: divides a table by key into ranges that are read in parallel; a plan outlives its snapshot.

- ``KEYS``: ranges of a single integer key, from its smallest to its largest value at planning time; computed, so small
  for any number of chunks.
- ``BOUNDS``: for all other keys, and for integers with large gaps: the key of every n-th row, as SQL constants.
- ``WHOLE``: one chunk, for small tables and for those without a usable key.

The upper end is fixed: rows inserted above it are in the log. A row can only move to another chunk by a change of its
key, which is in the log too (see ``dump``). So ``chunk_plan`` makes a plan after the position at which replay starts.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Final, Self

from agent.sources.mysql.server.sql import identifier


class PlanKind(StrEnum):
    WHOLE = "whole"
    KEYS = "keys"
    BOUNDS = "bounds"


@dataclass(frozen=True, slots=True)
class Chunk:
    """``predicate``: the WHERE condition."""

    number: int
    predicate: str


#: the whole table as one chunk
WHOLE_TABLE: Final = Chunk(0, "true")


@dataclass(frozen=True, slots=True)
class ChunkPlan:
    """Implements ``agent.ports.snapshot.Chunks``: ``count`` chunks of about ``rows`` rows together.

    KEYS: they divide ``[low, high)`` of the only column evenly. BOUNDS: the last key of each chunk, sorted.
    """

    kind: PlanKind
    count: int
    rows: int
    columns: tuple[str, ...] = ()
    low: int = 0
    high: int = 0
    bounds: tuple[tuple[str, ...], ...] = ()

    def chunk(self, number: int) -> Chunk:
        assert 0 <= number < self.count
        match self.kind:
            case PlanKind.WHOLE:
                return WHOLE_TABLE
            case PlanKind.KEYS:
                return Chunk(number, self._step(number))
            case PlanKind.BOUNDS:
                parts = [above(self.columns, self.bounds[number - 1])] if number else []
                return Chunk(number, " AND ".join([*parts, _up_to(self.columns, self.bounds[number])]))

    def _step(self, number: int) -> str:
        step = -(-(self.high - self.low) // self.count)
        low = min(self.low + number * step, self.high)
        column = identifier(self.columns[0])
        return f"{column} >= {low} AND {column} <= {min(low + step, self.high) - 1}"

    def to_fields(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_fields(cls, fields: dict[str, Any]) -> Self:
        bounds = tuple(tuple(bound) for bound in fields["bounds"])
        return cls(
            **{**fields, "kind": PlanKind(fields["kind"]), "columns": tuple(fields["columns"]), "bounds": bounds}
        )


def above(columns: Sequence[str], bound: Sequence[str]) -> str:
    """Return a condition for rows after the bound, without row comparison, for which servers use no index range."""
    return _compared(columns, bound, ">", ">")


def _up_to(columns: Sequence[str], bound: Sequence[str]) -> str:
    """Return a condition for exactly the rows that are not after the bound."""
    return _compared(columns, bound, "<", "<=")


def _compared(columns: Sequence[str], bound: Sequence[str], operator: str, last_operator: str) -> str:
    names = [identifier(column) for column in columns]
    ways = []
    for i, name in enumerate(names):
        same = [f"{names[k]} = {bound[k]}" for k in range(i)]
        ways.append(" AND ".join([*same, f"{name} {last_operator if i == len(names) - 1 else operator} {bound[i]}"]))
    if len(ways) == 1:
        return ways[0]
    # repeat the first column alone, which every server recognises as an index range
    either = " OR ".join(f"({way})" for way in ways)
    return f"{names[0]} {operator}= {bound[0]} AND ({either})"
