"""Log retention: removes segments that every span has passed and that are too old to rewind to.

Only a prefix of the log is ever removed. The head's ``first_seq`` moves first, then the files are deleted: a crash
between the two leaves orphans, files that are not part of the log, which the next round finds. Other orphans are files
of stale writers: segments of an epoch that no longer owns their number; and attachments that no head names any more.

Segments that only held tables need are kept up to a limit of age and bytes; beyond it the oldest are removed, and
tables that still need them lose their position (``owner.feed.holds.held``).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from agent.log import attachments
from agent.log.head import LogWriter, epoch_of
from agent.log.segment import SegmentName
from agent.log.storage import LogDirectory, finished_name
from agent.ports.log_storage import Entry
from reactor.ids import MAX_TS, Ts
from reactor.records.log_head import LogHead


@dataclass(frozen=True, slots=True)
class Removal:
    """``first_seq``: the log's new beginning; ``removed_ts``: the last event removed; ``names``: files to delete."""

    first_seq: int
    removed_ts: Ts
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Needs:
    """The part of the log that is needed. ``checkpoint_ts``: every flowing span has passed it; ``held_ts``: so has
    every held table.

    ``retention_s``: how long to keep segments that all have passed; ``held_retention_s`` and ``held_bytes``: how long,
    and how many bytes, to keep for held tables.
    """

    checkpoint_ts: Ts
    retention_s: float
    held_ts: Ts = MAX_TS
    held_retention_s: float = 86_400.0
    held_bytes: int = 10 << 30


def plan(head: LogHead, entries: Sequence[Entry], needs: Needs, *, now: float) -> Removal:
    """Return what may be removed at ``now`` (Unix seconds)."""
    found = [(name, entry) for entry in entries if (name := SegmentName.parse(entry.name))]
    by_seq = {name.seq: (name, entry) for name, entry in found if name.epoch == epoch_of(head, name.seq)}
    seq, removed_ts, names = head.first_seq, head.removed_ts, list(_orphans(head, entries))
    for name, entry in _not_held(_passed(head, by_seq, needs, now), needs, now):
        names.append(entry.name)
        removed_ts, seq = max(removed_ts, name.last_ts), name.seq + 1
    return Removal(seq, removed_ts, tuple(names))


_Found = tuple[SegmentName, Entry]


def _passed(head: LogHead, by_seq: Mapping[int, _Found], needs: Needs, now: float) -> list[_Found]:
    """Return the segments that only held tables need: passed by all flowing spans and older than the retention. Walks
    by segment number, not by directory, and stops at a gap."""
    passed: list[_Found] = []
    seq = head.first_seq
    while seq <= head.complete_seq and seq in by_seq:
        name, entry = by_seq[seq]
        if name.last_ts > needs.checkpoint_ts or entry.modified_at > now - needs.retention_s:
            break
        passed.append((name, entry))
        seq += 1
    return passed


def _not_held(passed: Sequence[_Found], needs: Needs, now: float) -> Iterable[_Found]:
    """Return the segments that held tables have passed too, or that exceed the limits of age and bytes."""
    size = sum(entry.size for name, entry in passed if name.last_ts > needs.held_ts)
    for name, entry in passed:
        is_held = name.last_ts > needs.held_ts
        if is_held and entry.modified_at > now - needs.held_retention_s and size <= needs.held_bytes:
            return
        size -= entry.size if is_held else 0
        yield name, entry


def _orphans(head: LogHead, entries: Iterable[Entry]) -> Iterable[str]:
    for entry in entries:
        attached_at = attachments.epoch_of(finished_name(entry.name))
        if attached_at is not None and attached_at <= head.epoch and entry.name != head.attachment:
            yield entry.name
        name = SegmentName.parse(finished_name(entry.name))
        if name is None or name.epoch > head.epoch:
            continue
        is_before = name.seq < head.first_seq
        # under our own epoch, a file beyond the head is the one being written
        is_replaced = name.epoch < head.epoch and (name.epoch != epoch_of(head, name.seq) or name.seq > head.last_seq)
        is_leftover = name.epoch < head.epoch and entry.name != finished_name(entry.name)
        if is_before or is_replaced or is_leftover:
            yield entry.name


async def apply(removal: Removal, writer: LogWriter) -> None:
    """Move the head; the files may be removed once this returns.

    :raises LogFencedError: another writer has taken over.
    """
    await writer.forget(first_seq=removal.first_seq, removed_ts=removal.removed_ts)


def remove_files(removal: Removal, directory: LogDirectory) -> None:
    """:raises LogError: the storage refused; the next round finds the remaining files."""
    directory.remove(removal.names)
