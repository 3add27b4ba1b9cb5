"""Session: a lease that is kept alive, which makes a capture present and fences it once it has expired.

The session ends as soon as the lease is lost *or can no longer be proven alive*: every keep-alive extends a local
deadline, counted from before the request was sent, so it is never later than the server's. A process that was stopped
and resumes after its deadline therefore knows at once, before it hears from the server: ``is_done`` compares the clock,
the loop's monotonic one, which advances while a process is stopped.

Code that acts under a session calls ``check`` first, or runs inside ``run``.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

import anyio
import structlog

from reactor.errors import LeaseExpiredError, SessionDoneError, StoreError
from reactor.store.port import MetaStore

T = TypeVar("T")

_REVOKE_TIMEOUT_S = 2.0
#: delay after a failed keep-alive; the client has already tried every endpoint
_RETRY_S = 0.2

_log = structlog.get_logger()


class Session:
    """One lease and its local deadline. Created by ``open_session``."""

    def __init__(self, client: MetaStore, lease: int, *, ttl_s: float, deadline: float) -> None:
        self.lease = lease
        self._client = client
        self._ttl_s = ttl_s
        self._deadline = deadline
        self._done = anyio.Event()

    @property
    def is_done(self) -> bool:
        return self._is_done_at(anyio.current_time())

    def check(self, now: float | None = None) -> None:
        """``now``: the loop's time, if known.

        :raises SessionDoneError: the lease has expired, or may have.
        """
        if self._is_done_at(anyio.current_time() if now is None else now):
            raise SessionDoneError(f"session {self.lease:x} is over: its lease ran out; a new one must be started")

    def _is_done_at(self, now: float) -> bool:
        return now >= self._deadline or self._done.is_set()

    async def run(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run ``work()``, cancelled as soon as the session ends; its errors are raised unchanged.

        :raises SessionDoneError: the session ended first.
        """
        self.check()
        outcome: list[T] = []
        failure: Exception | None = None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._cancel_when_done, tasks.cancel_scope)
            try:
                outcome.append(await work())
            except Exception as error:
                failure = error  # kept out of the task group, which would wrap it
            tasks.cancel_scope.cancel()
        self.check()
        if failure is not None:
            raise failure
        return outcome[0]

    async def _cancel_when_done(self, scope: anyio.CancelScope) -> None:
        await self._done.wait()
        scope.cancel()

    async def keep_alive(self) -> None:
        """Renew the lease until it has expired; then return."""
        try:
            while not self.is_done:
                await anyio.sleep(min(self._ttl_s / 3, self._remaining_s))
                await self._renew()
            _log.warning("lease not renewed in time", lease=f"{self.lease:x}")
        except LeaseExpiredError:
            _log.warning("lease expired", lease=f"{self.lease:x}")
        finally:
            self._done.set()

    async def _renew(self) -> None:
        """Retry until answered or the deadline has passed."""
        has_failed = False
        while not self.is_done:
            try:
                await self._ask()
                return
            except LeaseExpiredError:
                raise
            except StoreError as error:
                if not has_failed:
                    _log.warning("keep-alive failed", lease=f"{self.lease:x}", error=str(error))
                has_failed = True
            await anyio.sleep(min(_RETRY_S, self._remaining_s))

    async def _ask(self) -> None:
        """Send one keep-alive; without an answer the deadline does not move."""
        sent = anyio.current_time()
        with anyio.move_on_after(self._remaining_s):
            self._ttl_s = await self._client.keep_alive(self.lease)
            self._deadline = sent + self._ttl_s

    @property
    def _remaining_s(self) -> float:
        return max(0.0, self._deadline - anyio.current_time())

    async def revoke(self) -> None:
        """Revoke the lease, so that others need not wait until it expires. Best effort."""
        self._done.set()
        with anyio.move_on_after(_REVOKE_TIMEOUT_S, shield=True):
            try:
                await self._client.revoke(self.lease)
            except StoreError as error:
                _log.warning("lease not revoked", lease=f"{self.lease:x}", error=str(error))


@asynccontextmanager
async def open_session(client: MetaStore, *, ttl_s: int = 10) -> AsyncIterator[Session]:
    """Open a session for the block; the lease is revoked at its end. Enter and leave it in one task.

    The block is not interrupted when the session ends: it decides what to stop first.

    :raises StoreError: no lease was granted.
    """
    asked = anyio.current_time()
    lease = await client.grant(ttl_s)
    session = Session(client, lease, ttl_s=ttl_s, deadline=asked + ttl_s)
    failure: Exception | None = None
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(session.keep_alive, name=f"session {lease:x}")
            try:
                yield session
            except Exception as error:
                failure = error  # kept out of the task group, which would wrap it
            tasks.cancel_scope.cancel()
    finally:
        await session.revoke()
    if failure is not None:
        raise failure
