"""Stream attempts: records in etcd which worker reads a source, so that the end of its process is traced to a change
in the source's log.

    worker begins ──► its process ends ──► the next worker begins at the same position
                                              ├──moves on, or the source is quiet──► cleared
                                              └──its process ends before that──► counted; refused after three

A change may end every process that reads it, and each time the work moves, another capture ends. The record names the
current reader and the captures that have ended at its position; it outlives its writer. A worker that has moved the
log, or found the source quiet, is *settled*: its end is not counted. So captures that are killed one by one, at any
moment, do not stop a changefeed: the three that count must each end within the second or two before they are settled.
The record is of one run of the changefeed: a resume tries again.
"""

from dataclasses import dataclass, field

import anyio
import structlog

from agent.errors import StreamEndsCapturesError
from reactor import keys
from reactor.errors import StoreError
from reactor.ids import CaptureId
from reactor.keys import StreamAttemptKey
from reactor.records.attempts import StreamAttempt
from reactor.records.capture import CaptureInfo
from reactor.records.log_head import LogHead
from reactor.store.port import Compare, MetaStore, Put, Target

#: processes that have ended at one position before they were settled
_ENDS_MAX = 3
_RETRY_S = 0.5
_CLOSE_S = 2.0

_log = structlog.get_logger()


@dataclass(slots=True)
class StreamAttempts:
    """The record of one worker. ``epoch``: the changefeed's; ``guard``: holds while the changefeed exists."""

    client: MetaStore
    key: StreamAttemptKey
    capture: CaptureId
    epoch: int
    guard: Compare
    _noted: StreamAttempt | None = None
    _revision: int = 0
    #: where it began to read
    _head: LogHead = field(default_factory=LogHead)

    async def begin(self, head: LogHead) -> None:
        """Note that this capture is about to read from ``head`` on. Retries until etcd answers.

        :raises StreamEndsCapturesError: too many captures have ended there.
        """
        self._head = head
        while True:
            try:
                if await self._try_begin(head):
                    return
            except StoreError as error:
                if not error.retryable:
                    raise
                _log.warning("noting that a source is read is tried again", key=str(self.key), error=str(error))
            await anyio.sleep(_RETRY_S)

    async def note_alive(self, head: LogHead, *, is_quiet: bool) -> None:
        """Settle once the log has moved past where the worker began, or nothing comes from the source."""
        if self._noted is None or self._noted.is_settled:
            return
        if is_quiet or head.resolved_ts > self._head.resolved_ts:
            await self._try_store(self._noted.with_(is_settled=True, ended=()))

    async def close(self) -> None:
        """The worker ends, and its process does not."""
        if self._noted is None:
            return
        with anyio.move_on_after(_CLOSE_S, shield=True):
            await self._try_store(self._noted.with_(capture=CaptureId(""), process=""))
        self._noted = None

    async def _try_begin(self, head: LogHead) -> bool:
        """Return False if another worker has written meanwhile."""
        stored = await self.client.get(str(self.key))
        before = StreamAttempt.decode(stored.value, key=stored.key) if stored else StreamAttempt()
        members = await self._members()
        ended = self._ended(before, head, members)
        if len(ended) >= _ENDS_MAX:
            raise _refusal(head, ended)
        own = members.get(self.capture)
        note = StreamAttempt(
            capture=self.capture,
            process=own.process if own else "",
            epoch=self.epoch,
            ts=head.resolved_ts,
            ended=ended,
        ).keeping(before)
        return await self._store(note, stored.mod_revision if stored else 0)

    def _ended(
        self, before: StreamAttempt, head: LogHead, members: dict[CaptureId, CaptureInfo]
    ) -> tuple[CaptureId, ...]:
        """Return the captures whose processes have ended at this position, as far as known."""
        if before.epoch != self.epoch:
            return ()
        known = before.ended if before.ts == head.resolved_ts else ()
        if before.capture in ("", self.capture) or _is_there(before, members):
            return known
        return () if before.is_settled else (*known, before.capture)

    async def _members(self) -> dict[CaptureId, CaptureInfo]:
        found = await self.client.get_prefix(keys.capture_prefix(self.key.cluster))
        infos = [CaptureInfo.decode(item.value, key=item.key) for item in found.items]
        return {info.id: info for info in infos}

    async def _try_store(self, note: StreamAttempt) -> None:
        """The note only helps to find a cause: without etcd's answer the worker continues."""
        try:
            await self._store(note, self._revision)
        except StoreError as error:
            _log.debug("the note of a stream's reader was not written", key=str(self.key), error=str(error))

    async def _store(self, note: StreamAttempt, revision: int) -> bool:
        compares = [self.guard, Compare(str(self.key), Target.MOD_REVISION, revision)]
        done = await self.client.txn(compares, [Put(str(self.key), note.encode())])
        if done.succeeded:
            self._noted, self._revision = note, done.revision
        return done.succeeded


def _is_there(before: StreamAttempt, members: dict[CaptureId, CaptureInfo]) -> bool:
    """A process that has lost its session joins again under another id."""
    if before.capture in members:
        return True
    return bool(before.process) and any(info.process == before.process for info in members.values())


def _refusal(head: LogHead, ended: tuple[CaptureId, ...]) -> StreamEndsCapturesError:
    return StreamEndsCapturesError(
        f"{len(ended)} captures ({', '.join(ended)}) have ended while they read the source's log from "
        f"{head.position or head.resolved_ts} on: see in their logs, or the kernel's, whether memory ran out or what "
        "crashed; give captures more memory or upgrade them, then resume"
    )
