"""Chunk run: decides which chunks of a dump are read, retried and recorded, and when.

Several threads each run one small Spark job: of one chunk, or of several small tables, for which a job of their own
would cost more than reading them. The main thread hands out chunks, retries failed ones, each in a job of its own, and
records finished ones at most once a second. A table that cannot be copied (a value that its key cannot represent, a
statement that the source rejects) is skipped: its other chunks are not read, and all other tables are copied. If the
run fails or is stopped, it waits for the chunks being read, so that none is lost and nothing runs afterwards. A table
that may have ended the process of an earlier run is read last, and alone (``agent.units.dump_attempts``). A chunk that
loses processes of Spark's again and again ends the run with a fault of this capture, so that another one continues; if
it was read alone because it had done so before, its table is skipped. Where reading is limited, chunks are small, and
are handed out as the limit allows: no task waits on an executor, whose cores others need.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from threading import Event
from typing import Final, TypeGuard

import structlog

from agent.errors import SourceUnreachableError, TableLockedError, WorkerLostError
from agent.pacing import Pace, ReadingStopped
from agent.ports.sink import StagedFile
from agent.ports.snapshot import (
    ChunkToStage,
    DoneChunk,
    DoneChunks,
    DumpOrder,
    DumpSession,
    Plan,
    Staged,
    TablePlan,
    is_of_table,
)
from agent.units.dump_attempts import ENDED_CAPTURES, LOST_WORKERS, DumpAttempts
from agent.units.manifest_group import AnyManifest
from reactor import failpoints
from reactor.errors import Scope, WeirError
from reactor.failpoints import Point

_ATTEMPTS_MAX: Final = 3
_RECORD_PERIOD_S: Final = 1.0
NO_KEY: Final = (
    "it has lost its primary key since the changefeed found it, so its rows cannot be upserted; add one, then copy it: "
    "weir table resync"
)
#: small tables in one job, which takes a second with so many
_TOGETHER_MAX: Final = 64

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Attempt:
    table: TablePlan
    number: int
    attempt: int = 1
    #: how many rows it was thought to have, which are paid for beforehand; 0: whoever reads it pays
    cost: int = 0

    @property
    def table_id(self) -> int:
        return self.table.record.table_id

    def done(self, files: tuple[StagedFile, ...] = (), *, refused: str = "") -> DoneChunk:
        return DoneChunk(self.table_id, self.table.generation, self.number, files, refused=refused)


#: what one job stages
_Group = tuple[_Attempt, ...]


class ChunkRun:
    """One run over a session's plan. Blocking; used once."""

    def __init__(self, order: DumpOrder, session: DumpSession, manifest: AnyManifest) -> None:
        self._order = order
        self._session = session
        self._manifest = manifest
        self._pace = order.pace or Pace()
        self._running: dict[Future[list[Staged]], _Group] = {}
        self._failure: BaseException | None = None
        #: the table that has lost processes, and so ends the run
        self._lost: int | None = None
        self._unrecorded: list[DoneChunk] = []
        self._recorded_at = time.monotonic()
        self._records = 0
        self._refused: dict[int, str] = {}
        self._attempts = DumpAttempts(manifest, order.epoch)
        self._unfit = order.open_sink().unfit([table.record for table in session.plan.tables])

    def run(self, done: DoneChunks, *, stopped: Event, on_done: Callable[[], None]) -> None:
        """Read the chunks missing from ``done`` and add them to it; call ``on_done`` after each, and where reading is
        limited once a second.

        :raises WeirError: a chunk failed for good, or the session is lost.
        """
        self._refused = dict.fromkeys(self._attempts.refused, ENDED_CAPTURES)
        self._refused |= dict.fromkeys(_without_their_key(self._order, self._session.plan), NO_KEY)
        self._refused |= {chunk.table_id: chunk.refused for chunk in done.values() if chunk.refused}
        suspects = self._attempts.suspects
        waiting = deque(
            _Attempt(table, number)
            for table in sorted(self._session.plan.tables, key=lambda table: table.record.table_id in suspects)
            for number in range(table.chunks.count)
            if (table.record.table_id, number) not in done
        )
        try:
            with ThreadPoolExecutor(self._order.parallel, thread_name_prefix="weir-dump") as threads:
                while self._start(threads, waiting, is_stopped=stopped.is_set()):
                    for future in self._finished(stopped):
                        self._take(future, waiting, done)
                        on_done()
                    if self._pace.is_limited:
                        on_done()
                    self._record(is_last=False)
        finally:
            try:
                self._record(is_last=True)
            finally:
                self._attempts.close(self._lost)
        if self._failure is not None:
            raise self._failure

    def _start(self, threads: ThreadPoolExecutor, waiting: deque[_Attempt], *, is_stopped: bool) -> bool:
        """Keep all threads busy, as far as the pace allows; return False when nothing runs any more, or will."""
        goes_on = not is_stopped and self._failure is None
        while waiting and goes_on and len(self._running) < self._order.parallel and not self._pace.seconds_left():
            running = {attempt.table_id for group in self._running.values() for attempt in group}
            if not self._attempts.may_begin(waiting[0].table_id, running):
                break
            group = self._next(waiting)
            wanted = {attempt.table_id for attempt in group}.difference(self._refused)
            if wanted:
                self._attempts.begin(wanted, running, (one.table_id for one in waiting))
            group = tuple(replace(attempt, cost=self._cost(attempt.table)) for attempt in group)
            self._pace.spend(sum(attempt.cost for attempt in group))
            self._running[threads.submit(self._stage, group)] = group
        return bool(self._running) or (bool(waiting) and goes_on)

    def _next(self, waiting: deque[_Attempt]) -> _Group:
        """Take a chunk, and if it is a small table others of such behind it, but leave enough for all threads."""
        group = [waiting.popleft()]
        most = min(_TOGETHER_MAX, -(-(len(waiting) + 1) // self._order.parallel)) if self._is_small(group[0]) else 1
        rows = group[0].table.chunks.rows
        while waiting and len(group) < most and self._is_small(waiting[0]):
            rows += waiting[0].table.chunks.rows
            if rows > self._order.chunk_rows:
                break
            group.append(waiting.popleft())
        return tuple(group)

    def _is_small(self, attempt: _Attempt) -> bool:
        is_first = attempt.attempt == 1 and attempt.table_id not in self._attempts.suspects
        is_free = not self._pace.is_limited and not self._session.is_paced(attempt.table)
        return is_first and is_free and attempt.table.chunks.count == 1

    def _cost(self, table: TablePlan) -> int:
        is_free = table.record.table_id in self._refused or self._session.is_paced(table)
        return 0 if is_free else max(table.chunks.rows // table.chunks.count, 1)

    def _finished(self, stopped: Event) -> "Iterable[Future[list[Staged]]]":
        """Wait for a chunk, or until more may be read, but not past the next record."""
        timeout_s = min(self._pace.seconds_left() or _RECORD_PERIOD_S, _RECORD_PERIOD_S)
        if not self._running:
            stopped.wait(timeout_s)
            return ()
        finished, _ = wait(self._running, timeout=timeout_s, return_when=FIRST_COMPLETED)
        return finished

    def _take(self, future: "Future[list[Staged]]", waiting: deque[_Attempt], done: DoneChunks) -> None:
        group = self._running.pop(future)
        error = future.exception()
        if error is not None and len(group) > 1:
            _log.warning("a job failed; its tables are read again, each alone", tables=len(group), error=str(error))
        staged: list[Staged | BaseException] = [error] * len(group) if error else list(future.result())
        for attempt, result in zip(group, staged, strict=False):
            if chunk := self._settle(attempt, result, waiting):
                done[chunk.table_id, chunk.number] = chunk
                self._unrecorded.append(chunk)
        waiting.extendleft(reversed(group[len(staged) :]))

    def _settle(self, attempt: _Attempt, result: Staged | BaseException, waiting: deque[_Attempt]) -> DoneChunk | None:
        """Return the chunk if nothing more is to be done for it."""
        if isinstance(result, tuple):
            if attempt.cost:
                # what a filter left out was read too, so fewer rows than estimated are no reason to read faster
                self._pace.spend(max(sum(file.rows for file in result) - attempt.cost, 0))
            return attempt.done(result, refused=self._refused.get(attempt.table_id, ""))
        if isinstance(result, ReadingStopped):
            return None  # a part of a chunk is none
        if self._is_worth_another(result, attempt):
            name = attempt.table.schema.qualified_name
            _log.info("a chunk is read again", table=name, chunk=attempt.number, error=str(result))
            waiting.append(_Attempt(attempt.table, attempt.number, attempt.attempt + 1))
        elif reason := self._reason(result, attempt.table_id):
            return self._refuse(attempt, reason)
        elif self._failure is None:
            self._failure = self._explained(result)
            if _is_loss(self._failure):
                self._failure.scope, self._lost = Scope.CAPTURE, attempt.table_id
        return None

    def _reason(self, error: BaseException, table_id: int) -> str:
        """Return why the table is skipped; empty if the error is not its own."""
        if _is_loss(error) and table_id in self._attempts.suspects:
            return LOST_WORKERS
        return str(error) if self._is_of_table(error) else ""

    def _is_of_table(self, error: BaseException) -> bool:
        """Return whether the error concerns only this table: the session is intact, so the source rejected this table's
        rows. Login failures do not count, since a password may change during the dump."""
        return isinstance(error, WeirError) and is_of_table(error) and self._session.is_alive()

    def _refuse(self, attempt: _Attempt, reason: str) -> DoneChunk:
        table = attempt.table
        if table.record.table_id not in self._refused:
            _log.warning("a table cannot be copied", table=table.schema.qualified_name, error=reason)
        self._refused.setdefault(table.record.table_id, reason)
        return attempt.done(refused=reason)

    def _is_worth_another(self, error: BaseException, attempt: _Attempt) -> bool:
        is_retryable = isinstance(error, WeirError) and error.retryable and error.code != TableLockedError.code
        return is_retryable and attempt.attempt < _ATTEMPTS_MAX and self._failure is None and self._session.is_alive()

    def _explained(self, error: BaseException) -> BaseException:
        if not isinstance(error, WeirError) or self._session.is_alive():
            return error
        lost = SourceUnreachableError(
            "the dump's snapshot was lost with its connection to the source; it continues with a new one by itself"
        )
        lost.__cause__ = error
        return lost

    def _stage(self, group: _Group) -> list[Staged]:
        left_out = [self._is_left_out(attempt) for attempt in group]
        # with the epoch: an abandoned run that still lives must not overwrite files of the next
        chunks = [
            ChunkToStage(attempt.table, attempt.number, f"{self._order.epoch}-{attempt.number}")
            for attempt, is_left_out in zip(group, left_out, strict=True)
            if not is_left_out
        ]
        results = iter(self._session.stage(chunks) if chunks else ())
        if chunks:
            failpoints.reach(Point.DUMP_STAGED)
        staged: list[Staged] = []
        for is_left_out in left_out:
            result = () if is_left_out else next(results, None)
            if result is None:
                break
            staged.append(result)
        return staged

    def _is_left_out(self, attempt: _Attempt) -> bool:
        """Return whether another chunk of the table was refused, or the sink cannot have the table; it says so when it
        is opened."""
        return attempt.table_id in self._refused or attempt.table_id in self._unfit

    def _record(self, *, is_last: bool) -> None:
        """Write finished chunks to the manifest, if they are valid."""
        now = time.monotonic()
        if self._unrecorded and (is_last or now - self._recorded_at >= _RECORD_PERIOD_S):
            self._session.verify()
            self._manifest.write_done(self._order.epoch, self._records, self._unrecorded)
            self._records += 1
            self._unrecorded, self._recorded_at = [], now


def _without_their_key(order: DumpOrder, plan: Plan) -> set[int]:
    """Return the tables that had a key when they were found, and have none where they are read."""
    if not order.sink_mode.is_keyed:
        return set()
    had_one = {record.table_id for record in order.tables if record.key}
    return {table.record.table_id for table in plan.tables if not table.record.key} & had_one


def _is_loss(error: BaseException) -> TypeGuard[WeirError]:
    return isinstance(error, WeirError) and error.code == WorkerLostError.code
