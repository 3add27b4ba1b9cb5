"""Benchmark bed: etcd, a database and one capture as processes, with their memory and CPU usage.

The capture runs as a user runs it (``python -m capture server``), so its figures are what users get.
"""

import contextlib
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

import psutil

from benchmarks.support.servers import PostgresServer, Server, last_ts
from capture.api.client import Client
from capture.api.port import ChangefeedSpec
from capture.embedded import EmbeddedEtcd, children, places
from reactor.errors import WeirError
from reactor.records.changefeed import ChangefeedConfig, FeedState, FilterConfig, Mode, SinkMode, Unit
from reactor.views import ChangefeedView

#: each poll costs the capture some milliseconds, which should not be measured
_POLL_S = 0.1
_WATCH_S = 0.1
_TIMEOUT_S = 600.0


@dataclass(slots=True)
class Usage:
    """What the capture's processes used while watched. Memory in MB, at its peak: proportional set size, since Spark's
    Python workers are forked and share most pages."""

    cpu_s: float = 0.0
    python_cpu_s: float = 0.0
    python_mb: float = 0.0
    java_mb: float = 0.0
    #: round trips to the API meanwhile: the responsiveness of the event loop
    round_trips_ms: list[float] = field(default_factory=list)

    @property
    def round_trip_p99_ms(self) -> float:
        ordered = sorted(self.round_trips_ms) or [0.0]
        return ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]


class Bed:
    """Created by ``bed()``."""

    def __init__(self, directory: Path, server: Server, address: str, start: Callable[[], children.Child]) -> None:
        self.directory = directory
        self.server = server
        self.address = address
        self._start = start
        self.capture = start()
        #: the bucket of the tables (s3://…); empty: directories
        self.bucket = ""
        #: delta or iceberg
        self.format = "delta"
        #: set when the capture is up
        self.client: Client

    def wait_up(self) -> Client:
        """Return a client of the capture once the capture has an owner."""
        deadline = time.monotonic() + _TIMEOUT_S
        while True:
            with contextlib.suppress(WeirError), Client(self.address) as client:
                if client.health().healthy:
                    break
            if self.capture.poll() is not None or time.monotonic() > deadline:
                raise WeirError(f"the capture did not start: {(self.directory / 'capture.log').read_text()[-1000:]}")
            time.sleep(_POLL_S)
        return Client(self.address)  # the token does not exist before

    def stop(self) -> None:
        """End the capture in order."""
        children.stop(self.capture, signal.SIGTERM)

    def restart(self) -> float:
        """Return the seconds from its start until it has an owner."""
        self.stop()
        started = time.monotonic()
        self.capture = self._start()
        with self.wait_up():
            return time.monotonic() - started

    @property
    def token(self) -> str:
        return (self.directory / "capture" / "api-token").read_text().strip()

    def execute(self, sql: str) -> list[list[object]]:
        return self.server.execute(sql)

    def last_ts(self) -> int:
        return last_ts(self.server)

    def run_tool(self, *command: str) -> float:
        """Run one of the database's programs; return the seconds it took."""
        argv, environment = self.server.command(*command)
        started = time.monotonic()
        log = self.directory / "tools.log"
        with log.open("ab") as output:
            child = children.spawn(argv, output=output, environment=environment)
            code = child.wait()
        if code:
            raise WeirError(f"{command[0]} ended with code {code}: {log.read_text()[-500:]}")
        return time.monotonic() - started

    @contextmanager
    def tool_running(self, *command: str) -> Iterator[children.Child]:
        argv, environment = self.server.command(*command)
        with (self.directory / "tools.log").open("ab") as output:
            child = children.spawn(argv, output=output, environment=environment)
        try:
            yield child
        finally:
            children.stop(child, signal.SIGINT)

    def create(
        self,
        name: str,
        *,
        sink_mode: SinkMode,
        mode: Mode = Mode.ALL,
        rules: tuple[str, ...] = ("*.*",),
        sink_options: str = "",
    ) -> None:
        """Create a changefeed over the tables that match ``rules``. ``sink_options``: the part after ``?`` of its
        URI."""
        spec = ChangefeedSpec(
            changefeed_id=name,
            source_uri=self.server.uri,
            sink_uri=f"{self.lake_uri(name)}{sink_options and '?'}{sink_options}",
            mode=mode,
            sink_mode=sink_mode,
            config=ChangefeedConfig(filter=FilterConfig(rules=rules)),
        )
        self.client.create(spec)

    def lake_uri(self, name: str) -> str:
        return f"{self.format}+{self.bucket}/lake/{name}" if self.bucket else f"{self.format}+file://{self.lake(name)}"

    def lake(self, name: str) -> Path:
        return self.directory / "lake" / name

    def wait_sync(self, name: str) -> ChangefeedView:
        return self.wait(name, lambda feed: feed.unit is Unit.SYNC and feed.checkpoint_ts > 0)

    def wait_covers(self, name: str, ts: int) -> ChangefeedView:
        return self.wait(name, lambda feed: feed.checkpoint_ts >= ts)

    def wait(self, name: str, condition: Callable[[ChangefeedView], bool]) -> ChangefeedView:
        deadline = time.monotonic() + _TIMEOUT_S
        while True:
            with contextlib.suppress(WeirError):
                feed = self.client.query(name, tables=False)
                if feed.state is FeedState.FAILED:
                    break
                if condition(feed):
                    return feed
            if time.monotonic() > deadline:
                break
            time.sleep(_POLL_S)
        raise WeirError(f"changefeed {name} did not come as far as it should: {feed.state}, {feed.error}")

    @contextmanager
    def watched(self, *, probe: bool = True) -> Iterator[Usage]:
        """Watch the capture's processes in a thread; the figures are final when the block has ended.

        ``probe``: query its API ten times a second, which costs it something.
        """
        usage, stop = Usage(), threading.Event()
        before = self._cpu()
        watcher = threading.Thread(target=self._watch, args=(usage, stop, probe))
        watcher.start()
        try:
            yield usage
        finally:
            stop.set()
            watcher.join()
            after = self._cpu()
            usage.cpu_s = sum(after.values()) - sum(before.get(pid, 0.0) for pid in after)
            java = {process.pid for process in self._processes() if process.name() == "java"}
            usage.python_cpu_s = sum(after[pid] - before.get(pid, 0.0) for pid in after if pid not in java)

    def _watch(self, usage: Usage, stop: threading.Event, probe: bool) -> None:
        with Client(self.address) as client:
            while not stop.wait(_WATCH_S):
                if probe:
                    started = time.monotonic()
                    with contextlib.suppress(WeirError):
                        client.status()
                        usage.round_trips_ms.append((time.monotonic() - started) * 1000)
                sizes = {True: 0.0, False: 0.0}
                for process in self._processes():
                    with contextlib.suppress(psutil.Error, OSError):
                        sizes[process.name() == "java"] += _pss_mb(process.pid)
                usage.java_mb = max(usage.java_mb, sizes[True])
                usage.python_mb = max(usage.python_mb, sizes[False])

    def _processes(self) -> list[psutil.Process]:
        """Return the capture, its JVM and its Spark workers."""
        root = psutil.Process(self.capture.pid)
        return [root, *root.children(recursive=True)]

    def _cpu(self) -> dict[int, float]:
        seconds = {}
        for process in self._processes():
            with contextlib.suppress(psutil.Error):
                times = process.cpu_times()
                seconds[process.pid] = times.user + times.system
        return seconds


