"""Binlog stream: reads raw blocks from the socket into arenas, splits them in place, and returns them as chunks.

Blocking, driven by one thread: ``read`` until something is due, then ``take_chunk`` when the driver decides or has to:
because the arena is full, or because a table definition arrived, after which nothing is read until the chunk that
carries it is taken. ``agent.units.sync`` decides when a segment ends and what is durable. Rows are not parsed here.

Why it sleeps: a reader that waits on the socket is woken for every commit. Sleeping 5 ms between reads while little
arrives halved the CPU time at 2,000 commits/s, without more load for the server; 15 ms saved little more. A block of
64 KiB means that the server has much to send, and then there is no sleep.

Three layers: this one moves bytes (from the socket, from a compressed transaction, from one arena to the next),
``split`` walks over events, ``control_events`` handles everything but rows.
"""

import time
from collections.abc import Callable, Collection, Sequence

from agent.errors import SourceUnreachableError
from agent.kernels.jit import Ints
from agent.kernels.row_cells import COMMIT_TS, SEQ
from agent.rows.arena import Arena, LogChunk
from agent.rows.schema import TableSchema
from agent.sources.common.blocks import receive_all
from agent.sources.mysql.binlog import crc, split, txn
from agent.sources.mysql.binlog.control_events import Hold, RareEvents, Reread, Written
from agent.sources.mysql.binlog.declarations import Declarations
from agent.sources.mysql.binlog.progress import Progress
from agent.sources.mysql.binlog.request import request_binlog
from agent.sources.mysql.binlog.reread import Reader
from agent.sources.mysql.binlog.rolled_back import RolledBack
from agent.sources.mysql.ddl.copies.memory import FileBegin
from agent.sources.mysql.ddl.event import DdlEvent
from agent.sources.mysql.position.positions import BinlogPosition, SourcePosition
from agent.sources.mysql.server.connection import Connection
from reactor.ids import Ts
from reactor.records.tables.schema_change import DdlRecord

_BLOCK_BYTES = 1 << 20
#: after a read of at least this size, more is expected: do not sleep
_BUSY_BYTES = 1 << 16
_PAUSE_S = 0.005
_HEARTBEAT_S = 1.0
_PACKET_HEAD, _LONGEST, _FRAME = 4, 0xFFFFFF, 5


def _nobody_knows(schema_name: str, name: str) -> None:
    return None


def _nothing_changes(event: DdlEvent) -> None:
    return None


def _nobody_is_held(names: Sequence[tuple[str, str]], reason: str, ts: Ts) -> None:
    return None


def _nothing_is_written(statement: str, database: str) -> Sequence[tuple[str, str]]:
    return ()


def _nothing_is_known(at: Ts) -> str:
    return ""


def _nothing_is_prepared(name: str, at: BinlogPosition | None, before: BinlogPosition) -> Reader:
    raise AssertionError("it would be read over another connection")


