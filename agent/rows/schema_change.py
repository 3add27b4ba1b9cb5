"""Schema changes: what becomes of a sink's table, and the tables as the log describes them at one position.

A source detects that a table has changed and writes a ``reactor.records.tables.schema_change.TableChange`` with
schemas in its own types. ``SchemaChange`` is the same change for a sink: Arrow columns, each with the origin of its
values.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from agent.rows.schema import TableSchema
from agent.rows.survivors import AskSurvivors
from reactor.ids import Ts
from reactor.records.tables.schema_change import DdlRecord, SchemaChangeKind, TableChange
from reactor.records.tables.table import TableRecord

Mask = npt.NDArray[np.bool_]
#: converts values of the old column to values of the new one; raises ``DecodeError`` if a value's conversion is not
#: known
Convert = Callable[[pa.Array], pa.Array]


@dataclass(frozen=True, slots=True, eq=False)
class Exact:
    """The source has changed a column's type, and ``convert`` reproduces what it made of the existing values."""

    convert: Convert


@dataclass(frozen=True, slots=True)
class Refused:
    """It is not known what the source made of the existing values; ``reason`` explains it in a few words."""

    reason: str


@dataclass(frozen=True, slots=True)
class Kept:
    """The plain conversion keeps the values. But the source has rewritten every row, so an expression (``USING``) may
    have changed them."""


#: None: the values are unchanged
Conversion = Exact | Refused | None
#: the same, for a column whose rows the source may have rewritten
WrittenConversion = Conversion | Kept


def converted(convert: Convert, values: pa.Array, is_left_out: Mask | None) -> pa.Array:
    """Return ``values`` converted. ``is_left_out``: rows without a known value, which stay NULL."""
    if is_left_out is None or not is_left_out.any():
        return convert(values)
    (rows,) = np.nonzero(~is_left_out)
    found = convert(values.take(pa.array(rows)))
    places = np.zeros(len(values), np.int64)
    places[rows] = np.arange(len(rows))
    return found.take(pa.array(places, mask=is_left_out))


@dataclass(frozen=True, slots=True)
class ColumnMove:
    """One column after the change. ``origin``: the column that held its values before; None if it is new, and then all
    existing rows get ``fill`` (None: NULL). ``convert``: the source's conversion; None if the sink casts the values
    itself."""

    name: str
    type: pa.DataType
    origin: str | None
    fill: pa.Scalar | None = None
    convert: Convert | None = None


@dataclass(frozen=True, slots=True)
class SchemaChange:
    """The change of one table of a sink at ``ts``, when everything below ``ts`` and nothing else is in it.

    ``before``: the table as it is in the sink, None if the change creates it; ``after``: None if the change drops it.
    ``columns``: all columns afterwards, in the source's order, empty for a dropped table; ``schema`` and ``arrow`` are
    theirs. ``survivors``: rows to compare the converted values with before the commit; None if the log determines the
    values.
    """

    ts: Ts
    kind: SchemaChangeKind
    before: TableRecord | None
    after: TableRecord | None
    columns: tuple[ColumnMove, ...] = ()
    schema: TableSchema | None = None
    arrow: pa.Schema | None = None
    survivors: AskSurvivors | None = None

    @property
    def is_move(self) -> bool:
        """Whether the table gets another name, and so another location."""
        return self.before is not None and self.after is not None and self.before.path != self.after.path

    @property
    def name(self) -> str:
        """The table's name, for people."""
        table = self.after or self.before
        return f"{table.schema_name}.{table.name}" if table else "a table"


@dataclass(frozen=True, slots=True)
class KnownTable:
    """One table as the log has it at one position. ``schema``: None if not known yet. ``held``: why the source cannot
    follow it, or empty."""

    record: TableRecord
    schema: TableSchema | None
    held: str = ""

    @property
    def is_held(self) -> bool:
        return bool(self.held)


def known_tables(
    tables: Iterable[TableRecord], schemas: Mapping[int, TableSchema], ddl: Iterable[DdlRecord], *, at: Ts
) -> dict[int, KnownTable]:
    """Return the tables at ``at``: their initial ``schemas``, with the changes up to there applied in order.

    ``tables`` may already include changes after ``at``; the records of ``ddl`` win.
    """
    known = {table.table_id: KnownTable(table, schemas.get(table.table_id)) for table in tables}
    for record in ddl:
        for change in record.changes if record.ts <= at else ():
            if change.is_hold:
                _hold(known, change)
                continue
            if change.table is None:
                known.pop(change.table_id, None)
                continue
            known[change.table_id] = KnownTable(change.table, TableSchema.from_json(change.after))
    return known


def _hold(known: dict[int, KnownTable], change: TableChange) -> None:
    """Hold a table; a table that was not replicated until now can be held too, so that it is not taken for a new
    one."""
    table = known.get(change.table_id)
    record = change.table or (table.record if table else None)
    if record is not None:
        schema = table.schema if table else None
        if schema is not None:  # it may be held under a new name
            schema = replace(schema, schema_name=record.schema_name, name=record.name)
        known[change.table_id] = KnownTable(record, schema, change.reason)