@contextmanager
def bed(
    server_class: Callable[[Path], Server] = PostgresServer,
    *,
    settings: Mapping[str, str] = MappingProxyType({}),
    spark: Mapping[str, str] = MappingProxyType({}),
    environment: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[Bed]:
    """``settings``: of the capture, by their names in configuration files; ``spark``: Spark's own."""
    with (
        tempfile.TemporaryDirectory(prefix="weir-bench-") as name,
        EmbeddedEtcd(Path(name) / "etcd") as etcd,
        server_class(Path(name)) as server,
    ):
        address = f"127.0.0.1:{places.free_port()}"
        command = [sys.executable, "-m", "capture", "server", "--etcd", etcd.url, "--addr", address]
        command += ["--data-dir", str(Path(name) / "capture"), "--log-file", str(Path(name) / "capture.log")]
        lines = [*(f'{key} = "{value}"' for key, value in settings.items()), "[spark]"]
        lines += [f'"{key}" = "{value}"' for key, value in spark.items()]
        config = Path(name) / "weir.toml"
        config.write_text("\n".join(lines))
        command += ["--config", str(config)]
        found = Bed(
            Path(name),
            server,
            address,
            lambda: children.spawn(command, output=subprocess.DEVNULL, environment=environment),
        )
        try:
            with found.wait_up() as found.client:
                yield found
        finally:
            found.stop()


def _pss_mb(pid: int) -> float:
    """Return the process's memory as Linux counts it, with shared pages divided among their users."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1000
    return 0.0
