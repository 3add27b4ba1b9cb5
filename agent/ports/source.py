"""Source port: what every kind of source promises to the units.

A ``Source`` holds no connection; each call opens what it needs. All calls block (worker threads), may be retried after
any failure, and raise ``SourceError``: one line with cause and cure. Values that travel to executors can be pickled.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, runtime_checkable

import pyarrow as pa
from pydantic import BaseModel

from agent.errors import TableIneligibleError
from agent.ports.checksums import KeyRange, NoChecksums, SourceChecksums
from agent.ports.executor import Executor
from agent.ports.snapshot import DoneChunks, DumpOrder, DumpSession, Plan, Wait
from agent.rows.schema import TableSchema
from agent.rows.survivors import Survivors
from reactor.ids import Ts
from reactor.records.changefeed import ChangefeedConfig, SinkMode
from reactor.records.tables.schema_change import DdlRecord
from reactor.records.tables.table import TableRecord

if TYPE_CHECKING:  # its kernels take a while to load, and not every process needs them
    from agent.rows.arena import Arena, LogChunk

#: unfit tables in one error
_REASONS_MAX: Final = 5

S = TypeVar("S", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Scope:
    """The changefeed that a source is opened for.

    ``cluster``, ``changefeed`` and ``incarnation`` name the objects that Weir creates at the server.
    """

    cluster: str
    changefeed: str
    sink_mode: SinkMode
    config: ChangefeedConfig
    incarnation: str = ""

    def settings(self, kind: type[S]) -> S:
        """Return the configuration's [source] section as ``kind``. Unknown options are ignored here: the user is warned
        when the changefeed is created (``agent.sources.registry.check_settings``)."""
        return kind.model_validate(self.config.source_settings)


@dataclass(frozen=True, slots=True)
class Identity:
    """Identifies a server: positions of different servers or timelines are never compared."""

    system_id: str
    timeline: int = 0

    def fields(self) -> dict[str, Any]:
        """Return it as fields of ``UnitRecord``."""
        return asdict(self)


#: characters of each text of a signal: whoever may insert rows decides how long they are
SIGNAL_MAX: Final = 20_000


@dataclass(frozen=True, slots=True)
class Signal:
    """A row of a changefeed's signal table, as texts of at most ``SIGNAL_MAX`` characters. ``kind``: the request;
    ``data``: the table that it is for."""

    id: str
    kind: str
    data: str


@dataclass(frozen=True, slots=True)
class SourceReport:
    """A source that is fit for a changefeed over ``tables``. ``unfit``: those of them that cannot be replicated as they
    are, by id, each with cause and cure in one line."""

    identity: Identity
    tables: tuple[TableRecord, ...]
    unfit: Mapping[int, str] = field(default_factory=dict)

    def refuse_unfit(self, tables: Iterable[TableRecord]) -> None:
        """:raises TableIneligibleError: one of ``tables`` cannot be replicated as it is."""
        reasons = [self.unfit[table.table_id] for table in tables if table.table_id in self.unfit]
        if reasons:
            raise TableIneligibleError("; also: ".join(reasons[:_REASONS_MAX]))


@dataclass(frozen=True, slots=True)
class Position:
    """A position in the source's log. ``text``: what else the source needs to resume there (MySQL: GTIDs), opaque.
    ``attachment``: more of the same, for state that is large and seldom changes."""

    ts: Ts
    text: str = ""
    attachment: str = ""


#: start at the source's current position
NOW: Final = Ts(0)
#: the position of a changefeed without a log
BEGIN: Final = Position(Ts(0))


@dataclass(frozen=True, slots=True)
class StreamOrder:
    """The order for a stream that a sync unit reads. An empty ``identity.system_id`` accepts any server. ``schemas``:
    the tables' initial schemas."""

    tables: tuple[TableRecord, ...]
    identity: Identity = Identity("")
    schemas: Mapping[int, TableSchema] = field(default_factory=dict)
    #: the number by which the server identifies this reader, if it needs one (see ``agent.units.readers``)
    reader: int = 0
    #: schema and name of tables that the stream is to take in, at a position where it knows their definitions
    joining: frozenset[tuple[str, str]] = frozenset()


class StreamRestart(Exception):
    """The stream has to be reopened in another way, which its opener has learnt. Not a failure."""


