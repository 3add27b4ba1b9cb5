"""Spark Connect server: a real one on a port of its own, which may be killed and started again."""

from pathlib import Path

from agent.spark.java import find_java
from capture.embedded import children, places

TOKEN = "known-to-some"


class ConnectServer:
    """Keeps its port from start to start."""

    def __init__(self, directory: Path, python: Path) -> None:
        self._directory = directory
        self._python = python
        self._port = places.free_port()
        self._child: children.Child | None = None

    def url(self, token: str = TOKEN) -> str:
        return f"sc://localhost:{self._port}/;token={token}"  # by another name a token needs TLS

    def start(self) -> None:
        home = places.package("pyspark")
        settings = {
            "spark.master": "local[2]",
            "spark.ui.enabled": "false",
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": str(self._port),
        }
        command: list[str | Path] = [home / "bin" / "spark-submit"]
        command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "--name", "connect"]
        for name, value in settings.items():
            command += ["--conf", f"{name}={value}"]
        environment = {
            "SPARK_HOME": str(home),
            "JAVA_HOME": str(find_java().resolve().parent.parent),
            "PYSPARK_PYTHON": str(self._python),
            "SPARK_CONNECT_AUTHENTICATE_TOKEN": TOKEN,
        }
        with (self._directory / "connect.log").open("ab") as log:
            self._child = children.spawn([*command, "spark-internal"], output=log, environment=environment)

    def kill(self) -> None:
        if self._child is not None:
            children.stop(self._child)
            self._child = None
