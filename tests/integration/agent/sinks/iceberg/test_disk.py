"""Durability of Iceberg commits: every file that a new version names is on disk, content and name, before the catalog
names the version."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import event
from sqlalchemy.engine import Connection, Engine

from agent.errors import SinkError
from agent.ports.sink import Maintains
from agent.sinks.iceberg.table import io as files_io
from agent.sinks.iceberg.table.io import LakeFileIO
from tests.contracts.sink_bed import COMBINATIONS, IMPLEMENTATIONS, TABLE, Bed
from tests.unit.agent.changes_build import delete, insert, update

_ALL = IMPLEMENTATIONS | COMBINATIONS
_KINDS = ("iceberg-upsert", "iceberg-changelog")
_MORE_KINDS = ("iceberg-v3", "iceberg-partitioned", "iceberg-history")


class _Disk:
    """What was brought to disk: inodes of files, and directories with the names that they had then."""

    def __init__(self, lake: Path) -> None:
        self._lake = lake
        self._inodes: set[int] = set()
        self._names: dict[int, set[str]] = {}
        self._lock = threading.Lock()
        self.commits = 0

    def sync(self, descriptor: int) -> None:
        inode = os.fstat(descriptor).st_ino
        with self._lock:
            self._inodes.add(inode)
            if os.path.isdir(f"/proc/self/fd/{descriptor}"):
                self._names[inode] = {*os.listdir(descriptor)}

    def check(self, _: Connection) -> None:
        """Called when the catalog commits."""
        self.commits += 1
        for path in self._lake.rglob("*"):
            if path.suffix in (".parquet", ".avro", ".json", ".puffin"):
                assert path.stat().st_ino in self._inodes, path.name
                assert path.name in self._names[path.parent.stat().st_ino], path.name


@contextmanager
def _watched(lake: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[_Disk]:
    disk, inner = _Disk(lake), os.fsync

    def fsync(descriptor: int) -> None:
        inner(descriptor)
        disk.sync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    event.listen(Engine, "commit", disk.check)
    try:
        yield disk
    finally:
        event.remove(Engine, "commit", disk.check)


@pytest.mark.parametrize("name", [*_KINDS, *(pytest.param(name, marks=pytest.mark.matrix) for name in _MORE_KINDS)])
def test_whatever_the_catalog_names_is_on_disk(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bed = Bed.of(_ALL[name], tmp_path)
    with _watched(tmp_path / "lake", monkeypatch) as disk:
        bed.load(*((at, "a", "x") for at in range(10)))
        for turn in range(4):
            some = [update(turn, "b", "y", ts=105 + turn * 10), delete(turn + 4, None, None, ts=105 + turn * 10)]
            assert bed.flush(100 + turn * 10, 110 + turn * 10, [*some, insert(20 + turn, "c", "z")]).committed
        sink = bed.open()
        assert isinstance(sink, Maintains)
        sink.maintain(TABLE)
    assert disk.commits > 5


def _fails(_: int) -> None:
    raise OSError(5, "Input/output error")


def test_a_commit_whose_files_the_disk_refuses_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bed = Bed.of(_ALL["iceberg-upsert"], tmp_path)
    bed.load((1, "a", "x"))
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", _fails)
        with pytest.raises(SinkError):
            bed.flush(100, 110, [update(1, "b", "y", ts=105)])
    bed.assert_at(100)
    bed.assert_holds((1, "a", "x"))
    assert bed.flush(100, 110, [update(1, "b", "y", ts=105)]).committed


def test_files_wait_for_each_other_up_to_a_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    with files_io.together():
        for at in range(20):
            with LakeFileIO().new_output(f"file://{tmp_path}/{at}").create() as stream:
                stream.write(b"x")
        assert len(synced) == 16
    assert len(synced) == 20
    with LakeFileIO().new_output(f"file://{tmp_path}/alone").create() as stream:
        stream.write(b"x")
    assert len(synced) == 21
