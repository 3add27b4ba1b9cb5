"""Spark settings: defaults for a session, for a local JVM and for remote executors. The user's settings take
precedence.

The fixed cost of a job is the lower bound of every flush's latency. Tiny plans run fastest without adaptive execution
and without generated code; nothing here ever shuffles. Unix sockets are used because over TCP each task waits 40 ms for
a delayed acknowledgement. With ``agent.spark.daemon`` an empty job takes 0.05 s instead of 0.2 s.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from agent.spark.masters import is_local

JVM_OPTIONS: Final = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xss1m"
_ALWAYS: Final[Mapping[str, str]] = {
    "spark.app.name": "weir",
    "spark.driver.memory": "768m",
    "spark.driver.extraJavaOptions": JVM_OPTIONS,
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
#: executors on other machines need a reachable address. Spark makes the secret by itself: its driver has open ports
#: without executors too, and would read serialized objects, and send blocks of rows, for every user of the machine
_LOCAL: Final[Mapping[str, str]] = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.authenticate": "true",
}
#: Spark's limit for its socket directory, since a socket's path has at most 108 bytes
_SOCKET_DIR_LENGTH_MAX: Final = 60

_LOG4J: Final = """\
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


def driver_settings(master: str, settings: Mapping[str, str], directory: Path) -> dict[str, str]:
    """Return the settings of a driver whose files are in ``directory``, and write the JVM's log configuration there."""
    log4j = directory / "log4j2.properties"
    log4j.write_text(_LOG4J.format(directory=directory))
    defaults = dict(_ALWAYS)
    defaults["spark.local.dir"] = str(directory)
    defaults["spark.sql.warehouse.dir"] = str(directory / "warehouse")
    if is_local(master):
        defaults |= _LOCAL
        # remote executors, which may run as another user, put sockets into their temporary directory
        if len(str(directory)) <= _SOCKET_DIR_LENGTH_MAX:
            defaults["spark.python.unix.domain.socket.dir"] = str(directory)
    merged = defaults | dict(settings)
    options = merged["spark.driver.extraJavaOptions"]
    merged["spark.driver.extraJavaOptions"] = f"{options} -Dlog4j2.configurationFile=file:{log4j}"
    return merged
