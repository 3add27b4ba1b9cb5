"""Sink port: what a destination promises, and the values that cross the JVM for it."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import pyarrow as pa

from agent.ports.capabilities import Capabilities
from agent.rows.batches import SegmentRef
from agent.rows.changes import Changes
from agent.rows.schema import TableSchema
from agent.rows.schema_change import SchemaChange
from reactor.errors import Scope
from reactor.ids import TableSpan, Ts
from reactor.records.changefeed import NO_FILTER, FilterConfig, SinkMode, TableRecord


@dataclass(frozen=True, slots=True)
class SinkUri:
    """Which sink: ``scheme`` is the whole of it, with the storage behind a ``+``. ``location``: a directory (storage
    ``file``) or a URL without options. ``options`` may hold secrets, so they are never shown."""

    scheme: str
    storage: str
    location: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def is_local(self) -> bool:
        return self.storage == "file"


@dataclass(frozen=True, slots=True)
class SinkScope:
    """The changefeed that a sink is opened for. ``changefeed``: by which the sink's tables know their owner."""

    changefeed: str
    mode: SinkMode


@dataclass(frozen=True, slots=True)
class FeedContext:
    """What all flushes of a changefeed have in common. ``changefeed``: as its sink is opened with. ``was_filtered``:
    the filter was another one before, which may have left rows that the source has no longer."""

    changefeed: str
    sink_uri: str
    sink_mode: SinkMode
    filter: FilterConfig = NO_FILTER
    was_filtered: bool = False


@dataclass(frozen=True, slots=True)
class FlushTask:
    """Move one span from ``from_ts`` to ``to_ts``: what one Spark task is given.

    ``from_ts`` is what the sink has recorded for the span: a sink that holds anything else refuses the write.
    ``change``: the newest schema change in the range (JSON of a ``TableChange``), empty where there is none: its
    transaction may have rows of before. ``part`` of ``parts``: a backlog of a changelog span may be divided into tasks
    whose files are committed together.
    """

    feed: FeedContext
    span: TableSpan
    table: TableRecord
    segments: tuple[SegmentRef, ...]
    from_ts: Ts
    to_ts: Ts
    part: int = 0
    parts: int = 1
    change: str = ""


@dataclass(frozen=True, slots=True)
class FlushResult:
    """What one flush task did. ``committed``: the sink already records ``to_ts``; otherwise ``files`` (the sink's own
    JSON descriptions) await ``Sink.commit``. ``error``: empty when it went well; ``error_code``, ``retryable`` and
    ``scope`` are the ``WeirError``'s."""

    span: TableSpan
    from_ts: Ts
    to_ts: Ts
    committed: bool = False
    rows: int = 0
    bytes: int = 0
    files: tuple[str, ...] = ()
    #: commit time of the newest change written, Unix seconds; 0 when there was none
    commit_time: float = 0.0
    error: str = ""
    error_code: str = ""
    retryable: bool = True
    scope: Scope = Scope.CHANGEFEED


@dataclass(frozen=True, slots=True)
class StagedFile:
    """One file of a dumped chunk, lying where the sink can take it over without rewriting it."""

    path: str
    rows: int
    bytes: int
    #: JSON statistics in the sink's own form, or empty
    stats: str = ""


@dataclass(frozen=True, slots=True)
class Visible:
    """``version``: a sink's own name for what its readers see now, empty where it has none. ``committed_ts``: the
    furthest of the asked spans in it, 0 when nothing is recorded."""

    version: str
    committed_ts: Ts


@dataclass(frozen=True, slots=True)
class SpanRepartition:
    """A table's ``new`` spans, which are at ``ts``, in place of the ``old`` ones. ``number``: of the table's
    repartitions."""

    old: tuple[TableSpan, ...]
    new: tuple[TableSpan, ...]
    ts: Ts
    number: int


