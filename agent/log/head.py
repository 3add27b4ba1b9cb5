"""Log head: the end of the change log, moved by one writer under its epoch, which fences a replaced sync unit.

A ``LogWriter`` takes the log over by raising its epoch, and from then on moves the head only from exactly what it wrote
last. Whoever finds something else there has been replaced, and stops (``LogFencedError``). An answer of etcd that got
lost is settled by reading: either the move is there, or it is not and is made again.

A new epoch starts after the last segment that ends without an open transaction. What the old writer left behind it is
no longer part of the log, and the source is read again from ``resolved_ts``.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import anyio
import structlog

from agent.errors import HoldTooEarlyError, LogFencedError
from agent.rows.batches import SegmentRef
from reactor.errors import EtcdError
from reactor.ids import CaptureId, Ts
from reactor.keys import DdlKey, FormatKey, LogKey, ddl_prefix
from reactor.records.changefeed import DdlRecord, Era, LogHead, TableChange
from reactor.records.formats import ClusterFormat, Feature
from reactor.store.port import Compare, EtcdClient, Put, Target

#: schema changes that go into one transaction with the head; etcd takes 128 operations by default
_DDL_MAX = 64
_RETRY_S = 0.2
_RETRY_MAX_S = 5.0

T = TypeVar("T")

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class StoredHead:
    """The head as it is; ``revision`` is the key's, 0 when there is no head yet."""

    head: LogHead | None
    revision: int


class HeadStore(Protocol):
    """Where the head is kept. Errors are ``EtcdError``; after one, a swap may or may not have been done."""

    async def read(self) -> StoredHead: ...

    async def swap(self, head: LogHead, *, revision: int, ddl: Sequence[DdlRecord] = ()) -> int | None:
        """Write ``head`` if the key is still at ``revision``: its new revision, or None when it had moved.

        ``ddl`` is written in the same transaction.

        :raises LogFencedError: the changefeed is gone.
        """
        ...

    async def read_ddl(self) -> list[DdlRecord]:
        """The schema changes found so far, by Ts."""
        ...


class EtcdHeadStore:
    """The head under its key in etcd. ``life``: holds while the changefeed is still the one that was started; one of
    the same name that has been created since has a log of its own."""

    def __init__(self, client: EtcdClient, key: LogKey, *, life: Compare | None = None) -> None:
        self._client = client
        self._place = key
        self._key = str(key)
        self._life = life

    async def read(self) -> StoredHead:
        item = await self._client.get(self._key)
        if item is None:
            return StoredHead(None, 0)
        return StoredHead(LogHead.decode(item.value, key=self._key), item.mod_revision)

    async def swap(self, head: LogHead, *, revision: int, ddl: Sequence[DdlRecord] = ()) -> int | None:
        if holds := [hold for record in ddl for hold in record.holds]:
            await self._refuse_early(holds)
        compares = [Compare(self._key, Target.MOD_REVISION, revision), *([self._life] if self._life else [])]
        found = [Put(self._ddl_key(record), record.encode()) for record in ddl]
        result = await self._client.txn(compares, [Put(self._key, head.encode()), *found])
        if result.succeeded:
            return result.revision
        if self._life is not None and not await still_holds(self._client, self._life):
            raise LogFencedError("the changefeed was removed; this sync unit stops")
        return None

    async def read_ddl(self) -> list[DdlRecord]:
        place = self._place
        found = await self._client.get_prefix(ddl_prefix(place.cluster, place.namespace, place.changefeed))
        records = [DdlRecord.decode(item.value, key=item.key) for item in found.items]
        return sorted(records, key=lambda record: record.ts)

    async def _refuse_early(self, holds: Sequence[TableChange]) -> None:
        """An older capture cannot read a hold, and would write the table on. The format never goes back, so one answer
        is good for ever. :raises HoldTooEarlyError: there are such captures."""
        key = str(FormatKey(self._place.cluster))
        stored = await self._client.get(key)
        number = (ClusterFormat.decode(stored.value, key=key) if stored else ClusterFormat()).number
        if number < Feature.HELD_TABLES:
            raise HoldTooEarlyError(
                f"{holds[0].reason}; to hold the table alone the cluster must use format {Feature.HELD_TABLES:d}, "
                f"and uses {number}: upgrade all captures; it is tried again"
            )

    def _ddl_key(self, record: DdlRecord) -> str:
        place = self._place
        return str(DdlKey(place.cluster, place.namespace, place.changefeed, record.ts))


async def still_holds(client: EtcdClient, life: Compare) -> bool:
    """Whether ``life`` (of a key's create revision) would hold in a transaction. :raises EtcdError: no answer."""
    item = await client.get(life.key)
    return (item.create_revision if item else 0) == life.revision


