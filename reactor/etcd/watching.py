"""One watch across as many streams as it takes.

It goes on behind the last event it has handed over, on another server if need be. A stream that is silent for a
second is asked how far it is; one that stays silent for ten is given up. The position never comes from such progress
answers, which may overtake events before etcd 3.5.8.
"""

import asyncio
import math
from collections.abc import AsyncGenerator
from typing import Any

import anyio
import grpc
import structlog
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from reactor.client import Event, WatchBatch
from reactor.errors import CompactedError, EtcdError, EtcdUnreachableError
from reactor.etcd import faults
from reactor.etcd.door import Door
from reactor.etcd.endpoints import Endpoints
from reactor.etcd.stubs import PROGRESS_REQUEST, increment_last_byte, rpc
from reactor.etcd.waiting import answer_of

PROGRESS_INTERVAL_S = 1.0
SILENCE_S_MAX = 10.0
_RECONNECT_PAUSE_S = 0.1
#: mvccpb.Event.DELETE
_DELETE = 1

_log = structlog.get_logger()


class Watching:
    """``run`` fills a stream until the watch is impossible; ``batches`` empties it and says why it ended."""

    def __init__(self, endpoints: Endpoints, prefix: str, *, start_revision: int) -> None:
        self._endpoints = endpoints
        self._prefix = prefix
        self._next_revision = start_revision
        self._heard_at = math.inf
        self._may_authenticate = True
        self._failure: EtcdError | None = None

    async def run(self, send: MemoryObjectSendStream[WatchBatch]) -> None:
        async with send:
            try:
                while True:
                    await self._stream_or_pause(send)
            except EtcdError as error:
                self._failure = error

    async def batches(self, receive: MemoryObjectReceiveStream[WatchBatch]) -> AsyncGenerator[WatchBatch, None]:
        """:raises CompactedError: what comes next is no longer there.
        :raises EtcdAuthError: this user may not watch.
        """
        async for batch in receive:
            yield batch
        raise self._failure or EtcdUnreachableError("this etcd client is closed; open a new one")

    async def _stream_or_pause(self, send: MemoryObjectSendStream[WatchBatch]) -> None:
        try:
            door = await self._endpoints.ready_door()
            try:
                await self._stream(door, send)
            except EtcdUnreachableError:
                self._endpoints.leave(door)
                raise
        except EtcdUnreachableError as error:
            _log.info("watch interrupted", prefix=self._prefix, next_revision=self._next_revision, error=str(error))
            await anyio.sleep(_RECONNECT_PAUSE_S)

    async def _stream(self, door: Door, send: MemoryObjectSendStream[WatchBatch]) -> None:
        """One stream to its end, which is always an error, kept out of the task group that would wrap it."""
        call = await door.open_watch()
        failure: EtcdError | None = None
        try:
            async with anyio.create_task_group() as tasks:
                try:
                    await answer_of(call.write(self._create_request()))
                    tasks.start_soon(self._ask_progress, call)
                    await self._read(door, call, send)
                except grpc.aio.AioRpcError as error:
                    failure = door.stream_error(error)
                except asyncio.InvalidStateError:
                    failure = faults.unreachable(door.endpoint, "the watch stream ended")
                except EtcdError as error:
                    failure = error
                tasks.cancel_scope.cancel()
        finally:
            call.cancel()
        if failure is not None:
            raise failure

    async def _read(self, door: Door, call: Any, send: MemoryObjectSendStream[WatchBatch]) -> None:
        while True:
            answer = await self._next_answer(door, call)
            if answer.canceled:
                raise self._cancelled(door, answer)
            self._may_authenticate = True
            self._heard_at = math.inf  # while the reader of the batches takes its time, silence is ours
            if answer.events or not answer.created:
                await send.send(_batch(answer))
            if answer.events:
                self._next_revision = answer.events[-1].kv.mod_revision + 1

    async def _next_answer(self, door: Door, call: Any) -> Any:
        self._heard_at = anyio.current_time()
        with anyio.move_on_after(SILENCE_S_MAX):
            answer = await answer_of(call.read())
            if answer is grpc.aio.EOF:
                raise faults.unreachable(door.endpoint, "the watch stream ended")
            return answer
        raise faults.unreachable(door.endpoint, f"the watch was silent for {SILENCE_S_MAX:g} s")

    async def _ask_progress(self, call: Any) -> None:
        while True:
            await anyio.sleep(PROGRESS_INTERVAL_S)
            if anyio.current_time() - self._heard_at >= PROGRESS_INTERVAL_S:
                try:
                    await answer_of(call.write(PROGRESS_REQUEST))
                except (grpc.aio.AioRpcError, asyncio.InvalidStateError, EtcdUnreachableError):
                    return  # the stream is over; its reader says why

    def _create_request(self) -> Any:
        key = self._prefix.encode()
        create = rpc.WatchCreateRequest(key=key, range_end=increment_last_byte(key), start_revision=self._next_revision)
        return rpc.WatchRequest(create_request=create)

    def _cancelled(self, door: Door, answer: Any) -> EtcdError:
        if answer.compact_revision:
            return CompactedError(
                f"revision {self._next_revision} of {self._prefix} has been compacted away (the oldest is "
                f"{answer.compact_revision}); read the prefix again"
            )
        known = faults.from_text(answer.cancel_reason, endpoint=door.endpoint)
        if known is None or (self._may_authenticate and door.drop_token()):
            # "permission denied" is also what etcd says of a token that it has forgotten
            self._may_authenticate = False
            return faults.unreachable(door.endpoint, answer.cancel_reason or "etcd gave the watch up")
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
