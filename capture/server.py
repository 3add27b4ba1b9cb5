"""Server: one capture as a process, with HTTP API and capture actor in one event loop, up to a clean leave.

``running`` is used by ``weir server`` and by the quickstart: it binds the port, starts an embedded etcd if no store
is configured, runs the member and its API, and undoes all that in reverse. ``capture.capture`` implements the member
between ``run`` and ``leave``.

SIGTERM or SIGINT: drain, leave, exit 0. A second one: exit at once.
"""

import gc
import os
import signal
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Protocol

import anyio
import structlog
import uvicorn
from anyio import to_thread

from agent.spark import memory
from agent.spark.java import find_java
from capture.address import join_address, split_address
from capture.api.access import Access
from capture.api.connections import LimitedConnection, limit_waiting
from capture.api.http import create_app
from capture.api.port import Cluster
from capture.api.subscriptions import Subscriptions
from capture.api.tls import ApiTls
from capture.config import ServerSettings
from capture.directory import locked
from capture.errors import ConfigError, PortInUseError
from capture.loop_watch import LoopWatch
from capture.security.exposure import exposed
from capture.security.own_token import LOCK_FILE, TOKEN_FILE, LocalServer, announced
from capture.store import with_etcd
from reactor import failpoints

_log = structlog.get_logger()
_BACKLOG = 128
#: for answers that are under way when the capture has left: not every caller reads them
_LAST_ANSWERS_S = 5
#: anyio's own, which the interpreter would wait for
_WORKER_THREAD = "AnyIO worker thread"
_THREADS_TIMEOUT_S = 2.0


class OwnToken(Protocol):
    """The server's own token. ``value``: empty before it is loaded."""

    @property
    def value(self) -> str: ...

    def load(self, data_dir: Path) -> None:
        """:raises ConfigError: it cannot be read or created."""
        ...


class Member(Protocol):
    """A capture as its process uses it."""

    @property
    def cluster(self) -> Cluster: ...

    @property
    def access(self) -> Access: ...

    @property
    def subscriptions(self) -> Subscriptions | None:
        """None: it has no change log to read from."""
        ...

    @property
    def own_token(self) -> OwnToken: ...

    async def run(self) -> None:
        """Be a member until ``leave``; when cancelled, stop at once. Errors of the start are raised."""
        ...

    async def ready(self) -> None:
        """Return when registered and able to answer ``cluster``."""
        ...

    async def leave(self) -> None:
        """Hand over spans and workers, unregister, and let ``run`` return."""
        ...


NewMember = Callable[[ServerSettings], Member]


