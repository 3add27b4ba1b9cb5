"""Diff: compares source and sink, which are equal if they contain the same rows with the same multiplicity.

If both sides can sum hashes of rows by key ranges (``agent.feeds.range_diff``), only ranges with different sums are
read. The rest of this text is about the comparison of rows: of such ranges, and of tables without such sums, which
report the reason.

Both sides are read once, in batches, and reduced to numbers per key bucket: the row count, and the sum of row hashes
(over all columns, by ``agent.kernels.key_hash``; a sum is independent of the order, and detects duplicates). Where
buckets differ, both sides are read again for a few of them, to find the keys. Keys are shown, values are not.

The caller chooses tables and Ts: the source is read under one exported snapshot, and the sink must be held at its Ts.
Both may be read repeatedly, so they must stay there.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from agent.errors import TABLE_READ_ERRORS, SinkUriError, TableAlteredError
from agent.feeds import range_diff
from agent.feeds.progress import Progress, compared
from agent.feeds.range_diff import Ranges, RangeSums, SinkTask
from agent.filter.events import filter_snapshot, rules_for
from agent.kernels.key_hash import key_hash
from agent.ports.checksums import KeyRange, NoChecksums, SourceChecksums
from agent.ports.executor import Executor
from agent.ports.sink import ReadsBack, ReadsRanges, Sink
from agent.ports.source import ComparisonSnapshot, SumsRanges
from agent.rows.fold import key_codes
from agent.rows.row_forms import RowForm
from agent.rows.schema import TableSchema
from agent.sources.registry import arrow_schema
from reactor.records.changefeed import NO_FILTER, FilterConfig
from reactor.records.schedules import ComparedTable
from reactor.records.tables.table import TableRecord

#: reads one side from the beginning
Rows = Callable[[], Iterable[pa.RecordBatch]]
#: converts a batch to the sink's representation
AsStored = Callable[[pa.RecordBatch], pa.Table]
Hashes = npt.NDArray[np.uint64]

_BUCKET_BITS = 12
_BUCKETS_SHOWN = 16
_DIFFERENCES_MAX = 10
#: characters of a key that are shown
_KEY_MAX = 200


@dataclass(frozen=True, slots=True)
class TableDiff:
    """One table. ``differences``: the first differing keys, described; empty if ``equal``. ``by_rows``: why rows were
    compared instead of checksums; empty if checksums were. ``share``: of the ranges of its keys that were compared, at
    random; rows are those of them. ``left``: how many are still to be compared; None: it has none. ``waiting``: why it
    could not be compared now: it was altered under the snapshot."""

    table: str
    equal: bool
    rows_source: int
    rows_sink: int
    differences: tuple[str, ...] = ()
    by_rows: str = ""
    share: float = 1.0
    left: int | None = None
    waiting: str = ""


@dataclass(frozen=True, slots=True)
class Pushed:
    """The place where checksums are summed: ``executor``, which opens the sink itself."""

    executor: Executor
    open_sink: Callable[[], Sink]


def compare_tables(
    snapshot: ComparisonSnapshot,
    sink: Sink,
    tables: Sequence[TableRecord],
    filter: FilterConfig = NO_FILTER,
    pushed: Pushed | None = None,
    *,
    sample: float = 1.0,
    progress: Progress | None = None,
) -> list[TableDiff]:
    """Compare tables of the source under ``snapshot`` with those of the sink; one that either side does not have, or
    cannot read, differs. ``pushed`` None: compare all rows. ``sample``: the share of its keys' ranges that is compared
    of a table with checksums. ``progress``: continue with what it lacks, as long as there is time; of at least one
    range.

    :raises SourceError: the source cannot be reached, or the snapshot is gone.
    :raises SinkError: the sink cannot be read back.
    """
    if not isinstance(sink, ReadsBack):
        raise SinkUriError("this sink cannot be read, so there is nothing to compare")
    progress = progress or Progress(sample=sample)
    found = []
    for table in tables:
        found.append(_compare_table(snapshot, sink, table, filter, pushed, progress))
        if not progress.has_time():
            break
    return found


def _compare_table(
    snapshot: ComparisonSnapshot,
    sink: ReadsBack,
    table: TableRecord,
    filter: FilterConfig,
    pushed: Pushed | None,
    progress: Progress,
) -> TableDiff:
    found = _compared_table(snapshot, sink, table, filter, pushed, progress)
    if found.left is None and not found.waiting:
        rows = found.rows_source, found.rows_sink
        empty = ComparedTable(table_id=table.table_id, name=found.table, by_rows=found.by_rows, left=(0,))
        progress.note(compared(empty, (0,), rows, found.differences, snapshot.ts))
    return found


def _compared_table(
    snapshot: ComparisonSnapshot,
    sink: ReadsBack,
    table: TableRecord,
    filter: FilterConfig,
    pushed: Pushed | None,
    progress: Progress,
) -> TableDiff:
    name = f"{table.schema_name}.{table.name}"
    try:
        schema = snapshot.schema(table)
        if missing := sorted({*table.key} - {column.name for column in schema.columns}):
            return _unread(
                name,
                f"the source's table has no column {missing[0]} any more, which is in the key; the sink follows when "
                "the log declares the change (PostgreSQL: with the table's next row)",
            )
        rules = rules_for(filter, table.schema_name, table.name)
        selected = rules.select(schema)
        why = "rows are filtered by their values" if rules.inserts else ""
        if pushed is not None and not why:
            found = _by_ranges(snapshot, sink, table, selected, pushed, progress)
            if isinstance(found, TableDiff):
                return found
            why = found.why
        theirs = partial(_selected_rows, snapshot, schema, filter)
        ours = partial(sink.read_rows, table, selected, arrow_schema(selected))
        return replace(compare(name, theirs, ours, key=table.key, as_stored=sink.as_stored), by_rows=why)
    except TableAlteredError as error:
        return TableDiff(name, False, 0, 0, waiting=str(error))
    except TABLE_READ_ERRORS as error:
        return _unread(name, str(error))


def _by_ranges(
    snapshot: ComparisonSnapshot,
    sink: ReadsBack,
    table: TableRecord,
    selected: TableSchema,
    pushed: Pushed,
    progress: Progress,
) -> TableDiff | NoChecksums:
    sums = _sums(snapshot, sink, table, selected, pushed)
    if isinstance(sums, NoChecksums):
        return sums
    now, name = progress.start(table, sums.plan()), f"{table.schema_name}.{table.name}"
    while now.left:
        block = progress.block(now)
        found, sides = sums.of(Ranges(now.column, now.low, now.step, now.count), block)
        more: list[str] = []
        for theirs, ours in sides:
            if len(more) + len(now.differences) >= _DIFFERENCES_MAX:
                break
            more += compare(name, theirs, ours, key=table.key, as_stored=sink.as_stored).differences
        room = _DIFFERENCES_MAX - len(now.differences)
        now = compared(now, block, found.rows, more[:room], snapshot.ts)
        progress.note(now)
        if not progress.has_time():
            break
    rows = now.rows_source, now.rows_sink
    return TableDiff(name, not now.differences, *rows, now.differences, share=now.share, left=len(now.left))


@dataclass(frozen=True, slots=True)
class _TableSums:
    """Sums of one table's ranges, and rows of those that differ, the source's first."""

    checksums: SourceChecksums
    executor: Executor
    column: str
    order: Callable[[RowForm, Ranges, KeyRange], SinkTask]
    read: Callable[[KeyRange], tuple[Rows, Rows]]

    def plan(self) -> Ranges:
        return range_diff.plan(self.checksums, self.column)

    def of(self, ranges: Ranges, chosen: tuple[int, ...]) -> tuple[RangeSums, Iterator[tuple[Rows, Rows]]]:
        sums = range_diff.sum_ranges(self.checksums, self.order, self.executor, ranges, chosen)
        return sums, map(self.read, sums.differing())


def _sums(
    snapshot: ComparisonSnapshot, sink: ReadsBack, table: TableRecord, selected: TableSchema, pushed: Pushed
) -> _TableSums | NoChecksums:
    if not isinstance(snapshot, SumsRanges):
        return NoChecksums("its source sums no hashes")
    if not isinstance(sink, ReadsRanges) or not sink.is_read_by_ranges:
        return NoChecksums("its sink is not read by ranges")
    checksums, arrow = snapshot.checksums(selected), arrow_schema(selected)
    if isinstance(checksums, NoChecksums):
        return checksums
    column = table.key[0] if table.key and pa.types.is_integer(arrow.field(table.key[0]).type) else ""

    def read(keys: KeyRange) -> tuple[Rows, Rows]:
        theirs = partial(snapshot.read_range, selected, keys)
        return theirs, partial(sink.read_range, table, selected, arrow, keys)

    order = partial(SinkTask, pushed.open_sink, table, selected, arrow)
    return _TableSums(checksums, pushed.executor, column, order, read)


def differing_sides(
    snapshot: ComparisonSnapshot,
    sink: ReadsBack,
    table: TableRecord,
    schema: TableSchema,
    filter: FilterConfig,
    pushed: Pushed,
) -> Iterable[tuple[Rows, Rows]]:
    """Parts of a table that may differ, as the sink has them: the source's rows, and the sink's."""
    rules = rules_for(filter, table.schema_name, table.name)
    selected = rules.select(schema)
    found = NoChecksums("") if rules.inserts else _sums(snapshot, sink, table, selected, pushed)
    sides: Iterable[tuple[Rows, Rows]]
    if isinstance(found, NoChecksums):
        theirs = partial(_selected_rows, snapshot, schema, filter)
        sides = [(theirs, partial(sink.read_rows, table, selected, arrow_schema(selected)))]
    else:
        ranges = found.plan()
        _, sides = found.of(ranges, tuple(range(ranges.count)))
    return ((partial(_plain, ours, sink.as_stored), partial(_plain, stored, sink.as_stored)) for ours, stored in sides)


def differing_rows(
    source: Rows, sink: Rows, key: Sequence[str], *, rows_max: int
) -> tuple[tuple[pa.Table, Hashes] | None, tuple[pa.Table, Hashes] | None]:
    """The rows of all buckets that differ, with their hashes; None: more than ``rows_max``."""
    ours, theirs = _Sums.of(source(), key), _Sums.of(sink(), key)
    (differing,) = np.nonzero((ours.rows != theirs.rows) | (ours.hashes != theirs.hashes))
    if max(ours.rows[differing].sum(), theirs.rows[differing].sum()) > rows_max:
        return None, None
    return _rows_of(source(), key, differing), _rows_of(sink(), key, differing)


def _unread(table: str, why: str) -> TableDiff:
    return TableDiff(table, False, 0, 0, (why,))


def _selected_rows(snapshot: ComparisonSnapshot, schema: TableSchema, filter: FilterConfig) -> Iterator[pa.RecordBatch]:
    return filter_snapshot(filter, schema, snapshot.read(schema))


def compare(table: str, source: Rows, sink: Rows, *, key: Sequence[str], as_stored: AsStored) -> TableDiff:
    """Compare two readings of one table: ``source`` in the source's types, ``sink`` in the sink's; ``as_stored``
    converts both to the sink's.

    Columns are the source's; without a ``key`` the whole row is the key. Columns without a common type count as a
    difference.
    """
    try:
        return _compare(table, partial(_plain, source, as_stored), partial(_plain, sink, as_stored), key)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, KeyError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        cause = f"the sink's columns are not those of the source ({reason})"
        return _unread(table, f"{cause}: a change that no row has followed yet, or another writer")


def _compare(table: str, source: Rows, sink: Rows, key: Sequence[str]) -> TableDiff:
    ours, theirs = _Sums.of(source(), key), _Sums.of(sink(), key)
    (differing,) = np.nonzero((ours.rows != theirs.rows) | (ours.hashes != theirs.hashes))
    differences: tuple[str, ...] = ()
    if len(differing):
        buckets = differing[:_BUCKETS_SHOWN]
        pair = [_rows_of(side(), key, buckets) for side in (source, sink)]
        differences = tuple(_differences(pair[0], pair[1], key))
    return TableDiff(table, not len(differing), int(ours.rows.sum()), int(theirs.rows.sum()), differences)


@dataclass(frozen=True, slots=True)
class _Sums:
    """The sums of one side, by bucket."""

    rows: npt.NDArray[np.int64]
    hashes: Hashes

    @classmethod
    def of(cls, batches: Iterable[pa.RecordBatch], key: Sequence[str]) -> "_Sums":
        count = 1 << _BUCKET_BITS
        sums = cls(np.zeros(count, np.int64), np.zeros(count, np.uint64))
        for batch in batches:
            row = _row_hash(batch)
            bucket = _bucket(batch, row, key)
            sums.rows[:] += np.bincount(bucket, minlength=count)
            np.add.at(sums.hashes, bucket, row)
        return sums


def _plain(side: Rows, as_stored: AsStored) -> Iterator[pa.RecordBatch]:
    """Yield batches in the sink's representation, columns by name."""
    for batch in side():
        for plain in as_stored(batch).to_batches():
            yield plain.select(sorted(plain.schema.names))


