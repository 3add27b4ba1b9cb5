"""Executor arrival: remote clusters grant executors when they have room, and may take them away at any time.

``wait_for_executors`` blocks until there is one, and reports why there is none. ``Watch`` runs beside the flushes: it
warms up executors that arrive later, and notices when the cluster has forgotten the application (a master that lost its
state).
"""

import threading
import time
from collections.abc import Callable
from typing import Final

import structlog
from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.sql import SparkSession

from agent.errors import OwnFaultError
from agent.spark import standalone
from agent.spark.masters import is_standalone
from reactor.errors import WeirError

_POLL_S: Final = 0.2
_WATCH_S: Final = 1.0
#: interval between queries to the master, which cost more than looking for executors
_QUERY_S: Final = 5.0
#: after this long without an executor, check that the master still knows the application
_EMPTY_S: Final = 10.0

_log = structlog.get_logger()


def executor_ids(session: SparkSession) -> frozenset[str]:
    """Return the executors registered with our driver.

    :raises Py4JError: the driver is gone.
    """
    listed = session.sparkContext._jsc.sc().getExecutorIds().mkString(",")
    return frozenset(filter(None, str(listed).split(",")))


def cores(session: SparkSession) -> int:
    """Return the number of cores of all executors; at least 2."""
    return int(session.sparkContext.defaultParallelism)


def wait_for_executors(
    session: SparkSession, master: str, *, report: Callable[[str], None], stopping: threading.Event
) -> bool:
    """Block until there is an executor. Return False if asked to stop, or if the session has ended."""
    asked_at = -_QUERY_S
    while not stopping.is_set():
        try:
            if executor_ids(session):
                report("")
                return True
            if session.sparkContext._jsc.sc().isStopped():
                return False
            if time.monotonic() >= asked_at + _QUERY_S:
                report(f"waits for executors of {master}{_explain_wait(session, master)}")
                asked_at = time.monotonic()
        except (Py4JError, OSError):
            return False
        stopping.wait(_POLL_S)
    return False


def _explain_wait(session: SparkSession, master: str) -> str:
    if not is_standalone(master):
        return ""
    try:
        found = _query(session, master)
    except OwnFaultError:  # the master took this session, so it is ending
        return ""
    return f": {found.explain_wait(session.sparkContext.applicationId)}" if found is not None else ""


def _query(session: SparkSession, master: str) -> standalone.Standalone | None:
    settings = dict(session.sparkContext.getConf().getAll())
    return standalone.query(SparkContext._jvm, master, settings)


class Watch:
    """A thread that watches the session returned by ``current``. ``warm_up`` prepares new executors for their first
    task; ``end`` ends a session that the cluster no longer knows."""

    def __init__(
        self,
        master: str,
        *,
        current: Callable[[], SparkSession | None],
        warm_up: Callable[[], None],
        end: Callable[[SparkSession], None],
    ) -> None:
        self._master = master
        self._current = current
        self._warm_up = warm_up
        self._end = end
        self._stopping = threading.Event()
        self._session: SparkSession | None = None
        self._known: frozenset[str] = frozenset()
        self._empty_since: float | None = None
        self._thread = threading.Thread(target=self._run, name="weir-spark-watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ask the thread to stop. If it is running a job, it stops when the session ends."""
        self._stopping.set()

    def _run(self) -> None:
        while not self._stopping.wait(_WATCH_S):
            try:
                self._check()
            except (Py4JError, WeirError, OSError) as error:  # the driver is gone; the next job starts another
                _log.debug("executors not looked after", reason=str(error).splitlines()[:1])

    def _check(self) -> None:
        session = self._current()
        if session is not self._session:
            self._session, self._known, self._empty_since = session, frozenset(), None
        if session is None:
            return
        present = executor_ids(session)
        came, self._known = present - self._known, present
        if came:
            self._warm_up()
        self._check_application(session, is_empty=not present)

    def _check_application(self, session: SparkSession, *, is_empty: bool) -> None:
        now = time.monotonic()
        self._empty_since = (self._empty_since or now) if is_empty and is_standalone(self._master) else None
        if self._empty_since is None or now < self._empty_since + _EMPTY_S:
            return
        self._empty_since = now
        found = _query(session, self._master)
        if found is not None and session.sparkContext.applicationId not in {app.id for app in found.applications}:
            _log.warning("the Spark master does not know this application any more; another begins")
            self._end(session)