class BinlogStream:
    """One run of a binlog dump from ``position``.

    ``is_wanted`` returns, by schema and name, whether a table is replicated; ``describe`` makes a schema of a table
    map's body (and may raise, to end this run); ``known`` returns the schema of a table that the binlog has not
    declared yet; ``interpret`` returns the effect of a DDL statement on replicated tables, None if there is none;
    ``memory`` returns what the next run has to know of such statements if it begins at a Ts.
    ``hold``, ``written`` and ``begin_file``: see ``control_events``. ``rolled_back`` is passed from run to run.
    ``reread`` reads transactions that were prepared earlier: see ``control_events``. ``folds_names``: the server has
    table names in lower case.
    """

    def __init__(
        self,
        connection: Connection,
        arena: Arena,
        *,
        position: SourcePosition,
        is_wanted: Callable[[str, str], bool],
        describe: Callable[[bytes], TableSchema],
        known: Callable[[str, str], TableSchema | None] = _nobody_knows,
        interpret: Callable[[DdlEvent], DdlRecord | None] = _nothing_changes,
        memory: Callable[[Ts], str] = _nothing_is_known,
        hold: Hold = _nobody_is_held,
        written: Written = _nothing_is_written,
        begin_file: Callable[[FileBegin], bool] = lambda _: True,
        rolled_back: RolledBack | None = None,
        reread: Reread = _nothing_is_prepared,
        folds_names: bool = False,
        pause_s: float = _PAUSE_S,
    ) -> None:
        self._connection = connection
        self._socket = connection.socket
        self._memory = memory
        self._arena = arena
        self._begun = position
        self._state: Ints = txn.new_state(resolved=position.resolved)
        self._tables = crc.make_tables()
        self._declarations = Declarations(is_wanted, describe)
        self._progress = Progress(position, self._state, is_mariadb=connection.is_mariadb)
        self._rare = RareEvents(
            connection.target,
            self._state,
            declarations=self._declarations,
            progress=self._progress,
            rolled_back=rolled_back or RolledBack(),
            known=known,
            interpret=interpret,
            reread=reread,
            hold=hold,
            written=written,
            begin_file=begin_file,
            folds_names=folds_names,
        )
        #: inner readers, read before the rest of the server's bytes
        self._inside: Reader | None = None
        self._waiting = b""
        self._clock_ahead_s = 0.0
        self._pause_s = pause_s
        self._paused_until = 0.0
        self.bytes_read = 0

    def start(self, *, server_id: int, by_gtid: bool = False, heartbeat_s: float = _HEARTBEAT_S) -> None:
        """Request everything after the position, as replica ``server_id``: by file and offset, or by the GTID set.

        :raises SourceError: the server refuses; an invalid position is reported by the first ``read``.
        """
        ((clock,),) = self._connection.query("SELECT UNIX_TIMESTAMP(NOW(6))")
        self._clock_ahead_s = float(clock or 0) - time.time()
        request_binlog(self._connection, self._begun, server_id=server_id, by_gtid=by_gtid, heartbeat_s=heartbeat_s)

    def doubt_prepared(self, keys: Collection[str], until: Ts) -> None:
        """See ``prepared``."""
        self._progress.prepared.doubt(keys, until)

    @property
    def resolved_ts(self) -> Ts:
        return Ts(int(self._state[txn.RESOLVED]))

    @property
    def complete_rows(self) -> int:
        """Number of rows events in the arena that belong to finished transactions."""
        return int(self._state[txn.DONE_ROWS])

    @property
    def wants_reply(self) -> bool:
        """False: a binlog dump requests no replies."""
        return False

    @property
    def is_full(self) -> bool:
        """Whether a chunk has to be taken before more can be read."""
        return self._has_ddl or self._arena.free_bytes == 0 or int(self._state[txn.ROWS]) == len(self._arena.rows)

    @property
    def transactions(self) -> int:
        """Number of transactions begun so far."""
        return int(self._state[txn.TXNS])

    def position(self) -> SourcePosition:
        """Return where to resume after the resolved transactions."""
        return self._progress.position()

    def read(self, *, timeout_s: float) -> bool:
        """Wait for bytes and split them; return False if none arrived in time.

        :raises SourceError: the connection is lost, or the server ended the stream.
        :raises StreamRestart: rows of a transaction that were cut have been rolled back.
        """
        assert not self.is_full, "the arena is full: take a chunk first"
        if not self._take_waiting():
            pause_s = min(self._paused_until - time.monotonic(), timeout_s)
            if pause_s > 0:
                time.sleep(pause_s)
            count = self._receive(timeout_s=max(timeout_s, 0.001))
            if count == 0:
                return False
            self._paused_until = 0.0 if count >= _BUSY_BYTES else time.monotonic() + self._pause_s
            self.bytes_read += count
        self._split()
        return True

    def take_chunk(self, successor: Arena) -> LogChunk:
        """Return everything up to the last finished transaction, and continue in ``successor``.

        If the arena is full of one open transaction, return a part of it. A chunk for a table definition may have no
        rows.

        :raises SourceError: the binlog's events are in an impossible order.
        """
        state, arena = self._state, self._arena
        is_complete = bool(state[txn.DONE_ROWS] > 0) or self._has_ddl
        rows = int(state[txn.DONE_ROWS if is_complete else txn.ROWS])
        assert rows > 0 or is_complete, "there is nothing to cut"
        end = int(state[txn.DONE_POS if is_complete else txn.POS])
        cut = self._describe_cut(rows, is_complete=is_complete)
        successor.take_rest(arena, from_byte=end, from_row=rows, rows=int(state[txn.ROWS]))
        self._arena = successor
        state[txn.ROWS] -= rows
        if not is_complete:
            self._rare.dropping.on_part(last=int(arena.rows[rows - 1, SEQ]) >> split.SEQ_SHIFT)
        self._rebase(end)
        # after a definition, or when the lines were full, moved bytes may contain whole events
        self._split()
        return cut

    def progress(self) -> LogChunk:
        """Return a chunk without events that reports progress; only if no finished transaction is in the arena."""
        assert self.complete_rows == 0, "events must be cut before their position is passed on"
        ts, position, memory = self.resolved_ts, self.position().to_json(), self._memory(self.resolved_ts)
        return LogChunk(None, 0, [], ts, ts, ts, self._resolved_time, True, position, memory)

    def report(self, durable: Ts, *, ask_reply: bool) -> None:
        """Do nothing: the server keeps its binlog by its own settings."""

    @property
    def _has_ddl(self) -> bool:
        """Return whether a definition waits for its chunk, and no transaction is open."""
        return bool(self._rare.ddl) and self._state[txn.IN_TXN] == txn.CLOSED

    @property
    def _resolved_time(self) -> float:
        return int(self._state[txn.RESOLVED_TIME]) / 1e6

    def _describe_cut(self, rows: int, *, is_complete: bool) -> LogChunk:
        arena = self._arena
        ddl = self._rare.take_ddl(self.resolved_ts) if is_complete else ()
        if not (rows or ddl):  # a definition whose transaction has not ended, though none is open
            raise self._rare.out_of_order("a schema change outside of a transaction")
        times = [Ts(int(arena.rows[row, COMMIT_TS])) for row in (0, rows - 1)] if rows else []
        times += [record.ts for record in ddl]
        return LogChunk(
            arena=arena,
            rows=rows,
            schemas=self._declarations.schemas,
            first_ts=min(times),
            last_ts=max(times),
            resolved_ts=self.resolved_ts,
            resolved_time=self._resolved_time,
            is_complete=is_complete,
            position=self.position().to_json(),
            attachment=self._memory(self.resolved_ts),
            ddl=ddl,
        )

    def _take_waiting(self) -> bool:
        """Read bytes that are available at once: of a compressed or reread transaction, then those that had arrived
        after it."""
        arena = self._arena
        view = arena.room(_BLOCK_BYTES)
        if self._inside is not None:
            count = self._inside.read_into(view)
            if count == 0:
                self._come_out()
                return True
        else:
            count = min(len(view), len(self._waiting))
            view[:count] = self._waiting[:count]
            self._waiting = self._waiting[count:]
        arena.filled += count
        return count > 0

    def _receive(self, *, timeout_s: float) -> int:
        """Receive available bytes into the arena, up to a block; return their number."""
        try:
            with self._arena.room(_BLOCK_BYTES) as view:
                count = receive_all(self._socket, view, timeout_s=timeout_s)
        except OSError as error:
            raise self._rare.ended() from error
        self._arena.filled += count
        return count

    def _split(self) -> None:
        """Split all complete events; remove those that are not needed from a full arena."""
        self._split_events()
        while self._make_room():
            self._split_events()

    def _split_events(self) -> None:
        self._state[txn.NOW] = int((time.time() + self._clock_ahead_s) * 1e6)
        while not self._has_ddl:
            declared, arena = self._declarations, self._arena
            outcome = split.split(
                self._tables,
                arena.data,
                arena.filled,
                self._state,
                declared.maps,
                declared.bodies,
                self._progress.gtids,
                arena.rows,
            )
            if outcome == txn.RARE:
                self._handle_rare()
            elif outcome == txn.GTIDS_FULL:
                self._progress.drain()
            elif outcome in (txn.NEED_MORE, txn.ROWS_FULL) or (outcome == txn.LONG_PACKET and not self._join_packets()):
                return
            elif outcome != txn.LONG_PACKET:
                raise self._fault(outcome)

    def _handle_rare(self) -> None:
        if (inside := self._rare.handle(self._arena)) is not None:
            self._go_inside(inside)
        if self._state[txn.IN_TXN] == txn.CLOSED:
            self._state[txn.DONE_POS] = self._state[txn.POS]
            self._state[txn.DONE_ROWS] = self._state[txn.ROWS]

    def _fault(self, outcome: int) -> SourceUnreachableError:
        if outcome == txn.BAD_CHECKSUM:
            return self._rare.damaged()
        return self._rare.out_of_order() if outcome == txn.OUT_OF_ORDER else self._rare.malformed()

    def _go_inside(self, inside: Reader) -> None:
        """Replace the event that contains others, and everything after it, by a reader of the inner events."""
        arena, state = self._arena, self._state
        assert self._inside is None or state[txn.POS] == arena.filled, "only the last inner event can contain others"
        self._inside = inside
        self._waiting = arena.data[int(state[txn.POS]) : arena.filled].tobytes() + self._waiting
        arena.filled = int(state[txn.RARE_POS]) - (0 if state[txn.BARE] else _FRAME)
        state[txn.POS] = arena.filled
        state[txn.BARE] = 1

    def _come_out(self) -> None:
        if self._state[txn.POS] != self._arena.filled:
            raise self._rare.malformed()
        self._state[txn.BARE] = 0
        self._inside = None

    def _join_packets(self) -> bool:
        """Join the packets of an event of 16 MiB or more in place, if all have arrived."""
        arena = self._arena
        data, at = arena.data, int(self._state[txn.POS])
        pieces: list[tuple[int, int]] = []
        while not pieces or pieces[-1][1] - pieces[-1][0] == _LONGEST:
            if at + _PACKET_HEAD > arena.filled:
                return False
            start = at + _PACKET_HEAD
            at = start + int.from_bytes(data[at : at + 3].tobytes(), "little")
            pieces.append((start, at))
        if at > arena.filled:
            return False
        for start, end in reversed(pieces):
            data[at - (end - start) : at] = data[start:end].copy()
            at -= end - start
        self._state[txn.LONG] = pieces[-1][1] - at
        self._state[txn.POS] = at - _PACKET_HEAD
        return True

    def _make_room(self) -> bool:
        """Make room in a full arena that has no row to cut: drop skipped bytes, or grow for a giant event. Return
        whether there is room for lines again, as whole events may have waited for it."""
        if not self.is_full or self._has_ddl:
            return False
        is_dropped = self._rare.dropping.on_full()
        if self._state[txn.ROWS] == 0:
            self._rebase(self._arena.make_room(int(self._state[txn.POS])))
        return is_dropped

    def _rebase(self, cut_at: int) -> None:
        self._state[txn.POS] -= cut_at
        self._state[txn.DONE_POS] = self._state[txn.DONE_ROWS] = 0
