"""Manifest group: one dump of several tables, recorded in a manifest for each of them.

Copies of small tables share a snapshot and Spark jobs. Each keeps its own manifest all the same: what becomes of a copy
later (it is put in place, begun again, dropped) is of its table alone. The manifests are new, so a lost run of a group
is not continued: its tables are copied alone, and what a crash has left names them as suspects there.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Final, TypeVar

from agent.ports.snapshot import DoneChunk, DoneChunks, Plan
from agent.units.manifest import Manifest

T = TypeVar("T")

#: manifests that are read or written concurrently: on an object store each takes a request
_AT_ONCE: Final = 16


class ManifestGroup:
    """As ``Manifest``, over new ones by the ids of their tables. ``done``: the chunks recorded so far, by table."""

    def __init__(self, manifests: Mapping[int, Manifest]) -> None:
        self._manifests = manifests
        self.done: dict[int, list[DoneChunk]] = {id: [] for id in manifests}

    @property
    def uri(self) -> str:
        """Each has its own."""
        return ""

    def read_plan(self) -> Plan | None:
        """Return None: they are new."""
        return None

    def write_plan(self, plan: Plan) -> None:
        """:raises LogError: the storage refused."""
        tables = {table.record.table_id: table for table in plan.tables}
        self._each(tables, lambda id, manifest: manifest.write_plan(replace(plan, tables=(tables[id],))))

    def read_done(self, plan: Plan) -> DoneChunks:
        """Return nothing: the plan is new too."""
        return {}

    def write_done(self, epoch: int, number: int, chunks: Iterable[DoneChunk]) -> None:
        """:raises LogError: the storage refused."""
        by_table: dict[int, list[DoneChunk]] = {}
        for chunk in chunks:
            by_table.setdefault(chunk.table_id, []).append(chunk)
        self._each(by_table, lambda id, manifest: manifest.write_done(epoch, number, by_table[id]))
        for id, some in by_table.items():
            self.done[id] += some

    def read_attempts(self) -> list[tuple[tuple[int, ...], bool]]:
        """Return none: a table that an earlier run may have read is copied alone."""
        return []

    def write_attempt(self, epoch: int, number: int, tables: Iterable[int], *, is_trial: bool) -> None:
        """:raises LogError: the storage refused."""
        self._each(tables, lambda id, manifest: manifest.write_attempt(epoch, number, [id], is_trial=is_trial))

    def remove_attempts(self, epoch: int) -> None:
        """:raises LogError: the storage refused."""
        self._each(self._manifests, lambda _, manifest: manifest.remove_attempts(epoch))

    def _each(self, tables: Iterable[int], work: Callable[[int, Manifest], None]) -> None:
        _side_by_side(lambda id: work(id, self._manifests[id]), tables)


def are_new(manifests: Sequence[Manifest]) -> list[bool]:
    """Return for each whether no run has written it.

    :raises LogError: the storage refused.
    """
    return _side_by_side(lambda manifest: not manifest.directory.names(), manifests)


def _side_by_side(work: Callable[[Any], T], items: Iterable[Any]) -> list[T]:
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="weir-manifests") as threads:
        return list(threads.map(work, items))


#: what a dump is recorded in
AnyManifest = Manifest | ManifestGroup
