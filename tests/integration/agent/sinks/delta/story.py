"""A source's table and its Delta table, kept in step through the sink as a changefeed's flushes do it.

The rows of the source are in a dictionary, and what a changelog must say of them in a list: this is all that readers of
the Delta table are held against. Moments and days are whole numbers, as Arrow stores them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from decimal import Context, Decimal
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa

from agent.ports.sink import FeedContext, FlushTask, SpanRepartition
from agent.rows.changes import BEFORE_FULL, BEFORE_KEY, DELETE, INSERT, TRUNCATE
from agent.rows.schema_change import ColumnMove, SchemaChange
from agent.rows.spans import keep_span
from agent.sinks import open_sink
from agent.sinks.delta.sink import DeltaSink
from owner.scheduler.spans import even_spans
from reactor.ids import TableSpan, Ts
from reactor.records.changefeed import SinkMode
from reactor.records.tables.schema_change import SchemaChangeKind
from reactor.records.tables.table import TableRecord
from tests.unit.agent.changes_build import UNCHANGED, Change, changes, delete, insert, table_schema, truncate, update

TABLE = TableRecord(table_id=16384, schema_name="public", name="t", key=("id",), start_ts=Ts(100))
Row = tuple[Any, ...]

#: every Arrow type of docs/types.md, under the names that people give to columns
COLUMNS = pa.schema(
    [
        ("id", pa.int64()),
        ("it's so", pa.string()),
        ("Größe in cm", pa.int8()),
        ("a.b", pa.int16()),
        ("semi;colon", pa.int32()),
        ("order", pa.bool_()),
        ("f", pa.float32()),
        ("(d)", pa.float64()),
        ("price", pa.decimal128(12, 2)),
        ("unsigned", pa.decimal128(20, 0)),
        ("tiny", pa.decimal128(5, 5)),
        ("exact", pa.decimal128(38, 10)),
        ("raw", pa.binary()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us")),
        ("zoned", pa.timestamp("us", "UTC")),
        ("clock", pa.time64("us")),
    ]
)
#: for decimals of 38 digits
EXACT = Context(prec=40)
_DAY_US = 86_400_000_000


class Story:
    """One table. ``rows``: what its source holds, by key; ``changelog``: what its changelog says."""

    def __init__(
        self, directory: Path, mode: SinkMode, *, vectors: bool = False, seed: int = 7, options: str = ""
    ) -> None:
        options = f"?deletion_vectors={str(vectors).lower()}{options}" if mode is SinkMode.UPSERT else ""
        sink = open_sink(f"delta+file://{directory}{options}", changefeed="feed", mode=mode)
        assert isinstance(sink, DeltaSink)
        self.sink, self.mode, self.columns = sink, mode, COLUMNS
        self.spans: tuple[TableSpan, ...] = (TableSpan(TABLE.table_id),)
        self.rows: dict[int, Row] = {}
        self.changelog: list[Row] = []
        self.ts, self._cuts, self._chance = 100, 0, Random(seed)

    @property
    def location(self) -> str:
        return self.sink.place(TABLE).location

    def load(self, count: int) -> None:
        """The snapshot."""
        self.rows = {key: self._row(key) for key in range(count)}
        self.changelog = [(*row, "insert", 100, None, 0, None) for row in self.rows.values()]
        schema = table_schema(self.columns)
        batch = changes([insert(*row) for row in self.rows.values()], arrow=self.columns).after
        self.sink.load(TABLE, schema, self.columns, self.sink.stage(TABLE, "0", iter([batch]), Ts(100)))

    def flush(self, parts: Sequence[Change]) -> None:
        """Up to the next Ts, span by span."""
        made = changes([replace(part, commit_ts=self.ts + 10) for part in parts], arrow=self.columns, commit_time=1.5)
        for seq, part in enumerate(parts):
            self.changelog += [
                (*image, kind, self.ts + 10, 1_500_000, seq, left) for image, kind, left in self._records_of(part)
            ]
        self.ts += 10
        for span in self.spans:
            recorded = self.sink.committed_ts(TABLE, span)
            assert recorded is not None
            task = FlushTask(FeedContext("feed", "", self.mode), span, TABLE, (), recorded, Ts(self.ts))
            [result] = self.sink.commit([task], [self.sink.write(task, iter([keep_span(made, span, key=("id",))]))])
            assert not result.error, result.error

    def _records_of(self, part: Change) -> Iterator[tuple[Row, str, Row | None]]:
        """The rows of a changelog for one change: image, kind, columns that it left out."""
        nothing = (None,) * len(self.columns)
        if part.op in (DELETE, TRUNCATE):
            yield part.before or nothing, "delete" if part.op == DELETE else "truncate", None
            return
        is_moved = part.before_kind == BEFORE_KEY
        if part.before is not None:
            yield part.before, "delete" if is_moved else "update_preimage", None
        assert part.after is not None
        left = tuple(n for n, value in zip(self.columns.names, part.after, strict=True) if value is UNCHANGED)
        image = tuple(None if value is UNCHANGED else value for value in part.after)
        yield image, "insert" if part.op == INSERT or is_moved else "update_postimage", left or None

    def some_changes(self, count: int = 20) -> list[Change]:
        """Inserts, updates, deletes and keys that change; large values that are left out."""
        return list(self._some_changes(count))

    def _some_changes(self, count: int) -> Iterator[Change]:
        chance = self._chance
        for key in chance.sample(sorted(self.rows), min(count, len(self.rows))):
            before = self.rows.pop(key)
            match chance.randrange(10):
                case 0 | 1 | 2:
                    yield delete(key, *[None] * (len(before) - 1))
                case 3:
                    fresh = 1_000_000 + chance.randrange(1 << 40)
                    self.rows[fresh] = self._row(fresh)
                    yield update(*self.rows[fresh], before=(key, *[None] * (len(before) - 1)), before_kind=BEFORE_KEY)
                case 4:
                    self.rows[key] = self._row(key)
                    yield update(*self.rows[key], before=before, before_kind=BEFORE_FULL)
                case _:
                    self.rows[key] = self._row(key)
                    yield update(*self.rows[key])
        for _ in range(count // 2):
            key = chance.randrange(1 << 40)
            if key not in self.rows:
                self.rows[key] = self._row(key)
                yield insert(*self.rows[key])

    def leave_out(self) -> list[Change]:
        """An update that does not carry a large value."""
        key = self._chance.choice(sorted(self.rows))
        row = list(self._row(key))
        self.rows[key] = (key, self.rows[key][1], *row[2:])
        return [update(key, UNCHANGED, *row[2:])]

    def truncate(self) -> list[Change]:
        self.rows.clear()
        self.rows[5] = self._row(5)
        return [truncate(), insert(*self.rows[5])]

    def cut(self, count: int) -> None:
        order = SpanRepartition(self.spans, even_spans(TABLE.table_id, count), Ts(self.ts), self._cuts + 1)
        assert self.sink.repartition(TABLE, order) == self.ts
        self.spans, self._cuts = order.new, order.number

    def alter(self, columns: pa.Schema, **fills: Any) -> None:
        """The table gets these columns: kept by name, and the new ones filled."""
        moves = tuple(
            ColumnMove(
                item.name,
                item.type,
                item.name if item.name in self.columns.names else None,
                pa.scalar(fills[item.name], item.type) if item.name in fills else None,
            )
            for item in columns
        )
        change = SchemaChange(Ts(self.ts), SchemaChangeKind.ALTER, TABLE, TABLE, moves, table_schema(columns), columns)
        self.sink.alter([change])
        places = [self.columns.names.index(move.name) if move.origin else None for move in moves]

        def moved(row: Row) -> Row:
            values = [None if at is None else row[at] for at in places]
            return tuple(
                fills.get(move.name) if move.origin is None else value
                for move, value in zip(moves, values, strict=True)
            )

        self.rows = {key: moved(row) for key, row in self.rows.items()}
        self.changelog = [(*moved(row[:-5]), *row[-5:]) for row in self.changelog]
        self.columns = columns

    def _row(self, key: int) -> Row:
        return (key, *(self._value(item.type) for item in list(self.columns)[1:]))

    def _value(self, arrow: pa.DataType) -> Any:
        chance = self._chance
        if chance.random() < 0.15:
            return None
        if pa.types.is_integer(arrow):
            return chance.randrange(-(1 << (arrow.bit_width - 1)), 1 << (arrow.bit_width - 1))
        if pa.types.is_decimal(arrow):
            return Decimal(chance.randrange(-(10**arrow.precision) + 1, 10**arrow.precision)).scaleb(
                -arrow.scale, EXACT
            )
        if pa.types.is_floating(arrow):
            return chance.choice([0.5, -0.0, 1e10, float("inf"), float("-inf"), float("nan")])
        if pa.types.is_date(arrow):
            return chance.randrange(50_000)
        if pa.types.is_timestamp(arrow):
            return chance.randrange(50_000 * _DAY_US)
        if pa.types.is_time(arrow):
            return chance.choice([chance.randrange(_DAY_US), 3_600_000_000])
        if pa.types.is_boolean(arrow):
            return chance.random() < 0.5
        text = chance.choice(["", "a", "it's", 'ö "q" \\ \n', "x" * 100, f"n{chance.randrange(100)}"])
        return text.encode() + b"\x00\xff" if pa.types.is_binary(arrow) else text
