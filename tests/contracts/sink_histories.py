"""Random histories of two tables at a sink, and models that say what each holds after each step.

A step is a flush of some transactions, a schema change, which may be one of both tables' names, a copy, a repair, a
repartition, maintenance, or something that must change nothing: the flush or the schema change of a stale writer. It
may end behind any of its commits, as by a crash, and is done again; or it is done twice.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa

from agent.errors import SinkError, TableHeldError
from agent.ports.sink import (
    Alters,
    FlushTask,
    Maintains,
    Repairs,
    Replaces,
    RowRepair,
    SpanRepartition,
    Splits,
    TableCopy,
)
from agent.rows.changes import BEFORE_FULL, BEFORE_KEY
from agent.rows.later_changes import later_seq
from agent.rows.schema_change import ColumnMove, SchemaChange
from agent.rows.spans import keep_span
from owner.scheduler.spans import even_spans
from reactor.ids import TableSpan, Ts
from reactor.records.changefeed import SinkMode
from reactor.records.tables.schema_change import SchemaChangeKind
from reactor.records.tables.table import TableRecord
from tests.acceptance import families
from tests.contracts.crashes import Crashes
from tests.contracts.sink_bed import Bed, shown
from tests.contracts.sink_model import CASTS, TYPES, Model, Row, following, louder, value
from tests.soak.sinks import folded
from tests.unit.agent.changes_build import UNCHANGED, Change, changes, delete, insert, table_schema, truncate, update

#: reasons for which a sink may hold a table instead
_MAY_HOLD = ("divide", "partition", "may have been made before or afterwards")


class History:
    """Two tables, and the steps that change them. A step changes the table that ``model`` describes, which may be the
    other one at the next step. ``trail``: what was done, for people."""

    def __init__(self, bed: Bed, rng: Random, crashes: Crashes) -> None:
        self._bed = bed
        self._rng = rng
        self._crashes = crashes
        self._fresh = iter(range(1, 1_000_000))
        self._seen = set[Row]()
        self.trail = ["begin"]
        self._is_full = rng.random() < 0.3
        self._stale: list[Callable[[], None]] = []
        terms = [term for layout in bed.layouts for term in (*layout.partition_by, *layout.sort_by)]
        #: columns that the layout names
        self._laid_out = {name for name in ("id", "name") if any(name in term for term in terms)}
        arrow = pa.schema([("id", pa.int64()), ("name", pa.string()), ("big", pa.string())])
        table = TableRecord(table_id=16384, schema_name="public", name="t", key=("id",), start_ts=Ts(100))
        self.model = Model(table, arrow, 100, 100, (TableSpan(16384),))
        first = [self._new_row() for _ in range(rng.choice([0, 3, 20]))]
        self.model.rows = {self.model.key_of(row): row for row in first}
        self._bed.load_as(arrow, *self.model.rows.values())
        self.model.note(100)
        other = table.with_(table_id=17000, name="u")
        self._make(other, arrow, 101)
        self._other = Model(other.with_(start_ts=Ts(100)), arrow, 100, 101, (TableSpan(17000),))

    # Steps

    def step(self) -> None:
        """Do something, and check the table."""
        rng = self._rng
        kinds = {
            self.flush: 10,
            self.alter: 6,
            self.rename: 1,
            self.exchange: 2,
            self.replace: 2,
            self.repair: 2,
            self.repartition: 2,
            self.maintain: 2,
            self.create_again: 0.5,
            self.disturb: 2,
        }
        [done] = rng.choices([*kinds], [*kinds.values()])
        if rng.random() < 0.3:
            self._turn_to_other()
        self.trail.append(f"{self.model.table.name}: {done.__name__}")
        done()
        for _ in range(2):
            self.check()
            self._turn_to_other()

    def _turn_to_other(self) -> None:
        self.model, self._other = self._other, self.model

    def flush(self) -> None:
        model, begin, there = self.model, self.model.ts, {*self.model.rows}
        self._seen = set[Row]()
        some = [one for _ in range(self._rng.choice([1, 1, 2, 4])) for one in self._transaction()]
        model.ts = model.last_ts = end = model.last_ts + self._rng.randint(0, 3)
        arrow, spans, table = model.arrow, model.spans, model.table
        is_lost = self._rng.random() < 0.2
        self.trail[-1] += f" ({begin}, {end}] of {len(spans)}: {some}"
        tasks = [self._bed.task(self._recorded(span), end, span=span, table=table) for span in spans]
        for task in tasks:
            if is_lost:
                self._write(task, some, arrow)  # nobody commits it, if that is not done yet
            self._do(partial(self._commit, task, some, arrow))
        model.gone = (model.gone | there | self._seen) - {*model.rows}
        self._remember(lambda: self._commit(self._rng.choice(tasks), some, arrow))

    def alter(self) -> None:
        model, rng = self.model, self._rng
        moves = [*_kept(model.arrow)]
        key, converted = model.table.key, set[str]()
        for _ in range(rng.choice([1, 1, 1, 2, 3])):
            self._alteration(moves, converted)
        key = tuple(move.name for name in key for move in moves if move.origin == name)
        arrow = pa.schema([(move.name, move.type) for move in moves])
        before, table = model.table, model.table.with_(key=key)
        model.convert(moves, table, arrow)
        if rng.random() < 0.2 and (other := self._other_key()):
            table = model.table = table.with_(key=other)
            model.rows = {model.key_of(row): row for row in model.rows.values()}
            model.past = {ts: {model.key_of(row): row for row in rows.values()} for ts, rows in model.past.items()}
            model.gone.clear()
            model.has_moved_key = True
        self._apply(SchemaChangeKind.ALTER, before, tuple(moves))

    def rename(self) -> None:
        before = self.model.table
        self.model.table = before.named("public", f"t{next(self._fresh)}")
        self._apply(SchemaChangeKind.RENAME, before, _kept(self.model.arrow))

    def exchange(self) -> None:
        """One table takes the name of the other one, which takes its name, or another, or is dropped."""
        one, other, sink = self.model, self._other, self._bed.open()
        assert isinstance(sink, Alters)
        before = one.table, other.table
        kind = self._rng.choice(["swap", "follow", "drop"])
        one.last_ts = other.last_ts = max(one.last_ts, other.last_ts) + 1
        self.trail[-1] += f" {kind} at {one.last_ts} with {other.table.name}"
        if kind == "drop":
            self._do(partial(sink.alter, [_dropped(other)]))
            one.last_ts += 1
        one.table = before[0].named("public", before[1].name)
        other.table = before[1].named("public", before[0].name if kind == "swap" else f"t{next(self._fresh)}")
        renamed = [_renamed(one, before[0]), *([] if kind == "drop" else [_renamed(other, before[1])])]
        self._do(partial(sink.alter, renamed))
        self._remember(lambda: self._bed.open().alter(renamed))  # type: ignore[attr-defined]
        if kind == "drop":
            table = before[1].with_(table_id=before[1].table_id + 1, name=before[0].name, key=other.table.key)
            self._make(table, other.arrow, one.last_ts + 1)
            ts = one.last_ts
            self._other = Model(table.with_(start_ts=Ts(ts)), other.arrow, ts, ts + 1, (TableSpan(table.table_id),))

    def _make(self, table: TableRecord, arrow: pa.Schema, ts: int) -> None:
        sink = self._bed.open()
        assert isinstance(sink, Alters)
        record, schema = table.with_(start_ts=Ts(ts - 1)), table_schema(arrow, key=table.key, name=table.name)
        made = SchemaChange(Ts(ts), SchemaChangeKind.CREATE, None, record, (), schema, arrow)
        self._do(partial(sink.alter, [made]))

    def replace(self) -> None:
        sink, model = self._bed.open(), self.model
        if not isinstance(sink, Replaces):
            return
        model.ts = model.last_ts = model.last_ts + self._rng.randint(0, 5)
        there = {*model.rows}
        for _ in range(self._rng.choice([0, 0, 3])):
            self._disagree()
        model.gone = (model.gone | there) - {*model.rows}
        model.note(model.ts)
        table = model.table.with_(start_ts=Ts(model.ts))
        rows = list(model.rows.values())
        staged = []
        for at, some in enumerate((rows[::2], rows[1::2])):
            if some:
                batch = changes([insert(*row) for row in some], arrow=model.arrow).after
                staged += sink.writer().stage(table, f"{model.ts}-{at}", iter([batch]), Ts(model.ts))
        number = next(self._fresh)
        copy = TableCopy(table, model.spans, table_schema(model.arrow), model.arrow, tuple(staged), model.cut, number)
        self.trail[-1] += f" at {model.ts}"
        self._do(lambda: sink.replace(copy))
        model.table = table

    def repair(self) -> None:
        sink, model = self._bed.open(), self.model
        if not isinstance(sink, Repairs):
            return
        wrong, there = list[Change](), {*model.rows}
        for _ in range(self._rng.choice([1, 3])):
            wrong += self._disagree()
        if not wrong:
            return
        model.gone = (model.gone | there | {model.key_of(one.after) for one in wrong if one.after}) - {*model.rows}
        model.ts = model.last_ts
        model.note(model.ts)
        made = changes(
            [Change(one.op, one.after, one.before, one.before_kind, model.ts) for one in wrong], arrow=model.arrow
        )
        made = replace(made, seq=later_seq(next(self._fresh)) + made.seq)
        self.trail[-1] += f" at {model.ts}: {wrong}"
        self._do(lambda: sink.repair(RowRepair(model.table, model.spans, Ts(model.ts), made)))

    def repartition(self) -> None:
        sink, model = self._bed.open(), self.model
        if not isinstance(sink, Splits):
            return
        new = even_spans(model.table.table_id, self._rng.choice([1, 2, 3]))
        if new == model.spans:
            return
        model.cut += 1
        order = SpanRepartition(model.spans, new, Ts(model.ts), model.cut)
        self.trail[-1] += f": {len(model.spans)} to {len(new)}"

        def repartition() -> None:
            assert sink.repartition(model.table, order) == model.ts

        self._do(repartition)
        model.spans = new

    def maintain(self) -> None:
        sink = self._bed.open()
        if isinstance(sink, Maintains):
            self._do(partial(sink.maintain, self.model.table))

    def create_again(self) -> None:
        """The table is dropped, and another one gets its name."""
        model, sink = self.model, self._bed.open()
        assert isinstance(sink, Alters)
        model.last_ts += 1
        begin = model.last_ts
        kept = [item for item in model.arrow if item.name in ("id", *self._laid_out)]
        kept = kept if "id" in model.arrow.names else [pa.field("id", pa.int64()), *kept]
        arrow = pa.schema([*kept, *((f"c{at}", self._rng.choice(TYPES)) for at in range(3))])
        table = model.table.with_(table_id=model.table.table_id + 1, key=("id",), start_ts=Ts(begin))
        self._do(partial(sink.alter, [_dropped(model)]))
        self._make(table, arrow, begin + 1)
        self.model = Model(table, arrow, begin, begin + 1, (TableSpan(table.table_id),))

    def disturb(self) -> None:
        """What somebody does who has been replaced changes nothing."""
        if self._stale:
            with suppress(SinkError):
                self._rng.choice(self._stale)()

    # Their parts

    def _do(self, work: Callable[[], object]) -> None:
        """Do it, often in vain, or twice."""
        if self._rng.random() < 0.3:
            commits = self._rng.choice([1, 1, 2, 3])
            if self._crashes.during(work, commits):
                self.trail[-1] += f" CRASH behind {commits}"
        elif self._rng.random() < 0.3:
            work()
        work()

    def _recorded(self, span: TableSpan) -> int:
        """Return where the span is at the sink; a flush without changes is not recorded."""
        recorded = self._bed.at(span, self.model.table)
        assert recorded is not None
        assert recorded <= self.model.ts
        return recorded

    def _transaction(self) -> Iterator[Change]:
        rng, model = self._rng, self.model
        model.last_ts += 1
        for _ in range(rng.choice([1, 2, 5])):
            kind = rng.random()
            row = rng.choice([*model.rows.values()]) if model.rows else None
            if kind < 0.02:
                model.rows.clear()
                self._seen.clear()  # what came and was truncated within one flush is not kept
                yield truncate(ts=model.last_ts)
            elif row is None or kind < 0.35:
                new = self._new_row()
                if model.key_of(new) not in model.rows:
                    yield self._put(insert(*new, ts=model.last_ts), new)
            elif kind < 0.75:
                yield self._update(row, self._changed(row))
            elif kind < 0.85:
                new = self._with_new_key(row)
                if model.key_of(new) not in model.rows:
                    yield self._update(row, new)
            else:
                del model.rows[model.key_of(row)]
                yield delete(*self._before(row), before_kind=self._before_kind, ts=model.last_ts)
        model.note(model.last_ts)

    def _put(self, change: Change, row: Row) -> Change:
        self.model.rows[self.model.key_of(row)] = row
        self._seen.add(self.model.key_of(row))
        return change

    def _update(self, old: Row, new: Row) -> Change:
        model = self.model
        is_moved = model.key_of(old) != model.key_of(new)
        del model.rows[model.key_of(old)]
        model.rows[model.key_of(new)] = new
        self._seen.add(model.key_of(new))
        sent = list(new)
        for at, name in enumerate(model.arrow.names):
            is_same = repr(old[at]) == repr(new[at]) and name not in model.table.key
            if is_same and self._rng.random() < 0.5 and (len(model.spans) == 1 or not is_moved):
                sent[at] = UNCHANGED
        if not (is_moved or self._is_full):
            return update(*sent, ts=model.last_ts)
        return update(*sent, before=self._before(old), before_kind=self._before_kind, ts=model.last_ts)

    @property
    def _before_kind(self) -> int:
        return BEFORE_FULL if self._is_full else BEFORE_KEY

    def _before(self, row: Row) -> Row:
        model = self.model
        is_sent = [self._is_full or name in model.table.key for name in model.arrow.names]
        return tuple(item if sent else None for item, sent in zip(row, is_sent, strict=True))

    def _disagree(self) -> Sequence[Change]:
        """Let a row of the source be another one than the sink's; return what makes it equal."""
        model, rng = self.model, self._rng
        row = rng.choice([*model.rows.values()]) if model.rows and rng.random() < 0.7 else None
        if row is None:
            new = self._new_row()
            return [] if model.key_of(new) in model.rows else [self._put(insert(*new), new)]
        if rng.random() < 0.4:
            del model.rows[model.key_of(row)]
            names = zip(row, model.arrow.names, strict=True)
            return [delete(*(item if name in model.table.key else None for item, name in names))]
        new = self._changed(row)
        return [self._put(update(*new), new)]

    def _new_row(self) -> Row:
        model = self.model
        return tuple(
            self._key_value(item.type) if item.name in model.table.key else self._value(item) for item in model.arrow
        )

    def _key_value(self, arrow: pa.DataType) -> Any:
        """Few of them, so that keys come again."""
        if pa.types.is_integer(arrow):
            return self._rng.randrange(40)
        return value(self._rng, arrow)

    def _value(self, item: pa.Field) -> Any:
        if item.name in self._laid_out and "change_data_feed" in self._bed.uri:
            return str(self._rng.randrange(30))  # delta-rs reads no feed of others that its MERGE has written
        return None if self._rng.random() < 0.15 else value(self._rng, item.type)

    def _changed(self, row: Row) -> Row:
        model = self.model
        return tuple(
            self._value(item) if item.name not in model.table.key and self._rng.random() < 0.5 else row[at]
            for at, item in enumerate(model.arrow)
        )

    def _with_new_key(self, row: Row) -> Row:
        model = self.model
        return tuple(
            self._key_value(item.type) if item.name in model.table.key else row[at]
            for at, item in enumerate(model.arrow)
        )

    def _alteration(self, moves: list[ColumnMove], converted: set[str]) -> None:
        rng, key = self._rng, self.model.table.key
        free = [at for at, move in enumerate(moves) if move.origin not in self._laid_out]
        kept = [at for at in free if moves[at].origin is not None and moves[at].origin not in key]
        kind = rng.random()
        if kind < 0.3:
            arrow = rng.choice(TYPES)
            fill = pa.scalar(value(rng, arrow), arrow) if rng.random() < 0.5 else None
            names = {move.name for move in moves} | {*self.model.arrow.names}
            name = f"n{next(self._fresh)}"
            gone = [name for name in self.model.arrow.names if name not in {move.name for move in moves}]
            if gone and rng.random() < 0.6:
                name = rng.choice(gone)  # it takes the name of a dropped one
            assert name in gone or name not in names
            moves.insert(rng.randint(1, len(moves)), ColumnMove(name, arrow, None, fill))
        elif kind < 0.5 and len(kept) > 1:
            del moves[rng.choice(kept)]
        elif kind < 0.65 and free:
            at = rng.choice(free)
            moves[at] = _named(moves[at], f"n{next(self._fresh)}")
        elif kind < 0.75 and len(free) > 1:
            one, other = rng.sample(free, 2)
            swapped = _named(moves[one], moves[other].name), _named(moves[other], moves[one].name)
            moves[one], moves[other] = swapped
        elif typed := [at for at in free if moves[at].origin is not None]:
            self._retype(moves, rng.choice(typed), converted)

    def _retype(self, moves: list[ColumnMove], at: int, converted: set[str]) -> None:
        move, rng = moves[at], self._rng
        assert move.origin is not None
        if move.origin in converted or (move.origin in self.model.table.key and len(self.model.spans) > 1):
            return
        converted.add(move.origin)
        is_key = move.origin in self.model.table.key
        if not is_key and move.type == pa.string() and rng.random() < 0.5:
            moves[at] = ColumnMove(move.name, move.type, move.origin, None, louder)
        elif not is_key and move.type == pa.int32() and rng.random() < 0.5:
            moves[at] = ColumnMove(move.name, pa.int64(), move.origin, None, following)
        elif move.type in CASTS:
            arrow = rng.choice(CASTS[move.type])
            if not (is_key and pa.types.is_floating(arrow)):
                moves[at] = ColumnMove(move.name, arrow, move.origin)

    def _other_key(self) -> tuple[str, ...]:
        """Return other columns that identify each row; none if there are none, or if the table is split."""
        model = self.model
        if len(model.spans) > 1:
            return ()
        names = [item.name for item in model.arrow if not (pa.types.is_floating(item.type) or item.type == pa.bool_())]
        key = tuple(self._rng.sample(names, min(len(names), self._rng.choice([1, 1, 2]))))
        at = [model.arrow.names.index(name) for name in key]
        for rows in [model.rows, *model.past.values()]:
            keys = [tuple(row[place] for place in at) for row in rows.values()]
            if len({*keys}) < len(keys) or any(None in one for one in keys):
                return ()
        return () if {*key} == {*model.table.key} else key

    def _apply(self, kind: SchemaChangeKind, before: TableRecord, moves: tuple[ColumnMove, ...]) -> None:
        model, sink = self.model, self._bed.open()
        assert isinstance(sink, Alters)
        schema = table_schema(model.arrow, key=model.table.key, name=model.table.name)
        model.last_ts += 1
        change = SchemaChange(Ts(model.last_ts), kind, before, model.table, moves, schema, model.arrow)
        shown = ", ".join(
            f"{move.origin} → {move.name} {move.type} {'' if move.fill is None else move.fill} {move.convert or ''}"
            for move in moves
        )
        self.trail[-1] += f" at {model.last_ts}: {before.name} → {model.table.name}, key {model.table.key}, {shown}"
        try:
            self._do(partial(sink.alter, [change]))
        except TableHeldError as held:
            if not any(word in str(held) for word in _MAY_HOLD):
                raise
            self.trail[-1] += f" HELD {held}"
            model.past.clear()
            model.gone.clear()
            model.has_moved_key = True
            self.trail.append("replace")
            self.replace()
            return
        self._remember(lambda: self._bed.open().alter([change]))  # type: ignore[attr-defined]

    def _remember(self, again: Callable[[], None]) -> None:
        """Keep what may be done again later."""
        self._stale = [*self._stale, again][-6:]

    def _write(self, task: FlushTask, some: Sequence[Change], arrow: pa.Schema) -> Any:
        made = changes(some, arrow=arrow, key=task.table.key)
        return self._bed.open().writer().write(task, [keep_span(made, task.span, key=task.table.key)])

    def _commit(self, task: FlushTask, some: Sequence[Change], arrow: pa.Schema) -> None:
        done = self._bed.commit(task, self._write(task, some, arrow))
        if self.model.ts == task.to_ts and task.span in self.model.spans:
            assert done.error == ""

    # Checks

    def check(self) -> None:
        """The table holds what the source has, for our reader and the format's own."""
        model, bed = self.model, self._bed
        for span in model.spans:
            self._recorded(span)
        bed.assert_holds(*model.rows.values(), table=model.table, arrow=model.arrow)
        if not bed.uri.startswith(("delta+file", "iceberg+file")):
            return
        scheme, _, place = bed.uri.partition("?")[0].partition("+file://")
        stored = families.stored(Path(place), model.table.path, scheme)
        rows = stored.rows()
        past = [] if bed.mode is SinkMode.UPSERT else [*model.past.items()][-5:]
        for ts, wanted in [*past, (model.ts, model.rows)]:
            images = [[row[name] for name in model.arrow.names] for row in _rows_at(bed.mode, rows, ts, model, stored)]
            difference = families.of_rows(Counter(map(shown, wanted.values())), Counter(map(shown, images)))
            assert not difference, f"at {ts}: {difference}"
        if not model.has_moved_key:
            self._check_versions(rows)
            marked = {tuple(row[name] for name in model.table.key) for row in rows if row.get("_weir_deleted")}
            assert "soft_delete" not in bed.uri or marked == model.gone

    def _check_versions(self, rows: list[dict[str, Any]]) -> None:
        """Of each key there is one row, or versions that follow each other."""
        at: dict[str, list[tuple[int, int]]] = {}
        for row in rows:
            key = repr(tuple(row[name] for name in self.model.table.key))
            at.setdefault(key, []).append((row.get("_valid_from", 0), row.get("_valid_to") or 1 << 62))
        if self._bed.mode is SinkMode.CHANGELOG:
            return
        for key, spans in at.items():
            spans.sort()
            for (_, end), (begin, _) in pairwise(spans):
                assert end <= begin, f"{key} has {spans}"


