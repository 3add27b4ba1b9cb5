"""Spark's daemon learns what its workers have imported: later workers have it, and no daemon has it before."""

import os
import sys
import time

import psutil
import pytest

from agent.errors import JobError
from agent.spark import learning
from agent.spark.executor import SparkExecutor

pytestmark = pytest.mark.spark

_LEARNED = "agent.sinks.iceberg.sink"
_WORKERS_MAX = 10


def _state(_: int) -> tuple[float, bool]:
    """Return when the worker was forked, and whether it has the modules."""
    return psutil.Process().create_time(), _LEARNED in sys.modules


def _import(_: int) -> float:
    __import__(_LEARNED)
    return time.time()


def _end(_: int) -> None:
    os._exit(3)


def test_a_later_worker_has_what_an_earlier_one_needed(spark_executor: SparkExecutor) -> None:
    [imported] = spark_executor.map(_import, [0], description="import")
    for _ in range(_WORKERS_MAX):
        with pytest.raises(JobError):
            spark_executor.map(_end, [0], description="end")
        [(forked, has_it)] = spark_executor.map(_state, [0], description="look")
        if forked > imported:
            assert has_it
            return
    pytest.fail("no worker was forked anew")


def test_what_is_learned_starts_no_thread() -> None:
    """The daemon forks after it."""
    pid = os.fork()
    if pid == 0:
        before = _threads()
        for name in learning._learned():
            try:
                __import__(name)
            except ImportError:  # boto3 is not installed
                continue
        os._exit(0 if _threads() == before else 1)
    assert os.waitpid(pid, 0)[1] == 0


def _threads() -> int:
    return len(os.listdir("/proc/self/task"))
