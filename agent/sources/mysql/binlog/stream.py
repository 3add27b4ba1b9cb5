"""Binlog stream: moves raw blocks from the socket into arenas, has them split in place, and gives them away as chunks.

Blocking, and driven by one thread: ``read`` until something is due, ``cut`` when the driver wants it, or must: because
the arena is full, or because a definition of a table came, behind which nothing is read until the chunk that carries it
has been taken. Nothing here decides when a segment ends or what is durable: that is ``agent.units.sync``. Nothing
here looks into rows either.

Why it sleeps: a reader that waits in the socket is woken for every commit. One that sleeps 5 ms before it reads again,
while little comes, took half of the CPU time at 2,000 commits a second and cost the server no more; with 15 ms little
more was saved. A block of 64 KiB says that the server has much to send, and then nobody sleeps.

Three layers: this one moves bytes (off the socket, out of a compressed transaction, from one arena into the next),
``split`` walks over events, ``control_events`` deals with what is not rows.
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
from agent.sources.mysql.binlog.control_events import Hold, Mentioned, RareEvents, Reread
from agent.sources.mysql.binlog.declarations import Declarations
from agent.sources.mysql.binlog.progress import Progress
from agent.sources.mysql.binlog.request import request_binlog
from agent.sources.mysql.binlog.reread import Reader
from agent.sources.mysql.binlog.rolled_back import RolledBack
from agent.sources.mysql.ddl.event import DdlEvent
from agent.sources.mysql.position.positions import BinlogPosition, SourcePosition
from agent.sources.mysql.server.connection import Connection
from reactor.ids import Ts
from reactor.records.changefeed import DdlRecord

_BLOCK_BYTES = 1 << 20
#: a read this large was not the last one: the next need not wait
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


def _nobody_is_mentioned(statement: str, database: str) -> Sequence[tuple[str, str]]:
    return ()


def _nothing_is_prepared(name: str, at: BinlogPosition | None, before: BinlogPosition) -> Reader:
    raise AssertionError("it would be read over another connection")


class BinlogStream:
    """One run of a binlog dump from ``position`` on.

    ``is_wanted`` says by schema and name which tables are replicated; ``describe`` makes a schema of a table map's body
    (and may raise, to end this run); ``known`` gives the schema of a table that the binlog has not declared yet;
    ``interpret`` says what a definition (CREATE, ALTER, …) does to the tables, None where it does nothing to ours.
    ``hold`` and ``mentioned``: see ``control_events``. ``rolled_back`` goes from one run to the next. ``reread`` brings
    what was prepared a while ago: see ``control_events``. ``folds_names``: tables are in lower case at the server.
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
        hold: Hold = _nobody_is_held,
        mentioned: Mentioned = _nobody_is_mentioned,
        rolled_back: RolledBack | None = None,
        reread: Reread = _nothing_is_prepared,
        folds_names: bool = False,
        pause_s: float = _PAUSE_S,
    ) -> None:
        self._connection = connection
        self._socket = connection.socket
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
            mentioned=mentioned,
            folds_names=folds_names,
        )
        #: what is read before the rest of what the server has sent
        self._inside: Reader | None = None
        self._waiting = b""
        self._clock_ahead_s = 0.0
        self._pause_s = pause_s
        self._paused_until = 0.0
        self.bytes_read = 0

    def start(self, *, server_id: int, by_gtid: bool = False, heartbeat_s: float = _HEARTBEAT_S) -> None:
        """Ask for everything behind the position, as replica ``server_id``: by file and offset, or by the GTID set.

        :raises SourceError: the server refuses; what it thinks of the position comes with the first ``read``.
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
        """Row events at hand that belong to finished transactions."""
        return int(self._state[txn.DONE_ROWS])

    @property
    def wants_reply(self) -> bool:
        """A binlog dump asks for nothing."""
        return False

    @property
    def is_full(self) -> bool:
        """Nothing more can be read before a chunk is taken."""
        return self._has_ddl or self._arena.free_bytes == 0 or int(self._state[txn.ROWS]) == len(self._arena.rows)

    @property
    def transactions(self) -> int:
        """How many have begun so far."""
        return int(self._state[txn.TXNS])

    def position(self) -> SourcePosition:
        """Where to continue behind what has been resolved."""
        return self._progress.position()

    def read(self, *, timeout_s: float) -> bool:
        """Wait for bytes and split them; False when none came in time.

        :raises SourceError: the connection is lost, or the server ended the stream.
        :raises StreamRestart: what was cut of a transaction has been rolled back.
        """
        assert not self.is_full, "there is no room: cut first"
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

    def cut(self, successor: Arena) -> LogChunk:
        """Give away everything up to the last finished transaction and continue in ``successor``.

        When the arena is full of one open transaction, a part of that is given away. A chunk for a definition's sake
        may have no rows.
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
        # behind a definition, or where the lines ran out, whole events may wait in the bytes that moved on
        self._split()
        return cut

    def progress(self) -> LogChunk:
        """A chunk without events: how far the stream is. Only while no finished transaction is at hand."""
        assert self.complete_rows == 0, "events must be cut before their position is passed on"
        ts, position = self.resolved_ts, self.position().to_json()
        return LogChunk(None, 0, [], ts, ts, ts, self._resolved_time, is_complete=True, position=position)

    def report(self, durable: Ts, *, ask_reply: bool) -> None:
        """Nothing: the server keeps its binlog for as long as its settings say, and not for us."""

    @property
    def _has_ddl(self) -> bool:
        """A definition waits for its chunk, and nothing is open."""
        return bool(self._rare.ddl) and self._state[txn.IN_TXN] == txn.CLOSED

    @property
    def _resolved_time(self) -> float:
        return int(self._state[txn.RESOLVED_TIME]) / 1e6

    def _describe_cut(self, rows: int, *, is_complete: bool) -> LogChunk:
        arena = self._arena
        ddl = self._rare.take_ddl(self.resolved_ts) if is_complete else ()
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
            ddl=ddl,
        )

    def _take_waiting(self) -> bool:
        """Bytes that need not be waited for: of a compressed transaction, or one that is read again, and then what had
        come behind it."""
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
        """Bytes put into the arena: what is there, up to a block."""
        try:
            with self._arena.room(_BLOCK_BYTES) as view:
                count = receive_all(self._socket, view, timeout_s=timeout_s)
        except OSError as error:
            raise self._rare.ended() from error
        self._arena.filled += count
        return count

    def _split(self) -> None:
        """Split as far as it goes; events that are not needed leave a full arena again."""
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
        """Take the event that contains others out of the arena, with what lies behind it, and read on in those."""
        arena, state = self._arena, self._state
        assert self._inside is None or state[txn.POS] == arena.filled, "only the last event inside leads elsewhere"
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
        """An event of 16 MiB and more comes in several packets: move their contents together, where all are here."""
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
        """A full arena without a single row to give away: forget what was skipped, or grow for a giant event. Whether
        there is room for lines again, as whole events may have waited for that."""
        if not self.is_full or self._has_ddl:
            return False
        is_dropped = self._rare.dropping.on_full()
        if self._state[txn.ROWS] == 0:
            self._rebase(self._arena.make_room(int(self._state[txn.POS])))
        return is_dropped

    def _rebase(self, cut_at: int) -> None:
        self._state[txn.POS] -= cut_at
        self._state[txn.DONE_POS] = self._state[txn.DONE_ROWS] = 0
