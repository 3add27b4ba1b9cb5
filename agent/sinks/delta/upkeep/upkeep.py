"""Upkeep: maintains Delta tables off the hot path: compacts small files, removes replaced ones, keeps the log short.

It is done by the capture that commits, in a separate thread, one table at a time; failures are retried later and never
delay a flush. Compaction changes no rows and records; if it conflicts with a flush, it loses. A checkpoint of the log
lists it, opens the table and reads what the last checkpoint has, so no flush writes one.

Removal considers everything in the table's directory that the log does not name and that is older than the retention,
including files that were never committed. The retention exists for readers of older versions, which need their files.
"""

import os
import re
import threading
import time
import zlib
from collections import OrderedDict
from dataclasses import dataclass
from urllib.parse import unquote

import pyarrow as pa
import structlog
from deltalake.exceptions import DeltaError

from agent.errors import SinkConflictError, SinkError
from agent.ports.sink import Maintained
from agent.ports.table_files import TableFiles
from agent.sinks import care
from agent.sinks.common.compaction import Plan
from agent.sinks.delta.table import change_feed, disk, history
from agent.sinks.delta.table import log as delta_log
from agent.sinks.delta.table import place as delta_table
from agent.sinks.delta.table.errors import storage_error, storage_errors
from agent.sinks.delta.table.layout import PLAIN, Layout
from agent.sinks.delta.table.place import TablePlace
from agent.sinks.delta.upkeep import compact as delta_compact

_TARGET_FILE_BYTES = 32 << 20
_PLAN = Plan(_TARGET_FILE_BYTES)
#: more small files than this are joined by delta-rs, in tables that are left to it
_SMALL_FILE_BYTES = 8 << 20
_SMALL_FILES_MAX = 100
_COMPACT_EVERY_S = 60.0
_VACUUM_EVERY_S = 600.0
#: flushes that have committed, between two checkpoints of the log; a table's property wins once it is known
_CHECKPOINT_EVERY = 50
#: names of data files, including those whose writer has died
_OWN_NAME = re.compile(
    r"(?:(?:changes|rows|rest|compact|snapshot|schema|cdc)-[0-9A-Za-z_-]+\.parquet(?:\.[0-9a-f]{8}\.tmp)?"
    r"|part-\d+-[0-9a-f-]{36}-c\d+(?:\.\w+)?\.parquet)",
    re.ASCII,
)
#: directories into which delta-rs puts files of a table with a mapping of columns
_PREFIX = re.compile(r"[0-9A-Za-z]{2}", re.ASCII)

_log = structlog.get_logger()


def table_properties(retention_s: int, *, takes_vectors: bool = False, has_feed: bool = False) -> dict[str, str]:
    """Return the maintenance properties of a new table, for delta-rs and every other writer."""
    return {
        **({"delta.enableDeletionVectors": "true"} if takes_vectors else {}),
        **({change_feed.PROPERTY: "true"} if has_feed else {}),
        "delta.checkpointInterval": str(_CHECKPOINT_EVERY),
        "delta.logRetentionDuration": f"interval {max(retention_s, 86_400)} seconds",
        "delta.deletedFileRetentionDuration": f"interval {retention_s} seconds",
        "delta.targetFileSize": str(_TARGET_FILE_BYTES),
    }


@dataclass(slots=True)
class _Turn:
    """The times of a table's last maintenance (monotonic seconds), and its commits since the last checkpoint."""

    compacted_s: float
    vacuumed_s: float
    commits: int
    checkpoint_every: int = _CHECKPOINT_EVERY


#: by location, the one that was written last at the end
_turns: OrderedDict[str, _Turn] = OrderedDict()
_lock, _busy = threading.Lock(), threading.Lock()


def begin_if_due(place: TablePlace, *, retention_s: int) -> threading.Thread | None:
    """Count a commit, and start maintaining the table if it is due and none is being maintained. A newly seen table has
    to wait."""
    now = time.monotonic()
    with _lock:
        turn = _turns.setdefault(place.location, _Turn(now, now, _first_count(place)))
        care.keep_newest(_turns, place.location)
        turn.commits += 1
        compact = now - turn.compacted_s > _COMPACT_EVERY_S
        vacuum = now - turn.vacuumed_s > min(_VACUUM_EVERY_S, max(retention_s, _COMPACT_EVERY_S))
        shorten = turn.commits >= turn.checkpoint_every
        if not (compact or vacuum or shorten) or not _busy.acquire(blocking=False):
            return None
        turn.compacted_s = now if compact else turn.compacted_s
        turn.vacuumed_s = now if vacuum else turn.vacuumed_s
        turn.commits = 0 if shorten else turn.commits
    thread = threading.Thread(
        target=_run,
        args=(place, turn),
        kwargs={"compact": compact, "vacuum": vacuum, "shorten": shorten},
        name="delta-upkeep",
        daemon=True,
    )
    thread.start()
    return thread


def _first_count(place: TablePlace) -> int:
    """Tables that are flushed together must not all be due at once, nor wait for long after a restart."""
    return zlib.crc32(place.location.encode()) % _CHECKPOINT_EVERY


def _run(place: TablePlace, turn: _Turn, *, compact: bool, vacuum: bool, shorten: bool) -> None:
    try:
        with care.round_of("delta"):
            if shorten:
                turn.checkpoint_every = write_checkpoint(place)
            if compact:
                compact_small_files(place)
            if vacuum:
                remove_replaced_files(place)
    except (DeltaError, SinkError, OSError) as error:
        care.gave_way("delta")
        _log.info("table upkeep gave way to another commit", table=str(place), reason=str(error).splitlines()[0])
    finally:
        _busy.release()


