"""Model of a sink's table: what its source makes of its rows, now and in the past, and random values for them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from agent.rows.schema_change import ColumnMove
from reactor.ids import TableSpan
from reactor.records.tables.table import TableRecord

Row = tuple[Any, ...]
Key = tuple[Any, ...]

TYPES = (
    *(pa.int32(), pa.int64(), pa.float64(), pa.bool_(), pa.string(), pa.string(), pa.binary(), pa.date32()),
    *(pa.decimal128(10, 2), pa.timestamp("us"), pa.timestamp("us", "UTC")),
)
#: what a column of a type may become without a word of the source
CASTS = {
    pa.int32(): (pa.int64(), pa.float64(), pa.string(), pa.decimal128(20, 2)),
    pa.int64(): (pa.string(), pa.decimal128(22, 2)),
    pa.decimal128(10, 2): (pa.decimal128(20, 4), pa.string()),
    pa.date32(): (pa.timestamp("us"),),
}
_EPOCH = datetime(2020, 1, 1)
_LETTERS = ("", "a", "b", "é", "x" * 40, "☃", "A")


def value(rng: Random, arrow: pa.DataType) -> Any:
    """Return a random value, without NULL."""
    if pa.types.is_integer(arrow):
        return rng.choice([0, 1, -1, 7, 2**31 - 1, rng.randrange(-(2**31), 2**31)])
    if pa.types.is_floating(arrow):
        return rng.choice([0.5, -1.25, 1e300, float(rng.randrange(1000))])
    if pa.types.is_boolean(arrow):
        return rng.random() < 0.5
    if pa.types.is_binary(arrow):
        return rng.randbytes(rng.randrange(4))
    if pa.types.is_date(arrow):
        return date(2020, 1, 1) + timedelta(rng.randrange(-20000, 20000))
    if pa.types.is_decimal(arrow):
        return Decimal(rng.randrange(-(10**7), 10**7)).scaleb(-arrow.scale)
    if pa.types.is_timestamp(arrow):
        moment = _EPOCH + timedelta(microseconds=rng.randrange(-(10**15), 10**15))
        return moment.replace(tzinfo=UTC) if arrow.tz else moment
    return rng.choice(_LETTERS) + str(rng.randrange(30))


@dataclass
class Model:
    """A table as its source has it. ``ts``: everything up to there is in the sink; ``last_ts``: of the newest change.
    ``past``: its rows at earlier Ts, with the columns that it has now; ``gone``: keys of deleted rows, which a sink may
    keep; ``has_moved_key``: it had another key once."""

    table: TableRecord
    arrow: pa.Schema
    ts: int
    last_ts: int
    spans: tuple[TableSpan, ...]
    rows: dict[Key, Row] = field(default_factory=dict)
    past: dict[int, dict[Key, Row]] = field(default_factory=dict)
    gone: set[Key] = field(default_factory=set)
    cut: int = 0
    has_moved_key: bool = False

    def key_of(self, row: Row) -> Key:
        return tuple(row[self.arrow.names.index(name)] for name in self.table.key)

    def note(self, ts: int) -> None:
        """Remember the rows of ``ts``, when a transaction has ended."""
        self.past[ts] = dict(self.rows)

    def convert(self, moves: Sequence[ColumnMove], table: TableRecord, arrow: pa.Schema) -> None:
        """Do what the source makes of all rows, of the past too."""
        names, before = self.arrow.names, self.table
        old, self.table, self.arrow = self.arrow, table, arrow

        def converted(rows: dict[Key, Row]) -> dict[Key, Row]:
            images = list(rows.values())
            columns = [
                [None if move.fill is None else move.fill.as_py()] * len(images)
                if move.origin is None
                else _converted(
                    [image[names.index(move.origin)] for image in images], old.field(move.origin).type, move
                )
                for move in moves
            ]
            found = [tuple(row) for row in zip(*columns, strict=True)]
            return {self.key_of(row): row for row in found}

        bare = {key: tuple(dict(zip(before.key, key, strict=True)).get(name) for name in names) for key in self.gone}
        self.past = {ts: converted(rows) for ts, rows in self.past.items()}
        self.rows = converted(self.rows)
        self.gone = {*converted(bare)}


def _converted(values: list[Any], old: pa.DataType, move: ColumnMove) -> list[Any]:
    found = pa.array(values, old)
    done: list[Any] = (found.cast(move.type) if move.convert is None else move.convert(found)).to_pylist()
    return done


def louder(values: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise(values, pa.scalar("!"), "")


def following(values: pa.Array) -> pa.Array:
    return pc.add(values.cast(pa.int64()), 1)