class Stream(Protocol):
    """One run of the source's log, driven by one thread (``agent.units.stream_reader``)."""

    @property
    def complete_rows(self) -> int:
        """The number of buffered row events that belong to finished transactions."""
        ...

    @property
    def wants_reply(self) -> bool:
        """Whether the server has asked for a report; it disconnects if it gets none."""
        ...

    @property
    def is_full(self) -> bool:
        """Whether the arena is full, so that a chunk must be taken before more is read."""
        ...

    def read(self, *, timeout_s: float) -> bool:
        """Wait for bytes and parse them. Return False if none came in time.

        :raises SourceError: the connection is lost, or the server ended the stream.
        :raises StreamRestart: the stream must be reopened.
        """
        ...

    def take_chunk(self, successor: Arena) -> LogChunk:
        """Hand over everything up to the last finished transaction and continue in ``successor``."""
        ...

    def progress(self) -> LogChunk:
        """Return a chunk without events that carries the stream's position. Call it only while no finished transaction
        is buffered."""
        ...

    def report(self, durable: Ts, *, ask_reply: bool) -> None:
        """Acknowledge ``durable`` to the server, which may discard its log up to there. Also serves as a keepalive."""
        ...


class OpenStream(Protocol):
    """A stream and its connection."""

    @property
    def stream(self) -> Stream: ...

    @property
    def server(self) -> Identity:
        """The server that it is of."""
        ...

    def prove(self, cut: LogChunk) -> LogChunk:
        """Complete ``cut`` before the log head passes it: return the chunk with further schema changes of its tables
        and the position that includes them. Blocking; called for one chunk after the other, on another thread than the
        stream's.

        :raises SourceError: the source cannot tell at the moment, or the log cannot be followed past the chunk.
        :raises StreamRestart: the stream must be reopened: tables have joined that it does not know.
        """
        ...

    def abort(self) -> None:
        """Make operations in progress fail. Thread-safe."""
        ...

    def close(self) -> None: ...


class Streams(Protocol):
    """Opens one stream after another for one sync unit, and keeps what was learnt between them."""

    def open(self, at: Position, arena: Arena, ddl: Sequence[DdlRecord] = ()) -> OpenStream:
        """Check that the server can resume exactly at ``at``, and open the stream. ``ddl``: the schema changes found so
        far.

        :raises PositionLostError: the server cannot resume there, or is a different one.
        """
        ...