class LogWriter:
    """The one who appends. ``head`` is what was last written; take over before anything else.

    ``epoch_floor``: epochs of a log that has no head yet begin above it, so that no file which an earlier changefeed
    of the same name has left, or still writes, can be taken for one of this log.
    """

    def __init__(self, store: HeadStore, *, capture: CaptureId, epoch_floor: int = 0) -> None:
        self._store = store
        self._capture = capture
        self._epoch_floor = epoch_floor
        self._stored = StoredHead(None, 0)

    @property
    def head(self) -> LogHead:
        assert self._stored.head is not None, "the log has not been taken over"
        return self._stored.head

    @property
    def has_taken_over(self) -> bool:
        return self._stored.head is not None

    async def take_over(self, start_ts: Ts, *, position: str = "") -> LogHead:
        """Become the writer, whoever was it before. ``start_ts``, ``position``: where a log without a head begins."""
        while True:
            stored = await self._read()
            head = stored.head or LogHead(resolved_ts=start_ts, position=position, epoch=self._epoch_floor)
            if await self._put(_new_era(head, self._capture), stored):
                return self.head

    async def renew(self) -> LogHead:
        """A new epoch of our own, to read again what came after the last finished transaction.

        :raises LogFencedError: another writer has taken over meanwhile.
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
        """Make a written segment part of the log; with ``is_complete``, no transaction is open behind it.

        ``ddl``: the schema changes that the head now passes; they are there before it, or with it.

        :raises LogFencedError: another writer has taken over.
        """
        head = self.head
        assert segment.seq == head.last_seq + 1, "segments are appended one after the other"
        assert segment.epoch == head.epoch, "a segment is appended under the epoch it was written in"
        if not is_complete:
            assert not ddl, "the head does not pass a transaction that is not finished"
            await self._move(head.with_(last_seq=segment.seq))
            return
        await self._move(
            head.with_(
                last_seq=segment.seq,
                complete_seq=segment.seq,
                resolved_ts=max(head.resolved_ts, segment.resolved_ts),
                resolved_time=resolved_time,
                position=position,
                attachment=attachment,
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
        """Say that nothing more was committed up to ``resolved_ts``, as of ``resolved_time``, but ``ddl``.

        :raises LogFencedError: another writer has taken over.
        """
        head = self.head
        if resolved_ts > head.resolved_ts or (resolved_ts == head.resolved_ts and resolved_time > head.resolved_time):
            new = head.with_(resolved_ts=resolved_ts, resolved_time=resolved_time, position=position)
            await self._move(new.with_(attachment=attachment), ddl)

    async def forget(self, *, first_seq: int, removed_ts: Ts) -> None:
        """Take the segments before ``first_seq`` out of the log; their files may be removed afterwards.

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
        """The schema changes found so far; while this writer has the log, only it adds some."""
        return await self._asked(self._store.read_ddl)

    async def _move(self, new: LogHead, ddl: Sequence[DdlRecord] = ()) -> None:
        """From ``self.head`` to ``new``, however often etcd has to be asked; ``ddl`` goes with it, or ahead of it.

        :raises LogFencedError: the head is neither the old one nor the new one.
        """
        before = self.head
        while len(ddl) > _DDL_MAX:
            if await self._put(before, self._stored, ddl[:_DDL_MAX]):
                ddl = ddl[_DDL_MAX:]
            else:
                await self._look_again(before)
        while not await self._put(new, self._stored, ddl):
            if (await self._look_again(before, new)).head == new:
                return

    async def _look_again(self, *expected: LogHead) -> StoredHead:
        """:raises LogFencedError: the head is none of ``expected``."""
        stored = await self._read()
        if stored.head not in expected:
            raise self._fenced(stored)
        self._stored = stored
        return stored

    async def _put(self, new: LogHead, expected: StoredHead, ddl: Sequence[DdlRecord] = ()) -> bool:
        """One try; False when it was refused, or when nobody can say: read then."""
        try:
            revision = await self._store.swap(new, revision=expected.revision, ddl=ddl)
        except EtcdError as error:
            if not error.retryable:
                raise
            _log.warning("moving the log's head got no answer", error=str(error))
            return False
        if revision is None:
            return False
        self._stored = StoredHead(new, revision)
        return True

    async def _read(self) -> StoredHead:
        return await self._asked(self._store.read)

    async def _asked(self, ask: Callable[[], Awaitable[T]]) -> T:
        """The answer of etcd, however often it has to be asked."""
        delay_s = _RETRY_S
        while True:
            try:
                return await ask()
            except EtcdError as error:
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


def _new_era(head: LogHead, capture: CaptureId) -> LogHead:
    first_seq = head.complete_seq + 1
    kept = tuple(era for era in head.eras if era.first_seq < first_seq)
    return head.with_(
        epoch=head.epoch + 1,
        writer=capture,
        last_seq=head.complete_seq,
        eras=(*kept, Era(epoch=head.epoch + 1, first_seq=first_seq)),
    )


def epoch_of(head: LogHead, seq: int) -> int:
    """The epoch whose file is segment ``seq``."""
    return next((era.epoch for era in reversed(head.eras) if era.first_seq <= seq), head.epoch)
