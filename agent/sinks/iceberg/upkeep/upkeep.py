"""Iceberg upkeep: what is done for a table beside its flushes: compaction, expiry of snapshots, removal of orphans.

It runs in the capture that commits, in a thread of its own, one table at a time; an error is logged, and what is due is
tried again later. Rows and records do not change, and a flush that meets it wins.
"""

import time
from collections import OrderedDict
from dataclasses import dataclass
from threading import Lock, Thread
from typing import Final

import structlog

from agent.errors import SinkError
from agent.ports.sink import Maintained
from agent.ports.table_files import TableFiles
from agent.sinks import care
from agent.sinks.common.compaction import Plan
from agent.sinks.iceberg.table.catalogs.lake import TablePlace
from agent.sinks.iceberg.table.deletes import positions
from agent.sinks.iceberg.table.metadata import manifests
from agent.sinks.iceberg.upkeep import expiry, orphans, rewrite

#: on disk; readers find some hundred megabytes best, and a rewrite of fewer takes less
_PLAN: Final = Plan(64 << 20)
#: commits between two times, and seconds between two compactions and two searches for orphans
_COMMITS: Final = 20
_COMPACT_EVERY_S: Final = 30.0
_ORPHANS_EVERY_S: Final = 86_400.0
_log = structlog.get_logger()


@dataclass(slots=True)
class _Turn:
    """``commits`` since the last time; when what was done last (monotonic seconds)."""

    compacted_s: float
    searched_s: float
    commits: int = 0


#: by table, the one that was written last at the end
_turns: OrderedDict[str, _Turn] = OrderedDict()
_lock = Lock()
_busy = Lock()


def begin_if_due(place: TablePlace, *, retention_s: int) -> Thread | None:
    """Begin in the background after some commits, unless it is running for some table."""
    now = time.monotonic()
    with _lock:
        turn = _turns.setdefault(str(place), _Turn(now, now))
        care.keep_newest(_turns, str(place))
        turn.commits += 1
        if turn.commits < _COMMITS or not _busy.acquire(blocking=False):
            return None
        turn.commits = 0
    thread = Thread(target=_run, args=(place, turn, retention_s), name="iceberg-upkeep", daemon=True)
    thread.start()
    return thread


def _run(place: TablePlace, turn: _Turn, retention_s: int) -> None:
    try:
        with care.round_of("iceberg"):
            _care(place, turn, retention_s)
    except SinkError as error:
        care.gave_way("iceberg")
        _log.info("table upkeep gave way", table=str(place), reason=str(error))
    finally:
        _busy.release()


def _care(place: TablePlace, turn: _Turn, retention_s: int) -> None:
    now = time.monotonic()
    if now - turn.compacted_s > _COMPACT_EVERY_S:
        turn.compacted_s = now
        joined = rewrite.rewrite(place, _PLAN)
        if joined:
            _log.info("compacted", table=str(place), files=joined)
        care.note("iceberg", joined=joined)
    care.note("iceberg", expired=expiry.expire(place, retention_s=retention_s))
    if now - turn.searched_s > _ORPHANS_EVERY_S:
        turn.searched_s = now
        care.note("iceberg", removed=orphans.remove_orphans(place, retention_s=retention_s))


def maintain(place: TablePlace, *, retention_s: int) -> Maintained:
    """Do all of it thoroughly, now.

    :raises SinkConflictError: another writer has rewritten the same files.
    :raises SinkError: the catalog or the storage fails.
    """
    before = _sizes(place)
    joined = rewrite.rewrite(place, _PLAN.thorough())
    rewrite.merge_deletes(place)
    expired = expiry.expire(place, retention_s=retention_s, at_least=1)
    removed = orphans.remove_orphans(place, retention_s=retention_s)
    care.note("iceberg", joined=joined, removed=removed, expired=expired)
    after = _sizes(place)
    return Maintained(
        files_before=len(before),
        files=len(after),
        bytes_before=sum(before),
        bytes=sum(after),
        joined=joined,
        removed=removed,
        expired=expired,
    )


def files(place: TablePlace) -> TableFiles:
    """Return the table's data files, from its manifests.

    :raises SinkError: the catalog or the storage fails.
    """
    table = place.opened()
    live = manifests.live(table)
    here = {item.path for item in live.data}
    gone = positions.deleted(table, live.deletes)
    return TableFiles(
        files=len(live.data),
        bytes=sum(item.file.file_size_in_bytes for item in live.data),
        rows=sum(item.file.record_count for item in live.data),
        deleted_rows=sum(len(places) for path, places in gone.items() if path in here),
        compacted_time=rewrite.compacted_ms(table) / 1000,
    )


def _sizes(place: TablePlace) -> list[int]:
    return [int(item.file.file_size_in_bytes) for item in manifests.live(place.opened()).data]
