"""Unnamed roots: partitioned tables that the stream has not named yet, and the partitions that the proof has of them.

A reading of the catalog is ahead of the stream. What it shows of a table whose first row is still to come is no state
that the stream has passed: rows may be sent that went with a file which is gone already. So the proof records a
partition's new file only when the stream is behind the place where it was seen first. A table that is named before is
judged by the difference.
"""

from agent.sources.postgres.publication.newcomers import Newcomers
from agent.sources.postgres.publication.published import Catalog
from reactor.ids import Ts


class UnnamedRoots:
    """The unnamed roots of one stream."""

    def __init__(self) -> None:
        #: partitions and the files that they did not have at first, and where the log ended when that was seen
        self._since: dict[tuple[int, int], Ts] = {}

    def is_due(self, upto: Ts) -> bool:
        """Return whether a stream that is at ``upto`` has passed what was seen."""
        return any(ts <= upto for ts in self._since.values())

    def recorded(self, asked: Newcomers, root: int, upto: Ts) -> dict[int, int]:
        """Return the partitions that the proof has of ``root``, with their files, for a stream that is at ``upto``:
        none that came with rows."""
        before, found = asked.before.leaves.get(root, {}), dict[int, int]()
        for leaf, file in asked.now.leaves(root).items():
            if leaf not in before and not asked.is_whole_partition(root, leaf):
                continue
            if file == before.get(leaf, leaf) or self._has_passed(leaf, file, asked.now.end_ts, upto):
                found[leaf] = file
            elif leaf in before:
                found[leaf] = before[leaf]
        return found

    def forget(self, now: Catalog) -> None:
        """Forget partitions that are none any more, and files that are gone."""
        self._since = {
            (leaf, file): ts
            for (leaf, file), ts in self._since.items()
            if leaf in now.parents and leaf in now.tables and now.tables[leaf].file == file
        }

    def _has_passed(self, leaf: int, file: int, end_ts: Ts, upto: Ts) -> bool:
        since = self._since.setdefault((leaf, file), end_ts)
        if since <= upto:
            del self._since[leaf, file]
        return since <= upto
