"""Sync unit: moves the replication stream into the change log until cancelled; the only reader of its source.

A *session* is one connection: the source checks that it can resume exactly at the log's position and opens the stream,
one thread reads it (``stream_reader``), and this unit writes each chunk and appends it to the log. After a transient
failure a new session starts, under a new epoch of the log, from the log's resolved Ts. The unit stops if another writer
has taken the log over, or if its position is no longer on the server.

Positions are acknowledged to the server only after the log's head has moved past them.
"""

import operator
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass

import anyio
import anyio.from_thread
import anyio.lowlevel
import anyio.to_thread
import structlog
from anyio.streams.memory import MemoryObjectReceiveStream

from agent.errors import SourceAuthError
from agent.log import attachments, retention, segment
from agent.log.attachments import Attachment
from agent.log.epochs import newest_epoch
from agent.log.head import LogWriter
from agent.log.retention import Needs
from agent.log.segment import SegmentName
from agent.log.storage import LogDirectory
from agent.own_faults import own_fault
from agent.ports.source import Identity, OpenStream, Position, StreamRestart, Streams
from agent.rows.arena import ArenaPool, LogChunk
from agent.rows.batches import SegmentRef
from agent.settings import SyncSettings
from agent.units.stream_attempts import StreamAttempts
from agent.units.stream_reader import StreamReader
from reactor import failpoints
from reactor.errors import WeirError
from reactor.failpoints import Point
from reactor.ids import Ts
from reactor.records.log_head import LogHead
from reactor.records.tables.schema_change import DdlRecord, SchemaChangeKind, TableChange

#: errors of the source as a whole that an administrator cures there (a changed password, a locked role): retried until
#: the source can be read again, and reading continues exactly at the log's position
_PASSING = frozenset({SourceAuthError.code})

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class SyncStatistics:
    """``error``: why no session is running since ``error_since`` (Unix seconds); empty while one reads."""

    is_connected: bool = False
    sessions: int = 0
    segments: int = 0
    rows: int = 0
    resolved_ts: int = 0
    resolved_time: float = 0.0
    error: str = ""
    error_code: str = ""
    error_since: float = 0.0