class _HttpServer(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to us."""
        yield

    def protocol(self) -> LimitedConnection:
        """Return the protocol of one connection that is accepted elsewhere."""
        return LimitedConnection(config=self.config, server_state=self.server_state, app_state={})


async def serve(settings: ServerSettings, new_member: NewMember) -> int:
    """Run until a signal arrives; return the exit code.

    :raises WeirError: it cannot start, or the member failed permanently.
    """
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with anyio.create_task_group() as tasks:
            stop = _Stop(tasks.cancel_scope)
            tasks.start_soon(stop.obey, signals)
            async with running(settings, new_member=new_member):
                stop.is_ready = True
                # modules stay: a full garbage collection would look at them for 0.1 s, in which no message is handled
                gc.freeze()
                await stop.asked.wait()
            tasks.cancel_scope.cancel()
    return stop.exit_code


def leave_threads_behind(code: int) -> None:
    """Exit even if a thread hangs: a sink that never answers must not keep the process alive."""
    deadline = time.monotonic() + _THREADS_TIMEOUT_S
    workers = [thread for thread in threading.enumerate() if thread.name == _WORKER_THREAD]
    for thread in workers:
        thread.join(max(0.0, deadline - time.monotonic()))
    if any(thread.is_alive() for thread in workers):
        _log.warning("threads that hang are left behind", count=sum(thread.is_alive() for thread in workers))
        os._exit(code)


class _Stop:
    """Handles signals: the first one asks a ready member to leave, any other stops everything at once."""

    def __init__(self, scope: anyio.CancelScope) -> None:
        self.asked = anyio.Event()
        self.is_ready = False
        self.exit_code = 0
        self._scope = scope

    async def obey(self, signals: AsyncIterator[signal.Signals]) -> None:
        async for number in signals:
            _log.info("signal", name=number.name, ready=self.is_ready, again=self.asked.is_set())
            if self.asked.is_set() or not self.is_ready:
                self.exit_code = 128 + number
                self._scope.cancel()
            self.asked.set()


@asynccontextmanager
async def running(settings: ServerSettings, *, new_member: NewMember) -> AsyncIterator[Member]:
    """Run a member that is ready, and reachable over HTTP; it leaves when the block ends.

    An error in the block, or of the member itself, stops everything at once and is raised as an exception group.
    """
    _check_failpoints()
    settings.check_reach()
    settings.check_spark()
    tls, loop = ApiTls(settings), LoopWatch()
    own = [settings.data_dir / name for name in ("secret.key", TOKEN_FILE)]
    for problem in exposed((*settings.secret_files, *own, settings.data_dir)):
        _log.warning("a secret is open to others", cause=problem)
    memory.give_back()
    if not settings.spark_master.startswith("sc://"):
        await to_thread.run_sync(find_java)
    with locked(settings.data_dir / LOCK_FILE, what="a capture"), _listener(settings.addr) as listener:
        async with with_etcd(settings) as connected:
            host, _ = split_address(settings.addr)
            port = listener.getsockname()[1]
            address = join_address(host, port)
            member = new_member(connected.model_copy(update={"addr": address}))
            member.own_token.load(settings.data_dir)
            async with anyio.create_task_group() as tasks:
                with announced(_local(settings, address)):
                    http = _http_server(settings, member)
                    tasks.start_soon(http.serve, [] if tls.handshakes else [listener])
                    if tls.handshakes:
                        tasks.start_soon(tls.handshakes.run, listener, http.protocol)
                    tasks.start_soon(tls.renew)
                    tasks.start_soon(loop.run)
                    tasks.start_soon(member.run)
                    await member.ready()
                    _log.info("ready", address=address, cluster_id=settings.cluster_id)
                    yield member
                    await member.leave()
                    http.should_exit = True
                    tls.stop()
                    loop.stop()


def _http_server(settings: ServerSettings, member: Member) -> _HttpServer:
    app = create_app(
        member.cluster,
        member.access,
        subscriptions=member.subscriptions,
        names=_names(settings),
        own_token=lambda: member.own_token.value,
        ca_file=settings.tls_ca_file,
    )
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="off",
        http=LimitedConnection,
        ws="none",
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=_LAST_ANSWERS_S,
    )
    config.load()
    return _HttpServer(config)


def _names(settings: ServerSettings) -> list[str]:
    """Return the names by which requests may address this server."""
    addresses = [address for address in (settings.addr, settings.advertise_addr) if address]
    return [*settings.api_hosts, socket.gethostname(), *(split_address(address)[0] for address in addresses)]


def _local(settings: ServerSettings, address: str) -> LocalServer:
    host, port = split_address(address)
    reached = join_address({"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host), port)
    scheme = "https" if settings.has_tls else "http"
    ca_file = str(settings.tls_ca_file.absolute()) if settings.tls_ca_file else ""
    return LocalServer(address, f"{scheme}://{reached}", str(settings.data_dir.absolute()), ca_file)


def _check_failpoints() -> None:
    """:raises ConfigError: the variable names unknown fail-points or actions."""
    try:
        if points := failpoints.armed():
            _log.warning("fail-points are armed", points=sorted(points))
    except ValueError as error:
        raise ConfigError(f"{failpoints.VARIABLE}: {error}") from error


@contextmanager
def _listener(address: str) -> Iterator[socket.socket]:
    """:raises PortInUseError: the address is taken, or not of this machine."""
    host, port = split_address(address)
    try:
        listener = socket.create_server((host, port), family=_family(host), backlog=_BACKLOG)
    except OSError as error:
        why = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror
        text = f"cannot listen on {address} ({why}); stop what listens there, or give another --addr"
        raise PortInUseError(text) from error
    with listener:
        listener.setblocking(False)
        limit_waiting(listener)
        yield listener


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
