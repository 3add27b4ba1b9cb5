"""The log storage contract, over all kinds: a file is there whole or not at all, and what is gone is gone."""

import contextlib
import itertools
import time
from pathlib import Path
from typing import BinaryIO

import fsspec
import pytest

from agent.log import storage as log_storage
from agent.log.directories import LocalDirectory, ObjectDirectory, RemoteDirectory
from agent.log.storage import LogDirectory
from agent.object_store import ObjectStore, is_object_store
from agent.ports.log_storage import LogStorage
from tests.conftest import RunStore

_NUMBERS = itertools.count()


@pytest.fixture(
    params=["local", "memory", "gs", *(pytest.param(kind, marks=pytest.mark.matrix) for kind in ("s3", "az"))]
)
def uri(request: pytest.FixtureRequest, tmp_path: Path, object_store: RunStore) -> str:
    match request.param:
        case "local":
            return str(tmp_path / "log")
        case "memory":
            return f"memory://contract-{next(_NUMBERS)}"
        case kind:
            return f"{object_store(kind).uri}/log-{next(_NUMBERS)}"


@pytest.fixture
def storage(uri: str) -> LogStorage:
    if is_object_store(uri):
        return ObjectDirectory(ObjectStore(f"{uri}/feed/main"))
    files, root = fsspec.core.url_to_fs(uri)
    return RemoteDirectory(files, root) if uri.startswith("memory") else LocalDirectory(root)


class Fill:
    """Writes in two pieces; ``fails``: breaks off in between."""

    def __init__(self, data: bytes, *, fails: bool = False) -> None:
        self._data = data
        self._fails = fails

    def __call__(self, file: BinaryIO) -> None:
        file.write(self._data[:3])
        if self._fails:
            raise OSError("disk full")
        file.write(self._data[3:])


def test_what_is_written_is_there(storage: LogStorage) -> None:
    began = time.time()
    assert storage.write("a", Fill(b"0123456789")) == 10
    assert storage.write("b", Fill(b"")) == 0
    assert storage.read("a") == b"0123456789"
    assert sorted(storage.names()) == ["a", "b"]
    entries = {entry.name: entry for entry in storage.entries()}
    assert {name: entry.size for name, entry in entries.items()} == {"a": 10, "b": 0}
    assert abs(entries["a"].modified_at - began) < 60


def test_a_file_is_replaced_whole(storage: LogStorage) -> None:
    storage.write("a", Fill(b"first and long"))
    assert storage.write("a", Fill(b"second")) == 6
    assert storage.read("a") == b"second"


def test_a_file_that_was_not_finished_is_none(storage: LogStorage) -> None:
    storage.write("a", Fill(b"before"))
    with pytest.raises(OSError, match="disk full"):
        storage.write("b", Fill(b"0123456789", fails=True))
    assert [name for name in storage.names() if log_storage.finished_name(name) == name] == ["a"]
    with pytest.raises(FileNotFoundError):
        storage.read("b")


def test_a_file_is_created_once(storage: LogStorage) -> None:
    storage.create("a", b"1")
    storage.create("a", b"2")
    assert storage.read("a") == b"1"
    assert storage.names() == ["a"]


def test_what_is_removed_is_gone(storage: LogStorage) -> None:
    storage.write("a", Fill(b"x"))
    storage.remove("a")
    assert storage.names() == []
    with pytest.raises(FileNotFoundError):
        storage.read("a")
    with contextlib.suppress(FileNotFoundError):  # S3 does not tell
        storage.remove("a")


def test_a_directory_hides_what_its_storage_is(uri: str) -> None:
    place = LogDirectory(uri, changefeed="feed", source="main")
    assert (place.names(), place.entries()) == ([], [])
    assert place.write("a", Fill(b"0123")) == 4
    assert place.read("a") == b"0123"
    with log_storage.open_input(place.path_of("a")) as file:
        assert file.read() == b"0123"
    place.remove(["a", "gone already"])
    assert place.names() == []
    assert LogDirectory(uri, changefeed="other", source="main").names() == []


def test_the_marker_is_made_once(uri: str) -> None:
    marker = log_storage.claim(uri, cluster_id="c", expected=None)
    assert log_storage.claim(uri, cluster_id="c", expected=marker) == marker