def write_checkpoint(place: TablePlace) -> int:
    """Write a checkpoint of the table's log, which shortens later reads, and remove commits past their retention;
    return the table's own number of commits between two checkpoints."""
    table = place.opened()
    history.check(place, table)  # a RESTORE may need them
    table.create_checkpoint()
    disk.sync_checkpoint(place, table.version())
    table.cleanup_metadata()
    every = table.metadata().configuration.get("delta.checkpointInterval", "")
    return max(int(every), 1) if every.isdecimal() else _CHECKPOINT_EVERY


def compact_small_files(place: TablePlace, plan: Plan | None = None) -> int:
    """Join small files, and rewrite those that have lost rows; return the number of files that were rewritten."""
    joined = delta_compact.compact(place, plan or _PLAN)
    if joined is None:
        joined = _compact_by_delta_rs(place)
    if joined:
        _log.info("compacted", table=str(place), files=joined)
    care.note("delta", joined=joined)
    return joined


def _compact_by_delta_rs(place: TablePlace) -> int:
    table = place.opened()
    if delta_table.layout(table).names.is_mapped:  # which delta-rs does not compact
        return 0
    first = table.version() + 1
    sizes = table.get_add_actions(flatten=True).column("size_bytes").to_pylist()
    small = int(sum(size < _SMALL_FILE_BYTES for size in sizes))
    if small > _SMALL_FILES_MAX:
        properties = delta_table.writer_properties(table)
        table.optimize.compact(target_size=_TARGET_FILE_BYTES, max_concurrent_tasks=1, writer_properties=properties)
        disk.sync_commits(place, first)
        return small
    return 0


def maintain(place: TablePlace, *, is_vacuumed: bool = True) -> Maintained:
    """Compact and remove thoroughly, now.

    :raises SinkConflictError: another writer was faster.
    :raises SinkError: the storage fails.
    """
    before = _sizes(place)
    try:
        joined = compact_small_files(place, _PLAN.thorough())
        removed = remove_replaced_files(place) if is_vacuumed else []
        write_checkpoint(place)  # whoever opens the table now reads no commits
    except DeltaError as error:
        raise SinkConflictError(f"another commit to {place} was first; try again") from error
    except OSError as error:
        raise storage_error(place, "maintain", error) from error
    after = _sizes(place)
    return Maintained(
        files_before=len(before),
        files=len(after),
        bytes_before=sum(before),
        bytes=sum(after),
        joined=joined,
        removed=len(removed),
    )


def _sizes(place: TablePlace) -> list[int]:
    with storage_errors(place, "read the log of"):
        found = pa.table(place.opened().get_add_actions(flatten=True))
    return [int(size) for size in found.column("size_bytes").to_pylist()]


def files(place: TablePlace) -> TableFiles:
    """Return the table's data files, from its log.

    :raises SinkError: the log cannot be read, or has commits of others that hold the table.
    """
    with storage_errors(place, "read the log of"), delta_log.borrowed(place) as log:
        if log is not None:
            live = list(log.files.values())
            return TableFiles(
                files=len(live),
                bytes=sum(file.size for file in live),
                rows=sum(file.rows for file in live),
                deleted_rows=sum(file.deleted_rows for file in live),
                compacted_time=(log.transaction_version(delta_compact.COMPACTED) or 0) / 1000,
            )
        opened = place.opened()
        found = pa.table(opened.get_add_actions(flatten=True))
    return TableFiles(
        files=found.num_rows,
        bytes=sum(found.column("size_bytes").to_pylist()),
        rows=sum(rows or 0 for rows in found.column("num_records").to_pylist()),
        deleted_rows=None,
        compacted_time=(opened.transaction_version(delta_compact.COMPACTED) or 0) / 1000,
    )


def remove_replaced_files(place: TablePlace) -> list[str]:
    """Remove files that no version within the table's retention names.

    delta-rs lists them, whatever is below the table's directory. Only data files directly in it with names of ours or
    delta-rs's are removed, and delta-rs's in the directories that it makes, for the values of the table's partitions or
    for a table with a mapping of columns: no directory, no link, nothing of a table deeper in the tree.
    """
    table = place.opened()
    history.check(place, table)  # a RESTORE may need them
    found = table.vacuum(retention_hours=None, dry_run=True, enforce_retention_duration=False, full=True)
    layout = delta_table.layout(table)
    removed = [name for path in found if (name := _own_name(path, layout)) and _remove(place, name)]
    if removed:
        _log.info("removed replaced files", table=str(place), files=len(removed))
    care.note("delta", removed=len(removed))
    return removed


def _own_name(path: str, layout: Layout = PLAIN) -> str:
    """Return the name of one of the table's own files, otherwise empty; ``path``: as delta-rs returns it, which does
    not encode the names of directories again."""
    *above, name = path.removeprefix(f"{change_feed.DIRECTORY}/").split("/")
    is_home = not above or [unquote(part.partition("=")[0]) for part in above] == [*layout.partitions]
    if layout.names.is_mapped and len(above) == 1:
        is_home = _PREFIX.fullmatch(above[0]) is not None
    return path if is_home and _OWN_NAME.fullmatch(name) else ""


def _remove(place: TablePlace, name: str) -> bool:
    if not place.is_local:
        place.store.remove(name)
        return True
    path = os.path.join(place.location, name)
    if not os.path.isfile(path) or os.path.islink(path):
        return False
    if os.path.realpath(path) != os.path.join(os.path.realpath(place.location), name):
        return False
    os.unlink(path)
    return True
