"""Replication stream: moves raw blocks from the socket into arenas, has them split in place, gives them away as chunks.

Blocking, and driven by one thread: ``read`` until something is due, ``take_chunk`` when the driver wants it (or must,
because the arena is full), ``report`` how far the log is durable. Nothing here decides when a segment ends or what is
durable: that is ``agent.units.sync``. Nothing here looks into rows either.

Why it sleeps: PostgreSQL sends every change by itself. A reader that waits in the socket is woken for each, which
costs the server as much as the reader; one that sleeps a little and then takes all there is lets the walsender run. On
two cores with 170-byte rows, sending was 1.5 to 2 times as fast with 15 ms as with 3 ms, for a third of the CPU time.
"""

import struct
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from agent.errors import (
    NEW_POSITION,
    PositionLostError,
    SnapshotLostByGCError,
    SourceError,
    SourceUnreachableError,
)
from agent.kernels.row_cells import COMMIT_TS
from agent.rows.arena import Arena, LogChunk
from agent.rows.schema import TableSchema
from agent.sources.common.blocks import Line, receive_all
from agent.sources.postgres.publication.quiet_changes import QuietChanges
from agent.sources.postgres.publication.sightings import Sightings
from agent.sources.postgres.server.connection import Connection
from agent.sources.postgres.server.lsn import format_lsn
from agent.sources.postgres.server.refusals import parse_error, refusal
from agent.sources.postgres.server.sql import identifier, literal
from agent.sources.postgres.stream import events, split
from agent.sources.postgres.stream.events import Declarations
from agent.sources.postgres.stream.relation_cache import SchemaTracker
from reactor.ids import Ts
from reactor.records.tables.schema_change import DdlRecord

T = TypeVar("T")

#: a read this large left more behind: the next one need not wait
_BLOCK_BYTES = 1 << 20
_PAUSE_S = 0.015
#: the catalog is asked about each changed table of a block; the server hangs up on a reader that is silent for too long
_SPLIT_S = 1.0
_STATUS = struct.Struct("!ciBqqqqB")
_RELATION, _TRUNCATE, _ERROR = ord("R"), ord("T"), 256 + ord("E")


