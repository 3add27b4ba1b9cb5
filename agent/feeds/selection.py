"""Selection: the rows of a table, of source and sink, whose keys match a condition on either side.

    source: rows that match ──┐ their keys                         keys that only the sink has ──► the source's rows
    sink:   rows that match ──┴──────────► the sink's rows ────────────────┘

The server evaluates the condition for its rows, and Weir for the sink's, so they may differ in what is equal (a
collation). That does no harm: a row too many is one that is compared, too.
"""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from agent.errors import FilterError, SourceConfigError
from agent.feeds.diff import Hashes, Rows
from agent.filter import expressions
from agent.filter.events import filter_snapshot, rules_for
from agent.filter.expressions import Expression
from agent.kernels.key_hash import key_hash
from agent.ports.sink import ReadsBack
from agent.ports.source import ComparisonSnapshot, ReadsSome
from agent.rows.fold import key_codes
from agent.rows.schema import TableSchema
from agent.sources.registry import arrow_schema
from reactor.records.changefeed import FilterConfig
from reactor.records.tables.table import TableRecord


class TooManyRowsError(Exception):
    """More rows match than were allowed."""


def matching_sides(
    snapshot: ComparisonSnapshot,
    sink: ReadsBack,
    table: TableRecord,
    schema: TableSchema,
    filter: FilterConfig,
    condition: str,
    *,
    rows_max: int,
) -> tuple[Rows, Rows]:
    """Return the source's rows, and the sink's, both as the sink has them.

    :raises FilterError: the condition does not fit the table.
    :raises TooManyRowsError: one of the sides has more than ``rows_max``.
    """
    if not isinstance(snapshot, ReadsSome):
        raise SourceConfigError(
            "rows of this source cannot be found by a condition; copy the whole table again instead"
        )
    selected = rules_for(filter, table.schema_name, table.name).select(schema)
    arrow = arrow_schema(selected)
    expression = _fitting(expressions.parse(condition), selected, arrow)
    found = _collected(filter_snapshot(filter, schema, snapshot.read_where(schema, condition)), rows_max)
    ours = [plain for batch in found if (plain := _plain(sink, batch)).num_rows]
    wanted = np.concatenate([np.zeros(0, np.uint64), *(key_hash(batch, table.key) for batch in ours)])
    rows = sink.read_rows(table, selected, arrow)
    kept = _collected(
        (batch.filter(pa.array(_is_wanted(sink, expression, wanted, batch, table.key))) for batch in rows), rows_max
    )
    theirs = [_plain(sink, batch) for batch in kept]
    others, alone = _only_there(ours, theirs, kept, table.key)
    if others.num_rows:
        keys = others.cast(pa.schema([_sent(others.schema.field(name), arrow.field(name)) for name in table.key]))
        read = filter_snapshot(filter, schema, snapshot.read_keys(schema, keys))
        ours += _of_keys((_plain(sink, batch) for batch in _collected(read, rows_max)), alone, table.key)
    return (lambda: ours), (lambda: theirs)


def _fitting(expression: Expression, schema: TableSchema, arrow: pa.Schema) -> Expression:
    names = {column.name.casefold() for column in schema.columns}
    if missing := [name for name in expression.columns if name.casefold() not in names]:
        raise FilterError(
            f"the expression {expression.text!r} reads {missing[0]}, which the sink's {schema.qualified_name} lacks"
        )
    expression.matches(pa.RecordBatch.from_pylist([], schema=arrow))
    return expression


def _plain(sink: ReadsBack, batch: pa.RecordBatch) -> pa.RecordBatch:
    """In the sink's representation, columns by name."""
    table = sink.as_stored(batch).combine_chunks()
    table = table.select(sorted(table.schema.names))
    [plain] = table.to_batches() or [pa.RecordBatch.from_pylist([], table.schema)]
    return plain


def _is_wanted(
    sink: ReadsBack, expression: Expression, wanted: Hashes, batch: pa.RecordBatch, key: Sequence[str]
) -> expressions.Mask:
    if not batch.num_rows:
        return np.zeros(0, np.bool_)
    found: expressions.Mask = expression.matches(batch) | np.isin(key_hash(_plain(sink, batch), key), wanted)
    return found


def _only_there(
    ours: Sequence[pa.RecordBatch], theirs: Sequence[pa.RecordBatch], kept: Sequence[pa.RecordBatch], key: Sequence[str]
) -> tuple[pa.Table, Hashes]:
    """Return the keys of ``theirs`` that are not in ``ours``, as they were read (``kept``), and their hashes."""
    if not theirs:
        return pa.table({}), np.zeros(0, np.uint64)
    both = pa.Table.from_batches([batch.select(list(key)) for batch in (*ours, *theirs)]).combine_chunks()
    codes = key_codes(both)
    split = sum(batch.num_rows for batch in ours)
    _, first = np.unique(codes[split:], return_index=True)
    alone = np.sort(first[~np.isin(codes[split:][first], codes[:split])])
    hashes = np.concatenate([key_hash(batch, key) for batch in theirs])[alone]
    return pa.Table.from_batches([batch.select(list(key)) for batch in kept]).take(pa.array(alone)), hashes


def _sent(stored: pa.Field, wanted: pa.Field) -> pa.Field:
    """What a sink has as text, as a time of day, is asked for by its text."""
    return stored if pa.types.is_time(wanted.type) and pa.types.is_string(stored.type) else wanted


def _of_keys(batches: Iterable[pa.RecordBatch], wanted: Hashes, key: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield the rows with exactly these keys: a server finds others too, which its collation takes for the same."""
    for batch in batches:
        found = batch.filter(pa.array(np.isin(key_hash(batch, key), wanted))) if batch.num_rows else batch
        if found.num_rows:
            yield found


def _collected(batches: Iterable[pa.RecordBatch], rows_max: int) -> list[pa.RecordBatch]:
    found, rows = [], 0
    for batch in batches:
        rows += batch.num_rows
        if rows > rows_max:
            raise TooManyRowsError
        if batch.num_rows:
            found.append(batch)
    return found
