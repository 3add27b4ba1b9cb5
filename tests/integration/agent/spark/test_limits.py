"""Jobs that are given up give their slots back; jobs that are held back take one."""

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.deadline import Deadline
from agent.errors import JobTimeoutError
from agent.spark.executor import SparkExecutor
from tests.patience import patient

pytestmark = [pytest.mark.spark, pytest.mark.matrix, pytest.mark.timeout(120)]  # a Spark of their own

CANCEL_TIMEOUT_S = 15.0


@pytest.fixture(scope="module")
def executor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkExecutor]:
    """Two slots, whatever the machine has."""
    executor = SparkExecutor("local[2]", work_dir=tmp_path_factory.mktemp("spark"))
    executor.start()
    yield executor
    executor.stop()


def hang(directory: str) -> None:
    (Path(directory) / str(os.getpid())).touch()
    threading.Event().wait()


def worker(_: int) -> int:
    return os.getpid()


def test_a_job_that_is_given_up_gives_its_slots_back(executor: SparkExecutor, tmp_path: Path) -> None:
    deadline = Deadline()
    giving_up = threading.Thread(target=lambda: end_when_begun(deadline, tmp_path))
    giving_up.start()
    with pytest.raises(JobTimeoutError, match="two that hang"):
        executor.map(hang, [str(tmp_path)] * 2, description="two that hang", deadline=deadline)
    started = time.monotonic()
    workers = executor.map(worker, [0, 1], description="after them")
    assert time.monotonic() - started < patient(CANCEL_TIMEOUT_S)
    assert not {int(file.name) for file in tmp_path.iterdir()} & set(workers)
    giving_up.join()


def test_a_job_that_is_given_up_before_it_has_begun_does_not_run(executor: SparkExecutor, tmp_path: Path) -> None:
    deadline = Deadline()
    deadline.end()
    with pytest.raises(JobTimeoutError):
        executor.map(hang, [str(tmp_path)], description="late", deadline=deadline)


def test_a_job_that_is_held_back_runs_task_after_task(executor: SparkExecutor) -> None:
    workers = executor.map(worker, list(range(5)), description="held back", at_once=1)
    assert len(workers) == 5
    assert len(set(workers)) == 1


def end_when_begun(deadline: Deadline, directory: Path) -> None:
    while not any(directory.iterdir()):
        time.sleep(0.02)
    deadline.end()
