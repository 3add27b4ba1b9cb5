"""Capture actor: one membership of the cluster after the other, until a message asks it to leave.

    start ─► membership ─► session lost ─► next membership, under a new id (two at once, then one in 20 s)
                  └── Leave: hand over spans and workers, unregister, end

A bug that ends a membership is a crash: nothing of it runs any more, and the restarted actor begins another one under a
new id, as after a lost session. An error that requires intervention (etcd refuses, no Java, foreign log storage) is no
crash: it is passed to ``fail``, and ends the capture.
"""

import math
from collections import deque
from dataclasses import dataclass

import anyio
import structlog

from capture.actors.actor import Context
from capture.member.membership import Base, Membership, live
from reactor.errors import LeaseExpiredError, SessionDoneError, StoreError, WeirError
from reactor.store.port import MetaStore

_LIVES_BURST = 2
_LIFE_INTERVAL_S = 20.0
#: between two attempts at a membership; while etcd is unavailable they end before anyone has seen them
_ATTEMPT_INTERVAL_S = 1.0
#: how long the first membership is attempted; an etcd that elects a leader or waits for its disk answers within it
_FIRST_JOIN_TIMEOUT_S = 60.0

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class LeaveCluster:
    """Hand over spans and workers, unregister; the actor ends. Answered when it has left."""


@dataclass(slots=True)
class CaptureMemory:
    """The state that survives a crash. ``membership``: the current one, None between two. ``absence_reason``: why the
    last one ended, or did not begin; empty if unknown."""

    ready: anyio.Event
    leaving: anyio.Event
    membership: Membership | None = None
    failure: Exception | None = None
    absence_reason: str = ""


class CaptureActor:
    """One instance of the actor."""

    def __init__(self, base: Base, client: MetaStore, state: CaptureMemory) -> None:
        self._base = base
        self._client = client
        self._state = state
        self._context: Context | None = None
        self._lives: deque[float] = deque(maxlen=_LIVES_BURST)
        self._tried_at = -math.inf
        self._started_at = 0.0

    async def on_start(self, context: Context) -> None:
        self._context = context
        context.start(self._work, "memberships")

    async def handle(self, message: LeaveCluster) -> None:
        self._state.leaving.set()
        if self._state.membership is not None:
            await self._state.membership.leave()

    async def _work(self) -> None:
        assert self._context is not None
        try:
            await self._live_on()
        except Exception as error:
            if not isinstance(error, WeirError) and self._state.ready.is_set():
                raise
            self._state.failure = error
        self._context.stop()

    async def _live_on(self) -> None:
        """Run one membership after the other, until asked to leave."""
        state = self._state
        self._started_at = anyio.current_time()
        while not state.leaving.is_set():
            await self._wait_turn()
            if state.leaving.is_set():
                return
            try:
                async with live(self._base, self._client) as membership:
                    self._lives.append(anyio.current_time())
                    state.membership, state.absence_reason = membership, ""
                    state.ready.set()
                    if not state.leaving.is_set():  # it may have been asked to leave while this membership began
                        await membership.wait_end()
            except (SessionDoneError, LeaseExpiredError) as error:  # etcd may know before the session does
                state.absence_reason = str(error)
                _log.warning("session lost: this capture starts again", reason=str(error))
            except StoreError as error:
                if not error.retryable or self._has_failed_to_join():
                    raise
                state.absence_reason = str(error)
                _log.warning("the metadata store failed: this capture starts again", reason=str(error))
            finally:
                state.membership = None

    def _has_failed_to_join(self) -> bool:
        return not self._state.ready.is_set() and anyio.current_time() >= self._started_at + _FIRST_JOIN_TIMEOUT_S

    async def _wait_turn(self) -> None:
        """A capture that keeps losing its session must not flood the cluster with new members."""
        not_before = self._tried_at + _ATTEMPT_INTERVAL_S
        if len(self._lives) == _LIVES_BURST:
            not_before = max(not_before, self._lives[0] + _LIFE_INTERVAL_S)
        with anyio.move_on_at(not_before):
            await self._state.leaving.wait()
        self._tried_at = anyio.current_time()