class SyncUnit:
    """``start`` applies only if the log has no head yet. ``tables``: ids of those that ``streams`` was given. ``needs``
    returns which part of the log is still needed, ``next_quiet_at`` when the head of an idle log moves
    (``agent.log.quiet``). ``on_server`` is called with the server of each stream, before the log has anything of it."""

    def __init__(
        self,
        streams: Streams,
        start: Position,
        *,
        writer: LogWriter,
        directory: LogDirectory,
        needs: Callable[[], Needs],
        tables: Iterable[int] = (),
        settings: SyncSettings | None = None,
        attempts: StreamAttempts | None = None,
        next_quiet_at: Callable[[float, float], float] = operator.add,
        on_server: Callable[[Identity], Awaitable[None]] | None = None,
    ) -> None:
        self._streams = streams
        self._start = start
        self._writer = writer
        self._directory = directory
        self._needs = needs
        self._settings = settings or SyncSettings()
        self._attempts = attempts
        self._next_quiet_at = next_quiet_at
        self._on_server = on_server
        self._tables = frozenset(tables)
        #: those of them that were dropped since
        self._dropped: set[int] = set()
        #: the schema changes that were stored when this connection began. Those that it finds are not kept in memory,
        #: since there is no limit to their number; the next connection reads them from the store
        self._ddl: Sequence[DdlRecord] = ()
        self._is_ddl_stale = True
        self._stored: frozenset[Ts] = frozenset()
        #: those found since that the stream may yield again
        self._found: set[Ts] = set()
        #: the attachment of the head's position
        self._attachment = Attachment()
        self._retention_at = 0.0
        self._sessions = self._segments = self._rows = 0
        self._is_connected = False
        self._failure: WeirError | None = None
        self._failure_at = 0.0

    async def run(self) -> None:
        """Read until cancelled.

        :raises LogFencedError: another sync unit has taken the log over.
        :raises PositionLostError: the server no longer has what comes next.
        :raises StreamEndsCapturesError: it has ended those who have read it.
        :raises WeirError: any other permanent failure.
        """
        newest = await anyio.to_thread.run_sync(newest_epoch, self._directory)
        head = await self._writer.take_over(self._start.ts, position=self._start.text, newest_epoch=newest)
        if self._attempts is None:
            await self._follow()
            return
        await self._attempts.begin(head)
        try:
            await self._follow()
        finally:
            await self._attempts.close()

    async def _follow(self) -> None:
        delay_s = self._settings.reconnect_s
        while True:
            before = self._writer.head.resolved_ts
            try:
                await self._session()
            except StreamRestart:
                delay_s = 0.0
            except WeirError as error:
                if (not error.retryable and error.code not in _PASSING) or own_fault(error) is not None:
                    raise
                delay_s = self._after_failure(error, delay_s, progressed=self._writer.head.resolved_ts > before)
            await anyio.sleep(delay_s)
            await self._writer.renew()

    def statistics(self) -> SyncStatistics:
        head = self._writer.head if self._writer.has_taken_over else LogHead()
        return SyncStatistics(
            is_connected=self._is_connected,
            sessions=self._sessions,
            segments=self._segments,
            rows=self._rows,
            resolved_ts=head.resolved_ts,
            resolved_time=head.resolved_time,
            error=str(self._failure or ""),
            error_code=self._failure.code if self._failure else "",
            error_since=self._failure_at,
        )

    def _after_failure(self, error: WeirError, delay_s: float, *, progressed: bool) -> float:
        if self._failure is None:
            self._failure_at = time.time()
        self._failure = error
        settings = self._settings
        delay_s = settings.reconnect_s if progressed else min(max(2 * delay_s, 0.1), settings.reconnect_max_s)
        _log.warning("sync was interrupted", code=error.code, error=str(error), retry_in_s=delay_s)
        return delay_s

    async def _session(self) -> None:
        """Run one connection until it ends with an error or ``StreamRestart``."""
        if self._is_ddl_stale:
            self._take_ddl(await self._writer.read_ddl())
        with closing(ArenaPool(self._settings.arenas, self._settings.segment_bytes)) as pool:
            opened = await anyio.to_thread.run_sync(self._open, pool)
            try:
                if self._on_server is not None:
                    await self._on_server(opened.server)
                await self._read(opened, pool)
            finally:
                self._is_connected = False
                opened.close()

    def _open(self, pool: ArenaPool) -> OpenStream:
        head = self._writer.head
        arena = pool.take(timeout_s=0.0)
        assert arena is not None, "a new pool has free arenas"
        self._attachment = attachments.read(self._directory, head.attachment)
        return self._streams.open(Position(head.resolved_ts, head.position, self._attachment.text), arena, self._ddl)

    async def _read(self, opened: OpenStream, pool: ArenaPool) -> None:
        settings, head = self._settings, self._writer.head
        # never full: every chunk except those without events holds an arena, and there is only one of the latter at a
        # time
        send, receive = anyio.create_memory_object_stream[LogChunk](settings.arenas + 1)
        stream_reader = StreamReader(
            opened.stream,
            pool,
            durable_ts=head.resolved_ts,
            deliver=lambda cut: anyio.from_thread.run_sync(send.send_nowait, cut),
            settings=settings,
            next_quiet_at=self._next_quiet_at,
        )
        self._sessions += 1
        self._is_connected = True
        failures: list[Exception] = []
        async with send, anyio.create_task_group() as group:
            group.start_soon(self._append_all, receive, stream_reader, pool, opened, failures)
            # chunks made before reading ended are still appended; the error is raised afterwards
            try:
                # a limiter of its own, because the thread runs as long as the session
                await anyio.to_thread.run_sync(stream_reader.run, limiter=anyio.CapacityLimiter(1))
            except (WeirError, StreamRestart) as error:
                failures.append(error)
            except anyio.BrokenResourceError:
                pass  # the other task has failed, and reported why
            finally:
                send.close()
        await anyio.lowlevel.checkpoint_if_cancelled()  # if cancelled, there need not be a failure
        raise failures[0]

    async def _append_all(
        self,
        receive: MemoryObjectReceiveStream[LogChunk],
        stream_reader: StreamReader,
        pool: ArenaPool,
        opened: OpenStream,
        failures: list[Exception],
    ) -> None:
        try:
            async with receive:
                async for cut in receive:
                    await self._append(cut, pool, opened)
                    failpoints.reach(Point.SYNC_MOVED)
                    stream_reader.settled(self._writer.head.resolved_ts)
                    self._failure = None
                    if self._attempts is not None:
                        await self._attempts.note_alive(self._writer.head, is_quiet=cut.arena is None)
                    await self._remove_old()
        except (WeirError, StreamRestart) as error:
            # the reason why reading ends, not a consequence
            failures.insert(0, error)
        finally:
            stream_reader.stop()
            opened.abort()

    async def _append(self, cut: LogChunk, pool: ArenaPool, opened: OpenStream) -> None:
        """Append the chunk. Its schema changes are stored with the head that passes it, or before."""
        written, cut = await self._prepare(cut, pool, opened)
        ddl = self._new_ddl(cut) if cut.ddl else []
        attachment = self._attachment
        if cut.is_complete and cut.attachment != attachment.text:
            attachment = await anyio.to_thread.run_sync(self._attach, cut.attachment)
        if written is None:
            await self._writer.advance(
                cut.resolved_ts,
                resolved_time=cut.resolved_time,
                position=cut.position,
                attachment=attachment.name,
                ddl=ddl,
            )
        else:
            failpoints.reach(Point.SYNC_WRITTEN)
            await self._append_segment(cut, written, attachment, ddl)
        if self._writer.head.attachment == attachment.name:  # else its file may be removed
            self._attachment = attachment
        self._note_dropped(ddl)
        for record in ddl:
            self._found.add(record.ts)
            _log.info("the schema has changed", ts=record.ts, changes=[change.kind.value for change in record.changes])

    def _take_ddl(self, stored: Sequence[DdlRecord]) -> None:
        """Take over what is stored. The record of a dropped table is removed when the log does not reach back to it,
        and the streams would take the table for one that exists."""
        self._note_dropped(stored)
        forgotten = self._dropped.difference(*(record.table_ids for record in stored))
        drops = tuple(TableChange(kind=SchemaChangeKind.DROP, table_id=table) for table in sorted(forgotten))
        self._ddl = [DdlRecord(ts=Ts(1), changes=drops), *stored] if drops else stored
        self._stored, self._found = frozenset(record.ts for record in stored), set()
        self._is_ddl_stale = False

    def _note_dropped(self, ddl: Iterable[DdlRecord]) -> None:
        for record in ddl:
            self._dropped |= record.dropped_ids & self._tables

    def _new_ddl(self, cut: LogChunk) -> list[DdlRecord]:
        """Return the chunk's schema changes that are not stored yet. The stream never repeats one behind the head."""
        self._found = {ts for ts in self._found if ts >= self._writer.head.resolved_ts}
        self._is_ddl_stale = True
        return [record for record in cut.ddl if record.ts not in self._stored and record.ts not in self._found]

    async def _prepare(self, cut: LogChunk, pool: ArenaPool, opened: OpenStream) -> tuple[SegmentRef | None, LogChunk]:
        """Write the chunk's events while the source verifies that the head may pass them."""
        proven: list[LogChunk] = []
        failures: list[WeirError | StreamRestart] = []

        async def prove() -> None:
            try:
                proven.append(await anyio.to_thread.run_sync(opened.prove, cut, abandon_on_cancel=True))
            except (WeirError, StreamRestart) as error:
                failures.append(error)  # kept out of the task group, which would wrap it

        written: SegmentRef | None = None
        async with anyio.create_task_group() as group:
            group.start_soon(prove)
            if cut.arena is not None:
                try:
                    written = await anyio.to_thread.run_sync(self._write, cut, pool)
                except WeirError as error:
                    failures.append(error)
        if failures:
            raise failures[0]
        await anyio.lowlevel.checkpoint_if_cancelled()  # while the events were written: then nothing is proved
        return written, proven[0]

    async def _append_segment(
        self, cut: LogChunk, written: SegmentRef, attachment: Attachment, ddl: list[DdlRecord]
    ) -> None:
        await self._writer.append(
            written,
            is_complete=cut.is_complete,
            resolved_time=cut.resolved_time,
            position=cut.position,
            attachment=attachment.name,
            ddl=ddl,
        )
        self._segments += 1
        self._rows += cut.rows

    def _write(self, cut: LogChunk, pool: ArenaPool) -> SegmentRef:
        head = self._writer.head
        batches = cut.batches()
        assert cut.arena is not None
        pool.give(cut.arena)
        name = SegmentName(head.last_seq + 1, head.epoch, cut.first_ts, cut.last_ts, cut.resolved_ts)
        return segment.write(self._directory, name, batches)

    def _attach(self, text: str) -> Attachment:
        """Write the attachment before the head names it."""
        attachment = Attachment.of(text, epoch=self._writer.head.epoch)
        if attachment.name:
            attachments.write(self._directory, attachment)
        return attachment

    async def _remove_old(self) -> None:
        """At intervals, remove segments that are no longer needed."""
        if time.monotonic() < self._retention_at:
            return
        self._retention_at = time.monotonic() + self._settings.retention_check_s
        entries = await anyio.to_thread.run_sync(self._directory.entries)
        removal = retention.plan(self._writer.head, entries, self._needs(), now=time.time())
        if removal.names:
            await retention.apply(removal, self._writer)
            await anyio.to_thread.run_sync(retention.remove_files, removal, self._directory)
