"""Watch: one watch over as many etcd streams as needed.

It resumes after the last event it has delivered, on another server if necessary. A stream that is silent for a second
is asked for progress; one that stays silent for ten is abandoned. The position is never taken from such progress
answers, which may overtake events before etcd 3.5.8.
"""

import asyncio
import math
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from typing import Any

import anyio
import grpc
import structlog

from reactor.errors import CompactedError, StoreError, StoreUnreachableError
from reactor.store.etcd import faults
from reactor.store.etcd.connection import EtcdConnection
from reactor.store.etcd.endpoints import Endpoints
from reactor.store.etcd.shown import Shown
from reactor.store.etcd.stubs import PROGRESS_REQUEST, increment_last_byte, rpc
from reactor.store.etcd.waiting import answer_of
from reactor.store.port import Event, WatchBatch

PROGRESS_INTERVAL_S = 1.0
SILENCE_S_MAX = 10.0
_RECONNECT_PAUSE_S = 0.1
#: raised by reads from a stream that has ended
_STREAM_ENDED = (grpc.aio.AioRpcError, asyncio.InvalidStateError, StoreUnreachableError)
#: mvccpb.Event.DELETE
_DELETE = 1

_log = structlog.get_logger()


class Watching:
    """Iterate ``batches``, and run ``attend`` beside it to detect silence.

    Responses are read in the iterating task, without another task or a queue between: a worker's next tick waits for
    them.
    """

    def __init__(
        self,
        endpoints: Endpoints,
        prefix: str,
        *,
        start_revision: int,
        shown: Shown,
        catch_up: Callable[[str], Awaitable[object]],
    ) -> None:
        """``catch_up``: reads a key through the quorum, and compares the revision with ``shown``."""
        self._endpoints = endpoints
        self._shown = shown
        self._catch_up = catch_up
        self._prefix = prefix
        self._next_revision = start_revision
        self._door: EtcdConnection | None = None
        self._call: Any = None
        #: since when the reader has waited without receiving anything
        self._heard_at = math.inf
        self._is_silent = False
        self._may_authenticate = True

    async def batches(self) -> AsyncGenerator[WatchBatch, None]:
        """:raises CompactedError: the next events are no longer available.
        :raises RevisionsLostError: etcd was restored from an older copy.
        :raises StoreAuthError: this user may not watch.
        """
        try:
            while True:
                batch = await self._next()
                if batch is not None:
                    yield batch
        finally:
            self._close()

    async def attend(self) -> None:
        """Ask a silent stream for progress, and abandon one that does not answer."""
        while True:
            await anyio.sleep(min(PROGRESS_INTERVAL_S, SILENCE_S_MAX))
            silent_s, call = anyio.current_time() - self._heard_at, self._call
            if call is None or silent_s < PROGRESS_INTERVAL_S:
                continue
            if silent_s < SILENCE_S_MAX:
                with anyio.move_on_after(SILENCE_S_MAX - silent_s), suppress(*_STREAM_ENDED):
                    await answer_of(call.write(PROGRESS_REQUEST))  # if the stream has ended, its reader reports why
            else:
                self._is_silent = True
                call.cancel()

    async def _next(self) -> WatchBatch | None:
        """Return the next batch; None after an interruption, or if the response had nothing for the reader."""
        try:
            if self._call is None:
                await self._open()
            return await self._read(self._door, self._call)
        except (*_STREAM_ENDED, StoreError) as error:
            failure = self._failure(error)
        if self._door is not None and isinstance(failure, StoreUnreachableError):
            self._endpoints.leave(self._door)
        self._close()
        if not isinstance(failure, StoreUnreachableError):
            raise failure
        _log.info("watch interrupted", prefix=self._prefix, next_revision=self._next_revision, error=str(failure))
        await anyio.sleep(_RECONNECT_PAUSE_S)
        return None

    async def _open(self) -> None:
        self._door = await self._endpoints.ready_door()
        call = await self._door.open_watch()
        try:
            await answer_of(call.write(self._create_request()))
        except BaseException:
            call.cancel()
            raise
        self._call = call

    def _close(self) -> None:
        if self._call is not None:
            self._call.cancel()
        self._door = self._call = None
        self._is_silent = False

    async def _read(self, connection: Any, call: Any) -> WatchBatch | None:
        self._heard_at = anyio.current_time()
        try:
            answer = await answer_of(call.read())
        finally:
            self._heard_at = math.inf  # while the consumer is busy, silence is not the server's
        if answer is grpc.aio.EOF:
            raise faults.unreachable(connection.endpoint, "the watch stream ended")
        if answer.canceled:
            raise self._cancelled(connection, answer)
        self._may_authenticate = True
        if answer.events:
            self._next_revision = answer.events[-1].kv.mod_revision + 1
            self._shown.note(self._next_revision - 1)
        elif answer.created and answer.header.revision < self._shown.revision:
            await self._catch_up(self._prefix)  # the member lags behind, or etcd has lost revisions
        return _batch(answer) if answer.events or not answer.created else None

    def _failure(self, error: Exception) -> StoreError:
        """Return why a stream ended, as one of our errors."""
        if self._is_silent and self._door is not None:
            return faults.unreachable(self._door.endpoint, f"the watch was silent for {SILENCE_S_MAX:g} s")
        if isinstance(error, StoreError):
            return error
        assert self._door is not None, "only what was opened ends"
        if isinstance(error, grpc.aio.AioRpcError):
            return self._door.stream_error(error)
        return faults.unreachable(self._door.endpoint, "the watch stream ended")

    def _create_request(self) -> Any:
        key = self._prefix.encode()
        create = rpc.WatchCreateRequest(key=key, range_end=increment_last_byte(key), start_revision=self._next_revision)
        return rpc.WatchRequest(create_request=create)

    def _cancelled(self, connection: EtcdConnection, answer: Any) -> StoreError:
        if answer.compact_revision:
            return CompactedError(
                f"revision {self._next_revision} of {self._prefix} has been compacted away (the oldest is "
                f"{answer.compact_revision}); read the prefix again"
            )
        known = faults.from_text(answer.cancel_reason, endpoint=connection.endpoint)
        if known is None or (self._may_authenticate and connection.drop_token()):
            # "permission denied" is also etcd's answer to a token that it has forgotten
            self._may_authenticate = False
            return faults.unreachable(connection.endpoint, answer.cancel_reason or "etcd gave the watch up")
        return known


def _batch(answer: Any) -> WatchBatch:
    events = tuple(_event(event) for event in answer.events)
    if not events:
        return WatchBatch((), answer.header.revision, is_progress=True)
    return WatchBatch(events, events[-1].mod_revision)


def _event(event: Any) -> Event:
    kv = event.kv
    if event.type == _DELETE:
        return Event(kv.key.decode(), None, kv.mod_revision)
    return Event(kv.key.decode(), kv.value, kv.mod_revision, kv.create_revision, kv.lease)
