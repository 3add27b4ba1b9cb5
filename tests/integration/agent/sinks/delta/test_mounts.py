"""Real mounts that are full, read-only or away: a flush says that this may pass, and writes all when it has."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.errors import SinkError, SinkPassingError
from agent.sinks.delta.sink import DeltaSink
from reactor.records.changefeed import SinkMode
from tests.integration.agent.sinks.delta.test_sink import SPAN, both_modes, flush, loaded, rows, sink_at, task
from tests.unit.agent.changes_build import changes, insert

_BYTES = 4 << 20
#: room on the full disk: for nothing, for a part of what a flush writes, for all but the last of it
_ROOM = (0, 4_096, 8_192, 12_288, 16_384, 24_576, 32_768)


def _run(*command: str) -> bool:
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "mount"
    place.mkdir()
    if not _run("mount", "-t", "tmpfs", "-o", f"size={_BYTES}", "weir-test", str(place)):
        pytest.skip("mounting needs privileges")
    yield place
    _run("umount", "-l", str(place))


def _attempt(sink: DeltaSink, number: int) -> SinkError | None:
    """Ten rows more, from where the sink is."""
    try:
        at = sink.committed_ts(task(sink, 0, 1).table, SPAN)
        assert at is not None
        part = changes([insert(10 * number + n, "b", "y" * 2_000) for n in range(10)])
        result = flush(sink, task(sink, at, 200 + number), part)
    except SinkError as error:
        return error
    if not result.error:
        assert result.committed
        return None
    assert result.error_code == SinkPassingError.code, result.error
    assert result.retryable
    return SinkPassingError(result.error)


def _is_all_there(sink: DeltaSink, upto: int) -> bool:
    return [row[0] for row in sorted(rows(sink), key=lambda row: int(row[0]))] == list(range(upto))


@both_modes
@pytest.mark.parametrize("is_plain", [True, False], ids=["ours", "delta-rs"])
def test_a_disk_that_is_full_at_any_moment_loses_nothing(
    mount: Path, monkeypatch: pytest.MonkeyPatch, mode: SinkMode, *, is_plain: bool
) -> None:
    if not is_plain:
        monkeypatch.setattr("agent.sinks.delta.table.log._taken", lambda place: None)
    sink = loaded(mount / "lake", mode, rows=[(n, "a", "x") for n in range(10)])
    failures = 0
    for number, room in enumerate(_ROOM, start=1):
        filler, free = mount / "filler", os.statvfs(mount)
        filler.write_bytes(b"x" * max(free.f_bavail * free.f_frsize - room, 0))
        if (error := _attempt(sink, number)) is not None:
            failures += 1
            assert isinstance(error, SinkPassingError), error
            assert "No space left on device" in str(error)
        filler.unlink()
        if error is not None:
            assert _attempt(sink_at(mount / "lake", mode) if number % 2 else sink, number) is None
        assert _is_all_there(sink, 10 * number + 10)
    assert failures >= 2


@both_modes
def test_a_disk_that_is_read_only_for_a_time(mount: Path, mode: SinkMode) -> None:
    sink = loaded(mount / "lake", mode, rows=[(n, "a", "x") for n in range(10)])
    assert _run("mount", "-o", "remount,ro", str(mount))
    error = _attempt(sink, 1)
    assert isinstance(error, SinkPassingError)
    assert "Read-only file system" in str(error)
    assert _run("mount", "-o", "remount,rw", str(mount))
    assert _attempt(sink, 1) is None
    assert _is_all_there(sink, 20)


@both_modes
def test_a_mount_that_is_away_for_a_time(mount: Path, tmp_path: Path, mode: SinkMode) -> None:
    lake = tmp_path / "lake"
    lake.mkdir()
    (mount / "kept").mkdir()
    assert _run("mount", "--bind", str(mount / "kept"), str(lake))
    try:
        sink = loaded(lake, mode, rows=[(n, "a", "x") for n in range(10)])
        assert _run("umount", "-l", str(lake))
        for again in (sink, sink_at(lake, mode)):
            error = _attempt(again, 1)
            assert isinstance(error, SinkPassingError)
            assert "is not the one that was written" in str(error)
        assert os.listdir(lake) == []
        assert _run("mount", "--bind", str(mount / "kept"), str(lake))
        assert _attempt(sink, 1) is None
        assert _is_all_there(sink, 20)
    finally:
        _run("umount", "-l", str(lake))
