"""Former keys of a changelog: the columns that identified its changes until a schema change gave the table
another key. Kept with the table, so that its changes can be folded as they were meant.
"""

import json
from dataclasses import dataclass, replace
from typing import Self

from agent.rows.schema_change import SchemaChange


@dataclass(frozen=True, slots=True)
class FormerKey:
    """Columns that identified a row below ``until_ts``; none: the whole old row identified it."""

    until_ts: int
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FormerKeys:
    """In order. ``ts``: of the last schema change that has counted."""

    ts: int = 0
    keys: tuple[FormerKey, ...] = ()

    @classmethod
    def from_text(cls, text: str) -> Self:
        if not text:
            return cls()
        ts, keys = json.loads(text)
        return cls(ts, tuple(FormerKey(until_ts, tuple(columns)) for until_ts, columns in keys))

    def to_text(self) -> str:
        return json.dumps([self.ts, [[one.until_ts, one.columns] for one in self.keys]]) if self.keys else ""

    def after(self, change: SchemaChange) -> Self:
        """Return the keys after ``change``, with the names that their columns have then; idempotent."""
        if change.ts <= self.ts or change.before is None or change.after is None:
            return self
        names = {move.origin: move.name for move in change.columns if move.origin is not None}
        keys = [replace(one, columns=tuple(names.get(name, name) for name in one.columns)) for one in self.keys]
        before = tuple(names.get(name, name) for name in change.before.key)
        if set(before) != set(change.after.key):
            keys.append(FormerKey(int(change.ts), before))
        return self if keys == [*self.keys] else replace(self, ts=int(change.ts), keys=tuple(keys))

    @property
    def columns(self) -> tuple[str, ...]:
        """Their columns, which the table may have dropped since."""
        return tuple(dict.fromkeys(name for one in self.keys for name in one.columns))
