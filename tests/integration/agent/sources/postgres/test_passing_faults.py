"""Transient errors: the log's disk is full or read-only, the role is locked, its password changed. The sync unit
waits, says why, and continues; the log has every event once."""

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.errors import LogError, SourceAuthError
from agent.log.storage import LogDirectory
from agent.settings import SyncSettings
from agent.sources.postgres.server.connection import connect
from capture.embedded import EmbeddedPostgres
from tests.integration.agent.sources.postgres.sync_rig import SyncRig, drop_slots, make_rig, wait_until

_BYTES = 4 << 20
_TERMINATE = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'weir_locked'"


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


@pytest.fixture
def rig(postgres: EmbeddedPostgres, tmp_path: Path) -> Iterator[SyncRig]:
    rig = make_rig(postgres, tmp_path, "CREATE TABLE t (id int PRIMARY KEY, v text)", ["t"])
    rig.settings = SyncSettings(progress_s=0.05, reconnect_s=0.05, reconnect_max_s=0.2)
    yield rig
    drop_slots(rig)


def _fill(mount: Path) -> None:
    with contextlib.suppress(OSError):
        (mount / "filler").write_bytes(b"x" * _BYTES)  # takes all that there is


def _empty(mount: Path) -> None:
    (mount / "filler").unlink()


def _close(mount: Path) -> None:
    assert _run("mount", "-o", "remount,ro", str(mount))


def _open(mount: Path) -> None:
    assert _run("mount", "-o", "remount,rw", str(mount))


async def test_a_log_that_cannot_be_written_for_a_time(rig: SyncRig, mount: Path) -> None:
    rig.directory = LogDirectory(str(mount), changefeed="feed", source="postgresql")
    async with rig.running() as unit:
        rig.execute("INSERT INTO t VALUES (1, 'a')")
        await rig.wait_resolved()
        for number, (fault, cure) in enumerate([(_fill, _empty), (_close, _open)], start=1):
            fault(mount)
            rig.execute(f"INSERT INTO t SELECT n, 'b' FROM generate_series({1000 * number}, {1000 * number + 500}) n")
            rig.execute("ALTER TABLE t ADD w int; ALTER TABLE t DROP w; UPDATE t SET v = 'c' WHERE id = 1")
            await wait_until(lambda: unit.statistics().error_code == LogError.code)
            cure(mount)
            await rig.wait_resolved()
            await wait_until(lambda: not unit.statistics().error)
    assert rig.logged() == rig.expected()


async def test_a_role_that_is_locked_out_for_a_time(rig: SyncRig) -> None:
    admin = rig.uri
    with connect(admin) as connection:
        connection.query("DROP ROLE IF EXISTS weir_locked; CREATE ROLE weir_locked LOGIN SUPERUSER PASSWORD 'one'")
    rig.uri = admin.replace(admin[len("postgresql://") : admin.index("@")], "weir_locked:one")
    unit = rig.unit()
    rig.uri = admin
    faults = [
        ("ALTER ROLE weir_locked NOLOGIN", "ALTER ROLE weir_locked LOGIN"),
        ("ALTER ROLE weir_locked PASSWORD 'two'", "ALTER ROLE weir_locked PASSWORD 'one'"),
        ("ALTER ROLE weir_locked NOSUPERUSER NOREPLICATION", "ALTER ROLE weir_locked SUPERUSER"),
    ]
    async with rig.running(unit):
        for number, (fault, cure) in enumerate(faults):
            rig.execute(f"INSERT INTO t VALUES ({number}, 'a')")
            await rig.wait_resolved()
            for statement in (fault, _TERMINATE, f"INSERT INTO t VALUES ({number + 100}, 'b')"):
                rig.execute(statement)
            await wait_until(lambda: unit.statistics().error_code == SourceAuthError.code)
            assert "weir_locked" in unit.statistics().error
            rig.execute(cure)
            await rig.wait_resolved()
            await wait_until(lambda: not unit.statistics().error)
    assert rig.logged() == rig.expected()
