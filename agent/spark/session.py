"""Spark session: start and end of a session, with Java, settings, logs, and the packages that remote executors need.

Remote executors are sent our packages, unless they are installed there.

The JVM is a child that reads from a pipe we hold: when this process dies, however it dies, the JVM reads end-of-file
and exits, and its Python workers with it (tested by tests/integration/agent/spark/test_executor.py). Its output goes to
``spark-jvm.log`` and ``spark.log`` in the work directory, not to the console.

A process has at most one driver. Several executors in one process (captures embedded in a notebook) share the session:
the first one's settings apply, and the last one to close ends it.
"""

import os
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import structlog
from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from agent.deadline import Deadline
from agent.errors import JobError
from agent.spark import shipping, standalone
from agent.spark.api_mode import classic_mode, leave_connect_mode
from agent.spark.class_archive import jvm_option
from agent.spark.defaults import driver_settings
from agent.spark.java import find_java
from agent.spark.masters import is_connect, is_local, is_secret, is_standalone, shown

_log = structlog.get_logger()

_EXIT_TIMEOUT_S = 20.0
#: of a request to a server of Spark Connect that is away: for half a minute
_RETRIES: Final = 9
_BACKOFF_MS: Final = 5_000


@dataclass(slots=True)
class _Shared:
    session: SparkSession
    master: str
    holders: int = 0


_shared: _Shared | None = None
_sharing = threading.Lock()
#: master → cores of its workers when a session was last opened there
_cores: dict[str, int] = {}


@dataclass(frozen=True, slots=True)
class Order:
    """The parameters of a session. ``captures``: the number of captures that share a standalone cluster's cores.
    ``stopping``: nobody waits for the session any more; ``report`` receives what it waits for."""

    master: str
    settings: Mapping[str, str]
    directory: Path
    is_installed: bool = False
    captures: int = 1
    stopping: threading.Event = field(default_factory=threading.Event)
    report: Callable[[str], None] = lambda _: None


def open_session(order: Order) -> SparkSession:
    """Return the session on ``order.master``: Spark Connect for ``sc://``, otherwise with a driver JVM of our own.

    :raises JavaError: a JVM is needed, and there is no Java or one too old.
    :raises JobError: this process has a session on another master, or a user's session of Spark Connect.
    """
    global _shared
    master = order.master
    java = None if is_connect(master) else find_java()
    with _sharing:
        if _shared is None:
            if java:
                with classic_mode():
                    opened = _driver_session(order, java)
            else:
                opened = _connect_session(order)
            _shared = _Shared(opened, master)
        elif _shared.master != master:
            raise JobError(
                f"this process runs Spark on {shown(_shared.master)}, and cannot on {shown(master)} too; give both "
                "captures the same spark-master, or a process each"
            )
        _shared.holders += 1
        return _shared.session


@contextmanager
def cancellable(session: SparkSession, master: str, deadline: Deadline | None) -> Iterator[None]:
    """Cancel the jobs that this thread starts in the context when ``deadline`` passes, and kill their running tasks."""
    if deadline is None:
        yield
        return
    job = f"weir-{uuid.uuid4().hex}"
    if is_connect(master):
        session.addTag(job)
        cancel: Callable[[], object] = partial(session.interruptTag, job)
    else:
        session.sparkContext.setJobGroup(job, "", interruptOnCancel=True)
        cancel = partial(session.sparkContext.cancelJobGroup, job)
    try:
        with deadline.covers(cancel):
            yield
    finally:
        if is_connect(master):
            session.removeTag(job)


def close_session(session: SparkSession, *, exit_timeout_s: float = _EXIT_TIMEOUT_S) -> None:
    """Release the session. Its last holder ends it, and with it our JVM, which ``SparkSession.stop`` would keep for the
    next session. A JVM that has not exited after ``exit_timeout_s`` is killed."""
    global _shared
    with _sharing:
        if _shared is None or _shared.session is not session:
            return  # the JVM has died, and another holder has cleaned up
        _shared.holders -= 1
        if _shared.holders:
            return
        _shared = None
        try:
            session.stop()
        except Exception as error:  # py4j raises different errors for the ways in which a JVM can be gone
            _log.info("spark's session was gone already", reason=str(error).splitlines()[:1])
        finally:
            _end_jvm(exit_timeout_s)
            leave_connect_mode()


def forget_dead_session(session: SparkSession) -> bool:
    """Return whether the session has ended, because its JVM died or the cluster ended it; if so, clean up, so that a
    new session can be opened."""
    global _shared
    with _sharing:
        if _shared is None or _shared.session is not session:
            return True  # another holder has cleaned up
        if not _has_ended(session):
            return False
        is_connect = SparkContext._gateway is None
        _shared = None
        if is_connect:
            session.stop()
        else:
            _forget_driver()
        return True


def _has_ended(session: SparkSession) -> bool:
    gateway = SparkContext._gateway
    if gateway is None:  # Spark Connect: its server was started again, and does not know the session
        return bool(session.is_stopped)  # type: ignore[attr-defined]
    if gateway.proc.poll() is not None:
        return True
    try:
        return bool(session.sparkContext._jsc.sc().isStopped())
    except Py4JError:
        return False
    except OSError:  # it no longer listens, and will be gone in a moment
        return True


