"""Spark executor: runs one Spark task per descriptor (``agent.ports.executor.Executor``).

Jobs use only the DataFrame API (``range`` → ``mapInArrow`` → ``collect``), so the same code runs on ``local[*]``,
``spark://…``, YARN, Kubernetes and Spark Connect (``sc://…``). Rows never cross the JVM: a task receives a pickled
descriptor and returns a pickled result.

``agent.spark.session`` starts sessions; other packages (``agent.flush``, ``agent.units``) define the jobs.
"""

import os
import pickle
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import structlog
from py4j.protocol import Py4JError
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from agent.deadline import Deadline
from agent.errors import JobError, JobTimeoutError, OwnFaultError, WorkerLostError
from agent.spark import learning
from agent.spark import session as spark_session
from agent.spark.arrival import Watch, cores, wait_for_executors
from agent.spark.causes import cause_of, is_worker_lost
from agent.spark.daemon import preload
from agent.spark.masters import is_connect, is_local, shown, unreachable
from agent.task_errors import carried, received
from reactor.errors import Scope, WeirError

T = TypeVar("T")
U = TypeVar("U")

_log = structlog.get_logger()
_RESULT = "ordinal bigint, result binary"
_RETRY_S = 1.0
#: how long a starting session may delay ``stop`` before it is killed
_STOP_S = 2.0


class SparkExecutor:
    """``agent.ports.executor.Executor`` on Spark. Thread-safe.

    The session starts with ``start``, or with the first ``map``. ``settings``: Spark's own, which override our
    defaults. ``work_dir``: for logs, scratch files and shipped packages (default: a temporary directory).
    ``is_installed``: executors have our packages. ``captures``: the number of captures that share a standalone
    cluster's cores.
    """

    def __init__(
        self,
        master: str = "local[*]",
        *,
        settings: Mapping[str, str] | None = None,
        work_dir: Path | None = None,
        is_installed: bool = False,
        captures: int = 1,
    ) -> None:
        self._master = master
        self._settings = dict(settings or {})
        self._work_dir = work_dir
        self._is_installed = is_installed
        self._captures = captures
        #: set by ``start``
        self._report: Callable[[str], None] = lambda _: None
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._session: SparkSession | None = None
        self._has_run = False
        #: 0: not known yet, or those of a cluster, which change
        self._local_cores = 0
        self._watch: Watch | None = None

    def start(self, report: Callable[[str], None] = lambda _: None) -> None:
        """Start the session and its Python workers, so that the first flush does not wait for them. Takes seconds, or
        until the cluster has room; ``report`` receives what is being waited for, and an empty text at the end.

        :raises JavaError: no Java, or one too old.
        :raises JobError: Spark did not start, or was stopped meanwhile.
        """
        if is_local(self._master):
            self.map(_warm_up, list(range(os.cpu_count() or 1)), description="warm up")
            return
        self._report = report
        try:
            self._start_remotely(report)
        finally:
            self._report = lambda _: None

    def _start_remotely(self, report: Callable[[str], None]) -> None:
        while not self._stopping.is_set():
            if reason := unreachable(self._master):
                report(f"waits for Spark: {reason}")
                self._stopping.wait(_RETRY_S)
                continue
            if is_connect(self._master):
                self.map(_warm_up, [0], description="warm up")
                report("")
                return
            session = self._started()
            if wait_for_executors(session, self._master, report=report, stopping=self._stopping):
                self._warm_all()
                self._start_watch()
                return
            self._forget_if_dead(session)
        raise JobError("Spark was stopped before it had an executor; start the capture again")

    def _warm_all(self) -> None:
        """Run one task per core: Spark distributes them over the executors."""
        session = self._started()
        self.map(_warm_up, list(range(cores(session))), description="warm up")

    def _start_watch(self) -> None:
        self._watch = Watch(self._master, current=lambda: self._session, warm_up=self._warm_all, end=self._end)
        self._watch.start()

    def _end(self, session: SparkSession) -> None:
        spark_session.kill_driver()
        self._forget_if_dead(session)

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
        :raises JobTimeoutError: ``deadline`` passed.
        :raises WorkerLostError: a process of Spark's ended.
        :raises JobError: Spark failed, or ``function`` raised; with its ``code``, ``retryable`` and ``scope``.
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
            is_dead = self._forget_if_dead(session)
            if deadline is not None and deadline.is_over:
                raise JobTimeoutError(
                    f"Spark job cancelled ({description}): it did not end in time; see what hangs there, or give it "
                    "more (flush-timeout-seconds); it is tried again"
                ) from error
            kind = WorkerLostError if is_dead or is_worker_lost(error) else JobError
            failed = kind(f"Spark job failed ({description}): {cause_of(error)}; it is tried again")
            failed.scope = Scope.CAPTURE if is_dead else Scope.CHANGEFEED
            raise failed from error
        return _results(rows, description, is_here=is_local(self._master))

    def cores(self) -> int:
        """See ``agent.ports.executor.Executor.cores``. A server of Spark Connect does not say."""
        session = self._session
        if session is None or is_connect(self._master):
            return 1
        try:
            self._local_cores = self._local_cores or (cores(session) if is_local(self._master) else 0)
            return self._local_cores or cores(session)
        except (Py4JError, OSError):  # the driver is gone; the next job starts another
            return 1

    def check(self) -> str:
        """Start another session if the JVM has died; return why there is none, or an empty text."""
        session = self._session
        if session is None and not self._has_run:
            return ""
        if session is not None and not spark_session.has_driver_exited():
            return ""
        if session is not None:
            self._forget_if_dead(session)
        try:
            self._started()
        except WeirError as error:
            return "" if self._stopping.is_set() else str(error)
        return ""

    def stop(self) -> None:
        """End the session and its JVM for good. Running jobs are cancelled; their callers get a ``JobError``."""
        self._stopping.set()
        if self._watch is not None:
            self._watch.stop()
        while not self._lock.acquire(timeout=_STOP_S):
            spark_session.kill_driver()  # it is starting on a cluster that does not answer
        try:
            session, self._session = self._session, None
            if session is not None:
                spark_session.close_session(session)
        finally:
            self._lock.release()

    def _forget_if_dead(self, session: SparkSession) -> bool:
        """Drop the session if its JVM was killed, and return whether it was; the next job starts another."""
        with self._lock:
            if self._session is session and spark_session.forget_dead_session(session):
                _log.warning("spark's JVM has died; the next job starts another", master=shown(self._master))
                self._session = None
            return self._session is not session

    def _started(self) -> SparkSession:
        with self._lock:
            if self._session is None:
                self._session = self._open_session()
                self._has_run = True
            return self._session

    def _open_session(self) -> SparkSession:
        if self._stopping.is_set():
            raise JobError("Spark is being stopped; start the capture again")
        if reason := unreachable(self._master):
            raise OwnFaultError(f"Spark did not start: {reason}")
        directory = self._work_dir or Path(tempfile.mkdtemp(prefix="weir-spark-"))
        try:
            order = spark_session.Order(
                self._master,
                self._settings,
                directory.absolute(),
                self._is_installed,
                self._captures,
                self._stopping,
                self._report,
            )
            session = spark_session.open_session(order)
        except WeirError:
            raise
        except Exception as error:
            text = f"Spark at {shown(self._master)} did not start: {cause_of(error)}; see {directory}"
            raise OwnFaultError(text) from error
        _log.info("spark started", master=shown(self._master), directory=str(directory))
        return session


