"""Health: a self-test that fails, and succeeds again; and a runtime whose errors are distinguished."""

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import anyio
import pytest

from agent.control.effects import StartUnit
from agent.control.runtime import NOBODY, Flushed, FlushLimits, Progress, SpanPosition, SpanRuntime, Together
from agent.errors import JobError, LogError, OwnFaultError
from agent.health.guarded_runtime import GuardedRuntime
from agent.health.health import Health
from agent.health.probe import SelfTest
from reactor.errors import WeirError
from reactor.ids import TableSpan, Ts
from reactor.records.tables.table import TableRecord

TABLE = TableRecord(table_id=1, schema_name="public", name="t")


class Spark:
    cause = ""

    def check(self) -> str:
        return self.cause


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    test = SelfTest([tmp_path / "spark"], Spark())
    assert test(is_again=False) == ""
    assert list((tmp_path / "spark").iterdir()) == [], "nothing is left"

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    cause = test(is_again=False)
    assert str(tmp_path / "spark") in cause
    assert "No space left" in cause
    assert list((tmp_path / "spark").iterdir()) == [], "nothing is left"


def test_a_file_in_the_place_of_a_directory_is_a_fault_too(tmp_path: Path) -> None:
    (tmp_path / "spark").write_text("")
    assert "give it room or make it writable" in SelfTest([tmp_path / "spark"], Spark())(is_again=True)


def test_without_descriptors_or_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spark = Spark()
    test = SelfTest([tmp_path], spark)
    spark.cause = "Spark did not start"
    assert test(is_again=False) == "Spark did not start"

    def none_left(path: str, flags: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "open", none_left)
    assert "LimitNOFILE" in test(is_again=False)


class Now:
    time = 0.0


def test_tests_are_further_apart_the_longer_and_the_more_often_it_is_ill() -> None:
    now = Now()
    health = Health(clock=lambda: now.time)
    waits = []
    for _ in range(8):
        health.note("disk full")
        waits.append(health._again_s)
    assert waits == [2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0]
    health.note("")
    now.time = 60.0
    health.note("disk full")
    assert health._again_s == 60.0, "it came and went"
    health.note("")
    now.time = 1_000.0
    health.note("disk full")
    assert health._again_s == 2.0


@pytest.mark.looptime
async def test_an_error_that_makes_it_doubtful_is_followed_by_a_test() -> None:
    causes = ["", "disk full", ""]

    def test(*, is_again: bool) -> str:
        return causes.pop(0) if causes else ""

    health = Health(test)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(health.run)
        await anyio.sleep(0.5)
        assert health.fault is None
        health.doubt()
        await health.changed()
        assert health.cause == "disk full"
        await health.well()
        assert health.cause == ""
        tasks.cancel_scope.cancel()


class Failing:
    def __init__(self, error: Exception) -> None:
        self._error = error

    async def open_span(self, table: TableRecord, span: TableSpan, checkpoint_ts: Ts) -> SpanPosition:
        raise self._error

    async def flush(
        self, positions: Sequence[SpanPosition], limits: FlushLimits, together: Together = NOBODY
    ) -> Flushed:
        raise self._error

    async def run_unit(self, order: StartUnit, on_progress: Progress) -> None:
        raise ExceptionGroup("unit", [self._error])


async def failures(error: Exception) -> tuple[Health, list[Exception]]:
    health, found = Health(), []
    runtime = GuardedRuntime(cast("SpanRuntime", Failing(error)), health)
    calls = (
        lambda: runtime.open_span(TABLE, TableSpan(1), Ts(1)),
        lambda: runtime.flush([], cast("FlushLimits", None)),
        lambda: runtime.run_unit(cast("StartUnit", None), lambda state: None),
    )
    for call in calls:
        try:
            await call()
        except Exception as raised:
            found.append(raised)
    return health, found


async def test_own_faults_get_their_scope_and_are_followed_by_a_test() -> None:
    health, found = await failures(OSError(errno.EMFILE, "Too many open files"))
    assert [type(error) for error in found] == [OwnFaultError] * 3
    assert health._doubted.is_set()


async def test_other_errors_stay_as_they_are() -> None:
    for error, is_doubtful in ((LogError("no"), False), (JobError("no"), True)):
        health, found = await failures(error)
        assert found[:2] == [error, error]
        assert not any(isinstance(one, WeirError) for one in found[2:])
        assert health._doubted.is_set() is is_doubtful
