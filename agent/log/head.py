"""Log head: the end of the change log, moved by one writer under its epoch, which fences stale sync units.

A ``LogWriter`` takes the log over by raising its epoch, and from then on moves the head by compare-and-swap from
exactly what it wrote last. A writer that finds another head has been replaced, and stops (``LogFencedError``). If
etcd's answer is lost, the writer reads the head: either the move succeeded, or it is retried.

A new epoch starts after the last segment that ends without an open transaction. Segments that the old writer left
beyond it are no longer part of the log, and the source is read again from ``resolved_ts``.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeVar

import anyio
import structlog

from agent.errors import NEW_POSITION, LogFencedError, PositionLostError
from agent.log.head_store import HeadStore, StoredHead
from agent.object_store import is_object_store
from agent.rows.batches import SegmentRef
from reactor.errors import StoreError
from reactor.ids import CaptureId, Ts
from reactor.records.log_head import Era, LogHead
from reactor.records.tables.schema_change import DdlRecord

#: schema changes per transaction with the head, and their bytes; etcd allows 128 operations and 1.5 MiB by default
_DDL_MAX, _DDL_BYTES = 64, 1 << 20
#: recent segment names in the head: more than are added between two reads
_RECENT = 16
_RETRY_S, _RETRY_MAX_S = 0.2, 5.0

T = TypeVar("T")

_log = structlog.get_logger()


class LogWriter:
    """The only writer of the log. ``head``: what was last written; call ``take_over`` first.

    ``epoch_floor``: a log without a head begins with an epoch above it, so that files of an earlier changefeed of the
    same name are never taken for part of this log.
    """

    def __init__(self, store: HeadStore, *, capture: CaptureId, epoch_floor: int = 0) -> None:
        self._store = store
        self._capture = capture
        self._epoch_floor = epoch_floor
        self._stored = StoredHead(None, 0)
        #: before the next attempt at a move; a store that refuses at once must not be asked without a pause
        self._pause_s = 0.0

    @property
    def head(self) -> LogHead:
        assert self._stored.head is not None, "the log has not been taken over"
        return self._stored.head

    @property
    def has_taken_over(self) -> bool:
        return self._stored.head is not None

    async def take_over(self, start_ts: Ts, *, position: str = "", newest_epoch: int = 0) -> LogHead:
        """Become the writer in place of any other. ``start_ts``, ``position``: where a log without a head begins;
        ``newest_epoch``: of the files that are there.

        A writer's epoch is stored before any file has it. So a head that is older than the files is of a store that was
        put back to an earlier state, and what it says of the log and of the source's position is no longer true.

        :raises PositionLostError: the head is older than the files.
        """
        while True:
            stored = await self._read()
            if stored.head is not None and stored.head.epoch < newest_epoch:
                raise PositionLostError(
                    f"the change log has files of epoch {newest_epoch}, and the store knows epoch {stored.head.epoch}: "
                    f"the store was put back to an earlier state; bring the newest one back, or {NEW_POSITION}"
                )
            head = stored.head or LogHead(resolved_ts=start_ts, position=position, epoch=self._epoch_floor)
            if await self._put(_new_era(head, self._capture), stored):
                return self.head

    async def renew(self) -> LogHead:
        """Start a new epoch of our own, to read again what came after the last finished transaction.

        :raises LogFencedError: another writer has taken over.
        """
        stored = await self._read()
        if stored.head != self.head:
            raise self._fenced(stored)
        await self._move(_new_era(self.head, self._capture))
        return self.head

    async def append(
        self,
        segment: SegmentRef,
        *,
        is_complete: bool,
        resolved_time: float,
        position: str = "",
        attachment: str = "",
        ddl: Sequence[DdlRecord] = (),
    ) -> None:
        """Make a written segment part of the log; with ``is_complete``, no transaction is open at its end.

        ``ddl``: the schema changes that the head passes; they are stored before it, or with it.

        :raises LogFencedError: another writer has taken over.
        """
        head = self.head
        assert segment.seq == head.last_seq + 1, "segments are appended one after the other"
        assert segment.epoch == head.epoch, "a segment is appended under the epoch it was written in"
        recent = _recent(head, segment)
        if not is_complete:
            assert not ddl, "the head does not pass a transaction that is not finished"
            await self._move(head.with_(last_seq=segment.seq, recent=recent))
            return
        resolved_ts = max(head.resolved_ts, segment.resolved_ts)
        await self._move(
            head.with_(
                last_seq=segment.seq,
                complete_seq=segment.seq,
                written_seq=segment.seq,
                written_ts=max(resolved_ts, segment.last_ts),
                resolved_ts=resolved_ts,
                resolved_time=resolved_time,
                position=position,
                attachment=attachment,
                recent=recent,
            ),
            ddl,
        )

    async def advance(
        self,
        resolved_ts: Ts,
        *,
        resolved_time: float,
        position: str = "",
        attachment: str = "",
        ddl: Sequence[DdlRecord] = (),
    ) -> None:
        """Move ``resolved_ts`` (commit time ``resolved_time``): nothing was committed up to there except ``ddl``.

        :raises LogFencedError: another writer has taken over.
        """
        head = self.head
        if resolved_ts > head.resolved_ts or (resolved_ts == head.resolved_ts and resolved_time > head.resolved_time):
            new = head.with_(resolved_ts=resolved_ts, resolved_time=resolved_time, position=position)
            await self._move(new.with_(attachment=attachment), ddl, may_wait=not ddl)
        elif ddl:  # of a source that is idle: the head has nowhere to move to
            await self._store_ddl(_parts(ddl))

    async def forget(self, *, first_seq: int, removed_ts: Ts) -> None:
        """Remove the segments before ``first_seq`` from the log; their files may be deleted afterwards.

        :raises LogFencedError: another writer has taken over.
        """
        head = self.head
        if first_seq <= head.first_seq:
            return
        assert first_seq <= head.complete_seq + 1, "only finished transactions may be forgotten"
        eras = tuple(
            era
            for era, successor in zip(head.eras, (*head.eras[1:], None), strict=True)
            if successor is None or successor.first_seq > first_seq
        )
        await self._move(head.with_(first_seq=first_seq, removed_ts=max(head.removed_ts, removed_ts), eras=eras))

    async def read_ddl(self) -> list[DdlRecord]:
        """Return the schema changes found so far; only the current writer adds any."""
        return await self._retry(self._store.read_ddl)

    async def _move(self, new: LogHead, ddl: Sequence[DdlRecord] = (), *, may_wait: bool = False) -> None:
        """Move from ``self.head`` to ``new``, retrying until etcd answers; ``ddl`` is stored with it or before it.

        :raises LogFencedError: the head is neither the old one nor the new one.
        """
        before = self.head
        *firsts, last = _parts(ddl)
        await self._store_ddl(firsts)
        while not await self._put(new, self._stored, last, may_wait=may_wait):
            if (await self._read_expecting(before, new)).head == new:
                return

    async def _store_ddl(self, parts: Iterable[Sequence[DdlRecord]]) -> None:
        """Store schema changes and leave the head where it is, retrying until etcd answers.

        :raises LogFencedError: the head is another one.
        """
        head = self.head
        for part in parts:
            while not await self._put(head, self._stored, part):
                await self._read_expecting(head)

    async def _read_expecting(self, *expected: LogHead) -> StoredHead:
        """:raises LogFencedError: the head is none of ``expected``."""
        stored = await self._read()
        if stored.head not in expected:
            raise self._fenced(stored)
        self._stored = stored
        return stored

    async def _put(
        self, new: LogHead, expected: StoredHead, ddl: Sequence[DdlRecord] = (), *, may_wait: bool = False
    ) -> bool:
        """Try once. Return False if the swap was refused, or if the outcome is unknown: read the head then."""
        try:
            revision = await self._store.swap(new, revision=expected.revision, ddl=ddl, may_wait=may_wait)
        except StoreError as error:
            if not error.retryable:
                raise
            _log.warning("moving the log's head failed and is tried again", error=str(error), delay_s=self._pause_s)
            await anyio.sleep(self._pause_s)
            self._pause_s = min(2 * self._pause_s or _RETRY_S, _RETRY_MAX_S)
            return False
        self._pause_s = 0.0
        if revision is None:
            return False
        self._stored = StoredHead(new, revision)
        return True

    async def _read(self) -> StoredHead:
        return await self._retry(self._store.read)

    async def _retry(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Return etcd's answer, retrying until there is one."""
        delay_s = _RETRY_S
        while True:
            try:
                return await ask()
            except StoreError as error:
                if not error.retryable:
                    raise
                _log.warning("reading the log's head failed and is tried again", error=str(error), delay_s=delay_s)
            await anyio.sleep(delay_s)
            delay_s = min(2 * delay_s, _RETRY_MAX_S)

    def _fenced(self, stored: StoredHead) -> LogFencedError:
        if stored.head is None:
            return LogFencedError("the change log's head is gone: the changefeed was removed; this sync unit stops")
        return LogFencedError(
            f"the change log was taken over by {stored.head.writer} (epoch {stored.head.epoch}); this sync unit stops"
        )