class ReplicationStream:
    """One run of START_REPLICATION. ``resolved``: the log's position; what is at or below it is not read again.

    ``resolve`` converts a declared table's types to Weir's own (and may raise, to end this run). ``tracker`` receives
    the tables that the stream declares, and new ones; without it, tables are used as declared. ``line``: what to read
    instead of the connection's socket. ``refused``: what is raised where the server ends the stream with an error.
    """

    def __init__(
        self,
        connection: Connection,
        arena: Arena,
        *,
        resolved: Ts,
        is_wanted: Callable[[int], bool],
        resolve: Callable[[TableSchema], TableSchema],
        tracker: SchemaTracker | None = None,
        sightings: Sightings | None = None,
        quiet: QuietChanges | None = None,
        line: Line | None = None,
        refused: Callable[[SourceError], Exception] = lambda error: error,
        pause_s: float = _PAUSE_S,
        split_s: float = _SPLIT_S,
    ) -> None:
        self._connection = connection
        self._line = line or connection.socket
        self._refused = refused
        self._arena = arena
        self._resolve = resolve
        self._tracker = tracker
        self._sightings = sightings or Sightings()
        self._quiet = quiet or QuietChanges()
        #: where schema changes were taken last
        self._taken_ts = resolved
        #: the table that was declared last, and in front of which row
        self._declared: tuple[int, Ts, int] = (0, Ts(0), 0)
        self._declarations = Declarations(is_wanted)
        self._state = split.new_state(resolved=resolved)
        self._pause_s = pause_s
        self._paused_until = 0.0
        self._split_s = split_s
        #: not all bytes at hand were split, because that takes long
        self.is_behind = False
        #: tables that are taken in when a row of theirs comes
        self._awaited: dict[int, TableSchema] = {}
        self.bytes_read = 0

    def start(self, slot: str, publications: Sequence[str], *, binary: bool) -> None:
        """:raises SourceError: the server refuses; see ``refusals``."""
        # the server takes the later of this and what the slot has confirmed; the driver has compared the two
        position = format_lsn(Ts(int(self._state[split.RESOLVED]) + 1))
        self._connection.start_copy(
            f"START_REPLICATION SLOT {identifier(slot)} LOGICAL {position} (proto_version '1', "
            f"publication_names {literal(','.join(map(identifier, publications)))}, binary '{str(binary).lower()}')"
        )

    @property
    def resolved_ts(self) -> Ts:
        return Ts(int(self._state[split.RESOLVED]))

    @property
    def complete_rows(self) -> int:
        """Row events at hand that belong to finished transactions."""
        return int(self._state[split.DONE_ROWS])

    @property
    def wants_reply(self) -> bool:
        """The server asked for a report; it hangs up when it gets none."""
        return bool(self._state[split.REPLY])

    @property
    def is_full(self) -> bool:
        """Whether nothing more can be read before a chunk is taken."""
        return self._arena.free_bytes == 0 or int(self._state[split.ROWS]) == len(self._arena.rows)

    def read(self, *, timeout_s: float) -> bool:
        """Wait for bytes and split them, or some of those at hand; False when none came in time.

        :raises SourceError: the connection is lost, or the server ended the stream.
        """
        assert not self.is_full, "there is no room: take a chunk first"
        if not self.is_behind and not self._receive_block(timeout_s):
            return False
        self._split()
        self._sightings.reach(self.resolved_ts)
        self._make_room()
        return True

    def take_chunk(self, successor: Arena) -> LogChunk:
        """Give away everything up to the last finished transaction and continue in ``successor``.

        When the arena is full of one open transaction, a part of that is given away.
        """
        assert self._state[split.ROWS] > 0, "there is nothing to cut"
        state, arena = self._state, self._arena
        is_complete = state[split.DONE_ROWS] > 0
        rows = int(state[split.DONE_ROWS if is_complete else split.ROWS])
        end = int(state[split.DONE_POS if is_complete else split.POS])
        cut = LogChunk(
            arena=arena,
            rows=rows,
            schemas=self._declarations.schemas,
            first_ts=Ts(int(arena.rows[0, COMMIT_TS])),
            last_ts=Ts(int(arena.rows[rows - 1, COMMIT_TS])),
            resolved_ts=self.resolved_ts,
            resolved_time=self._resolved_time,
            is_complete=bool(is_complete),
            ddl=self._take_changes() if is_complete else (),
        )
        successor.take_rest(arena, from_byte=end, from_row=rows, rows=int(state[split.ROWS]))
        self._arena = successor
        state[split.ROWS] -= rows
        self._rebase(end)
        # where the lines ran out, whole messages may wait in the bytes that moved on
        self._split()
        self._make_room()
        return cut

    def progress(self) -> LogChunk:
        """A chunk without events: how far the stream is. Only while no finished transaction is at hand."""
        assert self.complete_rows == 0, "events must be cut before their position is passed on"
        resolved = self.resolved_ts
        return LogChunk(
            None, 0, [], resolved, resolved, resolved, self._resolved_time, is_complete=True, ddl=self._take_changes()
        )

    def report(self, durable: Ts, *, ask_reply: bool) -> None:
        """Tell the server that everything up to ``durable`` may be forgotten, and that we are alive.

        :raises SourceUnreachableError: the connection is lost.
        """
        self._state[split.REPLY] = 0
        flushed = durable + 1  # the end of what is durable, as the server counts
        clock = events.server_microseconds(time.time())
        length = _STATUS.size - 1
        self._connection.socket.settimeout(10.0)
        self._connection.send(_STATUS.pack(b"d", length, ord("r"), flushed, flushed, flushed, clock, ask_reply))

    @property
    def _resolved_time(self) -> float:
        return int(self._state[split.RESOLVED_TIME]) / 1e6

    def _receive_block(self, timeout_s: float) -> bool:
        """Wait for a block, or what there is of one; False when nothing came in time."""
        pause_s = min(self._paused_until - time.monotonic(), timeout_s)
        if pause_s > 0:
            time.sleep(pause_s)
        count = self._receive(timeout_s=max(timeout_s, 0.001))
        if count > 0:
            self._paused_until = 0.0 if count >= _BLOCK_BYTES else time.monotonic() + self._pause_s
            self.bytes_read += count
        return count > 0

    def _receive(self, *, timeout_s: float) -> int:
        """Receive available bytes into the arena, up to a block; return their number."""
        try:
            with self._arena.room(_BLOCK_BYTES) as view:
                count = receive_all(self._line, view, timeout_s=timeout_s)
        except OSError as error:
            raise self._ended() from error
        self._arena.filled += count
        return count

    def _split(self) -> None:
        until, self.is_behind = time.monotonic() + self._split_s, False
        while not self.is_behind:
            declared, arena = self._declarations, self._arena
            outcome = split.split(arena.data, arena.filled, self._state, declared.keys, declared.slots, arena.rows)
            if outcome == split.RARE:
                self._handle_rare()
            elif outcome in (split.NEED_MORE, split.ROWS_FULL):
                return
            elif outcome == split.UNKNOWN_TABLE and self._take_in(split.relation_at(arena.data, self._state)):
                pass
            else:
                raise SourceUnreachableError(
                    f"{self._connection.target} {_FAULTS[outcome]}; the stream is opened again"
                )
            self.is_behind = time.monotonic() >= until

    def _make_room(self) -> None:
        """A full arena without a single row to give away: forget what was skipped, or grow for a giant message."""
        if self._state[split.ROWS] == 0 and self.is_full:
            self._rebase(self._arena.make_room(int(self._state[split.POS])))

    def _rebase(self, cut_at: int) -> None:
        self._state[split.POS] -= cut_at
        self._state[split.DONE_POS] = self._state[split.DONE_ROWS] = 0

    def _handle_rare(self) -> None:
        at, end, kind = (int(self._state[cell]) for cell in (split.RARE_POS, split.RARE_END, split.RARE_KIND))
        body = self._arena.data[at:end].tobytes()
        if kind == _RELATION:
            self._declare(self._parsed(events.parse_relation, body))
        elif kind == _TRUNCATE:
            self._record_truncate(self._parsed(events.parse_truncate, body), at, end)
        elif kind == _ERROR:
            raise self._refused(_stream_refusal(refusal(parse_error(body), self._connection.target)))
        else:
            raise self._ended()

    def _parsed(self, parse: Callable[[bytes], T], body: bytes) -> T:
        """:raises SourceUnreachableError: the message is truncated, or malformed."""
        try:
            return parse(body)
        except (struct.error, ValueError, IndexError):
            text = f"{self._connection.target} {_FAULTS[split.MALFORMED]}; the stream is opened again"
            raise SourceUnreachableError(text) from None

    def _declare(self, schema: TableSchema) -> None:
        """A declaration in a transaction that is already in the log may be older than what is known."""
        state, tracker = self._state, self._tracker
        ts = Ts(int(state[split.COMMIT_TS]))
        self._sight(schema, ts)
        is_news = tracker is not None and not state[split.SKIPPING]
        if tracker is not None and is_news and tracker.awaits(schema):
            self._awaited[schema.table_id] = schema
            self._declarations.withdraw(schema.table_id)
            return
        if self._declarations.is_wanted(schema.table_id):
            schema = self._resolve(schema)
            if tracker is not None and is_news:
                schema = tracker.note(schema, ts, int(state[split.XID]), is_first=state[split.SEQ] == 0)
                self._sightings.note_declared(schema, ts, int(state[split.XID]))
                self._quiet.note_declared(schema.table_id, int(state[split.XID]))
        elif is_news:
            self._sightings.note_passed_over(schema.table_id, ts)
        self._declarations.declare(schema)

    def _sight(self, schema: TableSchema, ts: Ts) -> None:
        """A partition whose rows are sent as its root's is declared right behind that."""
        table_id, state, (root, *before) = schema.table_id, self._state, self._declared
        self._declared = table_id, ts, int(state[split.SEQ])
        if before != [*self._declared[1:]] or root == table_id:
            return
        if not state[split.SKIPPING]:
            shape = frozenset((column.name, column.type_id, column.modifier) for column in schema.columns)
            self._sightings.note_partition(root, table_id, ts, int(state[split.XID]), shape)
        if self._tracker is not None:
            self._tracker.note_partition(root, schema, self._first_ts(ts), is_in_log=bool(state[split.SKIPPING]))

    def _first_ts(self, ts: Ts) -> Ts:
        """Return where the first row is, of those that a declaration at ``ts`` counts for, that is not in the log."""
        return max(ts, Ts(int(self._state[split.SKIP_UNTIL]) + 1))

    def _take_in(self, relation: int) -> bool:
        """Handle the first row of a table; return False if the table has not been described."""
        if relation not in self._awaited or self._tracker is None:
            return False
        if self._state[split.SKIPPING]:
            split.pass_over(self._arena.data, self._state)
        else:
            schema, ts = self._awaited.pop(relation), Ts(int(self._state[split.COMMIT_TS]))
            self._sightings.note_new(relation, ts, int(self._state[split.XID]))
            self._tracker.meet(schema, ts)
            self._declare(schema)
        return True

    def _take_changes(self) -> tuple[DdlRecord, ...]:
        tracker, resolved_ts = self._tracker, self.resolved_ts
        if tracker is None:
            return ()
        # behind every change that is noted, and the head passes every position once
        for ts, schema, xid in self._quiet.take(max(self._taken_ts, tracker.changed_ts), resolved_ts):
            tracker.note_quiet(schema, ts, xid)
        self._taken_ts = resolved_ts
        return tracker.take(resolved_ts)

    def _record_truncate(self, relations: tuple[int, ...], at: int, end: int) -> None:
        """Record one event for each of its tables; they share the bytes."""
        state = self._state
        slots = [self._declarations.slot(relation) for relation in relations]
        ts = Ts(int(state[split.COMMIT_TS]))
        self._sightings.note_truncate(relations, ts, int(state[split.XID]))
        if self._tracker is not None:
            self._tracker.note_truncate(relations, self._first_ts(ts))
        for slot in slots:
            seq = int(state[split.SEQ])
            state[split.SEQ] += 1
            if slot >= 0 and not state[split.SKIPPING]:
                row = int(state[split.ROWS])
                self._arena.reserve_rows(row + 1)
                commit_ts, commit_time = state[split.COMMIT_TS], state[split.COMMIT_TIME]
                self._arena.rows[row] = at, end - at, slot, commit_ts, seq, commit_time
                state[split.ROWS] += 1

    def _ended(self) -> SourceUnreachableError:
        return SourceUnreachableError(f"{self._connection.target} ended the replication stream; it is opened again")


_FAULTS = {
    split.UNKNOWN_TABLE: "sent a change of a table that it has not described",
    split.MALFORMED: "sent what is no replication message",
    split.OUT_OF_ORDER: "sent a commit behind its own position",
}


def _stream_refusal(error: SourceError) -> SourceError:
    """Return the error for a slot that was invalidated while it was read, which ends the stream."""
    if "invalidated" in str(error) and not isinstance(error, PositionLostError):
        return SnapshotLostByGCError(f"{error}; {NEW_POSITION}")
    return error