def _dropped(model: Model) -> SchemaChange:
    return SchemaChange(Ts(model.last_ts), SchemaChangeKind.DROP, model.table, None, (), None, None)


def _renamed(model: Model, before: TableRecord) -> SchemaChange:
    schema = table_schema(model.arrow, key=model.table.key, name=model.table.name)
    return SchemaChange(
        Ts(model.last_ts), SchemaChangeKind.RENAME, before, model.table, _kept(model.arrow), schema, model.arrow
    )


def _kept(arrow: pa.Schema) -> tuple[ColumnMove, ...]:
    return tuple(ColumnMove(item.name, item.type, item.name) for item in arrow)


def _named(move: ColumnMove, name: str) -> ColumnMove:
    return ColumnMove(name, move.type, move.origin, move.fill, move.convert)


def _rows_at(
    mode: SinkMode, rows: list[dict[str, Any]], ts: int, model: Model, stored: families.Stored
) -> list[dict[str, Any]]:
    """Return the rows at ``ts``, as far as the table knows earlier ones."""
    if mode is SinkMode.CHANGELOG:
        former = [(one.until_ts, one.columns or tuple(model.arrow.names)) for one in stored.former_keys.keys]
        return folded([row for row in rows if row["_commit_version"] <= ts], model.table.key, former)
    if mode is SinkMode.HISTORY:
        return [row for row in rows if row["_valid_from"] <= ts < (row["_valid_to"] or 1 << 62)]
    return [row for row in rows if not row.get("_weir_deleted")]