def _parts(ddl: Sequence[DdlRecord]) -> list[list[DdlRecord]]:
    """Divide schema changes into as many as one transaction takes; at least one part, which may be empty."""
    parts, size = [list[DdlRecord]()], 0
    for record in ddl:
        bytes_ = len(record.encode())
        if parts[-1] and (len(parts[-1]) == _DDL_MAX or size + bytes_ > _DDL_BYTES):
            parts, size = [*parts, []], 0
        parts[-1].append(record)
        size += bytes_
    return parts


def _recent(head: LogHead, segment: SegmentRef) -> tuple[str, ...]:
    if not is_object_store(segment.path):
        return ()
    return (*head.recent, segment.path.rpartition("/")[2])[-_RECENT:]


def _new_era(head: LogHead, capture: CaptureId) -> LogHead:
    first_seq = head.complete_seq + 1
    kept = tuple(era for era in head.eras if era.first_seq < first_seq)
    is_known = head.written_seq == head.complete_seq
    return head.with_(
        epoch=head.epoch + 1,
        writer=capture,
        last_seq=head.complete_seq,
        written_seq=head.complete_seq,
        written_ts=head.written_ts if is_known else head.resolved_ts,
        eras=(*kept, Era(epoch=head.epoch + 1, first_seq=first_seq)),
    )


def begun_again(head: LogHead, start_ts: Ts, *, position: str, newest_epoch: int = 0) -> LogHead:
    """The log as it begins again at ``start_ts``: nothing that was in it is part of it any more. ``newest_epoch``: of
    all files, which a store that was put back to an earlier state does not know."""
    assert start_ts > head.resolved_ts, f"a log at {head.resolved_ts} cannot begin again at {start_ts}"
    seq, epoch = head.last_seq + 1, max(head.epoch, newest_epoch) + 1
    return head.with_(
        epoch=epoch,
        first_seq=seq,
        last_seq=seq - 1,
        complete_seq=seq - 1,
        resolved_ts=start_ts,
        resolved_time=0.0,
        removed_ts=start_ts,
        written_seq=seq - 1,
        written_ts=start_ts,
        position=position,
        attachment="",
        recent=(),
        eras=(Era(epoch=epoch, first_seq=seq),),
    )


def epoch_of(head: LogHead, seq: int) -> int:
    """Return the epoch whose file is segment ``seq``."""
    return next((era.epoch for era in reversed(head.eras) if era.first_seq <= seq), head.epoch)
