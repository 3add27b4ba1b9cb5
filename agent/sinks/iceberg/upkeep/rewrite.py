"""Rewrite: joins small data files of an Iceberg table, rewrites those that have lost rows, and merges position deletes.

Each group of files is a commit of its own, of operation ``replace``: rows and records stay, and readers of changes see
none. Rows that a flush deletes while a file is rewritten are deleted in the new file, in the same commit. If a flush or
another writer has rewritten one of the files, the rewrite loses.
"""

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

import numpy as np
from pyiceberg.table import Table

from agent.errors import SinkConflictError
from agent.sinks.common.compaction import Candidate, Plan, moved
from agent.sinks.iceberg.table import commit, compact
from agent.sinks.iceberg.table.catalogs.lake import TablePlace
from agent.sinks.iceberg.table.commit import Step
from agent.sinks.iceberg.table.deletes import positions
from agent.sinks.iceberg.table.deletes.positions import NONE, Positions
from agent.sinks.iceberg.table.files import TableFile
from agent.sinks.iceberg.table.layout import Layout
from agent.sinks.iceberg.table.metadata import manifests
from agent.sinks.iceberg.table.metadata.manifests import Home, LiveFile
from agent.sinks.iceberg.table.state import COMPACTED, State, check_history

#: of a file that is sorted, which is in memory as a whole
_SORTED_BYTES: Final = 32 << 20
_NO_LIMIT: Final = float("inf")


def rewrite(place: TablePlace, plan: Plan) -> int:
    """Rewrite what ``plan`` finds; return the number of files that were rewritten.

    :raises SinkConflictError: another writer has rewritten one of them.
    :raises SinkError: the catalog or the storage fails.
    """
    table = place.opened()
    check_history(table, place)
    live = manifests.live(table)
    gone = positions.deleted(table, live.deletes)
    by_path = {item.path: item for item in live.data}
    candidates: dict[Home, list[Candidate]] = {}
    for path, item in by_path.items():
        size, count = item.file.file_size_in_bytes, item.file.record_count
        candidates.setdefault(item.home, []).append(Candidate(path, size, count, len(gone.get(path, NONE))))
    if table.sort_order().fields:
        plan = replace(plan, target_bytes=min(plan.target_bytes, _SORTED_BYTES))
    joined = 0
    for group in plan.groups_of(candidates.values()):
        _replace(place, table, [by_path[item.path] for item in group], gone)
        joined += len(group)
    return joined


def compacted_ms(table: Table) -> int:
    """Return when files of the table were last rewritten, Unix milliseconds; 0: never, or it does not say."""
    found = table.properties.get(COMPACTED, "")
    return int(found) if found.isdecimal() else 0


def merge_deletes(place: TablePlace) -> None:
    """Make one file of all position deletes of a partition, without those of files that are gone; in a table of
    version 3, deletion vectors."""

    def attempt(table: Table) -> None:
        live = manifests.live(table)
        applied = positions.applied(live, positions.deleted(table, live.deletes))
        homes = compact.homes(live.data)
        if compact.has_vectors(table):
            made, removed = compact.next_vectors(table, live, applied, changed=(), gone=(), homes=homes)
            if removed:
                commit.commit_or_remove(table, Step(State.of(table), (), made, removed, before=live, is_same=True))
        elif len(live.deletes) > len({homes[path] for path in applied}):
            removed = manifests.keys(live.deletes)
            made = compact.written_deletes(table, homes, applied)
            commit.commit_or_remove(table, Step(State.of(table), (), made, removed, before=live, is_same=True))

    commit.on_newest(place, attempt)


def _replace(place: TablePlace, table: Table, group: Sequence[LiveFile], gone: dict[str, Positions]) -> None:
    schema = table.schema()
    spec_id, values = group[0].home
    layout, places = Layout.of(table), None
    if layout.order.fields:
        found, places = compact.rewritten_in_order(table, group, gone, layout)
    else:
        found = compact.rewritten(table, schema, group, gone, file_bytes=_NO_LIMIT)
    made = [replace(file, spec_id=spec_id, values=values) for file in found]
    assert len(made) <= 1, "one group is one file"
    paths = frozenset(item.path for item in group)

    def attempt(newest: Table) -> None:
        live = manifests.live(newest)
        if not paths <= {item.path for item in live.data} or newest.schema().as_struct() != schema.as_struct():
            raise SinkConflictError(f"a file of {place} was rewritten meanwhile")
        now = positions.deleted(newest, live.deletes)
        before = [(item.file.record_count, gone.get(item.path, NONE)) for item in group]
        lost = moved(before, [now.get(item.path, NONE) for item in group])
        assert made or not len(lost), "only rows that are left can go"
        lost = lost if places is None else _sorted_at(places, lost)
        homes = {file.path: (spec_id, values) for file in made}
        new = {made[0].path: lost} if len(lost) else {}
        removed = manifests.keys(item for item in live.data if item.path in paths)
        if compact.has_vectors(newest):
            homes |= {path: home for path, home in compact.homes(live.data).items() if path not in paths}
            deletes, old = compact.next_vectors(newest, live, now | new, changed=new, gone=paths, homes=homes)
        else:
            deletes, old = compact.written_deletes(newest, homes, new), frozenset()
        noted = {COMPACTED: str(int(time.time() * 1000))}
        step = Step(State.of(newest), made, deletes, removed | old, properties=noted, before=live, is_same=True)
        try:
            commit.commit(newest, step)
        except BaseException:
            _remove(newest, deletes)
            raise

    try:
        commit.on_newest(place, attempt)
    except SinkConflictError:
        _remove(table, made)
        raise


def _sorted_at(places: Positions, lost: Positions) -> Positions:
    """Return where rows are after they were sorted. ``places``: where the sorted ones come from."""
    now = np.empty(len(places), np.int64)
    now[places] = np.arange(len(places))
    return np.sort(now[lost])


def _remove(table: Table, files: Sequence[TableFile]) -> None:
    for file in files:
        with suppress(OSError):
            table.io.delete(file.path)
