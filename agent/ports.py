"""The interfaces between the parts that move rows, with what each promises.

Everything named ``...Task`` or ``...Result`` is a frozen, picklable value of plain fields: only such values cross the
JVM. Positions (``Ts``) bound half-open ranges ``(from_ts, to_ts]``.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from agent.ddl import SchemaChange
from agent.schema import TableSchema
from reactor.errors import Scope
from reactor.ids import TableSpan, Ts
from reactor.records import NO_FILTER, FilterConfig, SinkMode, TableRecord

if TYPE_CHECKING:
    from agent.patience import Patience

T = TypeVar("T")
U = TypeVar("U")

# ``Changes.op``
INSERT, UPDATE, DELETE, TRUNCATE = 1, 2, 3, 4
# ``Changes.before_kind``
BEFORE_NONE, BEFORE_KEY, BEFORE_FULL = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Changes:
    """Decoded row changes of one table under one schema, in log order; all columns have ``len(op)`` rows.

    ``after``: the new image (all NULL where ``op`` is DELETE). ``before``: what the source sent of the old row: nothing
    (``before_kind`` 0), the key columns (1), or the full row (2); None when no row has any. ``unchanged[name]``: True
    where an update left a large value out (PostgreSQL TOAST): neither NULL nor known; columns without such rows are
    not in the mapping.
    """

    schema: TableSchema
    op: npt.NDArray[np.int8]
    commit_ts: npt.NDArray[np.int64]
    seq: npt.NDArray[np.int64]
    after: pa.RecordBatch
    before: pa.RecordBatch | None
    before_kind: npt.NDArray[np.int8]
    unchanged: dict[str, npt.NDArray[np.bool_]] = field(default_factory=dict)
    #: commit time of the newest of them, Unix seconds; 0 when not known
    commit_time: float = 0.0
    #: ... and of each, where they have not all the same
    commit_times: npt.NDArray[np.float64] | None = None

    def __len__(self) -> int:
        return len(self.op)

    def where(self, keep: npt.NDArray[np.bool_]) -> "Changes":
        """Those rows only."""
        mask = pa.array(keep)
        return self._picked(keep, lambda images: images.filter(mask))

    def take(self, at: npt.NDArray[np.int64]) -> "Changes":
        """The rows at these places, in this order."""
        places = pa.array(at)
        return self._picked(at, lambda images: images.take(places))

    def _picked(self, rows: npt.NDArray[Any], picked_of: Callable[[pa.RecordBatch], pa.RecordBatch]) -> "Changes":
        unchanged = {name: flags[rows] for name, flags in self.unchanged.items()}
        return replace(
            self,
            op=self.op[rows],
            commit_ts=self.commit_ts[rows],
            seq=self.seq[rows],
            after=picked_of(self.after),
            before=None if self.before is None else picked_of(self.before),
            before_kind=self.before_kind[rows],
            unchanged={name: flags for name, flags in unchanged.items() if flags.any()},
            commit_times=None if self.commit_times is None else self.commit_times[rows],
        )


@dataclass(frozen=True, slots=True)
class SegmentRef:
    """One file of the change log as its name tells it (see ``agent.log.segment``).

    It holds row events with ``first_ts <= commit_ts <= last_ts``; every commit at or below ``resolved_ts`` is in this
    segment or an earlier one. ``tables``: ids of the tables with at least one event in it.
    """

    path: str
    seq: int
    epoch: int
    first_ts: Ts
    last_ts: Ts
    resolved_ts: Ts
    bytes: int = 0
    tables: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class TableBatch:
    """Raw row events of one table under one schema on their way into the log (columns: ``agent.schema.LOG_BATCH``).

    ``commit_time``: commit time of the newest, Unix seconds.
    """

    schema: TableSchema
    batch: pa.RecordBatch
    commit_time: float


@dataclass(frozen=True, slots=True)
class FlushTask:
    """Move one span from ``from_ts`` to ``to_ts``: what one Spark task is told.

    ``from_ts`` is what the sink has recorded for the span: a sink that holds anything else refuses the write.
    ``change``: the newest schema change in the range (JSON of a ``TableChange``), empty where there is none: its
    transaction may have rows of before. ``part`` of ``parts``: a backlog of a changelog span may be cut into tasks
    whose files are committed together. ``was_filtered``: the filter was another one before, which may have left rows
    that the source has no longer.
    """

    changefeed: str
    span: TableSpan
    table: TableRecord
    sink_uri: str
    sink_mode: SinkMode
    log_uri: str
    segments: tuple[SegmentRef, ...]
    from_ts: Ts
    to_ts: Ts
    part: int = 0
    parts: int = 1
    filter: FilterConfig = NO_FILTER
    was_filtered: bool = False
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
class Standing:
    """``version``: a sink's own name for what its readers see now, empty where it has none. ``recorded_ts``: the
    furthest of the asked spans in it, 0 when nothing is recorded."""

    version: str
    recorded_ts: Ts


@dataclass(frozen=True, slots=True)
class SpanCut:
    """A table's ``new`` spans, which stand at ``ts``, in place of the ``old`` ones. ``number``: of the table's cuts."""

    old: tuple[TableSpan, ...]
    new: tuple[TableSpan, ...]
    ts: Ts
    number: int


class Executor(Protocol):
    """Runs a function over descriptors, one Spark task each.

    Blocking; call it from a worker thread. ``function`` must be importable on the executors; descriptors and results
    are pickled. Results come in the order of the descriptors. When ``patience`` ends, the job is cancelled; ``at_once``
    is how many of its tasks may run at a time.

    :raises agent.errors.JobTimeoutError: it was cancelled.
    :raises agent.errors.JobError: the job failed as a whole (Spark gone, task died); retryable.
    """

    def map(
        self,
        function: Callable[[T], U],
        descriptors: Sequence[T],
        *,
        description: str,
        patience: "Patience | None" = None,
        at_once: int | None = None,
    ) -> list[U]: ...


class Sink(Protocol):
    """A destination. Methods block (worker thread or executor); each instance is for one changefeed.

    Exactly once (DESIGN 5.4): the data and the record "span stands at to_ts" become visible in one atomic step, and
    only if the record read ``from_ts`` before. Doing any call again after a crash changes nothing.
    """

    @property
    def keeps_record(self) -> bool:
        """False: nothing is remembered here, and what etcd says of a span is all there is to go by."""
        ...

    def check(self, tables: Sequence[TableRecord]) -> None:
        """Before a changefeed is created: reachable, writable, and every target free or already this changefeed's.

        :raises agent.errors.SinkError: one line: cause and cure.
        """
        ...

    def unfit(self, tables: Sequence[TableRecord]) -> dict[int, str]:
        """Those of ``tables`` that cannot be in this sink whatever they hold (their names), by id, and why."""
        ...

    def recorded_ts(self, table: TableRecord, span: TableSpan) -> Ts | None:
        """What the sink records for the span; None when it has no record.

        :raises agent.errors.SinkFencedError: the table has been cut into other spans.
        """
        ...

    def standing(self, table: TableRecord, spans: Sequence[TableSpan]) -> Standing:
        """What readers see at this moment, and how far that is.

        :raises agent.errors.SinkError: it cannot be read.
        """
        ...

    def cut(self, table: TableRecord, order: SpanCut) -> Ts:
        """Record the new spans at ``order.ts`` and make the old ones' records useless, in one step; once per number.

        Nothing but this stands between the spans of a table and a late writer: a writer of an old span, whenever it
        comes, is refused afterwards. Returns ``order.ts``; or, larger, where an old span is recorded: then nothing was
        changed.

        :raises agent.errors.SinkFencedError: the table has had a later cut.
        :raises agent.errors.SinkError: it has no record of an old span, or cannot be written.
        """
        ...

    def stage(self, table: TableSchema, chunk_id: str, batches: Iterator[pa.RecordBatch], ts: Ts) -> list[StagedFile]:
        """Write one chunk of a snapshot to where ``load`` can take it over; idempotent by chunk_id. On executors."""
        ...

    def load(self, table: TableRecord, schema: TableSchema, arrow: pa.Schema, files: Sequence[StagedFile]) -> None:
        """Create the table from staged files and record ``table.start_ts`` for its whole span, in one step."""
        ...

    def alter(self, changes: Sequence[SchemaChange]) -> None:
        """Let tables become what the changes of one transaction made of them; what has been done already stays.

        Called on the owner's capture, while nothing is written to these tables and everything below ``ts`` is there.

        :raises agent.errors.SinkError: a table cannot become that, or not now.
        """
        ...

    def write(self, task: FlushTask, changes: Iterable[Changes]) -> FlushResult:
        """Called on executors: write one task's changes; commit too where the sink does both in one step.

        ``changes`` are read from the log, and may be read again.
        """
        ...

    def commit(self, tasks: Sequence[FlushTask], results: Sequence[FlushResult]) -> list[FlushResult]:
        """Called on the capture with all parts of the spans of one flush: make uncommitted files visible.

        A result without error that is still not ``committed`` had nothing to write: the record stays at ``from_ts``.
        """
        ...
