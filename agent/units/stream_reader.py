"""Stream reader: a sync unit's thread that reads the stream, divides it into chunks, and acknowledges positions.

A chunk ends when the arena is full, or when the oldest finished event has waited long enough *and* no earlier chunk is
still on its way into the log, so segments grow automatically while the log's storage is slow. When no arena is free it
stops reading (backpressure) but continues to report, so the server neither disconnects nor runs ahead.
"""

import operator
import threading
import time
from collections.abc import Callable

from agent.errors import SourceUnreachableError
from agent.ports.source import Stream
from agent.rows.arena import Arena, ArenaPool, LogChunk
from agent.settings import SyncSettings
from reactor.ids import Ts

#: poll interval while only the log delays a chunk
_PENDING_CHECK_S = 0.02


class StreamReader:
    """``run`` is the thread's; the other methods may be called from any thread.

    ``deliver`` takes over a chunk and its arena; ``settled`` must be called once for each when it is durable.
    ``next_quiet_at``: see ``agent.log.quiet.QuietMoves.next_at``.
    """

    def __init__(
        self,
        stream: Stream,
        pool: ArenaPool,
        *,
        durable_ts: Ts,
        deliver: Callable[[LogChunk], None],
        settings: SyncSettings,
        next_quiet_at: Callable[[float, float], float] = operator.add,
    ) -> None:
        self._stream = stream
        self._pool = pool
        self._deliver = deliver
        self._settings = settings
        self._next_quiet_at = next_quiet_at
        self._stopping = threading.Event()
        self._durable_ts = durable_ts
        self._pending = 0
        self._pending_lock = threading.Lock()
        now = time.monotonic()
        self._complete_since: float | None = None
        self._heard_at = self._delivered_at = now
        self._report_at = now
        self._is_quiet = True

    def stop(self) -> None:
        """Make ``run`` return soon."""
        self._stopping.set()

    def settled(self, durable_ts: Ts) -> None:
        """Note that a chunk is in the log: the server may discard everything up to ``durable_ts``."""
        with self._pending_lock:
            self._pending -= 1
        self._durable_ts = durable_ts

    def run(self) -> None:
        """Read until stopped.

        :raises SourceError: the stream ended or was lost.
        :raises StreamRestart: the stream must be reopened.
        """
        while not self._stopping.is_set():
            self._read()
            if self._must_cut():
                self._cut()
            elif self._is_progress_due():
                self._send(self._stream.progress())
            self._report_if_due()

    def _read(self) -> None:
        if self._stream.is_full:
            return
        now = time.monotonic()
        if self._stream.read(timeout_s=self._wait_s(now)):
            self._heard_at = time.monotonic()
            self._is_quiet = False
        elif now - self._heard_at > self._settings.silence_s:
            raise SourceUnreachableError(f"the source was silent for {self._settings.silence_s:g} s; connecting again")
        if self._complete_since is None and self._stream.complete_rows:
            self._complete_since = time.monotonic()

    def _wait_s(self, now: float) -> float:
        """Return how long to wait for the next due action."""
        due = min(self._report_at, self._progress_at()) if self._is_idle else self._report_at
        if self._complete_since is not None:
            cut_at = self._complete_since + self._settings.segment_age_s
            due = min(due, max(cut_at, now + _PENDING_CHECK_S) if self._pending else cut_at)
        return max(0.0, due - now)

    def _must_cut(self) -> bool:
        if self._stream.is_full:
            return True
        if self._complete_since is None or self._pending:
            return False
        return time.monotonic() - self._complete_since >= self._settings.segment_age_s

    def _is_progress_due(self) -> bool:
        return self._is_idle and time.monotonic() >= self._progress_at()

    @property
    def _is_idle(self) -> bool:
        return self._complete_since is None and not self._pending

    def _progress_at(self) -> float:
        return self._next_quiet_at(self._delivered_at, self._settings.progress_s)

    def _cut(self) -> None:
        successor = self._free_arena()
        if successor is None:
            return
        cut = self._stream.take_chunk(successor)
        self._complete_since = time.monotonic() if self._stream.complete_rows else None
        self._send(cut)

    def _free_arena(self) -> Arena | None:
        """Wait for a free arena; None if the unit is stopped meanwhile."""
        while not self._stopping.is_set():
            if arena := self._pool.take(timeout_s=self._settings.segment_age_s):
                self._heard_at = time.monotonic()  # a paused reader cannot tell whether the server is silent
                return arena
            self._report_if_due()
        return None

    def _send(self, cut: LogChunk) -> None:
        with self._pending_lock:
            self._pending += 1
        self._delivered_at = time.monotonic()
        self._deliver(cut)

    def _report_if_due(self) -> None:
        now = time.monotonic()
        if now < self._report_at and not self._stream.wants_reply:
            return
        # only on a quiet stream the server must be asked for its position
        self._stream.report(self._durable_ts, ask_reply=self._is_quiet)
        self._report_at = now + self._settings.progress_s
        self._is_quiet = True
