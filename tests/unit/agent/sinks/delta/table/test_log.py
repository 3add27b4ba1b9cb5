"""A table's log that another writer has filled with anything: the table is held, or left to delta-rs; nothing else."""

import json
import os
import pickle
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from hypothesis import given
from hypothesis import strategies as st

from agent import host_cache
from agent.errors import SinkError, TableHeldError
from agent.object_store import ObjectStore
from agent.sinks.delta.table.commits import actions_in
from agent.sinks.delta.table.log import TableLog, borrowed
from agent.sinks.delta.table.place import TablePlace

_DEEP = "[" * 100_000 + "]" * 100_000
_FILE = {"path": "a.parquet", "size": 1, "partitionValues": {}, "modificationTime": 1, "dataChange": False}
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
_KINDS = st.sampled_from(["add", "remove", "txn", "metaData", "protocol", "commitInfo", "cdc", "x"])
_FIELDS = st.dictionaries(
    st.sampled_from([*_FILE, "stats", "deletionVector", "appId", "version", "schemaString", "configuration"]), _JSON
)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("lake") / "t"
    write_deltalake(path, pa.table({"id": [1, 2]}))
    return path


def look(table: Path, commit: str) -> bool:
    """Read all of the log; return whether it was not left to delta-rs."""
    (table / "_delta_log" / f"{1:020d}.json").write_text(commit)
    with borrowed(TablePlace(str(table))) as log:
        if log is None:
            return False
        for file in log.files.values():
            assert file.rows >= 0
            assert file.bounds("id") == (None, None) or file.rows
        return True


@given(commit=_JSON | st.dictionaries(_KINDS, _JSON | _FIELDS, max_size=3))
def test_any_action(table: Path, commit: object) -> None:
    with suppress(SinkError):
        look(table, json.dumps(commit))


@pytest.mark.parametrize("stats", ["{", "[]", "7", _DEEP, '{"minValues": 7}', '{"numRecords": "x"}'])
def test_broken_statistics_are_none(table: Path, stats: str) -> None:
    assert look(table, json.dumps({"add": _FILE | {"stats": stats}}))


def test_a_commit_that_would_end_the_process_is_kept_from_delta_rs(table: Path) -> None:
    with pytest.raises(TableHeldError, match="commit 1 of the Delta table is nested so deeply"):
        look(table, f'{{"add":{_DEEP}}}')
    opened = [sys.executable, "-c", "import deltalake, sys; deltalake.DeltaTable(sys.argv[1])", str(table)]
    assert subprocess.run(opened, check=False, capture_output=True).returncode < 0, "or this is not needed any more"


@pytest.mark.parametrize(
    "checkpoint",
    [
        {"add": pa.array([7])},
        {"protocol": pa.array(["x"])},
        {"txn": pa.array([{"appId": None, "version": None}])},
        {"metaData": pa.array([{"id": 5}])},
        {"x": pa.array([1])},
    ],
)
def test_a_checkpoint_of_another_form(checkpoint: dict[str, pa.Array], tmp_path: Path) -> None:
    write_deltalake(tmp_path, pa.table({"id": [1, 2]}))
    pq.write_table(pa.table(checkpoint), tmp_path / "_delta_log" / f"{0:020d}.checkpoint.parquet")
    with suppress(SinkError), borrowed(TablePlace(str(tmp_path))):
        pass


class Bomb:
    """What a pickle can do."""

    def __init__(self, mark: Path) -> None:
        self._mark = mark

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self._mark),)


def test_no_object_of_a_store_is_taken_for_a_logs_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever writes into a bucket chooses the names of files, which are cached on this machine."""
    monkeypatch.setattr(host_cache, "directory", lambda: tmp_path)
    mark, bucket = tmp_path / "mark", "s3://bucket/lake/a/b"
    content = pickle.dumps(Bomb(mark))
    names = ("c/d?log", "c/d", "delta-log:s3://bucket/lake/a/b/c/d", "c/d%3Flog")
    monkeypatch.setattr(ObjectStore, "read", lambda *_: content)
    for name in names:
        with suppress(TableHeldError):  # a name that is none of a table's file
            TablePlace(bucket, is_local=False).path_of(quote(name, safe="/:?"))
    TableLog(TablePlace(f"{bucket}/c/d", is_local=False))
    assert not mark.exists()


@pytest.mark.parametrize("commit", [b"", b"7", b'"x"', b"[]", b'{"add":[1]}', b"null", b"\xff"])
def test_what_is_no_commit(commit: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        actions_in(commit, 3)


@pytest.mark.parametrize("is_local", [True, False])
@pytest.mark.parametrize(
    "path",
    [
        *("../x", "a/../../x", "/etc/passwd", "%2e%2e/x", "..%2Fx", "file:///etc/x", "s3://b/x", "%2fx", ".."),
        *("..\\x", "FILE:x", " file:///x", ".\t./x"),
    ],
)
def test_files_outside_of_the_table_are_not_read(path: str, is_local: bool, tmp_path: Path) -> None:
    with pytest.raises(TableHeldError, match="not in the table's directory"):
        TablePlace(str(tmp_path), is_local).path_of(path)


@pytest.mark.parametrize("path", ["a.parquet", "c=../a.parquet", "c=x:%2Fy/..a", "...", "p%3A=1/a"])
def test_files_of_the_table(path: str, tmp_path: Path) -> None:
    assert TablePlace(str(tmp_path)).path_of(path).startswith(f"{tmp_path}/")
