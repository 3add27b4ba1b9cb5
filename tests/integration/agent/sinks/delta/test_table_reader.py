"""The reader behind the Python interface: versions, columns, and what it says of what is not there."""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from agent.errors import SinkConfigError, TableForeignError
from agent.ports.table_reader import TableReader
from agent.sinks import open_table

ROWS = pa.table({"id": [2, 1], "name": ["b", None], "raw": [b"x", None], "list": [["q"], None]})


@pytest.fixture
def reader(tmp_path: Path) -> TableReader:
    for _ in range(2):
        write_deltalake(tmp_path / "lake" / "public" / "t", ROWS, mode="append")
    return open_table(f"delta+file://{tmp_path}/lake?retention_seconds=***", "public/t")


def test_versions_and_columns(reader: TableReader, tmp_path: Path) -> None:
    assert (reader.location, reader.version()) == (f"{tmp_path}/lake/public/t", 1)
    assert reader.scan().read_all().sort_by("id").num_rows == 4
    before = reader.scan(["name", "id"], version=0).read_all()
    assert before.schema == pa.schema([("name", pa.string()), ("id", pa.int64())])
    assert before.sort_by("id").to_pylist() == [{"name": None, "id": 1}, {"name": "b", "id": 2}]
    assert [commit["version"] for commit in reader.history(5)] == [1, 0]


@pytest.mark.parametrize(
    ("read", "problem"),
    [
        (lambda reader: reader.scan(["nam"]), "has no column nam; it has id, name, raw, list"),
        (lambda reader: reader.scan(version=2), "has the versions 0 to 1, not 2"),
        (lambda reader: reader.scan(version=-1), "has the versions 0 to 1, not -1"),
    ],
)
def test_what_is_not_there(reader: TableReader, read: Callable[[TableReader], object], problem: str) -> None:
    with pytest.raises(SinkConfigError, match=problem):
        read(reader)


def test_no_table(tmp_path: Path) -> None:
    (tmp_path / ".weir-sink").touch()
    with pytest.raises(TableForeignError, match="there is no Delta table at"):
        open_table(f"delta+file://{tmp_path}", "public/t").version()
