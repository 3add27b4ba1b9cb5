"""Which segments may go: those that every span has passed, once nobody could want to rewind to them any more.

Only a prefix of the log ever goes. The head's ``first_seq`` moves first, then the files are removed: a crash between
the two leaves files that are no part of the log, which the next round finds as orphans. Orphans are also what
replaced writers left behind: segments of an epoch that their number no longer belongs to.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from agent.log.head import LogWriter, epoch_of
from agent.log.segment import SegmentName
from agent.log.storage import Entry, LogDirectory, finished_name
from reactor.ids import Ts
from reactor.records import LogHead


@dataclass(frozen=True, slots=True)
class Removal:
    """``first_seq``: where the log begins afterwards; ``removed_ts``: the last event that goes; ``names``: files."""

    first_seq: int
    removed_ts: Ts
    names: tuple[str, ...]


def plan(head: LogHead, entries: Sequence[Entry], *, checkpoint_ts: Ts, now: float, retention_s: float) -> Removal:
    """What may be removed at ``now`` (Unix seconds). ``checkpoint_ts``: every span has passed it."""
    found = [(name, entry) for entry in entries if (name := SegmentName.parse(entry.name))]
    by_seq = {name.seq: (name, entry) for name, entry in found if name.epoch == epoch_of(head, name.seq)}
    seq, removed_ts, names = head.first_seq, head.removed_ts, list(_orphans(head, entries))
    # the number decides, not the directory: a gap ends the walk
    while seq <= head.complete_seq and seq in by_seq:
        name, entry = by_seq[seq]
        if name.last_ts > checkpoint_ts or entry.modified_at > now - retention_s:
            break
        names.append(entry.name)
        removed_ts = max(removed_ts, name.last_ts)
        seq += 1
    return Removal(seq, removed_ts, tuple(names))


def _orphans(head: LogHead, entries: Iterable[Entry]) -> Iterable[str]:
    for entry in entries:
        name = SegmentName.parse(finished_name(entry.name))
        if name is None or name.epoch > head.epoch:
            continue
        is_before = name.seq < head.first_seq
        # under our own epoch a file behind the head is the one that is being written
        is_replaced = name.epoch < head.epoch and (name.epoch != epoch_of(head, name.seq) or name.seq > head.last_seq)
        is_leftover = name.epoch < head.epoch and entry.name != finished_name(entry.name)
        if is_before or is_replaced or is_leftover:
            yield entry.name


async def apply(removal: Removal, writer: LogWriter) -> None:
    """Move the head; the files may be removed once this has returned.

    :raises LogFencedError: another writer has taken over.
    """
    await writer.forget(first_seq=removal.first_seq, removed_ts=removal.removed_ts)


def remove_files(removal: Removal, directory: LogDirectory) -> None:
    """:raises LogError: the storage refused; what is left is found again."""
    directory.remove(removal.names)
