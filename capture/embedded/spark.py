"""Embedded Spark cluster: a standalone master and workers of one core each, from the pyspark wheel.

It keeps its port from run to run, and a restarted master knows its applications (they are kept in files). Its processes
run as the current user, or as another user who can read the wheel and write what executors write. With a ``secret``
they talk only to those who know it, encrypted. Their pages show applications, and change nothing.
"""

import http.client
import json
from abc import abstractmethod
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Final, Self

from agent.spark.java import find_java
from capture.embedded import children, places
from capture.embedded.part import EmbeddedPart

_ANSWER_S: Final = 2.0
#: an executor of the usual size
_MEMORY: Final = "1g"
_HEAP: Final = ("-Xmx192m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_PACKAGE: Final = "org.apache.spark.deploy"
_PROTECTED: Final = {"spark.authenticate": "true", "spark.network.crypto.enabled": "true"}
#: their pages are for whoever reaches them: these end no application
_PAGES: Final = {"spark.ui.killEnabled": "false"}
#: where Spark's processes look for the secret first
_SECRET_VARIABLE: Final = "_SPARK_AUTH_SECRET"


class _Daemon(EmbeddedPart):
    """A JVM of the cluster."""

    main: ClassVar[str]

    def __init__(
        self, directory: Path | str, *, host: str = "127.0.0.1", user: str | None = None, secret: str = ""
    ) -> None:
        super().__init__(directory, host=host)
        self._user = user
        self._secret = secret

    @abstractmethod
    def _arguments(self) -> list[str]: ...

    def _options(self) -> list[str]:
        options = _PAGES | _PROTECTED if self._secret else _PAGES
        return [f"-D{name}={value}" for name, value in options.items()]

    def _prepare(self) -> None:
        children.give(self._directory, self._user)

    def _launch(self) -> None:
        home = places.package("pyspark")
        environment = {"SPARK_HOME": str(home), "SPARK_SCALA_VERSION": "2.13", "SPARK_LOCAL_DIRS": str(self._directory)}
        if self._secret:
            environment[_SECRET_VARIABLE] = self._secret
        with self._log.open("ab") as output:
            self._child = children.spawn(
                self._command(home),
                output=output,
                user=self._user,
                environment=environment,
            )

    def _command(self, home: Path) -> list[str | Path]:
        java: list[str | Path] = [find_java(), *_HEAP, *self._options(), "-cp", f"{home / 'jars'}/*"]
        return [*java, f"{_PACKAGE}.{self.main}", *self._arguments()]


class EmbeddedSparkMaster(_Daemon):
    name = "Spark master"
    log_name = "master.log"
    main = "master.Master"

    @property
    def url(self) -> str:
        return f"spark://{self._host}:{self._state['port']}"

    def view(self) -> dict[str, Any]:
        """Return what its status page says; empty if it does not answer."""
        connection = http.client.HTTPConnection(self._host, int(self._state["page"]), timeout=_ANSWER_S)
        try:
            connection.request("GET", "/json/")
            return dict(json.load(connection.getresponse()))
        except (OSError, http.client.HTTPException, ValueError):
            return {}
        finally:
            connection.close()

    def _prepare(self) -> None:
        super()._prepare()
        self._state = places.load_state(self._state_file)
        if not self._state:
            self._state = {"port": places.free_port(), "page": places.free_port()}
            places.save_state(self._state_file, self._state)
        for port in self._state.values():
            places.require_free(int(port), who=self._who)

    def _options(self) -> list[str]:
        kept = self._directory / "recovery"
        kept.mkdir(exist_ok=True)
        children.give(kept, self._user)
        return [
            *super()._options(),
            "-Dspark.deploy.recoveryMode=FILESYSTEM",
            f"-Dspark.deploy.recoveryDirectory={kept}",
        ]

    def _arguments(self) -> list[str]:
        return ["--host", self._host, "--port", str(self._state["port"]), "--webui-port", str(self._state["page"])]

    def _is_ready(self) -> bool:
        return self.view().get("status") == "ALIVE"


class EmbeddedSparkWorker(_Daemon):
    """One core for one executor."""

    name = "Spark worker"
    log_name = "worker.log"
    main = "worker.Worker"

    def __init__(
        self,
        directory: Path | str,
        master: EmbeddedSparkMaster,
        *,
        host: str = "127.0.0.1",
        user: str | None = None,
        secret: str = "",
    ) -> None:
        super().__init__(directory, host=host, user=user, secret=secret)
        self._master = master
        self._port = 0

    def _prepare(self) -> None:
        super()._prepare()
        self._port = places.free_port()

    def _arguments(self) -> list[str]:
        place = ["--host", self._host, "--port", str(self._port), "--webui-port", "0", "-d", str(self._directory)]
        return ["-c", "1", "-m", _MEMORY, *place, self._master.url]

    def _is_ready(self) -> bool:
        workers = self._master.view().get("workers", ())
        return any(each["port"] == self._port and each["state"] == "ALIVE" for each in workers)

    def _options(self) -> list[str]:
        return [*super()._options(), "-Dspark.worker.cleanup.enabled=true"]


class EmbeddedSpark:
    """A master and its workers below ``directory``; a context manager starts and stops them."""

    def __init__(
        self,
        directory: Path | str,
        *,
        workers: int = 2,
        host: str = "127.0.0.1",
        user: str | None = None,
        secret: str = "",
    ) -> None:
        base = Path(directory).absolute()
        self.master = EmbeddedSparkMaster(base / "master", host=host, user=user, secret=secret)
        self.workers = [
            EmbeddedSparkWorker(base / f"worker-{number}", self.master, host=host, user=user, secret=secret)
            for number in range(workers)
        ]

    @property
    def url(self) -> str:
        return self.master.url

    def start(self) -> None:
        self.master.start()
        for worker in self.workers:
            worker.start()

    def stop(self) -> None:
        for part in (*self.workers, self.master):
            part.stop()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.stop()
