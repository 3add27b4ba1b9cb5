"""Key index: finds what the file itself has, is made once, and is made again when it is missing or damaged."""

import uuid
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from agent import host_cache
from agent.errors import TableHeldError
from agent.ports.sink import ReadsBack
from agent.rows.schema import TableSchema
from agent.sinks.common.keys import key_index
from agent.sinks.common.keys.key_index import IndexedFile, IndexSearch
from reactor.ids import Ts
from reactor.records.changefeed import SinkMode
from tests.contracts.sink_bed import TABLE, Bed
from tests.unit.agent.changes_build import changes, delete, insert, table_schema, update

_ROWS = 2_000
_IDS = np.random.default_rng(7).permutation(np.arange(_ROWS)).tolist()
_BASE = datetime(1969, 12, 31, 23, 59, tzinfo=UTC)

#: the columns of a key, and its values by a number
KEYS: dict[str, tuple[list[pa.DataType], Any]] = {
    "int": ([pa.int32()], lambda at: (at - _ROWS // 2,)),
    "bigint": ([pa.int64()], lambda at: ((at - _ROWS // 2) * 2**40,)),
    "text": ([pa.string()], lambda at: (str(uuid.UUID(int=at * 2**64 + at)),)),
    "alike": ([pa.string()], lambda at: ("x" * (at % 50) + "\0" * (at // 50),)),
    "bytes": ([pa.binary()], lambda at: (at.to_bytes(at % 3 + 2, "little"),)),
    "decimal": ([pa.decimal128(20, 2)], lambda at: (Decimal(at * 10**15 - 10**17).scaleb(-2),)),
    "time": ([pa.timestamp("us", "UTC")], lambda at: (_BASE + timedelta(milliseconds=at),)),
    "parts": ([pa.int32(), pa.string()], lambda at: (at % 7, f"n{at // 7}")),
    "day and flag": ([pa.date32(), pa.bool_()], lambda at: (date(1970, 1, 1) + timedelta(at // 2), at % 2 == 1)),
    "double": ([pa.float64()], lambda at: (at / 3 - 100,)),
}


@pytest.fixture(autouse=True)
def cache_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("WEIR_HOST_CACHE", str(tmp_path))
    monkeypatch.setattr(key_index, "_ROWS_MIN", 1)
    monkeypatch.setattr(key_index, "_ROWS_PER_KEY", 0)
    host_cache.directory.cache_clear()
    yield
    host_cache.directory.cache_clear()


def entries() -> list[Path]:
    return [path for path in host_cache.directory().iterdir() if not path.name.startswith("lock-")]


@pytest.mark.parametrize("kind", KEYS)
@pytest.mark.parametrize("rows", [0, 1, _ROWS])
def test_it_finds_what_the_file_has(kind: str, rows: int) -> None:
    types, value = KEYS[kind]
    schema = pa.schema([(f"k{at}", of) for at, of in enumerate(types)])

    def table(ids: list[int]) -> pa.Table:
        keys: list[tuple[Any, ...]] = [value(at) for at in ids]
        return pa.table([[key[at] for key in keys] for at in range(len(types))], schema=schema)

    file = _IDS[:rows]
    wanted = list(dict.fromkeys([*np.random.default_rng(3).permutation(2 * _ROWS)[:900].tolist(), *file[:1]]))
    stored = table(file)
    search = IndexSearch(table(wanted))
    assert search.is_worth(max(rows, 1))
    for _ in range(2):  # made, then read
        places, which = search.run(
            IndexedFile("f", rows, lambda: (stored.slice(at, 300) for at in range(0, rows, 300)))
        )
        assert (np.diff(places) > 0).all(), "they rise"
        assert [file[at] for at in places] == [wanted[at] for at in which]
        assert set(places.tolist()) == {at for at, number in enumerate(file) if number in set(wanted)}


@pytest.mark.parametrize("kind", [pa.int64(), pa.string()])
def test_a_key_that_a_file_has_twice_is_found_twice(kind: pa.DataType) -> None:
    """As in a file of others, which may have NULL too."""
    stored = pa.table({"k": pa.array([5, None, 9, 5, 1, 5], pa.int64()).cast(kind)})
    search = IndexSearch(pa.table({"k": pa.array([0, 1, 5, 7], pa.int64()).cast(kind)}))
    places, which = search.run(IndexedFile("f", 6, lambda: [stored]))
    assert (places.tolist(), which.tolist()) == ([0, 3, 4, 5], [2, 2, 1, 2])


def test_a_file_of_another_number_of_rows_is_not_indexed() -> None:
    stored = pa.table({"k": [1, 2]})
    with pytest.raises(TableHeldError, match="has 2 rows, and 3"):
        IndexSearch(stored).run(IndexedFile("f", 3, lambda: [stored]))
    assert not entries()


@pytest.mark.parametrize("kind", [pa.int64(), pa.string()])
@pytest.mark.parametrize("content", [None, b"", b"short", b"weir-keys-index1" + b"\1" * 48 + b"\0" * 100])
def test_a_lost_or_damaged_index_is_made_again(content: bytes | None, kind: pa.DataType) -> None:
    stored = pa.table({"k": pa.array(range(100), pa.int64()).cast(kind)})
    search, file = IndexSearch(stored.slice(50, 2)), IndexedFile("f", 100, lambda: [stored])
    assert search.run(file)[0].tolist() == [50, 51]
    [entry] = entries()
    entry.unlink() if content is None else entry.write_bytes(content)
    assert search.run(file)[0].tolist() == [50, 51]
    [entry] = entries()
    assert entry.stat().st_size > 1_000


def test_an_index_that_cannot_be_kept_is_used_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(host_cache, "fetch_path", full)
    monkeypatch.setattr(host_cache, "_write", full)
    stored = pa.table({"k": ["a", "b", "c"]})
    places, which = IndexSearch(stored.slice(1, 1)).run(IndexedFile("f", 3, lambda: [stored]))
    assert (places.tolist(), which.tolist()) == ([1], [0])


SINKS = ["iceberg+file://{}/lake", "delta+file://{}/lake?deletion_vectors=true"]


class _Story:
    """A table of one file with a key of some kind, in a sink."""

    def __init__(self, uri: str, kind: str, directory: Path) -> None:
        types, self._value = KEYS[kind]
        names = [f"k{at}" for at in range(len(types))]
        self.arrow = pa.schema([*zip(names, types, strict=True), ("v", pa.string())])
        self.table = TABLE.with_(key=tuple(names))
        self.bed = Bed(uri.format(directory), SinkMode.UPSERT)
        self.schema: TableSchema = table_schema(self.arrow)
        batch = changes([insert(*self._value(at), "a") for at in _IDS], arrow=self.arrow).after
        staged = self.bed.open().writer().stage(self.table, "1-0", iter([batch]), Ts(100))
        self.bed.open().load(self.table, self.schema, self.arrow, staged)
        self.held = dict.fromkeys(_IDS, "a")

    def flush(self, turn: int, some: list[int], gone: list[int]) -> None:
        parts = [update(*self._value(at), f"u{turn}") for at in some]
        parts += [delete(*self._value(at), None) for at in gone]
        assert self.bed.flush(100 + turn, 101 + turn, parts, arrow=self.arrow, table=self.table).committed
        self.held = {at: v for at, v in self.held.items() if at not in gone} | dict.fromkeys(some, f"u{turn}")

    def check(self) -> None:
        sink = self.bed.open()
        assert isinstance(sink, ReadsBack)
        found = sink.read_rows(self.table, self.schema, self.arrow)
        rows = sorted((tuple(row.values()) for batch in found for row in batch.to_pylist()), key=repr)
        assert rows == sorted(((*self._value(at), v) for at, v in self.held.items()), key=repr)


@pytest.mark.sample(0.2)
@pytest.mark.parametrize("uri", SINKS, ids=["iceberg", "delta"])
@pytest.mark.parametrize("kind", KEYS)
def test_upserts_through_the_index(uri: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No file is indexed twice."""
    made, inner = list[str](), IndexSearch._made

    def counted(search: IndexSearch, file: IndexedFile) -> bytes:
        made.append(file.name)
        return inner(search, file)

    monkeypatch.setattr(IndexSearch, "_made", counted)
    story = _Story(uri, kind, tmp_path)
    story.flush(0, _IDS[:30], _IDS[30:40])
    story.flush(1, [*_IDS[10:25], _ROWS + 5, _ROWS + 6], [_IDS[3], _IDS[900]])
    story.flush(2, [*_IDS[15:45], _ROWS + 5], [_ROWS + 6])
    story.check()
    assert len(set(made)) == len(made) == 3
