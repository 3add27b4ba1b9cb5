"""Statistics in a table's log: bounds always include the file's values, whoever wrote the file."""

import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from agent.sinks import open_sink
from agent.sinks.common.compaction import Plan
from agent.sinks.delta.sink import DeltaSink
from agent.sinks.delta.table.place import TablePlace
from agent.sinks.delta.upkeep import upkeep
from agent.sinks.delta.upsert import by_vectors
from reactor.ids import Ts
from reactor.records.changefeed import SinkMode
from tests.integration.agent.sinks.delta.test_sink import KEYED, flush, task
from tests.unit.agent.changes_build import changes, insert, table_schema, update

pytestmark = pytest.mark.sample(0.25)  # make matrix runs the others

_DAY_US = 86_400_000_000
Key = Callable[[Random], Any]
#: moments and days as whole numbers, as Arrow stores them
KEYS: dict[pa.DataType, Key] = {
    pa.decimal128(20, 0): lambda chance: Decimal(chance.randrange(1 << 64)),
    pa.decimal128(18, 4): lambda chance: Decimal(chance.randrange(10**18)).scaleb(-4),
    pa.int64(): lambda chance: chance.randrange(-(1 << 63), 1 << 63),
    pa.float64(): lambda chance: chance.uniform(-1e300, 1e300),
    pa.string(): lambda chance: "p" * 62 + "".join(chance.choice("aé\x7f\U0010ffff") for _ in range(6)),
    pa.binary(): lambda chance: chance.randbytes(90),
    pa.date32(): lambda chance: chance.randrange(-1_000_000, 4_000_000),
    pa.timestamp("us"): lambda chance: chance.randrange(-1_000_000 * _DAY_US, 4_000_000 * _DAY_US),
    pa.timestamp("us", "UTC"): lambda chance: chance.randrange(60_000 * _DAY_US),
    pa.time64("us"): lambda chance: chance.randrange(_DAY_US),
}


def loaded(directory: Path, mode: SinkMode, arrow: pa.Schema, rows: list[tuple[Any, ...]]) -> DeltaSink:
    sink = open_sink(f"delta+file://{directory}", changefeed="feed", mode=mode)
    assert isinstance(sink, DeltaSink)
    batch = changes([insert(*row) for row in rows], arrow=arrow).after
    schema = table_schema(arrow)
    sink.load(KEYED, schema, arrow, sink.stage(KEYED, "0", iter([batch]), Ts(100)))
    return sink


@pytest.mark.parametrize("arrow", KEYS, ids=str)
def test_a_merge_finds_every_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arrow: pa.DataType) -> None:
    """Which of its files to leave alone delta-rs learns from the bounds that it has written itself."""
    monkeypatch.setattr(by_vectors, "_SMALL_BYTES", 0)
    chance, columns = Random(3), pa.schema([("id", arrow), ("v", pa.string())])
    keys = [KEYS[arrow](chance) for _ in range(50)]
    sink = loaded(tmp_path, SinkMode.UPSERT, columns, [(key, "old") for key in keys])
    for ts in range(100, 125):
        part = changes([update(key, f"new {ts}") for key in chance.sample(keys, 3)], arrow=columns)
        assert flush(sink, task(sink, ts, ts + 1), part).committed
    found = pa.table(DeltaTable(sink.place(KEYED).location).scan(columns=["id"]))
    assert found.num_rows == len(keys)


@pytest.mark.parametrize("compact", [upkeep.compact_small_files, upkeep._compact_by_delta_rs])
def test_what_is_put_together_has_no_bounds_of_decimals_and_floats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compact: Callable[[TablePlace], int]
) -> None:
    monkeypatch.setattr(upkeep, "_SMALL_FILES_MAX", 1)
    monkeypatch.setattr(upkeep, "_PLAN", Plan(1 << 20, files_min=2))
    columns = pa.schema([("id", pa.int64()), ("a.b", pa.decimal128(20, 4)), ("f", pa.float32()), ("day", pa.date32())])
    sink = loaded(tmp_path, SinkMode.CHANGELOG, columns, [(1, Decimal("9995382110853876.3463"), 0.5, 1)])
    flush(sink, task(sink, 100, 110), changes([insert(2, None, float("nan"), 2)], arrow=columns))
    place = sink.place(KEYED)
    assert compact(place) == 2
    [add] = [line["add"] for line in _last_commit(place.location) if "add" in line]
    stats = json.loads(add["stats"])
    assert stats["numRecords"] == 2
    assert {"id", "day"} <= set(stats["maxValues"])
    assert not {"a.b", "f"} & {*stats["minValues"], *stats["maxValues"]}


def _last_commit(location: str) -> list[dict[str, Any]]:
    newest = max((Path(location) / "_delta_log").glob("*.json"))
    return [json.loads(line) for line in newest.read_text().splitlines()]
