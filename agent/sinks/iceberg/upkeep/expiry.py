"""Expiry: removes old snapshots of an Iceberg table, and the files that only they name.

A table's metadata lists its snapshots and is written whole by every commit, so without this a commit would cost more
each day. A snapshot stays for the retention after it was followed by another. Nothing is removed from a table on which
others have set branches or tags: they keep what they name.

A commit that comes between makes it lose, and it is due again after the next.
"""

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.manifest import ManifestContent, ManifestEntryStatus
from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import AssertRefSnapshotId, AssertTableUUID, RemoveSnapshotsUpdate

from agent.sinks.iceberg.table.catalogs.lake import TablePlace
from agent.sinks.iceberg.table.errors import storage_errors
from agent.sinks.iceberg.table.metadata import manifests

#: so many snapshots go at a time
_BATCH: Final = 20


def expire(place: TablePlace, *, retention_s: int, at_least: int = _BATCH) -> int:
    """Remove old snapshots if there are enough of them. Return how many.

    :raises SinkError: the catalog or the storage fails.
    """
    table = place.open()
    if table is None or set(table.metadata.refs) != {MAIN_BRANCH}:
        return 0
    old, first = _old(table, before_ms=int((time.time() - retention_s) * 1000))
    if len(old) < at_least or first is None:
        return 0
    with storage_errors(place, "remove old snapshots of"):
        paths = _only_theirs(table, old, first)
        try:
            table.catalog.commit_table(
                table,
                (
                    AssertTableUUID(uuid=table.metadata.table_uuid),
                    AssertRefSnapshotId(ref=MAIN_BRANCH, snapshot_id=table.metadata.current_snapshot_id),
                ),
                (RemoveSnapshotsUpdate(snapshot_ids=[item.snapshot_id for item in old]),),
            )
        except CommitFailedException:
            return 0
    for path in paths:
        with suppress(OSError):
            table.io.delete(path)
    return len(old)


def _old(table: Table, *, before_ms: int) -> tuple[list[Snapshot], Snapshot | None]:
    """Return the snapshots that go, oldest first, and the oldest that stays."""
    chain: list[Snapshot] = []
    snapshot = table.current_snapshot()
    while snapshot is not None:
        chain.append(snapshot)
        parent = snapshot.parent_snapshot_id
        snapshot = None if parent is None else table.metadata.snapshot_by_id(parent)
    stays = next((at for at, item in enumerate(chain) if item.timestamp_ms < before_ms), len(chain) - 1)
    return chain[:stays:-1], chain[stays] if chain else None


def _only_theirs(table: Table, old: Sequence[Snapshot], first: Snapshot) -> list[str]:
    """Return the files that no snapshot names any more: what ``old`` ones and ``first`` removed, and their metadata."""
    listed = manifests.listed(table, first)
    kept = {item.manifest_path for item in listed}
    # a file of deletion vectors goes with the last of them
    deletes = (item for item in listed if item.content == ManifestContent.DELETES)
    used = {entry.data_file.file_path for item in deletes for entry in manifests.entries(table.io, item)}
    gone: dict[str, None] = {}
    metadata: dict[str, None] = {}
    for snapshot in (*old, first):
        for manifest in snapshot.manifests(table.io):
            if manifest.added_snapshot_id == snapshot.snapshot_id and manifest.deleted_files_count:
                for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=False):
                    if entry.status == ManifestEntryStatus.DELETED:
                        gone[entry.data_file.file_path] = None
            if manifest.manifest_path not in kept:
                metadata[manifest.manifest_path] = None
    gone_files = [path for path in gone if path not in used]
    return [*gone_files, *metadata, *(item.manifest_list for item in old)]
