"""Spark executor: runs one Spark task per descriptor (``agent.ports.executor.Executor``).

Jobs use the DataFrame API alone (``range`` → ``mapInArrow`` → ``collect``), so the same code runs on ``local[*]``,
``spark://…``, YARN, Kubernetes and Spark Connect (``sc://…``). Rows never cross the JVM: a task gets its orders from a
pickled descriptor and answers with a pickled result.

How a session starts is ``agent.spark.session``'s matter; which jobs there are, and what they do, is decided elsewhere
(``agent.flush``, ``agent.units``).
"""

import os
import pickle
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import structlog
from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from agent.deadline import Deadline
from agent.errors import JobError, JobTimeoutError
from agent.spark import session as spark_session
from agent.spark.daemon import preload
from reactor.errors import WeirError

T = TypeVar("T")
U = TypeVar("U")

_log = structlog.get_logger()
_RESULT = "ordinal bigint, result binary"
_ERROR_LENGTH_MAX = 300


class SparkExecutor:
    """``agent.ports.executor.Executor`` on Spark. Thread-safe.

    The session starts with ``start``, or with the first ``map``. ``settings`` are Spark's own and win over
    ours; ``work_dir`` takes logs and scratch files (else a temporary one).
    """

    def __init__(
        self, master: str = "local[*]", *, settings: Mapping[str, str] | None = None, work_dir: Path | None = None
    ) -> None:
        self._master = master
        self._settings = dict(settings or {})
        self._work_dir = work_dir
        self._lock = threading.Lock()
        self._session: SparkSession | None = None

    def start(self) -> None:
        """Start the session and its Python workers, so that the first flush does not wait for them. Takes seconds.

        :raises JavaError: no Java, or one too old.
        :raises JobError: Spark did not start.
        """
        workers = (os.cpu_count() or 1) if spark_session.is_local(self._master) else 1
        self.map(_warm_up, list(range(workers)), description="warm up")

    def map(
        self,
        function: Callable[[T], U],
        descriptors: Sequence[T],
        *,
        description: str,
        deadline: Deadline | None = None,
        at_once: int | None = None,
    ) -> list[U]:
        """See ``agent.ports.executor.Executor.map``.

        :raises JavaError: no Java, or one too old.
        :raises JobTimeoutError: ``deadline`` ended first.
        :raises JobError: Spark failed, or ``function`` raised; then ``code`` and ``retryable`` are those of its error.
        """
        if not descriptors:
            return []
        session = self._started()
        count = len(descriptors)
        tasks = _Tasks(_dumps(function), [_dumps(item) for item in descriptors])
        try:
            data = session.range(0, count, 1, min(count, at_once or count)).mapInArrow(tasks.run, _RESULT)
            with spark_session.cancellable(session, self._master, deadline):
                rows = data.collect()
        except Exception as error:
            self._forget_if_dead(session)
            if deadline is not None and deadline.is_over:
                raise JobTimeoutError(
                    f"Spark job cancelled ({description}): it did not end in time; see what hangs there, or give it "
                    "more (flush-timeout-seconds); it is tried again"
                ) from error
            raise JobError(f"Spark job failed ({description}): {_first_line(error)}; it is tried again") from error
        return _results(rows, description)

    def stop(self) -> None:
        """End the session and its JVM; jobs that run are cancelled and their callers get a ``JobError``."""
        with self._lock:
            session, self._session = self._session, None
            if session is not None:
                spark_session.close_session(session)

    def _forget_if_dead(self, session: SparkSession) -> None:
        """A JVM that was killed takes its session with it; the next job starts another."""
        with self._lock:
            if self._session is session and spark_session.forget_dead_session(session):
                _log.warning("spark's JVM has died; the next job starts another", master=self._master)
                self._session = None

    def _started(self) -> SparkSession:
        with self._lock:
            if self._session is None:
                self._session = self._open_session()
            return self._session

    def _open_session(self) -> SparkSession:
        directory = self._work_dir or Path(tempfile.mkdtemp(prefix="weir-spark-"))
        try:
            session = spark_session.open_session(self._master, self._settings, directory=directory)
        except WeirError:
            raise
        except Exception as error:
            raise JobError(f"Spark at {self._master} did not start: {_first_line(error)}; see {directory}") from error
        _log.info("spark started", master=self._master, directory=str(directory))
        return session


@dataclass(frozen=True, slots=True)
class _Failure:
    """What a task that raised answers instead of a result."""

    code: str
    message: str
    retryable: bool


class _Tasks:
    """What travels to the executors: the function and the descriptors, pickled, so that Spark never looks inside."""

    def __init__(self, function: bytes, descriptors: list[bytes]) -> None:
        self._function = function
        self._descriptors = descriptors

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        function = pickle.loads(self._function)
        for batch in batches:
            ordinals = batch.column(0).to_pylist()
            answers = [_answer(function, self._descriptors[ordinal]) for ordinal in ordinals]
            yield pa.record_batch({"ordinal": pa.array(ordinals, pa.int64()), "result": pa.array(answers, pa.binary())})


def _answer(function: Callable[[Any], Any], descriptor: bytes) -> bytes:
    try:
        return _dumps(function(pickle.loads(descriptor)))
    except WeirError as error:
        return _dumps(_Failure(error.code, str(error), error.retryable))
    except Exception as error:
        _log.exception("task failed")
        return _dumps(_Failure(JobError.code, f"{type(error).__name__}: {_first_line(error)}", retryable=True))


def _results(rows: Sequence[Any], description: str) -> list[Any]:
    results = [pickle.loads(row.result) for row in sorted(rows, key=lambda row: row.ordinal)]
    for result in results:
        if isinstance(result, _Failure):
            error = JobError(f"{description}: {result.message}")
            error.code, error.retryable = result.code, result.retryable
            raise error
    return results


def _dumps(value: object) -> bytes:
    return bytes(cloudpickle.dumps(value))  # type: ignore[no-untyped-call]


def _first_line(error: BaseException) -> str:
    message = error.getMessage() if isinstance(error, PySparkException) else None
    lines = (line.strip() for line in (message or str(error)).splitlines())
    return next((line for line in lines if line), type(error).__name__)[:_ERROR_LENGTH_MAX]


def _warm_up(_: int) -> int:
    """Runs on an executor: import what the first real task will need."""
    preload()
    return os.getpid()
