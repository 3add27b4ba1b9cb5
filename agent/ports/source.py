"""Source port: what every kind of upstream promises to the units.

A ``Source`` holds no connection; each call opens what it needs. All calls block (worker threads), may be made again
after any failure, and raise ``SourceError``s: one line, cause and cure. Values that travel to executors are picklable.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeVar

import pyarrow as pa
from pydantic import BaseModel

from agent.ports.executor import Executor
from agent.ports.snapshot import DoneChunks, DumpOrder, DumpSession, Plan
from agent.rows.arena import Arena, LogChunk
from agent.rows.schema import TableSchema
from agent.rows.survivors import Survivors
from reactor.ids import Ts
from reactor.records.changefeed import ChangefeedConfig, DdlRecord, SinkMode, TableRecord

S = TypeVar("S", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Scope:
    """The changefeed that a source is opened for.

    ``cluster``, ``changefeed`` and ``incarnation`` name what is made at the server."""

    cluster: str
    changefeed: str
    sink_mode: SinkMode
    config: ChangefeedConfig
    incarnation: str = ""

    def settings(self, kind: type[S]) -> S:
        """What the changefeed's configuration says below [source]. What the source does not know is left out: whoever
        creates a changefeed is warned (``agent.sources.registry.check_settings``)."""
        return kind.model_validate(self.config.source_settings)


@dataclass(frozen=True, slots=True)
class Identity:
    """Which server this is: positions of different servers or timelines are never compared."""

    system_id: str
    timeline: int = 0


@dataclass(frozen=True, slots=True)
class SourceReport:
    """A source that is fit for a changefeed over ``tables``."""

    identity: Identity
    tables: tuple[TableRecord, ...]


@dataclass(frozen=True, slots=True)
class Position:
    """A place in the upstream's log. ``text``: what else the source needs to continue there (MySQL: GTIDs), opaque.
    ``attachment``: more of it, which may be long, and seldom changes."""

    ts: Ts
    text: str = ""
    attachment: str = ""


#: a start that nobody has asked for: where the source is
NOW: Final = Ts(0)
#: of a changefeed without a log
BEGIN: Final = Position(Ts(0))


@dataclass(frozen=True, slots=True)
class StreamOrder:
    """What a sync unit reads. An empty ``identity.system_id`` is any server. ``schemas``: the tables as they began."""

    tables: tuple[TableRecord, ...]
    identity: Identity = Identity("")
    schemas: Mapping[int, TableSchema] = field(default_factory=dict)
    #: by which the server knows this reader (see ``agent.units.readers``), where it goes by numbers
    reader: int = 0


class StreamRestart(Exception):
    """The stream has to be opened in another way, which its opener now knows. Not a failure."""


class Stream(Protocol):
    """One run of the upstream's log, driven by one thread (``agent.units.stream_reader``)."""

    @property
    def complete_rows(self) -> int:
        """Row events at hand that belong to finished transactions."""
        ...

    @property
    def wants_reply(self) -> bool:
        """The server asked for a report; it hangs up when it gets none."""
        ...

    @property
    def is_full(self) -> bool:
        """Nothing more can be read before a chunk is taken."""
        ...

    def read(self, *, timeout_s: float) -> bool:
        """Wait for bytes and split them; False when none came in time.

        :raises SourceError: the connection is lost, or the server ended the stream.
        :raises StreamRestart: open it again.
        """
        ...

    def cut(self, successor: Arena) -> LogChunk:
        """Give away everything up to the last finished transaction and continue in ``successor``."""
        ...

    def progress(self) -> LogChunk:
        """A chunk without events: how far the stream is. Only while no finished transaction is at hand."""
        ...

    def report(self, durable: Ts, *, ask_reply: bool) -> None:
        """Tell the server that everything up to ``durable`` may be forgotten, and that we are alive."""
        ...


class OpenStream(Protocol):
    """A stream and its connection."""

    @property
    def stream(self) -> Stream: ...

    def prove(self, cut: LogChunk) -> LogChunk:
        """Before the head passes ``cut``: the chunk with what else has become of its tables, and with the position that
        says so. Blocking, one chunk after the other, in another thread than the stream's.

        :raises SourceError: nobody can say just now, or the log cannot be followed past it.
        """
        ...

    def abort(self) -> None:
        """Make what is under way fail. From any thread."""
        ...

    def close(self) -> None: ...


