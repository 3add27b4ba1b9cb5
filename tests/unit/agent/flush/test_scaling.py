"""Scaling of a backlog on 1 to 64 cores: flushes are planned as in a capture, and their tasks run on as many cores
as Spark would have, in its order, for the times that were measured on one core.

    python -m tests.unit.agent.flush.test_scaling       the table of docs/deploy/sizing.md
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from heapq import heappop, heappush
from typing import Final

import pytest

from agent.control.runtime import SpanPosition
from agent.flush.plan import Weights, group_tasks, plan_flush
from agent.ports.sink import FlushTask
from reactor.ids import Ts
from tests.unit.agent.flush.test_plan import CHANGELOG, UPSERT, limits, position, segment

#: bytes of log that one core decodes and writes in a second, appended and merged (``catchup-postgres``: 0.5 M rows/s of
#: 60 bytes; a merge takes three times as long)
_APPENDED: Final = 30e6
_MERGED: Final = 10e6
#: seconds: a task without rows, a job beside its tasks, and the commit of a table
_TASK_S: Final = 0.02
_JOB_S: Final = 0.05
_COMMIT_S: Final = 0.03
_SEGMENT: Final = 4 << 20
CORES: Final = (1, 2, 4, 8, 64)


def seconds(cores: Sequence[int], *, tables: int, segments: int, is_changelog: bool) -> dict[int, float]:
    """Return how long a backlog takes, flush by flush, by the number of cores. Plans are made for the first of these:
    merges are not divided for more."""
    ids = tuple(range(1, tables + 1))
    log = [segment(at, 10 * at + 1, 10 * at + 9, 10 * at + 10, size=_SEGMENT, tables=ids) for at in range(segments)]
    feed = CHANGELOG if is_changelog else UPSERT
    rate = _APPENDED if is_changelog else _MERGED
    positions, took = [position(5, table=table) for table in ids], dict.fromkeys(cores, 0.0)
    goal = Ts(10 * segments)
    while any(item.checkpoint_ts < goal for item in positions):
        behind = min(one.committed_ts for one in positions)
        ahead = [item for item in log if item.last_ts > behind]
        weights = Weights()
        if weights.is_backlog(sum(item.bytes for item in ahead)):
            weights = weights.for_cores(cores[0])
        plan = plan_flush(positions, ahead, limits(int(goal)), feed=feed, weights=weights)
        groups = group_tasks(plan.tasks)
        times = [_task_s(group, rate) for group in groups]
        commits = len({task.table.table_id for task in plan.tasks}) if is_changelog else 0
        for count in cores:
            took[count] += _JOB_S + _makespan(times, count) + _COMMIT_S * commits
        positions = [_moved(item, to_ts) for item, to_ts in plan.targets]
    return took


def _task_s(group: Sequence[FlushTask], rate: float) -> float:
    """A task reads each of its segments' batches of one table."""
    tables = max(len(ref.tables) for task in group for ref in task.segments)
    merged = 0.0 if rate == _APPENDED else _COMMIT_S
    return sum(_TASK_S + merged + sum(ref.bytes for ref in task.segments) / tables / rate for task in group)


def _makespan(times: Sequence[float], cores: int) -> float:
    """Spark starts tasks in their order, each on the core that is free first."""
    free = [0.0] * cores
    for taken in times:
        heappush(free, heappop(free) + taken)
    return max(free)


def _moved(item: SpanPosition, to_ts: Ts) -> SpanPosition:
    return replace(item, checkpoint_ts=to_ts, committed_ts=to_ts)


@cache
def speed_ups(name: str) -> dict[int, float]:
    backlog = BACKLOGS[name]
    together = [(cores,) for cores in CORES] if backlog["is_changelog"] else [CORES]
    took = {cores: took for some in together for cores, took in seconds(some, **backlog).items()}  # type: ignore[arg-type]
    return {cores: round(took[1] / took[cores], 1) for cores in CORES}


BACKLOGS: Final = {
    "changelog, 1 table, 256 MiB": {"tables": 1, "segments": 64, "is_changelog": True},
    "changelog, 1 table, 4 GiB": {"tables": 1, "segments": 1024, "is_changelog": True},
    "changelog, 8 tables, 4 GiB": {"tables": 8, "segments": 1024, "is_changelog": True},
    "upsert, 8 tables, 4 GiB": {"tables": 8, "segments": 1024, "is_changelog": False},
    "upsert, 64 tables, 4 GiB": {"tables": 64, "segments": 1024, "is_changelog": False},
}


@pytest.mark.sample(0.2)
@pytest.mark.parametrize(
    ("backlog", "least"),
    [
        ("changelog, 1 table, 256 MiB", {2: 1.9, 4: 3.7, 8: 7, 64: 30}),
        ("changelog, 1 table, 4 GiB", {2: 1.9, 4: 3.8, 8: 7.5, 64: 50}),
        ("changelog, 8 tables, 4 GiB", {2: 1.9, 4: 3.7, 8: 7, 64: 40}),
        ("upsert, 8 tables, 4 GiB", {2: 1.9, 4: 3.5, 8: 6.5, 64: 6.5}),
        ("upsert, 64 tables, 4 GiB", {2: 1.9, 4: 3.7, 8: 7, 64: 12}),
    ],
)
def test_a_backlog_keeps_all_cores_busy(backlog: str, least: dict[int, float]) -> None:
    found = speed_ups(backlog)
    assert {cores: found[cores] for cores in least if found[cores] < least[cores]} == {}


@pytest.mark.matrix
def test_more_cores_never_take_longer() -> None:
    for name in BACKLOGS:
        found = list(speed_ups(name).values())
        assert found == sorted(found)


if __name__ == "__main__":
    for name in BACKLOGS:
        print(f"| {name} | " + " | ".join(f"{value:g}" for value in speed_ups(name).values()) + " |")  # noqa: T201
