"""Schema changes as values: what a sink's table becomes, and what the log so far says of each table.

A source finds that a table has changed and writes a ``reactor.records.changefeed.TableChange``, with schemas that are
still the source's. ``SchemaChange`` is the same for a sink: Arrow columns, each with where its values come from.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from agent.rows.schema import TableSchema
from agent.rows.survivors import AskSurvivors
from reactor.ids import Ts
from reactor.records.changefeed import DdlRecord, SchemaChangeKind, TableChange, TableRecord

Mask = npt.NDArray[np.bool_]
#: values of a column as it was, as those of the column as it is. Raises ``DecodeError`` where that is not known of one
Convert = Callable[[pa.Array], pa.Array]


@dataclass(frozen=True, slots=True, eq=False)
class Exact:
    """The source has given a column another type, and this is what it has made of the existing values."""

    convert: Convert


@dataclass(frozen=True, slots=True)
class Refused:
    """What the source has made of the existing values is not known; ``reason`` says why, in a few words."""

    reason: str


@dataclass(frozen=True, slots=True)
class Kept:
    """The plain conversion leaves the values as they were. But the source has rewritten every row, so an expression
    (``USING``) may have made other values."""


#: None: the values are what they were
Conversion = Exact | Refused | None
#: the same, of a column whose rows the source may have rewritten
WrittenConversion = Conversion | Kept


def converted(convert: Convert, values: pa.Array, is_left_out: Mask | None) -> pa.Array:
    """``values`` as ``convert`` has them. ``is_left_out``: where they are no values at all, and NULL stays."""
    if is_left_out is None or not is_left_out.any():
        return convert(values)
    (rows,) = np.nonzero(~is_left_out)
    found = convert(values.take(pa.array(rows)))
    places = np.zeros(len(values), np.int64)
    places[rows] = np.arange(len(rows))
    return found.take(pa.array(places, mask=is_left_out))


@dataclass(frozen=True, slots=True)
class ColumnMove:
    """One column as it is afterwards. ``origin``: which column its values were in; None where it is new, and then every
    row that was there holds ``fill`` (None: NULL). ``convert``: what the source has made of the values; None where a
    sink casts them itself."""

    name: str
    type: pa.DataType
    origin: str | None
    fill: pa.Scalar | None = None
    convert: Convert | None = None


@dataclass(frozen=True, slots=True)
class SchemaChange:
    """What becomes of one table of a sink at ``ts``; everything below ``ts`` is in it, and nothing else.

    ``before``: the table as it is in the sink now, None where it is yet to come; ``after``: None where it goes.
    ``columns``: all columns afterwards, in the source's order; ``schema`` and ``arrow`` are theirs too. Empty where the
    table goes. ``survivors``: what the values are compared with before the change is committed; None where the log
    tells them.
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
        """The table gets another name."""
        if self.before is None or self.after is None:
            return False
        return (self.before.schema_name, self.before.name) != (self.after.schema_name, self.after.name)

    @property
    def name(self) -> str:
        """The table's name, for people."""
        table = self.after or self.before
        return f"{table.schema_name}.{table.name}" if table else "a table"


@dataclass(frozen=True, slots=True)
class KnownTable:
    """One table as the log has it at one position. ``schema``: None while nobody has said it. ``held``: why the source
    cannot follow it any more, empty where it can."""

    record: TableRecord
    schema: TableSchema | None
    held: str = ""

    @property
    def is_held(self) -> bool:
        return bool(self.held)


def known_tables(
    tables: Iterable[TableRecord], schemas: Mapping[int, TableSchema], ddl: Iterable[DdlRecord], *, at: Ts
) -> dict[int, KnownTable]:
    """The tables at ``at``: as they began (``schemas``), and as the changes up to there (in order) have left them.

    ``tables`` may be newer than ``at`` in what has been applied already: what ``ddl`` says counts.
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
    """One that was none of ours until now can be held too: nobody is to take it for a new one."""
    table = known.get(change.table_id)
    record = change.table or (table.record if table else None)
    if record is not None:
        known[change.table_id] = KnownTable(record, table.schema if table else None, change.reason)