def _row_hash(batch: pa.RecordBatch) -> Hashes:
    return key_hash(batch, batch.schema.names)


def _bucket(batch: pa.RecordBatch, row: Hashes, key: Sequence[str]) -> npt.NDArray[np.int64]:
    place = key_hash(batch, key) if key else row
    return (place >> np.uint64(64 - _BUCKET_BITS)).astype(np.int64)


def _rows_of(
    batches: Iterable[pa.RecordBatch], key: Sequence[str], buckets: npt.NDArray[np.int64]
) -> tuple[pa.Table, Hashes]:
    """Return the rows in ``buckets``, with their hashes."""
    kept, hashes, schema = [], [np.zeros(0, np.uint64)], None
    for batch in batches:
        schema = batch.schema
        row = _row_hash(batch)
        inside = np.isin(_bucket(batch, row, key), buckets)
        kept.append(batch.filter(pa.array(inside)))
        hashes.append(row[inside])
    return pa.Table.from_batches(kept, schema) if kept else pa.table({}), np.concatenate(hashes)


def _differences(ours: tuple[pa.Table, Hashes], theirs: tuple[pa.Table, Hashes], key: Sequence[str]) -> Iterator[str]:
    """Yield descriptions of at most ten differences, by key."""
    tables = [table for table, _ in (ours, theirs) if table.num_columns]
    if not tables:
        yield "the number of rows, which have no columns"
        return
    both = pa.concat_tables(tables).combine_chunks()
    split = ours[0].num_rows
    row = np.concatenate([ours[1], theirs[1]])
    keys = both.select(list(key) or both.schema.names)
    code = key_codes(keys)
    count = int(code.max()) + 1
    in_source, in_sink = (np.bincount(part, minlength=count) for part in (code[:split], code[split:]))
    balance = np.zeros(count, np.uint64)
    np.add.at(balance, code, np.where(np.arange(len(code)) < split, row, np.uint64(0) - row))
    (wrong,) = np.nonzero((in_source != in_sink) | (balance != 0))
    first = np.full(count, len(code), np.int64)
    np.minimum.at(first, code, np.arange(len(code)))
    shown = keys.take(pa.array(first[wrong])).append_column("#", pa.array(wrong))
    shown = shown.sort_by([(name, "ascending") for name in keys.schema.names]).slice(0, _DIFFERENCES_MAX)
    for line in shown.to_pylist():
        at = line.pop("#")
        yield _in_words(line, both.filter(pa.array(code == at)), int(in_source[at]), int(in_sink[at]))


def _in_words(key: dict[str, object], rows: pa.Table, in_source: int, in_sink: int) -> str:
    named = ", ".join(f"{name}={value}" for name, value in key.items())
    named = named if len(named) <= _KEY_MAX else f"{named[: _KEY_MAX - 1]}…"
    if not in_sink:
        return f"{named}: missing in the sink"
    if not in_source:
        return f"{named}: only in the sink"
    if in_source != in_sink:
        return f"{named}: {in_source} times in the source, {in_sink} times in the sink"
    names = [name for name in rows.schema.names if _differs(rows.column(name), in_source)]
    return f"{named}: differs in {', '.join(names)}"


def _differs(column: pa.ChunkedArray, in_source: int) -> bool:
    """Return whether a column of one key's rows, the source's first, differs between the sides."""
    ours, theirs = column.slice(0, in_source), column.slice(in_source)
    return sorted(map(repr, ours.to_pylist())) != sorted(map(repr, theirs.to_pylist()))
