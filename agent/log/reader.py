"""Log reader: finds the segments that hold a range of the log, from the head and the directory's file names.

Names are cached, and a directory is listed again only if the head has moved past the cached ones, so a lookup is cheap
even with thousands of segments. On an object store, where listing is a request, the head itself supplies the newest
names. Which tables a segment contains is read from its file, once, and only for segments that are requested. Blocking;
used by one thread at a time.
"""

from bisect import bisect_right

from agent.errors import NEW_POSITION, LogError
from agent.log import segment
from agent.log.head import epoch_of
from agent.log.segment import SegmentName
from agent.log.storage import LogDirectory
from agent.rows.batches import SegmentRef
from reactor.ids import Ts
from reactor.records.log_head import Era, LogHead


class LogReader:
    """The segments of one log directory, as seen from this process."""

    def __init__(self, directory: LogDirectory) -> None:
        self._directory = directory
        self._seen: dict[str, SegmentName] = {}
        self._contents: dict[str, tuple[frozenset[int], int]] = {}
        self._valid: list[SegmentName] = []
        self._valid_for: tuple[int, int, tuple[Era, ...]] | None = None

    def segments(self, head: LogHead, from_ts: Ts, to_ts: Ts, *, known_ts: Ts | None = None) -> tuple[SegmentRef, ...]:
        """Return every segment with an event in ``(from_ts, to_ts]``, in order, with the tables it contains.

        ``known_ts``: segments at or below it may be missing, since the caller has their changes; default ``from_ts``.

        :raises LogError: a segment is missing, or changes after ``known_ts`` have been removed from the log.
        """
        assert to_ts <= head.resolved_ts, "only what is resolved may be read"
        valid = self._list(head)
        _check_front(head, valid, from_ts if known_ts is None else known_ts, self._directory)
        # both ends only grow from one segment to the next
        start = bisect_right(valid, from_ts, key=lambda name: name.last_ts)
        end = bisect_right(valid, to_ts, key=lambda name: name.first_ts)
        return tuple(self._ref(name) for name in valid[start:end])

    def _ref(self, name: SegmentName) -> SegmentRef:
        path = self._directory.path_of(str(name))
        if path not in self._contents:
            self._contents[path] = segment.contents_of(path)
        tables, size = self._contents[path]
        return name.ref(path, size=size, tables=tables)

    def _list(self, head: LogHead) -> list[SegmentName]:
        wanted = (head.first_seq, head.last_seq, head.eras)
        if self._valid_for != wanted:
            self._refresh(head)
            self._valid_for = wanted
        return self._valid

    def _refresh(self, head: LogHead) -> None:
        if not self._is_cache_complete(head):
            self._list_all()
        self._valid = valid_segments(head, list(self._seen.values()))
        _check_whole(head, self._valid, self._directory)
        alive = {self._directory.path_of(name) for name in self._seen}
        self._contents = {path: found for path, found in self._contents.items() if path in alive}

    def _is_cache_complete(self, head: LogHead) -> bool:
        """Return whether the cached names and those in the head are the complete log."""
        listed = {name: parsed for name in head.recent if (parsed := SegmentName.parse(name)) is not None}
        known = {name: parsed for name, parsed in (self._seen | listed).items() if parsed.seq >= head.first_seq}
        if not head.recent or len(valid_segments(head, list(known.values()))) != head.last_seq - head.first_seq + 1:
            return False
        self._seen = known
        return True

    def _list_all(self) -> None:
        names = self._directory.names()
        seen = {name: self._seen.get(name) or SegmentName.parse(name) for name in names}
        self._seen = {name: parsed for name, parsed in seen.items() if parsed is not None}


def valid_segments(head: LogHead, names: list[SegmentName]) -> list[SegmentName]:
    """Return the ``names`` that are part of the log, in order."""
    inside = (name for name in names if head.first_seq <= name.seq <= head.last_seq)
    return sorted((name for name in inside if name.epoch == epoch_of(head, name.seq)), key=lambda name: name.seq)


def _check_whole(head: LogHead, valid: list[SegmentName], directory: LogDirectory) -> None:
    """Check that segments are missing only at the front, see ``_check_front``."""
    expected = head.last_seq - (valid[0].seq if valid else head.first_seq) + 1
    if len(valid) != expected:
        present = {name.seq for name in valid}
        first = valid[0].seq if valid else head.first_seq
        missing = next((seq for seq in range(first, head.last_seq + 1) if seq not in present), first)
        raise LogError(
            f"segment {missing} of the change log in {directory} is missing or there twice; "
            f"do all captures use the same log storage? Bring it back; or pause the changefeed: {NEW_POSITION}"
        )


def _check_front(head: LogHead, valid: list[SegmentName], known_ts: Ts, directory: LogDirectory) -> None:
    """Check that the caller has everything missing at the front. Files may be deleted before this head says so; then
    the first remaining segment must begin at or before ``known_ts``."""
    if known_ts < head.removed_ts:
        raise LogError(
            f"changes after {known_ts} are wanted, but those up to {head.removed_ts} were removed from the change log "
            f"in {directory}; if this does not pass, pause the changefeed: {NEW_POSITION}"
        )
    if valid and valid[0].seq > head.first_seq and known_ts < valid[0].first_ts:
        raise LogError(
            f"segments {head.first_seq} to {valid[0].seq - 1} of the change log in {directory} are gone, and changes "
            f"after {known_ts} are wanted; did something else than Weir delete files there? Bring them back; or pause "
            f"the changefeed: {NEW_POSITION}"
        )
