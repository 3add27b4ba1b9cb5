"""Compaction: joins small files of a Delta table and rewrites those that have lost rows, one batch of rows at a time.

Rows and records do not change: the commit declares no data change. Flushes continue meanwhile: rows that they delete
from a file while it is rewritten are deleted in the new one, by the vector that they have given the old one. If a flush
or another writer has rewritten one of the files, the compaction loses. delta-rs's compaction took 125 MB where this
took 70 (260 MB of small files), and its statistics differ from ours (``table.place.writer_properties``).
"""

import json
from collections.abc import Sequence
from itertools import chain
from uuid import uuid4

import numpy as np
import pyarrow as pa

from agent.errors import SinkConflictError
from agent.sinks.common.compaction import Candidate, Plan, Positions, moved
from agent.sinks.common.history.columns import VALID_TO
from agent.sinks.delta.table import commit, deletion_vectors
from agent.sinks.delta.table import files as delta_files
from agent.sinks.delta.table import log as delta_log
from agent.sinks.delta.table import place as delta_table
from agent.sinks.delta.table.files import DataFile
from agent.sinks.delta.table.live_file import LiveFile, now_ms
from agent.sinks.delta.table.log import TableLog
from agent.sinks.delta.table.place import OWNER, TablePlace

#: the record of the newest compaction's time, Unix milliseconds: it stays when the commit is removed from the log
COMPACTED = f"{OWNER}/compacted"


def compact(place: TablePlace, plan: Plan) -> int | None:
    """Rewrite what ``plan`` finds; return the number of files that were rewritten, or None if the table's log is left
    to delta-rs.

    :raises SinkConflictError: another writer has rewritten one of them.
    """
    with delta_log.borrowed(place) as log:
        if log is None:
            return None
        files = {file.path: file for file in log.files.values() if file.vector is None or _deleted(file) is not None}
        schema = delta_table.plain_schema(log.schema())
    candidates: dict[object, list[Candidate]] = {}
    for file in files.values():  # of a history, current and ended versions stay apart
        kind = (VALID_TO in schema.names and file.nulls(VALID_TO) == 0, *sorted(file.partition.items()))
        candidates.setdefault(kind, []).append(Candidate(file.path, file.size, file.rows, file.deleted_rows))
    joined = 0
    for group in plan.groups_of(candidates.values()):
        _replace(place, [files[item.path] for item in group], schema)
        joined += len(group)
    return joined


def _deleted(file: LiveFile) -> Positions | None:
    """Return the deleted rows of a file; None if others have stored them in a file."""
    return np.empty(0, np.int64) if file.vector is None else deletion_vectors.decode(file.vector)


def _known(file: LiveFile) -> Positions:
    found = _deleted(file)
    if found is None:
        raise SinkConflictError(f"{file.path} was changed by another writer meanwhile")
    return found


def _replace(place: TablePlace, group: Sequence[LiveFile], schema: pa.Schema) -> None:
    rows = chain.from_iterable(
        delta_files.read_file(place, item.path, schema, without=_known(item), layout=item.layout) for item in group
    )
    file = delta_files.write_file(place, f"compact-{uuid4().hex}.parquet", rows, schema, group[0].layout)
    with delta_log.borrowed(place) as log:
        if log is None:
            raise SinkConflictError(f"{place} was replaced by another table meanwhile")
        commit.on_newest(place, log.refreshed, lambda newest: _commit(newest, place, group, file))


def _commit(log: TableLog, place: TablePlace, group: Sequence[LiveFile], file: DataFile | None) -> None:
    """:raises CommitFailedError: another commit was faster.
    :raises SinkConflictError: one of the files was rewritten meanwhile.
    """
    now = [log.files.get(item.path) for item in group]
    live = [item for item in now if item is not None]
    if len(live) < len(group):
        raise SinkConflictError(f"a file of {place} was rewritten meanwhile")
    gone = moved([(item.rows, _known(item)) for item in group], [_known(item) for item in live])
    added = [] if file is None else [file.add(is_change=False)]
    if len(gone):
        assert file is not None, "only rows that are left can go"
        stats = json.loads(file.stats) | {"tightBounds": False}
        added[0]["add"] |= {"stats": json.dumps(stats), "deletionVector": deletion_vectors.encode(gone)}
    log.commit("OPTIMIZE", [*(item.remove(is_change=False) for item in live), *added], {COMPACTED: now_ms()})
