"""Spark session: its start and end, with Java, settings, logs, and the packages that remote executors need.

What a job costs when it has nothing to do is the floor of every flush's latency, hence ``DEFAULTS``.

The JVM is a child that reads from a pipe we hold: when this process dies, however it dies, the JVM reads end-of-file
and exits, and its Python workers with it (held by tests/integration/agent/spark/test_executor.py). Its output goes to
``spark-jvm.log`` and ``spark.log`` in the work directory, not to the console.

A process has one driver at most. Several executors in it (embedded captures of one notebook) share the session: the
first one's settings count, and the last one that closes it ends it.
"""

import os
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import structlog
from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from agent.deadline import Deadline
from agent.errors import JobError
from agent.spark import shipping
from agent.spark.java import find_java

_log = structlog.get_logger()

#: For a session of our own; a user's settings win. Tiny plans run fastest without adaptive execution and without
#: generated code; nothing here ever shuffles. Unix sockets: over TCP each task waits 40 ms for a delayed
#: acknowledgement. Together with ``agent.spark.daemon`` an empty job takes 0.05 s instead of 0.2 s.
DEFAULTS: Mapping[str, str] = {
    "spark.app.name": "weir",
    "spark.driver.memory": "768m",
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xss1m",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.eventLog.enabled": "false",
    "spark.locality.wait": "0",
    "spark.python.worker.reuse": "true",
    "spark.python.daemon.module": "agent.spark.daemon",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.ui.retainedExecutions": "1",
    "spark.ui.retainedJobs": "1",
    "spark.ui.retainedStages": "1",
    "spark.ui.retainedTasks": "100",
}
#: Executors on other machines need an address they can reach, and start their workers without our daemon.
_LOCAL_ONLY = frozenset({"spark.driver.host", "spark.driver.bindAddress", "spark.python.daemon.module"})
#: What Spark allows for the directory of its sockets, since a socket's path must fit into 108 bytes.
_SOCKET_DIR_LENGTH_MAX = 60
_EXIT_TIMEOUT_S = 20

_LOG4J = """\
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
appender.file.type = RollingFile
appender.file.name = file
appender.file.fileName = {directory}/spark.log
appender.file.filePattern = {directory}/spark-%i.log
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{ISO8601}} %p %c{{1}}: %m%n%ex
appender.file.policies.type = SizeBasedTriggeringPolicy
appender.file.policies.size = 10MB
appender.file.strategy.type = DefaultRolloverStrategy
appender.file.strategy.max = 2
"""


def is_connect(master: str) -> bool:
    return master.startswith("sc://")


def is_local(master: str) -> bool:
    return master.startswith("local")


@dataclass(slots=True)
class _Shared:
    session: SparkSession
    master: str
    holders: int = 0


_shared: _Shared | None = None
_sharing = threading.Lock()


def open_session(master: str, settings: Mapping[str, str], *, directory: Path) -> SparkSession:
    """The session on ``master``: Spark Connect for ``sc://``, otherwise a driver JVM of our own.

    :raises JavaError: this needs a JVM, and there is no Java or one too old.
    :raises JobError: this process has a session on another master.
    """
    global _shared
    java = None if is_connect(master) else find_java()
    with _sharing:
        if _shared is None:
            opened = _driver_session(master, settings, directory, java) if java else _connect_session(master, settings)
            if not is_local(master):
                _ship_packages(opened)
            _shared = _Shared(opened, master)
        elif _shared.master != master:
            raise JobError(
                f"this process runs Spark on {_shared.master}, and cannot on {master} too; give both captures the same "
                "spark-master, or a process each"
            )
        _shared.holders += 1
        return _shared.session


@contextmanager
def cancellable(session: SparkSession, master: str, deadline: Deadline | None) -> Iterator[None]:
    """The jobs that this thread starts inside are cancelled when ``deadline`` ends, and what runs of them killed."""
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


def close_session(session: SparkSession) -> None:
    """Let go of the session. With its last holder it ends, and, if it is ours, the JVM, which ``SparkSession.stop``
    would leave for the next session."""
    global _shared
    with _sharing:
        if _shared is None or _shared.session is not session:
            return  # its JVM has died, and whoever saw that first has cleared it away
        _shared.holders -= 1
        if _shared.holders:
            return
        _shared = None
        try:
            session.stop()
        except Exception as error:  # py4j has one for every way in which a JVM can be gone
            _log.info("spark's session was gone already", reason=str(error).splitlines()[:1])
        finally:
            _end_jvm()


def forget_dead_session(session: SparkSession) -> bool:
    """Whether the session's JVM has died; then nothing of it is left here, and a new session can be opened."""
    global _shared
    with _sharing:
        if _shared is None or _shared.session is not session:
            return True  # another holder was here first
        gateway = SparkContext._gateway
        if gateway is None or gateway.proc.poll() is None:
            return False
        _shared = SparkContext._active_spark_context = None
        SparkSession._instantiatedSession = SparkSession._activeSession = None
        _end_jvm()
        return True


def _end_jvm() -> None:
    gateway, SparkContext._gateway, SparkContext._jvm = SparkContext._gateway, None, None
    if gateway is None:
        return
    gateway.shutdown()
    process = gateway.proc
    process.stdin.close()  # end-of-file is the JVM's order to exit
    try:
        process.wait(timeout=_EXIT_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _connect_session(master: str, settings: Mapping[str, str]) -> SparkSession:
    builder = SparkSession.builder.remote(master)
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def _driver_session(master: str, settings: Mapping[str, str], directory: Path, java: Path) -> SparkSession:
    os.environ.setdefault("JAVA_HOME", str(java.resolve().parent.parent))
    os.environ["PYSPARK_PYTHON"] = sys.executable  # else workers run whatever python3 is in PATH
    directory.mkdir(parents=True, exist_ok=True)
    merged = _driver_settings(master, settings, directory.resolve())
    _launch_jvm(merged, log_path=directory / "spark-jvm.log")
    builder = SparkSession.builder.master(master)
    for key, value in merged.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def _driver_settings(master: str, settings: Mapping[str, str], directory: Path) -> dict[str, str]:
    log4j = directory / "log4j2.properties"
    log4j.write_text(_LOG4J.format(directory=directory))
    defaults = {key: value for key, value in DEFAULTS.items() if is_local(master) or key not in _LOCAL_ONLY}
    defaults["spark.local.dir"] = str(directory)
    defaults["spark.sql.warehouse.dir"] = str(directory / "warehouse")
    if len(str(directory)) <= _SOCKET_DIR_LENGTH_MAX:
        defaults["spark.python.unix.domain.socket.dir"] = str(directory)
    merged = defaults | dict(settings)
    options = merged["spark.driver.extraJavaOptions"]
    merged["spark.driver.extraJavaOptions"] = f"{options} -Dlog4j2.configurationFile=file:{log4j}"
    return merged


def _launch_jvm(settings: Mapping[str, str], *, log_path: Path) -> None:
    if SparkContext._gateway is not None:
        return
    conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
    with log_path.open("ab") as log:
        gateway = launch_gateway(conf, popen_kwargs={"stdout": log, "stderr": log})  # type: ignore[no-untyped-call]
    SparkContext._ensure_initialized(gateway=gateway)


def _ship_packages(session: SparkSession) -> None:
    """Send our packages to executors on other machines; what they import must be installed there."""
    with tempfile.TemporaryDirectory(prefix="weir-ship-") as directory:
        archive = Path(directory) / "weir-packages.zip"
        shipping.write_archive(archive)
        session.addArtifacts(str(archive), pyfile=True)