class Sink(Protocol):
    """A destination, as captures see it. Methods block (worker thread); each instance is for one changefeed.

    Exactly once (``docs/decisions/0004-exactly-once-through-the-sink.md``): the data and the record "span is at to_ts"
    become visible in one atomic step, and only if the record read ``from_ts`` before. Doing any call again after a
    crash changes nothing. What not every sink can is in protocols of their own, which ``capabilities`` names.
    """

    @property
    def capabilities(self) -> Capabilities:
        """Those of its plugin."""
        ...

    def check(self, tables: Sequence[TableRecord]) -> None:
        """Before a changefeed is created: reachable, writable, and every target free or already this changefeed's.

        :raises agent.errors.SinkError: one line: cause and cure.
        """
        ...

    def unfit(self, tables: Sequence[TableRecord]) -> dict[int, str]:
        """Those of ``tables`` that cannot be in this sink whatever they hold (their names), by id, and why."""
        ...

    def committed_ts(self, table: TableRecord, span: TableSpan) -> Ts | None:
        """What the sink records for the span; None when it has no record.

        :raises agent.errors.SinkFencedError: the table has other spans.
        """
        ...

    def visible(self, table: TableRecord, spans: Sequence[TableSpan]) -> Visible:
        """What readers see at this moment, and how far that is.

        :raises agent.errors.SinkError: it cannot be read.
        """
        ...

    def load(self, table: TableRecord, schema: TableSchema, arrow: pa.Schema, files: Sequence[StagedFile]) -> None:
        """Create the table from staged files and record ``table.start_ts`` for its whole span, in one step."""
        ...

    def commit(self, tasks: Sequence[FlushTask], results: Sequence[FlushResult]) -> list[FlushResult]:
        """Called with all parts of the spans of one flush: make uncommitted files visible.

        A result without error that is still not ``committed`` had nothing to write: the record stays at ``from_ts``.
        """
        ...

    def writer(self) -> "Writer":
        """What executors write with: they open the sink themselves, and ask for it."""
        ...


class Writer(Protocol):
    """A sink, as executors see it."""

    def stage(self, table: TableSchema, chunk_id: str, batches: Iterator[pa.RecordBatch], ts: Ts) -> list[StagedFile]:
        """Write one chunk of a snapshot to where ``load`` can take it over; idempotent by chunk_id."""
        ...

    def write(self, task: FlushTask, changes: Iterable[Changes]) -> FlushResult:
        """Write one task's changes; commit too where the sink does both in one step.

        ``changes`` are read from the log, and may be read again.
        """
        ...


@runtime_checkable
class Alters(Protocol):
    """A sink whose tables follow schema changes."""

    def alter(self, changes: Sequence[SchemaChange]) -> None:
        """Let tables become what the changes of one transaction made of them; what has been done already stays.

        Called on the owner's capture, while nothing is written to these tables and everything below ``ts`` is there.

        :raises agent.errors.SinkError: a table cannot become that, or not now.
        """
        ...


@runtime_checkable
class Splits(Protocol):
    """A sink whose tables several captures may write at once, each its spans."""

    def repartition(self, table: TableRecord, order: SpanRepartition) -> Ts:
        """Record the new spans at ``order.ts`` and make the old ones' records useless, in one step; once per number.

        Nothing but this protects the spans of a table from a stale writer: a writer of an old span, whenever it
        comes, is refused afterwards. Returns ``order.ts``; or, larger, where an old span is recorded: then nothing was
        changed.

        :raises agent.errors.SinkFencedError: the table has had a later repartition.
        :raises agent.errors.SinkError: it has no record of an old span, or cannot be written.
        """
        ...


@runtime_checkable
class ReadsBack(Protocol):
    """A sink that can say what it holds, for ``diff``."""

    def read_rows(self, table: TableRecord, schema: TableSchema, arrow: pa.Schema) -> Iterator[pa.RecordBatch]:
        """The rows of a table with the columns of ``arrow`` (one that the table does not have is NULL), as often as
        asked.

        :raises TableHeldError: there is no table, or it cannot be read.
        """
        ...

    def as_stored(self, rows: pa.RecordBatch) -> pa.Table:
        """Rows of the source, or of ``read_rows``, as this sink keeps them."""
        ...
