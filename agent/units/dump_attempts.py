"""Dump attempts: notes of the tables that a run of a dump is reading, so that the end of its process is traced to them.

    read when a process ended ──► suspect ──read apart from all others──► copied
                                     └──another process ended meanwhile──► refused

A note is a file of the manifest. It is written before a table is read that the last one does not name, and removed when
the run ends in any way but with its process. So what earlier runs have left names the tables to suspect. Each of them
is read alone, and has a note of its own: if that is left too, the table has ended two processes. A run that ends
because processes of Spark's were lost leaves a note of the table that they read.
"""

from collections.abc import Collection, Iterable
from itertools import islice
from typing import Final

from agent.units.manifest_group import AnyManifest

#: tables that a note names before they are read: with more, there are fewer notes, and more suspects
_AHEAD_MAX: Final = 32
ENDED_CAPTURES: Final = (
    "two captures have ended while they copied it, the last one while it copied nothing else: see in that process's "
    "log, or the kernel's, whether memory ran out or what crashed"
)
LOST_WORKERS: Final = (
    "processes of Spark's that copied it were lost in two runs, the last time while they copied nothing else: see in "
    "the kernel's log whether memory ran out; give captures more memory, or a smaller dump-chunk-rows"
)


class DumpAttempts:
    """Those of one run. ``suspects``: tables that may have ended a process; ``refused``: that have ended two."""

    def __init__(self, manifest: AnyManifest, epoch: int) -> None:
        """:raises LogError: the storage refused."""
        self._manifest = manifest
        self._epoch = epoch
        self._count = 0
        self._noted: frozenset[int] = frozenset()
        left = manifest.read_attempts()
        self.refused = frozenset(table for tables, is_trial in left if is_trial for table in tables)
        self.suspects = frozenset(table for tables, _ in left for table in tables) - self.refused

    def may_begin(self, table_id: int, running: Collection[int]) -> bool:
        """Nothing else is read beside a suspect."""
        return not (self.suspects & {table_id, *running}) or {*running} <= {table_id}

    def begin(self, table_ids: Collection[int], running: Collection[int], coming: Iterable[int]) -> None:
        """These tables are about to be read, while ``running`` are, and before ``coming``. A suspect is alone.

        :raises LogError: the storage refused.
        """
        is_trial = not self.suspects.isdisjoint(table_ids)
        if self._noted.issuperset(table_ids) and (len(self._noted) == 1 or not is_trial):
            return
        ahead = () if is_trial else dict.fromkeys(table for table in coming if table not in self.suspects)
        self._noted = frozenset({*table_ids, *running, *islice(ahead, _AHEAD_MAX)})
        self._manifest.write_attempt(self._epoch, self._count, self._noted, is_trial=is_trial)
        self._count += 1

    def close(self, lost: int | None = None) -> None:
        """Nothing is read any more. ``lost``: the table that ends the run, since it has lost processes.

        :raises LogError: the storage refused.
        """
        self._manifest.remove_attempts(self._epoch)
        if lost is not None:
            self._manifest.write_attempt(self._epoch, self._count, {lost}, is_trial=False)
