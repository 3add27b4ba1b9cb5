"""Finding rows by key: which files are not opened, and what is fetched of those on an object store."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from agent import host_cache
from agent.object_store import ObjectStore
from agent.sinks.common.keys import key_index
from agent.sinks.delta.table import files as delta_files
from agent.sinks.delta.table.layout import FileLayout
from agent.sinks.delta.table.live_file import LiveFile
from agent.sinks.delta.table.place import TablePlace
from agent.sinks.delta.upsert import find
from agent.sinks.delta.upsert.find import KeySearch

_ROWS = 60_000


@pytest.fixture(autouse=True)
def cache_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("WEIR_HOST_CACHE", str(tmp_path / "cache"))
    host_cache.directory.cache_clear()
    yield
    host_cache.directory.cache_clear()


def file_of(place: TablePlace, rows: pa.Table, name: str = "rows-1.parquet") -> LiveFile:
    made = delta_files.write_file(place, name, [rows], rows.schema, FileLayout())
    assert made is not None
    return LiveFile(made.add()["add"])


@pytest.fixture
def place(tmp_path: Path) -> TablePlace:
    return TablePlace(str(tmp_path))


@pytest.mark.parametrize(
    ("stored", "wanted", "is_opened"),
    [
        (["b", "d"], ["a", "e"], False),
        (["b", "d"], ["a", "c"], True),
        (["b", "é"], ["z" * 50], True),
        ([5, 9], [1, 4, 10], False),
        ([5, 9], [1, 7], True),
        ([-(2**63), 2**63 - 1], [0], True),
        ([2**62 + 1], [2**62], False),
        ([1.5, 2.5], [9.0], True),  # these have no statistics
    ],
)
def test_a_file_between_whose_bounds_no_key_is_is_not_opened(
    place: TablePlace, monkeypatch: pytest.MonkeyPatch, stored: list[object], wanted: list[object], is_opened: bool
) -> None:
    opened: list[str] = []
    inner = find.read_keys

    def read_keys(place: TablePlace, file: LiveFile, schema: pa.Schema) -> Iterator[pa.Table]:
        opened.append(file.path)
        return inner(place, file, schema)

    monkeypatch.setattr(find, "read_keys", read_keys)
    found = KeySearch(place, pa.table({"k": wanted})).run(file_of(place, pa.table({"k": stored})))
    assert (len(found.places), found.rows) == (0, len(stored))
    assert bool(opened) is is_opened


@pytest.mark.parametrize("name", ["part-00000-x.c000.snappy.parquet", "rows-1.parquet"])
def test_bounds_of_long_texts_are_believed_of_our_own_files_only(place: TablePlace, name: str) -> None:
    """Other writers may have cut the upper one."""
    file = file_of(place, pa.table({"k": ["a" * 40, "a" * 60]}), "rows-1.parquet")
    cut = file.add | {"path": name, "stats": file.add["stats"].replace("a" * 60, "a" * 40)}
    if name != "rows-1.parquet":
        (Path(place.location) / "rows-1.parquet").rename(Path(place.location) / name)
    found = KeySearch(place, pa.table({"k": ["a" * 60]})).run(LiveFile(cut))
    assert len(found.places) == (0 if name == "rows-1.parquet" else 1)


@pytest.mark.parametrize("kind", [pa.int64(), pa.string()])
def test_of_a_large_object_only_the_keys_are_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: pa.DataType
) -> None:
    local = TablePlace(str(tmp_path / "t"))
    (tmp_path / "t").mkdir()
    chance = np.random.default_rng(1)
    ids = chance.permutation(_ROWS)
    columns = [pa.array(ids).cast(kind), pa.array([chance.bytes(100) for _ in ids])]
    file = file_of(local, pa.table(columns, names=["id", "note"]))
    assert file.size > find._RANGED_BYTES
    asked: list[int] = []
    inner = ObjectStore.read_range

    def read_range(store: ObjectStore, name: str, start: int, length: int) -> bytes:
        asked.append(length)
        return inner(store, name, start, length)

    monkeypatch.setattr(ObjectStore, "read_range", read_range)
    monkeypatch.setattr(ObjectStore, "read", None)
    remote = TablePlace(f"file://{tmp_path}/t", is_local=False)
    wanted = pa.table({"id": pa.array([ids[7], ids[3], _ROWS + 1]).cast(kind)})
    for _ in range(2):
        assert KeySearch(remote, wanted).run(file).places.tolist() == [3, 7]
    assert len(asked) <= 3
    assert sum(asked) < file.size / 4
    monkeypatch.setattr(key_index, "_ROWS_MIN", _ROWS + 1)  # no index
    assert KeySearch(remote, wanted).run(file).places.tolist() == [3, 7]
    assert len(asked) <= 6