def has_driver_exited() -> bool:
    """Return whether there was a JVM, and it is gone; does not ask it, since it may hang."""
    gateway = SparkContext._gateway
    return gateway is not None and gateway.proc.poll() is not None


def kill_driver() -> None:
    """Kill the JVM at once: callers that wait for it get an error."""
    gateway = SparkContext._gateway
    if gateway is not None:
        gateway.proc.kill()
        gateway.proc.wait()


def _forget_driver() -> None:
    SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = SparkSession._activeSession = None
    _end_jvm()


def _end_jvm(exit_timeout_s: float = _EXIT_TIMEOUT_S) -> None:
    gateway, SparkContext._gateway, SparkContext._jvm = SparkContext._gateway, None, None
    if gateway is None:
        return
    gateway.shutdown()
    process = gateway.proc
    process.stdin.close()  # the JVM exits on end-of-file
    try:
        process.wait(timeout=exit_timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _connect_session(order: Order) -> SparkSession:
    from pyspark.sql.connect.client.retries import DefaultPolicy  # of an extra

    builder = SparkSession.builder.remote(order.master)
    for key, value in order.settings.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    # by default a job waits for ten minutes for a server that is away, without a word
    session.client.set_retry_policies([DefaultPolicy(_RETRIES, max_backoff=_BACKOFF_MS)])
    if not order.is_installed:
        session.addArtifacts(str(shipping.archive_in(order.directory)), pyfile=True)
    return session


def _driver_session(order: Order, java: Path) -> SparkSession:
    master, directory = order.master, order.directory
    os.environ.setdefault("JAVA_HOME", str(java.resolve().parent.parent))
    # otherwise workers run the python3 in PATH
    os.environ["PYSPARK_PYTHON"] = order.settings.get("spark.pyspark.python", sys.executable)
    directory.mkdir(parents=True, exist_ok=True)
    merged = driver_settings(master, order.settings, directory.resolve())
    options = merged["spark.driver.extraJavaOptions"]
    if "Archive" not in options and (option := jvm_option(java)):
        merged["spark.driver.extraJavaOptions"] = f"{options} {option}"
    _launch_jvm(merged, log_path=directory / "spark-jvm.log")
    if is_standalone(master) and "spark.cores.max" not in merged:
        _share_cores(merged, order)
    builder = SparkSession.builder.master(master)
    for key, value in merged.items():
        builder = builder.config(key, value)
    try:
        session = builder.getOrCreate()
        session.sparkContext._accumulatorServer.handle_error = _log_accumulator_error  # type: ignore[method-assign]
        if not (is_local(master) or order.is_installed):
            _ship(session, shipping.archive_in(directory))
    except BaseException:
        _forget_driver()
        raise
    return session


def _share_cores(settings: dict[str, str], order: Order) -> None:
    """Limit the application to this capture's share of a standalone cluster."""
    expected = _cores.get(order.master, 0)
    found = standalone.await_cores(
        lambda: standalone.query(SparkContext._jvm, order.master, settings),
        expected=expected,
        stopping=order.stopping,
        report=order.report,
    )
    if found is None:
        _log.warning(
            "the Spark master does not answer: cores are not shared; set spark.cores.max", master=shown(order.master)
        )
        return
    cores = _cores[order.master] = found.cores or expected
    settings["spark.cores.max"] = str(standalone.share(cores, order.captures))
    _log.info("cores are shared", cores=cores, captures=order.captures, ours=settings["spark.cores.max"])


def _log_accumulator_error(request: object, client_address: object) -> None:
    """Python's server would print a traceback, also where the JVM has just ended: who needs it notices that."""
    error = sys.exception()
    if not isinstance(error, EOFError | ConnectionError):
        _log.warning("spark's accumulators are not updated", cause=f"{type(error).__name__}: {error}")


def _ship(session: SparkSession, archive: Path) -> None:
    """Let executors fetch the archive into their working directory before they start Python, which finds it there, as
    does the daemon that preloads our modules."""
    context = session.sparkContext
    context.addFile(str(archive))
    context.environment["PYTHONPATH"] = os.pathsep.join(
        filter(None, (archive.name, context.environment.get("PYTHONPATH")))
    )


def _launch_jvm(settings: Mapping[str, str], *, log_path: Path) -> None:
    if SparkContext._gateway is not None:
        return
    # options of a command, which any user of the machine can read; the session is given the others later
    public = [(name, value) for name, value in settings.items() if not is_secret(name)]
    conf = SparkConf(loadDefaults=False).setAll(public)
    with log_path.open("ab") as log:
        # a signal to our process group is ours to answer: work that is handed over needs the JVM
        kwargs = {"stdout": log, "stderr": log, "start_new_session": True}
        gateway = launch_gateway(conf, popen_kwargs=kwargs)  # type: ignore[no-untyped-call]
    SparkContext._ensure_initialized(gateway=gateway)