class Streams(Protocol):
    """Opens one stream after the other for one sync unit, and remembers between them what it has learnt."""

    def open(self, at: Position, arena: Arena, ddl: Sequence[DdlRecord] = ()) -> OpenStream:
        """Check that the server can continue exactly at ``at``, and start there. ``ddl``: what is known to have
        changed.

        :raises PositionLostError: it cannot, or is another server.
        """
        ...


class ComparisonSnapshot(Protocol):
    """The source as it was at ``ts``: all commits at or below it, and no other."""

    @property
    def ts(self) -> Ts: ...

    def schema(self, table: TableRecord) -> TableSchema:
        """What the table is. :raises SourceConfigError: it is gone, or is none that can be read."""
        ...

    def read(self, schema: TableSchema) -> Iterator[pa.RecordBatch]:
        """All rows of a table; as often as needed."""
        ...

    def close(self) -> None: ...


class Dumper(Protocol):
    """How this kind of source is dumped; ``agent.units.dump`` runs it."""

    def open(
        self, order: DumpOrder, previous: Plan | None, done: DoneChunks, executor: Executor
    ) -> AbstractContextManager[DumpSession]:
        """Begin a run: a consistent view of the source, and a plan of what to read under it.

        ``done``: the finished chunks of ``previous``; what of them still counts is in the session's plan.
        """
        ...

    def settle(self, tables: Sequence[TableRecord]) -> tuple[TableRecord, ...]:
        """When every chunk is read: the tables with the position at which their rows are consistent."""
        ...


class Source(Protocol):
    """One upstream as one changefeed uses it."""

    @property
    def dumper(self) -> Dumper: ...

    @property
    def numbers_readers(self) -> bool:
        """Whether the server knows a reader by a number, which ``StreamOrder.reader`` then has to have."""
        ...

    def check(self) -> SourceReport:
        """Everything that can be found out before anything is made there; names are free, rights and settings do."""
        ...

    def discover(self) -> SourceReport:
        """The same for a changefeed that exists."""
        ...

    def check_identity(self, expected: Identity) -> None:
        """:raises PositionLostError: it is another server."""
        ...

    def prepare(self, tables: Sequence[TableRecord]) -> None:
        """What has to exist at the server before a dump of ``tables`` begins."""
        ...

    def check_start(self, start_ts: Ts) -> None:
        """Before anything is made: whether a stream can begin right behind ``start_ts``.

        :raises SourceConfigError: the source has no such position, or no longer, or not yet.
        """
        ...

    def begin(self, tables: Sequence[TableRecord], start_ts: Ts = NOW) -> Position:
        """Without a dump: make what the stream needs; its first position. ``start_ts``: where an operator wants it.

        :raises SourceConfigError: the stream cannot begin there (any more): see ``check_start``.
        """
        ...

    def read_schemas(self, table_ids: Collection[int]) -> dict[int, TableSchema]:
        """The tables as they are now. :raises SourceConfigError: one is gone."""
        ...

    def streams(self, order: StreamOrder) -> Streams: ...

    def snapshot(self, tables: Sequence[TableRecord], log: Position) -> ComparisonSnapshot:
        """``tables`` as they are now. ``log``: where the changefeed's log is, whose Ts the snapshot's is to be.

        :raises SourceUnreachableError: the log is still at another server than this one.
        """
        ...

    def current_ts(self, log: Position = BEGIN) -> Ts:
        """No commit of the past lies above it; ``log`` as for ``snapshot``."""
        ...

    def survivors(
        self, before: TableSchema, after: TableSchema, origins: Mapping[str, str], key: Sequence[str]
    ) -> Survivors | None:
        """Rows that were there when the table's columns got other types, as they are now; None where the log and the
        types alone tell the values. ``origins``: new name → old name, of the columns that stayed.

        :raises TableHeldError: nobody can say what the values are.
        """
        ...

    def drop(self) -> None:
        """Remove what was made at the server; what is gone already is fine."""
        ...
