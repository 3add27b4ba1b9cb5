"""Key index: finds what the file itself has, is made once, and is made again when it is missing or damaged."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from agent import host_cache
from agent.sinks.iceberg.table import manifests, rows
from agent.sinks.iceberg.upsert import index
from agent.sinks.iceberg.upsert.find import KeySearch
from reactor.ids import Ts
from reactor.records.changefeed import SinkMode
from tests.contracts.sink_bed import TABLE, Bed
from tests.integration.agent.sinks.iceberg.lake import table_of
from tests.unit.agent.changes_build import ARROW, Change, delete, insert, table_schema, update

_ROWS = 3_000


@pytest.fixture(autouse=True)
def cache_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("WEIR_HOST_CACHE", str(tmp_path))
    monkeypatch.setattr(index, "_ROWS_MIN", 1)
    monkeypatch.setattr(index, "_ROWS_PER_KEY", 0)
    host_cache.directory.cache_clear()
    yield
    host_cache.directory.cache_clear()


@pytest.fixture
def bed(tmp_path: Path) -> Bed:
    """The table has keys in no order, some of them negative; every third is missing."""
    bed = Bed(f"iceberg+file://{tmp_path}/lake", SinkMode.UPSERT)
    ids = np.random.default_rng(7).permutation(np.arange(-_ROWS, 2 * _ROWS, 3))
    columns = [pa.array(ids), pa.array([f"n{at}" for at in ids]), pa.array(["b"] * len(ids))]
    batch = pa.RecordBatch.from_arrays(columns, schema=ARROW)
    bed.open().load(TABLE, table_schema(), ARROW, bed.open().writer().stage(TABLE, "1-0", iter([batch]), Ts(100)))
    return bed


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Data files that were opened."""
    found: list[str] = []
    inner = rows.opened

    def opened(io: Any, path: str, schema: Any) -> Any:
        found.append(path)
        return inner(io, path, schema)

    monkeypatch.setattr(rows, "opened", opened)
    return found


def _found(bed: Bed, keys: pa.Table) -> list[tuple[int, int]]:
    table = table_of(bed, TABLE)
    [found] = KeySearch(table, keys).run(manifests.live(table).data, {})
    assert (np.diff(found.places) > 0).all(), "they rise"
    return list(zip(found.places.tolist(), found.which.tolist(), strict=True))


@pytest.mark.parametrize("count", [1, 10, 2_000])
def test_it_finds_what_the_file_has(bed: Bed, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    some = np.random.default_rng(count).permutation(np.arange(-_ROWS, 3 * _ROWS))[:count]
    keys = pa.table({"id": [*some, -_ROWS]}, schema=pa.schema([ARROW.field("id")]))
    indexed = _found(bed, keys)
    monkeypatch.setattr(index, "is_worth", lambda *_: False)
    assert indexed == _found(bed, keys)
    assert len(indexed) > 0


def test_a_key_that_a_file_has_twice_is_found_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a file of others."""
    known, at = np.array([1, 5, 5, 5, 9]), np.array([4, 3, 0, 2, 1], np.uint32)
    monkeypatch.setattr(index, "_opened", lambda *_: (known, at))
    nothing: Any = None
    places, which = index.search(nothing, nothing, nothing, np.array([0, 1, 5, 7]))
    assert (places.tolist(), which.tolist()) == ([0, 2, 3, 4], [2, 2, 2, 1])


def _flush(bed: Bed, turn: int, *some: Change) -> None:
    assert bed.flush(100 + turn, 101 + turn, some).committed


def test_a_file_is_read_once(bed: Bed, opened: list[str]) -> None:
    _flush(bed, 0, update(0, "u", "x", ts=101))
    [first] = opened
    opened.clear()
    _flush(bed, 1, update(3, "u", "x", ts=102), delete(6, None, None, ts=102), insert(1, "i", "z", ts=102))
    assert first not in opened
    held = {row["id"]: row["name"] for row in table_of(bed, TABLE).scan().to_arrow().to_pylist()}
    assert [held.get(at) for at in (0, 1, 3, 6, 9)] == ["u", "i", "u", None, "n9"]
    assert len(held) == _ROWS


@pytest.mark.parametrize("content", [None, b"", b"short"])
def test_a_lost_or_damaged_index_is_made_again(bed: Bed, content: bytes | None) -> None:
    _flush(bed, 0, update(0, "u", "x", ts=101))
    entries = [path for path in host_cache.directory().iterdir() if not path.name.startswith("lock-")]
    assert entries
    for path in entries:
        path.unlink() if content is None else path.write_bytes(content)
    _flush(bed, 1, update(0, "again", "x", ts=102))
    held = [row["name"] for row in table_of(bed, TABLE).scan().to_arrow().to_pylist() if row["id"] == 0]
    assert held == ["again"]
    assert {path.stat().st_size for path in entries} >= {12 * _ROWS}
