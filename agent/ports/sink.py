"""Sink port: what a destination promises, and the values that captures and executors exchange for it."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import pyarrow as pa

from agent.ports.capabilities import Capabilities
from agent.ports.checksums import KeyRange
from agent.ports.table_files import TableFiles
from agent.rows.batches import SegmentRef
from agent.rows.changes import Changes
from agent.rows.schema import TableSchema
from agent.rows.schema_change import SchemaChange
from reactor.errors import Scope
from reactor.ids import MAX_TS, TableSpan, Ts
from reactor.records.changefeed import NO_FILTER, FilterConfig, SinkMode
from reactor.records.sink_settings import TableLayout
from reactor.records.tables.table import TableRecord


@dataclass(frozen=True, slots=True)
class SinkUri:
    """A sink's address. ``scheme`` names the plugin, with the storage behind a ``+``. ``location``: a directory
    (storage ``file``) or a URL without options. ``options`` may hold secrets, so they are not in the repr."""

    scheme: str
    storage: str
    location: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def is_local(self) -> bool:
        return self.storage == "file"


@dataclass(frozen=True, slots=True)
class SinkScope:
    """The changefeed that a sink is opened for. ``changefeed``: the owner's name that the sink records with its
    tables. ``layouts``: those of its tables, if the sink is one that ``LaysOut``."""

    changefeed: str
    mode: SinkMode
    layouts: tuple[TableLayout, ...] = ()


@dataclass(frozen=True, slots=True)
class FeedContext:
    """The parameters of all flushes of a changefeed. ``changefeed``: the name that its sink is opened with.
    ``was_filtered``: the filter was different earlier, so the sink may hold rows that the source has deleted."""

    changefeed: str
    sink_uri: str
    sink_mode: SinkMode
    filter: FilterConfig = NO_FILTER
    was_filtered: bool = False


@dataclass(frozen=True, slots=True)
class FlushResult:
    """The result of one flush task. ``committed``: the sink already records ``to_ts``; otherwise ``files`` (JSON
    descriptions in the sink's own form) await ``Sink.commit``. ``error`` is empty on success; ``error_code``,
    ``retryable`` and ``scope`` are those of the ``WeirError``."""

    span: TableSpan
    from_ts: Ts
    to_ts: Ts
    committed: bool = False
    rows: int = 0
    bytes: int = 0
    files: tuple[str, ...] = ()
    #: commit time of the newest change written, Unix seconds; 0 if there was none
    commit_time: float = 0.0
    error: str = ""
    error_code: str = ""
    retryable: bool = True
    scope: Scope = Scope.CHANGEFEED


@dataclass(frozen=True, slots=True)
class FlushTask:
    """Move one span from ``from_ts`` to ``to_ts``: the input of one Spark task.

    ``from_ts`` is the Ts that the sink records for the span; the sink refuses the write if it has another one.
    ``change``: the newest schema change in the range (JSON of a ``TableChange``), or empty; its transaction, at
    ``change_ts``, may contain rows of the old schema. ``part`` of ``parts``: a changelog span's backlog may be divided
    into tasks whose files are committed together.
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
    change_ts: Ts = MAX_TS

    def result(
        self,
        *,
        committed: bool = False,
        rows: int = 0,
        bytes: int = 0,
        files: tuple[str, ...] = (),
        commit_time: float = 0.0,
    ) -> FlushResult:
        """Return the result of this task; see ``FlushResult``."""
        return FlushResult(self.span, self.from_ts, self.to_ts, committed, rows, bytes, files, commit_time)


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A file with one chunk of a dump, staged so that the sink can take it over without rewriting it."""

    path: str
    rows: int
    bytes: int
    #: statistics as JSON in the sink's own form, or empty
    stats: str = ""


@dataclass(frozen=True, slots=True)
class Visible:
    """The state that readers of the sink see. ``version``: the sink's own name for the version, empty if it has none.
    ``committed_ts``: the highest Ts recorded for the requested spans, 0 if there is no record."""

    version: str
    committed_ts: Ts


@dataclass(frozen=True, slots=True)
class SpanRepartition:
    """Replaces a table's ``old`` spans by ``new`` ones, which start at ``ts``. ``number`` counts the table's
    repartitions."""

    old: tuple[TableSpan, ...]
    new: tuple[TableSpan, ...]
    ts: Ts
    number: int


@dataclass(frozen=True, slots=True)
class TableCopy:
    """A staged copy of all rows of a table at ``table.start_ts``, with the ``spans`` to record, which the repartition
    ``cut`` made (0: none). ``schema`` holds the replicated columns, ``arrow`` their types. ``number``: when the copy
    began, Unix milliseconds: of copies at one Ts, as of a source that nobody writes, a later one has a larger number.
    """

    table: TableRecord
    spans: tuple[TableSpan, ...]
    schema: TableSchema
    arrow: pa.Schema
    files: tuple[StagedFile, ...]
    cut: int = 0
    number: int = 0


@dataclass(frozen=True, slots=True)
class Maintained:
    """The result of a table's maintenance. ``files`` and ``bytes``: of the data that readers see now, and before.
    ``joined``: files that were rewritten; ``removed``: files that no version of the table names any more; ``expired``:
    versions that were given up."""

    files_before: int = 0
    files: int = 0
    bytes_before: int = 0
    bytes: int = 0
    joined: int = 0
    removed: int = 0
    expired: int = 0


class Sink(Protocol):
    """A destination, as captures use it. Methods block (worker thread); an instance serves one changefeed.

    Exactly once (``docs/decisions/0004-exactly-once-through-the-sink.md``): data and the record "the span is at to_ts"
    become visible in one atomic step, and only if the record was at ``from_ts`` before. All calls are idempotent, so
    they can be repeated after a crash. Optional features are separate protocols, listed in ``capabilities``.
    """

    @property
    def capabilities(self) -> Capabilities:
        """The capabilities that the sink's plugin declares."""
        ...

    def check(self, tables: Sequence[TableRecord]) -> None:
        """Before a changefeed is created: check that the sink is reachable and writable, and that every target table is
        free or already this changefeed's.

        :raises agent.errors.SinkError: one line with cause and cure.
        """
        ...

    def unfit(self, tables: Sequence[TableRecord]) -> dict[int, str]:
        """Return, by table id, why a table cannot exist in this sink regardless of its rows (its name, for example)."""
        ...

    def committed_ts(self, table: TableRecord, span: TableSpan) -> Ts | None:
        """Return the Ts that the sink records for the span, or None if it has no record.

        :raises agent.errors.SinkFencedError: the table has different spans.
        """
        ...

    def visible(self, table: TableRecord, spans: Sequence[TableSpan]) -> Visible:
        """Return what readers see now.

        :raises agent.errors.SinkError: it cannot be read.
        """
        ...

    def load(self, table: TableRecord, schema: TableSchema, arrow: pa.Schema, files: Sequence[StagedFile]) -> None:
        """Create the table from staged files and record ``table.start_ts`` for its whole key range, in one step."""
        ...

    def commit(self, tasks: Sequence[FlushTask], results: Sequence[FlushResult]) -> list[FlushResult]:
        """Make uncommitted files visible. Called with all parts of the spans of one flush.

        A result without error that is still not ``committed`` had nothing to write: the record stays at ``from_ts``.
        """
        ...

    def writer(self) -> "Writer":
        """Return the sink's writer. Executors open the sink themselves."""
        ...


class Writer(Protocol):
    """A destination, as executors use it."""

    def stage(self, table: TableRecord, chunk_id: str, batches: Iterator[pa.RecordBatch], ts: Ts) -> list[StagedFile]:
        """Write one chunk of a snapshot as files that ``load`` can take over; idempotent by ``chunk_id``."""
        ...

    def write(self, task: FlushTask, changes: Iterable[Changes]) -> FlushResult:
        """Write one task's changes, and commit them if the sink writes and commits in one step.

        ``changes`` are read from the log and may be iterated more than once.
        """
        ...


@runtime_checkable
class Alters(Protocol):
    """A sink whose tables follow schema changes."""

    def alter(self, changes: Sequence[SchemaChange]) -> None:
        """Apply the schema changes of one transaction; changes that are already applied are skipped.

        Called on the owner's capture while nobody writes these tables and everything below ``ts`` is committed.

        :raises agent.errors.SinkError: a table cannot be changed like that, or not now.
        """
        ...


@runtime_checkable
class Splits(Protocol):
    """A sink whose tables can be written by several captures at once, each writing its own spans."""

    def repartition(self, table: TableRecord, order: SpanRepartition) -> Ts:
        """Record the new spans at ``order.ts`` and invalidate the old ones' records, in one step; idempotent by number.

        This is the only fence against stale writers: every later write to an old span is refused. Return ``order.ts``;
        or, if an old span's record is ahead of it, that larger Ts, with nothing changed.

        :raises agent.errors.SinkFencedError: the table has had a later repartition.
        :raises agent.errors.SinkError: the sink has no record of an old span, or cannot be written.
        """
        ...


@runtime_checkable
class Replaces(Protocol):
    """A sink whose tables can be replaced by a fresh copy."""

    def replace(self, copy: TableCopy) -> None:
        """Replace the table by ``copy`` and record its spans, in one step; idempotent by position and number. Other
        spans that the table has had are fenced: whoever still writes them is refused.

        Called while nobody writes the table. Works whatever state the sink's table is in, even if others changed or
        removed it. In mode changelog, which keeps its history, this appends a truncate and then the copy's rows as
        inserts, behind all changes of the same Ts.

        :raises agent.errors.CopyBehindError: the table is ahead of the copy.
        :raises agent.errors.SinkFencedError: a later copy has replaced the table.
        :raises agent.errors.SinkError: the sink cannot be written.
        """
        ...


@runtime_checkable
class MarksLeft(Protocol):
    """A sink whose tables can say that they are no longer replicated."""

    def mark_left(self, table: TableRecord, ts: Ts, *, time: float) -> None:
        """Mark the table as one that left the changefeed at ``time`` (Unix seconds), when nothing above ``ts`` was
        written; idempotent. A table that is gone, or was replaced at a later position, remains as it is. What replaces
        the table takes the mark away.

        :raises agent.errors.SinkError: the sink cannot be written.
        """
        ...


@runtime_checkable
class ReadsBack(Protocol):
    """A sink whose rows can be read back, for ``diff``."""

    def read_rows(self, table: TableRecord, schema: TableSchema, arrow: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the table's rows with the columns of ``arrow``; a column that the table lacks is NULL. May be called
        repeatedly.

        :raises TableHeldError: the table does not exist or cannot be read.
        """
        ...

    def as_stored(self, rows: pa.RecordBatch) -> pa.Table:
        """Return rows of the source, or of ``read_rows``, in this sink's representation."""
        ...


@runtime_checkable
class ReadsRanges(Protocol):
    """A sink that reads a part of a table for less than all of it, if ``is_read_by_ranges``."""

    @property
    def is_read_by_ranges(self) -> bool:
        """False: it has to put together all rows first."""
        ...

    def read_range(
        self, table: TableRecord, schema: TableSchema, arrow: pa.Schema, keys: KeyRange
    ) -> Iterator[pa.RecordBatch]:
        """As ``ReadsBack.read_rows``, of the rows in ``keys``."""
        ...


@dataclass(frozen=True, slots=True)
class RowRepair:
    """Changes of ``ts``, in the sink's types, that make some rows of ``table`` those that the source has there. The
    ``spans`` are at ``ts``."""

    table: TableRecord
    spans: tuple[TableSpan, ...]
    ts: Ts
    changes: Changes


@runtime_checkable
class Repairs(Protocol):
    """A sink whose rows can be put right one by one."""

    def repair(self, order: RowRepair) -> None:
        """Apply the changes in one step; idempotent but for a changelog, which gets them again. The spans' records stay
        as they are.

        :raises agent.errors.SinkFencedError: a span is past ``order.ts``, or the table has other spans.
        :raises agent.errors.SinkError: it cannot be written.
        """
        ...


@runtime_checkable
class LaysOut(Protocol):
    """A sink whose tables lie as the changefeed's configuration says: ``SinkScope.layouts``."""

    def check_layout(self, table: TableRecord, schema: TableSchema, arrow: pa.Schema) -> None:
        """Check that a table with these columns of the source can have its layout.

        :raises agent.errors.SinkError: it cannot, or the layout cannot be parsed; one line with cause and cure.
        """
        ...


@runtime_checkable
class Maintains(Protocol):
    """A sink whose tables are cared for: small files are joined, and what nobody reads any more is removed."""

    def maintain(self, table: TableRecord) -> Maintained:
        """Do at once, and thoroughly, what else is done beside the flushes. Rows and records do not change.

        :raises agent.errors.SinkConflictError: other writers rewrote the same files.
        :raises agent.errors.SinkError: the sink cannot be read or written.
        """
        ...

    def files(self, table: TableRecord) -> TableFiles:
        """Return the table's data files, as its metadata has them: no data is read.

        :raises agent.errors.SinkError: the table does not exist or cannot be read.
        """
        ...
