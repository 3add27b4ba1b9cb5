"""Partitions: finds those that came or went with rows that are in no stream, in tables sent under their root's name.

What is attached may bring rows, what is detached or dropped takes some away, and a TRUNCATE of one partition alone is
not sent at all. A partition with another file was emptied or rewritten; if it still has a row of before, or the
stream has a TRUNCATE of the whole table, it is complete.
"""

from collections.abc import Callable
from dataclasses import dataclass

from agent.sources.postgres.publication.newcomers import Newcomers
from agent.sources.postgres.publication.published import Relation
from reactor.ids import Ts


@dataclass(frozen=True, slots=True)
class Partitions:
    """``was_truncated``: whether the stream has a TRUNCATE of the table behind the last proof; it is asked to have come
    as far as the log was when the catalog was read."""

    asked: Newcomers
    was_truncated: Callable[[int, Ts], bool]

    def trouble(self, root: int) -> str:
        """Why rows of the table may be in no stream; empty where none is."""
        before, now = self.asked.before.leaves.get(root), self.asked.now.leaves(root)
        if before is None:
            return ""
        tables = self.asked.now.tables
        if before.keys() - now.keys():
            return "has lost a partition (detached or dropped): no event of the stream names the rows that went"
        if self._came_again(root, set(before)):
            return "has had a partition detached and attached again: what became of its rows meanwhile is in no stream"
        for leaf in now.keys() - before.keys():
            if not self.asked.is_whole_partition(leaf):
                return f"has got partition {tables[leaf].name} with rows, which are in no stream"
        for leaf in [leaf for leaf, file in before.items() if now[leaf] != file]:
            if not self._is_complete(root, tables[leaf]):
                return f"has had partition {tables[leaf].name} emptied or rewritten, which is in no stream"
        return ""

    def _came_again(self, root: int, old: set[int]) -> bool:
        now = self.asked.now
        return any(
            not self.asked.before.has_seen(f"i{at}", now.xids[f"i{at}"])
            for leaf in old
            for at in now.lineage(leaf)
            if at != root and at in now.parents
        )

    def _is_complete(self, root: int, leaf: Relation) -> bool:
        return self.asked.has_old_rows(leaf) or self.was_truncated(root, self.asked.now.end_ts)
