"""Spark as an executor: order, errors, and a JVM that never outlives its parent."""

import importlib
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from pyspark import SparkContext

from agent.errors import DecodeError, JavaError, JobError
from agent.spark.executor import SparkExecutor
from agent.spark.java import find_java
from agent.task_errors import carried
from reactor.errors import Scope
from reactor.records.tables.held import WORKER_LOST
from tests.patience import HANG_S, patient

pytestmark = pytest.mark.spark

#: of a plugin's modules that the daemon learns
_LARGE = "agent.sinks.iceberg.sink"
_WORKERS_MAX = 10


def double(value: int) -> int:
    return value * 2


def refuse(value: int) -> int:
    raise DecodeError(f"value {value} is not what its schema says; read the table again")


def partly(value: int) -> list[object]:
    try:
        refuse(value + 1)
    except DecodeError as error:
        return [value, carried(error), value + 2]
    return []


def stumble(value: int) -> int:
    raise ValueError(f"no {value}\nsecond line")


def vanish(value: int) -> int:
    os._exit(3)


def be_killed(value: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return value


def ask_for_too_much(value: int) -> int:
    return len(bytearray(1 << 60))


def test_results_come_in_the_order_of_the_descriptors(spark_executor: SparkExecutor) -> None:
    assert spark_executor.map(double, list(range(7)), description="double") == [0, 2, 4, 6, 8, 10, 12]
    assert spark_executor.map(double, [], description="nothing") == []


def test_a_task_error_keeps_its_code(spark_executor: SparkExecutor) -> None:
    with pytest.raises(JobError, match="reading: value 1 is not what") as caught:
        spark_executor.map(refuse, [1], description="reading")
    assert (caught.value.code, caught.value.retryable) == ("Decode", False)


def test_an_error_of_one_part_of_a_task_leaves_the_others(spark_executor: SparkExecutor) -> None:
    """It is of a table, so the job, which may be of several, does not describe it."""
    [[first, error, last]] = spark_executor.map(partly, [1], description="reading")
    assert (first, last) == (1, 3)
    assert isinstance(error, JobError)
    assert (str(error), error.code) == ("value 2 is not what its schema says; read the table again", "Decode")


def test_an_unexpected_error_is_one_line_and_retryable(spark_executor: SparkExecutor) -> None:
    with pytest.raises(JobError) as caught:
        spark_executor.map(stumble, [1], description="reading")
    assert str(caught.value) == "reading: ValueError: no 1"
    assert caught.value.retryable


@pytest.mark.parametrize("work", [vanish, be_killed, ask_for_too_much])
def test_a_worker_that_is_lost_fails_the_job_and_not_the_session(
    work: Callable[[int], int], spark_executor: SparkExecutor
) -> None:
    with pytest.raises(JobError) as caught:
        spark_executor.map(work, [1], description="work")
    assert (caught.value.code, caught.value.retryable) == (WORKER_LOST, True)
    assert spark_executor.map(double, [4], description="double") == [8]


def _has_large(_: int) -> tuple[float, bool]:
    """Return when the worker was forked, and whether it has the modules."""
    return psutil.Process().create_time(), _LARGE in sys.modules


def _import_large(_: int) -> float:
    importlib.import_module(_LARGE)
    return time.time()


@pytest.mark.matrix
def test_a_later_worker_has_what_an_earlier_one_needed(spark_executor: SparkExecutor) -> None:
    [imported] = spark_executor.map(_import_large, [0], description="import")
    for _ in range(_WORKERS_MAX):
        with pytest.raises(JobError):
            spark_executor.map(vanish, [0], description="end")
        [(forked, has_it)] = spark_executor.map(_has_large, [0], description="look")
        if forked > imported:
            assert has_it
            return
    pytest.fail("no worker was forked again")


@pytest.mark.matrix
def test_a_jvm_that_dies_is_replaced(spark_executor: SparkExecutor, capfd: pytest.CaptureFixture[str]) -> None:
    other = SparkExecutor("local[2]")
    for executor in (spark_executor, other):
        assert executor.map(double, [1], description="double") == [2]
    [java] = [child for child in psutil.Process().children() if child.name() == "java"]
    java.kill()
    psutil.wait_procs([java], timeout=HANG_S)
    for executor in (spark_executor, other):
        with pytest.raises(JobError) as caught:
            executor.map(double, [1], description="double")
        assert (caught.value.code, caught.value.scope) == (WORKER_LOST, Scope.CAPTURE)
        assert executor.map(double, [2], description="double") == [4]
    other.stop()
    assert "Traceback" not in capfd.readouterr().err


def test_a_signal_to_our_process_group_is_no_signal_to_the_jvm(spark_executor: SparkExecutor) -> None:
    """As that of a shell or a supervisor that ends a capture, which hands its work over before it leaves."""
    spark_executor.map(double, [1], description="double")
    [java] = [child for child in psutil.Process().children() if child.name() == "java"]
    assert os.getpgid(java.pid) != os.getpgid(0)


def test_executors_of_a_process_share_one_session(spark_executor: SparkExecutor) -> None:
    assert spark_executor.map(double, [1], description="double") == [2]
    other, elsewhere = SparkExecutor("local[2]"), SparkExecutor("local[3]")
    assert other.map(double, [2], description="double") == [4]
    with pytest.raises(JobError, match=r"runs Spark on local\[2\], and cannot on local\[3\] too; give both"):
        elsewhere.start()
    other.stop()
    assert spark_executor.map(double, [3], description="double") == [6], "the first one still has it"


def test_an_empty_job_is_quick(spark_executor: SparkExecutor) -> None:
    def seconds() -> float:
        start = time.monotonic()
        spark_executor.map(double, [1, 2], description="empty")
        return time.monotonic() - start

    assert min(seconds() for _ in range(10)) < patient(0.2)


def test_the_driver_answers_nobody_else_on_this_machine(spark_executor: SparkExecutor) -> None:
    """Its ports would read serialized objects of every user, and send blocks of rows."""
    assert spark_executor.map(double, [1], description="double") == [2]
    settings = SparkContext.getOrCreate().getConf()
    place = settings.get("spark.driver.host"), int(settings.get("spark.driver.port") or 0)
    request = struct.pack(">bqi", 3, 7, 8) + b"\0\0\0\4test"
    with socket.create_connection(place) as one:
        one.settimeout(HANG_S)
        one.sendall(struct.pack(">q", 8 + len(request)) + request)
        assert b"Expected SaslMessage" in one.recv(4096)


def test_missing_java_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JavaError, match="no bin/java in it; install"):
        SparkExecutor().start()
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(JavaError, match="no Java in JAVA_HOME or PATH"):
        find_java()


