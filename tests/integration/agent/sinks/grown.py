"""A table that has grown as those of a changefeed do: flushes past the joining of files, care, a renamed and a new
column, more flushes."""

import random
from typing import Any, Final

import pyarrow as pa

from agent.ports.sink import Alters, Maintains
from agent.rows.schema_change import ColumnMove, SchemaChange
from reactor.ids import Ts
from reactor.records.changefeed import SinkMode
from reactor.records.tables.schema_change import SchemaChangeKind
from tests.contracts.sink_bed import TABLE, Bed
from tests.unit.agent.changes_build import ARROW, Change, delete, insert, table_schema, update

#: the columns in the end
RENAMED: Final = pa.schema([("id", pa.int64()), ("title", pa.string()), ("big", pa.string()), ("n", pa.int32())])


def _changes(chance: random.Random, held: dict[int, tuple[Any, ...]], ts: int, width: int) -> list[Change]:
    made: list[Change] = []
    for key in chance.sample(range(60), 8):
        row = (key, chance.choice("abc☃"), chance.choice(["x", "", None]), *[chance.randrange(9)] * (width - 3))
        if key not in held:
            made.append(insert(*row, ts=ts))
        elif chance.random() < 0.3:
            made.append(delete(*held.pop(key), ts=ts))
            continue
        else:
            made.append(update(*row, before=held[key], ts=ts))
        held[key] = row
    return made


def grown(bed: Bed) -> None:
    """Flushes past the joining of files, care, a renamed and an added column, more flushes."""
    chance = random.Random(7)
    held: dict[int, tuple[Any, ...]] = {key: (key, f"n{key}", "b") for key in range(40)}
    bed.load(*held.values())
    ts = 100
    for turn in range(30):
        if turn == 20:
            _alter(bed, ts)
            held = {key: (*row, None) for key, row in held.items()}
        arrow = ARROW if turn < 20 else RENAMED
        done = bed.flush(ts, ts + 10, _changes(chance, held, ts + 5, len(arrow)), arrow=arrow)
        assert done.error == ""
        assert done.committed
        ts += 10
        if turn % 12 == 8:
            sink = bed.open()
            assert isinstance(sink, Maintains)
            sink.maintain(TABLE)
    if bed.mode is not SinkMode.CHANGELOG and "soft_delete" not in bed.uri:
        bed.assert_holds(*held.values(), arrow=RENAMED)


def _alter(bed: Bed, ts: int) -> None:
    sink = bed.open()
    assert isinstance(sink, Alters)
    moves = (
        ColumnMove("id", pa.int64(), "id"),
        ColumnMove("title", pa.string(), "name"),
        ColumnMove("big", pa.string(), "big"),
        ColumnMove("n", pa.int32(), None),
    )
    sink.alter([SchemaChange(Ts(ts), SchemaChangeKind.ALTER, TABLE, TABLE, moves, table_schema(RENAMED), RENAMED)])
