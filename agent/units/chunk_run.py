"""Chunk run: decides which chunks of a dump are read now, which again, and what is written down when.

Several threads each hold one small Spark job; this one hands out chunks, tries failed ones again, and records what is
finished at most once a second. When the run fails or is stopped, chunks that are being read are still waited for, so
that none is lost and nothing runs on.
"""

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from threading import Event
from typing import Final

import structlog

from agent.errors import SourceUnreachableError
from agent.ports.snapshot import DoneChunk, DoneChunks, DumpOrder, DumpSession, TablePlan
from agent.units.manifest import Manifest
from reactor import failpoints
from reactor.errors import WeirError
from reactor.failpoints import Point

_ATTEMPTS_MAX: Final = 3
_RECORD_PERIOD_S: Final = 1.0

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Attempt:
    table: TablePlan
    number: int
    attempt: int = 1


class ChunkRun:
    """One run over a session's plan. Blocking; used once."""

    def __init__(self, order: DumpOrder, session: DumpSession, manifest: Manifest) -> None:
        self._order = order
        self._session = session
        self._manifest = manifest
        self._running: dict[Future[DoneChunk], _Attempt] = {}
        self._failure: BaseException | None = None
        self._unrecorded: list[DoneChunk] = []
        self._recorded_at = time.monotonic()
        self._records = 0
        self._unfit = order.open_sink().unfit([table.record for table in session.plan.tables])

    def run(self, done: DoneChunks, *, stopped: Event, on_done: Callable[[], None]) -> None:
        """Read the chunks that ``done`` lacks, adding them to it; ``on_done`` after each.

        :raises WeirError: a chunk failed for good, or the session is lost.
        """
        waiting = deque(
            _Attempt(table, number)
            for table in self._session.plan.tables
            for number in range(table.chunks.count)
            if (table.record.table_id, number) not in done
        )
        try:
            with ThreadPoolExecutor(self._order.parallel, thread_name_prefix="weir-dump") as threads:
                while self._start(threads, waiting, is_stopped=stopped.is_set()):
                    finished, _ = wait(self._running, timeout=_RECORD_PERIOD_S, return_when=FIRST_COMPLETED)
                    for future in finished:
                        self._take(future, waiting, done)
                        on_done()
                    self._record(is_last=False)
        finally:
            self._record(is_last=True)
        if self._failure is not None:
            raise self._failure

    def _start(self, threads: ThreadPoolExecutor, waiting: deque[_Attempt], *, is_stopped: bool) -> bool:
        """Keep all threads busy; False when nothing runs any more."""
        while waiting and not is_stopped and self._failure is None and len(self._running) < self._order.parallel:
            attempt = waiting.popleft()
            self._running[threads.submit(self._stage, attempt)] = attempt
        return bool(self._running)

    def _take(self, future: "Future[DoneChunk]", waiting: deque[_Attempt], done: DoneChunks) -> None:
        attempt = self._running.pop(future)
        error = future.exception()
        if error is None:
            chunk = future.result()
            done[chunk.table_id, chunk.number] = chunk
            self._unrecorded.append(chunk)
        elif self._is_worth_another(error, attempt):
            _log.warning(
                "chunk failed", table=attempt.table.schema.qualified_name, chunk=attempt.number, error=str(error)
            )
            waiting.append(_Attempt(attempt.table, attempt.number, attempt.attempt + 1))
        elif self._failure is None:
            self._failure = self._explained(error)

    def _is_worth_another(self, error: BaseException, attempt: _Attempt) -> bool:
        is_retryable = isinstance(error, WeirError) and error.retryable
        return is_retryable and attempt.attempt < _ATTEMPTS_MAX and self._failure is None and self._session.is_alive()

    def _explained(self, error: BaseException) -> BaseException:
        if not isinstance(error, WeirError) or self._session.is_alive():
            return error
        lost = SourceUnreachableError(
            "the dump's snapshot was lost with its connection to the source; it continues with a new one by itself"
        )
        lost.__cause__ = error
        return lost

    def _stage(self, attempt: _Attempt) -> DoneChunk:
        table, number = attempt.table, attempt.number
        if table.record.table_id in self._unfit:  # the sink has no place for it, and says so when it is opened
            return DoneChunk(table.record.table_id, table.generation, number, ())
        # The epoch: a run that was given up but still lives must not write over files of the next.
        files = self._session.stage(table, number, f"{self._order.epoch}-{number}")
        failpoints.reach(Point.DUMP_STAGED)
        return DoneChunk(table.record.table_id, table.generation, number, files)

    def _record(self, *, is_last: bool) -> None:
        """Write finished chunks down, if they count."""
        now = time.monotonic()
        if self._unrecorded and (is_last or now - self._recorded_at >= _RECORD_PERIOD_S):
            self._session.verify()
            self._manifest.write_done(self._order.epoch, self._records, self._unrecorded)
            self._records += 1
            self._unrecorded, self._recorded_at = [], now