class ComparisonSnapshot(Protocol):
    """A consistent view of the source at ``ts``: all commits at or below it, and no others."""

    @property
    def ts(self) -> Ts: ...

    def schema(self, table: TableRecord) -> TableSchema:
        """Return the table's schema.

        :raises SourceConfigError: the table is gone or cannot be read.
        """
        ...

    def read(self, schema: TableSchema) -> Iterator[pa.RecordBatch]:
        """Yield all rows of a table. May be called repeatedly."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class SumsRanges(Protocol):
    """A comparison snapshot whose server can sum hashes of rows."""

    def checksums(self, schema: TableSchema) -> SourceChecksums | NoChecksums:
        """Sums of row hashes, over the columns of ``schema``."""
        ...

    def read_range(self, schema: TableSchema, keys: KeyRange) -> Iterator[pa.RecordBatch]:
        """The rows in ``keys``; as often as needed."""
        ...


@runtime_checkable
class ReadsSome(Protocol):
    """A comparison snapshot whose server finds rows by a condition, and by their keys."""

    def read_where(self, schema: TableSchema, condition: str) -> Iterator[pa.RecordBatch]:
        """The rows for which the condition is true. It is of the language of ``agent.filter.expressions``.

        :raises agent.errors.FilterError: it is not, or names a column that is none.
        :raises SourceError: the server refuses it, as it does not fit the columns.
        """
        ...

    def read_keys(self, schema: TableSchema, keys: pa.Table) -> Iterator[pa.RecordBatch]:
        """The rows that have these keys, in the source's types.

        :raises SourceConfigError: rows cannot be asked for by columns of such types.
        """
        ...


class Dumper(Protocol):
    """The dump of this kind of source; driven by ``agent.units.dump``."""

    def open(
        self, order: DumpOrder, previous: Plan | None, done: DoneChunks, executor: Executor
    ) -> AbstractContextManager[DumpSession]:
        """Begin a run: open a consistent view of the source, and plan what to read under it.

        ``done``: the finished chunks of ``previous``; the session's plan includes those that are still valid.
        """
        ...

    def settle(self, plan: Plan) -> tuple[TableRecord, ...] | None:
        """Once every chunk is read: return the tables with the position at which their rows are consistent; None if
        another server has taken the place of the one that was read, and does not know: the dump begins again."""
        ...


class Source(Protocol):
    """Whether the server identifies a reader by a number, so that ``StreamOrder.reader`` is required."""

    @property
    def dumper(self) -> Dumper: ...

    @property
    def numbers_readers(self) -> bool:
        """Whether the server knows a reader by a number, which ``StreamOrder.reader`` then has to have."""
        ...

    @property
    def numbers_tables(self) -> bool:
        """Whether the server numbers its tables. A table then has another number than the one that had its name before
        it."""
        ...

    def check(self) -> SourceReport:
        """Check privileges, settings and names before anything is created at the server."""
        ...

    def discover(self) -> SourceReport:
        """Return the same report for an existing changefeed, whose names are already taken. Tables that cannot be
        replicated as they are do not refuse it for the others: ``SourceReport.unfit`` has them."""
        ...

    def check_identity(self, expected: Identity, at: Position) -> None:
        """Check that the log, which ``expected`` has written up to ``at``, continues at this server, as far as it shows
        without being read.

        :raises PositionLostError: it does not.
        """
        ...

    def prepare(self, tables: Sequence[TableRecord]) -> None:
        """Create what the server needs before a dump of ``tables`` begins."""
        ...

    def publish(self, tables: Sequence[TableRecord]) -> None:
        """Have the server send changes of these tables too, which join a changefeed that exists.

        :raises SourceError: it refuses, or does not send all of their changes.
        """
        ...

    def signals(self, table: tuple[str, str], limit: int) -> list[Signal]:
        """Return at most ``limit`` rows of a table with columns ``id``, ``kind`` and ``data``, by their ids. The server
        cuts longer texts to ``SIGNAL_MAX`` characters.

        :raises SourceError: it cannot be read.
        """
        ...

    def check_start(self, start_ts: Ts) -> None:
        """Check that a stream can begin right after ``start_ts``, before anything is created.

        :raises SourceConfigError: the source does not have that position: never, no longer, or not yet.
        """
        ...

    def missed_tables(self, known: Sequence[TableRecord]) -> tuple[tuple[str, str], ...]:
        """Return schema and name of the tables that exist and are not ``known``. They have to join a stream whose
        position was taken since: it never names those that were made before the position. Those that were made after
        it come with the stream. Empty where streams find such tables by themselves."""
        ...

    def begin(self, tables: Sequence[TableRecord], start_ts: Ts = NOW, wait: Wait | None = None) -> Position:
        """Start without a dump: create what the stream needs and return its first position. ``start_ts``: the
        operator's choice. ``wait``: for the moment at which a stream can begin.

        :raises SourceConfigError: the stream cannot begin there (see ``check_start``).
        :raises ReadingStopped: the wait was ended.
        """
        ...

    def begin_again(
        self, tables: Sequence[TableRecord], lost: Position, server: Identity, wait: Wait | None = None
    ) -> Position:
        """A first position, larger than ``lost``, from which nothing leads here any more. ``server``: whose that was.
        What the stream needs is made as by ``begin``, which waits as well; may be called again.

        :raises SourceConfigError: the tables of another server are other tables.
        :raises SourceUnreachableError: the server has not come past ``lost`` yet.
        """
        ...

    def read_schemas(self, tables: Collection[TableRecord]) -> dict[int, TableSchema]:
        """Return the current schemas of these tables by their records' ids, without those that are gone. A record has
        the table's current name."""
        ...

    def streams(self, order: StreamOrder) -> Streams: ...

    def snapshot(self, tables: Sequence[TableRecord], log: Position) -> ComparisonSnapshot:
        """Open a view of the current ``tables``. ``log``: the position of the changefeed's log; the snapshot's Ts is on
        its timeline.

        :raises SourceUnreachableError: the log still follows a different server.
        """
        ...

    def current_ts(self, log: Position = BEGIN) -> Ts:
        """Return a Ts that is not below any past commit; ``log`` as in ``snapshot``."""
        ...

    def survivors(
        self, before: TableSchema, after: TableSchema, origins: Mapping[str, str], key: Sequence[str]
    ) -> Survivors | None:
        """Return the current values of rows that existed when the table's columns changed type; None if log and types
        alone determine the values. ``origins`` maps new to old names of the columns that were kept.

        :raises TableHeldError: the values cannot be determined.
        """
        ...

    def drop(self) -> None:
        """Remove what Weir created at the server; idempotent."""
        ...
