"""Server: one capture as a process, with HTTP API and capture actor in one event loop, up to a clean leave.

``running`` is the whole of it, for ``weir server`` and for the quickstart alike: it takes the port, starts an embedded
etcd where none is given, runs the member and its API, and undoes all that in reverse. What a member does between
``run`` and ``leave`` is ``capture.capture``'s business.

SIGTERM or SIGINT: drain, leave, exit 0. A second one: exit at once.
"""

import os
import signal
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Protocol

import anyio
import structlog
import uvicorn
from anyio import to_thread

from agent.spark import memory
from agent.spark.java import find_java
from capture.address import join_address, split_address
from capture.api.http import create_app
from capture.api.port import Cluster
from capture.config import ServerSettings
from capture.directory import locked
from capture.embedded import EmbeddedEtcd
from capture.errors import ConfigError, PortInUseError
from reactor import failpoints

_log = structlog.get_logger()
_BACKLOG = 128
#: anyio's own, which the interpreter would wait for
_WORKER_THREAD = "AnyIO worker thread"
_THREADS_TIMEOUT_S = 2.0


class Member(Protocol):
    """A capture as its process sees it."""

    @property
    def cluster(self) -> Cluster: ...

    async def run(self) -> None:
        """Be a member until ``leave``; when cancelled, stop at once. Faults of the start are raised."""
        ...

    async def ready(self) -> None:
        """Return when registered and able to answer ``cluster``."""
        ...

    async def leave(self) -> None:
        """Give spans and workers away, unregister, let ``run`` return."""
        ...


NewMember = Callable[[ServerSettings], Member]


class _HttpServer(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are ours."""
        yield


async def serve(settings: ServerSettings, new_member: NewMember) -> int:
    """Run until a signal says otherwise. Returns the exit code.

    :raises WeirError: it cannot start, or the member failed for good.
    """
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with anyio.create_task_group() as tasks:
            stop = _Stop(tasks.cancel_scope)
            tasks.start_soon(stop.obey, signals)
            async with running(settings, new_member=new_member):
                stop.is_ready = True
                await stop.asked.wait()
            tasks.cancel_scope.cancel()
    return stop.exit_code


def leave_threads_behind(code: int) -> None:
    """Exit if a thread hangs: a sink that never answers must not keep a capture that has left from ending."""
    deadline = time.monotonic() + _THREADS_TIMEOUT_S
    workers = [thread for thread in threading.enumerate() if thread.name == _WORKER_THREAD]
    for thread in workers:
        thread.join(max(0.0, deadline - time.monotonic()))
    if any(thread.is_alive() for thread in workers):
        _log.warning("threads that hang are left behind", count=sum(thread.is_alive() for thread in workers))
        os._exit(code)


class _Stop:
    """What signals ask for: the first one asks a ready member to leave, any other stops everything at once."""

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
    """A member that is ready, and reachable over HTTP; it leaves when the block ends.

    An error in the block, or of the member itself, stops everything at once and is raised as an exception group.
    """
    _check_failpoints()
    memory.give_back()
    if not settings.spark_master.startswith("sc://"):
        await to_thread.run_sync(find_java)
    with locked(settings.data_dir / "capture.lock", what="a capture"), _listener(settings.addr) as listener:
        async with _etcd(settings) as urls:
            host, _ = split_address(settings.addr)
            port = listener.getsockname()[1]
            address = join_address(host, port)
            member = new_member(settings.model_copy(update={"etcd": urls, "addr": address}))
            http = _HttpServer(
                uvicorn.Config(create_app(member.cluster), log_config=None, access_log=False, lifespan="off")
            )
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(http.serve, [listener])
                tasks.start_soon(member.run)
                await member.ready()
                _log.info("ready", address=address, cluster_id=settings.cluster_id)
                yield member
                await member.leave()
                http.should_exit = True


def _check_failpoints() -> None:
    """:raises ConfigError: the variable asks for what there is not."""
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
        yield listener


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


@asynccontextmanager
async def _etcd(settings: ServerSettings) -> AsyncIterator[tuple[str, ...]]:
    if settings.etcd:
        yield settings.etcd
        return
    part = EmbeddedEtcd(settings.data_dir / "etcd")
    try:
        await to_thread.run_sync(part.start)
        yield (part.url,)
    finally:
        with anyio.CancelScope(shield=True):
            await to_thread.run_sync(part.stop)