def test_an_old_java_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_392\"' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JavaError, match="is Java 8, Spark needs 17"):
        find_java()


_CHILD = """
import sys
from pathlib import Path
from agent.spark.executor import SparkExecutor
executor = SparkExecutor("local[1]", work_dir=Path(sys.argv[1]))
executor.start()
sys.stdout.write("ready\\n")
sys.stdout.flush()
sys.stdin.read()
"""


#: what a parent with a session of Spark Connect passes on, and a user of it has in the environment
_CONNECT = {"SPARK_CONNECT_MODE_ENABLED": "1", "SPARK_REMOTE": "sc://127.0.0.1:1", "SPARK_API_MODE": "connect"}


@pytest.mark.matrix
def test_jvm_and_workers_die_with_a_killed_parent(tmp_path: Path) -> None:
    """It has its own driver, whatever the environment says about Spark Connect."""
    directory = tmp_path / "longer-than-the-directory-of-a-socket-may-be"
    command = [sys.executable, "-c", _CHILD, str(directory)]
    environment = os.environ | _CONNECT
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as child:
        assert child.stdout is not None
        assert any(line == "ready\n" for line in child.stdout)  # log lines come before it
        family = psutil.Process(child.pid).children(recursive=True)
        assert len(family) >= 2
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
    _, alive = psutil.wait_procs(family, timeout=HANG_S)
    assert alive == []
