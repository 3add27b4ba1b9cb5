"""Flush rows: what both ways of writing changes need: their statistics, and the refusal of changes without a key."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from agent.errors import TableHeldError
from agent.rows.changes import INSERT, TRUNCATE, Changes


@dataclass(slots=True)
class RowCounts:
    """Statistics of the changes that passed through ``counted``."""

    rows: int = 0
    commit_time: float = 0.0

    def counted(self, changes: Iterable[Changes]) -> Iterator[Changes]:
        for part in changes:
            if len(part):
                self.rows += len(part)
                self.commit_time = max(self.commit_time, part.commit_time)
                yield part
            del part  # free it before the next ones are read


def refuse_unless_inserts(parts: Sequence[Changes]) -> None:
    """:raises TableHeldError: a row without a key was updated or deleted."""
    for part in parts:
        if not np.isin(part.op, (INSERT, TRUNCATE)).all():
            raise TableHeldError(
                f"{part.schema.qualified_name} has no key, and a row of it was updated or deleted; "
                "give it a primary key, or replicate it in changelog mode"
            )
