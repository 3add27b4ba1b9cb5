"""Control events: handles what the kernels leave to Python (statements, table maps, rotations, XA, errors).

Between two kernel calls the state is as the kernels left it: this module opens, closes or drops transactions in it, and
declares table maps. If other events have to be read next (those of a compressed transaction), the stream is notified.

The rows of *distributed transactions* (XA) are logged where they are prepared, and take effect where they are
committed, if ever (``prepared``). So they are dropped at first, and return with the XA COMMIT: from memory, or by
reading the transaction again (``reread``) inside of the one that commits it, where its XA PREPARE ends both. Rows of a
transaction that filled an arena were dropped, though it may end with a commit in ONE PHASE, which MySQL logs only at
its end.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from agent.errors import (
    NEW_POSITION,
    PositionLostError,
    SourceConfigError,
    SourceError,
    SourceUnreachableError,
    is_of_table,
)
from agent.kernels.jit import Ints
from agent.rows.arena import Arena
from agent.rows.schema import TableSchema
from agent.sources.mysql.binlog import events, prepared, split, txn
from agent.sources.mysql.binlog.declarations import Declarations
from agent.sources.mysql.binlog.dropping import Dropping
from agent.sources.mysql.binlog.events import Query
from agent.sources.mysql.binlog.payload import Payload
from agent.sources.mysql.binlog.progress import Progress
from agent.sources.mysql.binlog.reread import Reader
from agent.sources.mysql.binlog.rolled_back import RolledBack
from agent.sources.mysql.binlog.split import ABSENT
from agent.sources.mysql.ddl import statements
from agent.sources.mysql.ddl.copies.memory import FileBegin
from agent.sources.mysql.ddl.event import DdlEvent
from agent.sources.mysql.ddl.parser import sql_text
from agent.sources.mysql.ddl.replicated_tables import TableUnknownError
from agent.sources.mysql.ddl.statements import StatementKind
from agent.sources.mysql.decode import wire
from agent.sources.mysql.decode.table_ids import table_id
from agent.sources.mysql.names import lowered
from agent.sources.mysql.position.positions import FIRST_POSITION, BinlogPosition, behind_in_file, unpack
from agent.sources.mysql.server.refusals import refusal
from agent.sources.mysql.server.uri import Target
from reactor.ids import Ts
from reactor.records.tables.schema_change import DdlRecord

_ERROR, _END = 256 + 0xFF, 256 + 0xFE
#: events with parts of statements, which are handled or refused as a whole
_PARTS = frozenset(
    {wire.CREATE_FILE, wire.APPEND_BLOCK, wire.EXEC_LOAD, wire.DELETE_FILE, wire.NEW_LOAD, wire.BEGIN_LOAD}
)
_CHANGING_VERBS = ("ALTER", "TRUNCATE", "RENAME")
_ROWS_V0 = frozenset({wire.WRITE_V0, wire.UPDATE_V0, wire.DELETE_V0})


#: see ``agent.sources.mysql.binlog.reread.Reread.rows_of``
Reread = Callable[[str, BinlogPosition | None, BinlogPosition], Reader]
#: makes a record of tables that cannot be followed from a Ts on, with the reason
Hold = Callable[[Sequence[tuple[str, str]], str, Ts], DdlRecord | None]
#: returns the replicated tables whose rows a statement may have changed, given its default database
Written = Callable[[str, str], Sequence[tuple[str, str]]]


class RareEvents:
    """``known`` returns the schema of a table that the binlog has not declared yet, if it is known. ``interpret``
    returns the effect of a DDL statement on replicated tables, or None. ``reread`` reads the rows of a prepared
    transaction, by its name, its place if known, and the place of its commit. ``hold`` makes a record of tables that
    cannot be followed; ``written`` returns replicated tables that a statement may have changed. ``begin_file`` notes
    the file that is read, and returns False if the log was read from another one."""

    def __init__(
        self,
        target: Target,
        state: Ints,
        *,
        declarations: Declarations,
        progress: Progress,
        rolled_back: RolledBack,
        known: Callable[[str, str], TableSchema | None],
        interpret: Callable[[DdlEvent], DdlRecord | None],
        reread: Reread,
        hold: Hold,
        written: Written,
        begin_file: Callable[[FileBegin], bool],
        folds_names: bool = False,
    ) -> None:
        self._target = target
        self._state = state
        self._declarations = declarations
        self._progress = progress
        self._known = known
        self._interpret = interpret
        self._folds_names = folds_names
        self._reread = reread
        self._hold = hold
        self._written = written
        self._begin_file = begin_file
        self.dropping = Dropping(state, rolled_back, lambda: f"{target} ({self._place()})")
        #: name of the transaction that is read again to be committed
        self._committing = ""
        #: schema changes for the next chunk
        self.ddl: list[DdlRecord] = []

    def handle(self, arena: Arena) -> Reader | None:
        """Handle the event at which ``split`` stopped. Return a reader of events that precede the next ones, if any.

        :raises SourceError: reading cannot continue.
        """
        state = self._state
        at, end, kind = (int(state[cell]) for cell in (txn.RARE_POS, txn.RARE_END, txn.RARE_TYPE))
        if kind > 255:
            raise self._refusal(kind, arena.data[at:end].tobytes())
        body = self._body(arena, at, end, kind)
        match kind:
            case wire.TRANSACTION_PAYLOAD:
                return Payload(body)
            case wire.TABLE_MAP:
                self._declare(body)
            case wire.QUERY | wire.QUERY_COMPRESSED:
                query = events.parse_query(body, is_compressed=kind == wire.QUERY_COMPRESSED)
                return self._handle_query(query, arena, at, wire.read_u16(arena.data, at + wire.FLAGS_AT))
            case wire.EXECUTE_LOAD:
                self._hold_written(events.parse_load(body))
            case wire.XA_PREPARE:
                return self._handle_prepare(*events.parse_xa_prepare(body), arena)
            case wire.ROTATE:
                self._progress.rotate(events.parse_rotate(arena.data[at : self._whole(end)].tobytes()))
            case wire.FORMAT_DESCRIPTION:
                self._handle_format(arena.data[at : self._whole(end)].tobytes(), arena)
            case wire.TAGGED_GTID:
                self._handle_tagged_gtid(events.parse_tagged_gtid(body), arena, at)
            case wire.HEARTBEAT_V2:
                if state[txn.IN_TXN] == txn.CLOSED and (position := events.parse_heartbeat_v2(body)):
                    txn.resolve(position, int(state[txn.NOW]), state)
            case _:
                self._handle_unknown(kind, body, wire.read_u16(arena.data, at + wire.FLAGS_AT))
        return None

    def take_ddl(self, until: Ts) -> tuple[DdlRecord, ...]:
        """Return schema changes up to ``until``; a table created together with rows waits for its commit."""
        taken = tuple(record for record in self.ddl if record.ts <= until)
        self.ddl = [record for record in self.ddl if record.ts > until]
        return taken

    def finish(self) -> None:
        """Finish the open transaction."""
        if txn.finish(self._state, self._progress.gtids) == txn.GTIDS_FULL:
            self._progress.drain()
            txn.finish(self._state, self._progress.gtids)

    def _whole(self, end: int) -> int:
        return end + int(self._state[txn.CHECKSUM])

    def _body(self, arena: Arena, at: int, end: int, kind: int) -> bytes:
        """Return the verified event after its header; rotations and format descriptions are verified separately."""
        is_checked = self._state[txn.CHECKSUM] and not self._state[txn.BARE]
        if is_checked and kind not in (wire.ROTATE, wire.FORMAT_DESCRIPTION):
            event = arena.data[at : self._whole(end)].tobytes()
            if not events.is_sound(event):
                raise self.damaged()
            return event[wire.HEADER_BYTES : -events.CHECKSUM_BYTES]
        return arena.data[at + wire.HEADER_BYTES : end].tobytes()

    def _handle_query(self, query: Query, arena: Arena, at: int, flags: int) -> Reader | None:
        state = self._state
        if state[txn.IN_TXN] == txn.CLOSED:  # the server writes no GTIDs
            self._begin(arena, at, wire.read_u32(arena.data, at) * 1_000_000)
        statement, kind = _classified(query.statement)
        match kind:
            case StatementKind.SAVEPOINT:
                self.dropping.set_savepoint(statements.savepoint(statement))
            case StatementKind.ROLLBACK_TO:
                self.dropping.roll_back_to(statements.savepoint(statement), arena)
            case StatementKind.ROLLBACK:
                self.dropping.drop(0, arena)
                self.finish()
            case StatementKind.COMMIT:
                self.finish()
            case StatementKind.XA_BEGIN:
                state[txn.IN_TXN], state[txn.PREPARES] = txn.BEGUN, not self._committing
            case StatementKind.XA_COMMIT:
                return self._commit_prepared(statements.xa_name(statement), arena)
            case StatementKind.XA_ROLLBACK:
                self._finish_prepared(statements.xa_name(statement))
            case StatementKind.WRITE:
                self._hold_written(query)
            case StatementKind.TRUNCATE | StatementKind.DDL if _is_of_temporary_table(statement, flags):
                pass
            case StatementKind.TRUNCATE | StatementKind.DDL if not (state[txn.SKIPPING] or state[txn.IS_VOID]):
                if kind is StatementKind.DDL or not self._record_truncate(statement, query, arena, at):
                    self._record_ddl(query, arena, at)
        if state[txn.IN_TXN] == txn.GROUP:
            self.finish()
        return None

    def _begin(self, arena: Arena, at: int, time_us: int) -> None:
        if txn.begin(wire.read_u32(arena.data, at + wire.LENGTH_AT), time_us, self._state) != txn.DONE:
            raise self.out_of_order()

    def _handle_tagged_gtid(self, gtid: events.TaggedGtid, arena: Arena, at: int) -> None:
        self._begin(arena, at, gtid.time_us or wire.read_u32(arena.data, at) * 1_000_000)
        self._progress.open_tagged(gtid)

    def _declare(self, body: bytes) -> None:
        """Declare a table map; a table whose columns are no longer known is held, and its rows are skipped."""
        opened = int(self._state[txn.TXNS])
        try:
            self._declarations.declare(body, txn=opened)
        except TableUnknownError as error:
            self._hold_tables([error.table], error.reason)
            self._declarations.declare(body, txn=opened)

    def _hold_tables(self, names: Sequence[tuple[str, str]], reason: str) -> None:
        if record := self._hold(names, reason, Ts(int(self._state[txn.COMMIT_TS]))):
            self.ddl.append(record)

    def _record_ddl(self, query: Query, arena: Arena, at: int) -> None:
        ts, session = Ts(int(self._state[txn.COMMIT_TS])), replace(query.session, second=wire.read_u32(arena.data, at))
        end = behind_in_file(ts, wire.read_u32(arena.data, at + wire.POSITION_AT))
        event = DdlEvent(ts, query.database, query.statement, session, end, query.is_failed)
        if record := self._interpret(event):
            self.ddl.append(record)
        # with column names from elsewhere, the same table map may now mean other columns
        self._declarations.reconsider()

    def _record_truncate(self, statement: str, query: Query, arena: Arena, at: int) -> bool:
        """Record a TRUNCATE as a line of one byte; return False if the table's columns are unknown."""
        name = self._folded(statements.truncated_table(statement, query.database))
        if name is None:
            self._hold_written(query)
            return True
        try:
            if not self._declarations.is_wanted(*name):
                return True
        except TableUnknownError as error:
            self._hold_tables([error.table], error.reason)
            return True
        # a renamed table keeps the id of its first name, which only ``known`` returns
        schema = self._known(*name)
        declarations = self._declarations
        slot = declarations.newest_slot(table_id(*name)) if schema is None else declarations.slot_of(schema)
        if slot == ABSENT:
            return False
        state = self._state
        row = int(state[txn.ROWS])
        arena.reserve_rows(row + 1)
        arena.data[at] = wire.TRUNCATED
        arena.rows[row] = (
            at,
            1,
            slot,
            state[txn.COMMIT_TS],
            state[txn.SEQ] << split.SEQ_SHIFT,
            state[txn.COMMIT_TIME],
        )
        state[txn.SEQ] += 1
        state[txn.ROWS] += 1
        return True

    def _folded(self, name: tuple[str, str] | None) -> tuple[str, str] | None:
        return (lowered(name[0]), lowered(name[1])) if name and self._folds_names else name

    def _hold_written(self, query: Query) -> None:
        """Hold tables whose rows a statement changed: the result is unknown."""
        if not self._state[txn.SKIPPING] and (names := self._written(query.statement, query.database)):
            reason = f"a change that may be of it was logged as a statement ({self._place()}), which holds no rows"
            self._hold_tables(names, f"{reason}; set binlog_format=ROW for all sessions")

    def _handle_prepare(self, commits: bool, name: str, arena: Arena) -> Reader | None:
        state, ts = self._state, Ts(int(self._state[txn.COMMIT_TS]))
        if self._committing:
            self._finish_prepared(self._committing)
            return None
        has_overflown = self.dropping.end_overflow()
        if commits and has_overflown:
            return self._read_again(name, self._progress.position().place(ts))
        if not commits and not state[txn.SKIPPING]:
            # skipped rows are not in the arena either
            is_whole = not has_overflown and state[txn.DROP_TS] != ts
            rows = prepared.take_rows(arena, state) if is_whole else None
            self.dropping.drop(0, arena)
            has_rows = rows is None or len(rows.lines) > 0
            self._progress.prepared.add(name, ts if has_rows else prepared.NO_ROWS, rows)
        self.finish()
        return None

    def _commit_prepared(self, name: str, arena: Arena) -> Reader | None:
        """Commit a prepared transaction with its rows, which may be in memory."""
        state, known = self._state, self._progress.prepared
        place, rows = known.place(name), known.rows(name)
        if rows is not None:
            rows.put_into(arena, state)
        elif place != prepared.NO_ROWS and not state[txn.SKIPPING]:
            is_known = place is not None and unpack(place)[2] > FIRST_POSITION
            return self._read_again(name, self._progress.position().place(place) if place and is_known else None)
        self._finish_prepared(name)
        return None

    def _read_again(self, name: str, begin: BinlogPosition | None) -> Reader:
        """Return a reader of the transaction, to be read inside of the open one."""
        state = self._state
        self._committing = name
        state[txn.IN_TXN], state[txn.PREPARES] = txn.BEGUN, 0
        return self._reread(name, begin, self._progress.position().place(Ts(int(state[txn.COMMIT_TS]))))

    def _finish_prepared(self, name: str) -> None:
        """Remove a decided transaction from the list, together with the change of the position."""
        if not self._state[txn.SKIPPING]:
            self._progress.prepared.remove(name)
        self._committing = ""
        self.finish()

    def _handle_format(self, event: bytes, arena: Arena) -> None:
        form = events.parse_format(event[wire.HEADER_BYTES :])
        # a server without checksums modifies the event while sending it, but not its checksum, which is always there
        if form.checksum_bytes and not events.is_sound(event):
            raise self.damaged()
        if not self._begin_file(self._progress.file_begun_at(int.from_bytes(event[:4], "little"))):
            raise PositionLostError(
                f"{self._target} has another binlog than the one that was read up to {self._place()}: it was reset "
                f"(RESET MASTER), or the server was restored from an earlier state; {NEW_POSITION}"
            )
        if not form.is_readable:
            raise SourceConfigError(
                f"the binlog of {self._target} ({form.server_version}) has row events of an unknown form; "
                "Weir reads MySQL from 5.6 and MariaDB from 10.2 on"
            )
        if self._state[txn.IN_TXN] != txn.CLOSED:  # the server crashed before the commit
            self.dropping.end_overflow()
            self.dropping.drop(0, arena)
            self._state[txn.IN_TXN] = txn.CLOSED
        self._state[txn.CHECKSUM] = form.checksum_bytes
        self._declarations.forget()

    def _handle_unknown(self, kind: int, body: bytes, flags: int) -> None:
        if kind == wire.INCIDENT:
            raise PositionLostError(
                f"the binlog of {self._target} has a gap, says the server ({events.parse_incident(body) or 'no reason'}"
                f", {self._place()}); {NEW_POSITION}"
            )
        if kind in _PARTS or (flags & wire.FLAG_IGNORABLE and kind not in _ROWS_V0):
            return
        raise SourceError(
            f"{self._target} sent a binlog event of the unknown type {kind} ({self._place()}); report this with the "
            "server's version"
        )

    def _refusal(self, kind: int, packet: bytes) -> SourceError:
        if kind == _ERROR:
            return refusal(*events.parse_error(packet), self._target)
        return self.ended() if kind == _END else self.malformed()

    def _place(self) -> str:
        return str(self._progress.position().binlog)

    def ended(self) -> SourceUnreachableError:
        return SourceUnreachableError(f"{self._target} ended the binlog; it is opened again")

    def damaged(self) -> SourceUnreachableError:
        return SourceUnreachableError(
            f"{self._target} sent an event whose checksum is wrong (behind {self._place()}); it is read again"
        )

    def malformed(self) -> SourceUnreachableError:
        return SourceUnreachableError(
            f"{self._target} sent what is no binlog event (behind {self._place()}); it is read again"
        )

    def out_of_order(self, what: str = "a transaction behind its own position") -> SourceUnreachableError:
        return SourceUnreachableError(f"{self._target} sent {what} ({self._place()}); the binlog is opened again")


def _classified(text: str) -> tuple[str, StatementKind]:
    """Return a statement without comments, and its kind. One that cannot be divided into words may change any rows."""
    try:
        statement = sql_text.plain(text)
        return statement, statements.kind(statement)
    except Exception as error:
        if not is_of_table(error):
            raise
        return text, StatementKind.WRITE


def _is_of_temporary_table(statement: str, flags: int) -> bool:
    """Return whether a definition changes a temporary table, which may have a replicated table's name.

    Servers set the flag for other statements too, and log DROP as DROP TEMPORARY.
    """
    return bool(flags & wire.FLAG_THREAD_SPECIFIC) and statement.upper().startswith(_CHANGING_VERBS)