class _Tasks:
    """The pickled function and descriptors, opaque to Spark."""

    def __init__(self, function: bytes, descriptors: list[bytes]) -> None:
        self._function = function
        self._descriptors = descriptors

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        function = pickle.loads(self._function)
        for batch in batches:
            ordinals = batch.column(0).to_pylist()
            answers = [_answer(function, self._descriptors[ordinal]) for ordinal in ordinals]
            learning.tell()
            yield pa.record_batch({"ordinal": pa.array(ordinals, pa.int64()), "result": pa.array(answers, pa.binary())})


def _answer(function: Callable[[Any], Any], descriptor: bytes) -> bytes:
    try:
        return _dumps(function(pickle.loads(descriptor)))
    except Exception as error:
        if not isinstance(error, WeirError):
            _log.exception("task failed")
        return _dumps(carried(error))


def _results(rows: Sequence[Any], description: str, *, is_here: bool) -> list[Any]:
    """``is_here``: see ``received``."""
    results = [pickle.loads(row.result) for row in sorted(rows, key=lambda row: row.ordinal)]
    for result in results:
        if isinstance(result, JobError):
            raise received(result, description, is_here=is_here)
    return [_opened(result, description, is_here=is_here) if isinstance(result, list) else result for result in results]


def _opened(result: list[Any], description: str, *, is_here: bool) -> list[Any]:
    """Return a task's result that has several parts. Errors among them get the job's description, except those of a
    single table: a job may read several tables."""

    def opened(one: JobError) -> JobError:
        return received(one, "" if one.scope is Scope.TABLE else description, is_here=is_here)

    return [opened(one) if isinstance(one, JobError) else one for one in result]


def _dumps(value: object) -> bytes:
    return bytes(cloudpickle.dumps(value))  # type: ignore[no-untyped-call]


def _warm_up(_: int) -> int:
    """Import, on an executor, what the first real task will need."""
    preload()
    return os.getpid()
