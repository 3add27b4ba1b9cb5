"""The capture: one member of the cluster, from registration to a clean leave.

    run ─► membership ─► session lost ─► next membership, under a new id (two at once, then one in 20 s)
             │
             ├─ session: a lease kept alive; CaptureInfo registered under it
             ├─ processors' worker: watches etcd, keeps a processor for every running changefeed
             ├─ candidacy: campaigns, runs the owner's worker while elected
             └─ messenger: orders and answers between captures

When any part of a membership ends, all of it is cancelled at once: what still runs in threads is fenced by the sink's
records and the log's epoch. Spark and the HTTP API outlive memberships: they belong to the process.
"""

import math
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Self

import anyio
import structlog

from capture.api.changefeeds import Changefeeds
from capture.config import ServerSettings
from capture.member.cluster_service import ClusterService
from capture.member.membership import Base, Membership, live
from capture.member.services import DataPlane, build_works
from capture.messaging.transport import TcpTransport, Transport
from capture.security.secrets import looked_up
from reactor.errors import EtcdError, LeaseExpiredError, SessionDoneError
from reactor.messages import Liveness
from reactor.settings import TlsFiles
from reactor.store.etcd import connect
from reactor.store.port import EtcdClient

_LIVES_BURST = 2
_OWNER_TIMEOUT_S = 30.0
_OWNER_LOOK_S = 0.05
_LIFE_INTERVAL_S = 20.0
#: between two attempts at a membership; while etcd is away they end before anybody has seen them
_ATTEMPT_INTERVAL_S = 1.0

_log = structlog.get_logger()

Connect = Callable[[ServerSettings], Awaitable[EtcdClient]]


class Capture:
    """The process's side of a membership: memberships come and go, ``cluster`` answers for the present one.

    ``data_plane``, ``connect_etcd`` and ``transport`` are what a simulated cluster replaces.
    """

    def __init__(
        self,
        settings: ServerSettings,
        *,
        data_plane: DataPlane | None = None,
        connect_etcd: Connect | None = None,
        transport: Transport | None = None,
    ) -> None:
        self.settings = settings
        self.data_plane = data_plane or build_works(settings)
        self._base = Base(settings, self.data_plane, transport or TcpTransport())
        self.cluster = ClusterService(self)
        self.changefeeds = Changefeeds(self.cluster)
        self.life: Membership | None = None
        self._connect = connect_etcd or _connect
        self._ready = anyio.Event()
        self._leaving = anyio.Event()
        self._lives: deque[float] = deque(maxlen=_LIVES_BURST)
        self._tried_at = -math.inf

    async def run(self) -> None:
        """Be a member until ``leave``; when cancelled, stop at once.

        :raises WeirError: it cannot start (etcd unreachable, no Java, foreign log storage), or failed for good.
        """
        # in a task below the caller's: what asyncio's own ``cancel`` says to a task once, a scope repeats to those
        # below it until they end. A membership that is just being lost would forget it for its error, and the capture
        # would continue
        failure: Exception | None = None

        async def work() -> None:
            nonlocal failure
            try:
                await self._work()
            except Exception as error:
                failure = error  # kept out of the task group, which would wrap it

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(work, name="capture")
        if failure is not None:
            raise failure

    @property
    def liveness(self) -> Liveness:
        is_drained = self.life is not None and self.life.host.is_leaving
        return Liveness.STOPPING if is_drained or self._leaving.is_set() else Liveness.ALIVE

    @property
    def has_lived(self) -> bool:
        return self._ready.is_set()

    async def ready(self) -> None:
        """Return when registered and able to answer ``cluster``."""
        await self._ready.wait()

    async def leave(self) -> None:
        """Give spans and workers away, unregister, let ``run`` return."""
        self._leaving.set()
        if self.life is not None:
            await self.life.leave()

    @classmethod
    @asynccontextmanager
    async def embedded(cls, directory: Path | str, **settings: object) -> AsyncIterator[Self]:
        """A capture with an etcd of its own below ``directory``, inside the caller's event loop; for notebooks.

        ``async with Capture.embedded("weir-data") as capture: await capture.api.changefeeds.create(...)``
        """
        from capture.config import load_server_settings
        from capture.server import running

        loaded = load_server_settings(**{"data_dir": Path(directory), "addr": "127.0.0.1:0"} | settings)
        async with running(loaded, new_member=cls) as member:
            assert isinstance(member, cls)
            with anyio.fail_after(_OWNER_TIMEOUT_S):
                while not (await member.cluster.health()).healthy:  # noqa: ASYNC110 - elected in a moment
                    await anyio.sleep(_OWNER_LOOK_S)
            yield member

    async def _work(self) -> None:
        client = await self._connect(self.settings)
        try:
            # who cannot move rows does not join: the first flush after a fail-over must not wait for a JVM
            await self.data_plane.start(client)
            await self._live_on(client)
        finally:
            with anyio.CancelScope(shield=True):
                await self.data_plane.stop()
                await client.close()

    async def _live_on(self, client: EtcdClient) -> None:
        """One membership after the other, until asked to leave."""
        while not self._leaving.is_set():
            await self._wait_turn()
            if self._leaving.is_set():
                return
            try:
                async with live(self._base, client) as life:
                    self._lives.append(anyio.current_time())
                    self.life = life
                    self._ready.set()
                    if not self._leaving.is_set():  # it may have been asked to leave while this membership began
                        await life.wait_end()
            except (SessionDoneError, LeaseExpiredError) as error:  # etcd may know before the session does
                _log.warning("session lost: this capture starts again", reason=str(error))
            except EtcdError as error:
                if not error.retryable or not self._ready.is_set():
                    raise
                _log.warning("etcd failed: this capture starts again", reason=str(error))
            finally:
                self.life = None

    async def _wait_turn(self) -> None:
        """A capture that keeps losing its session must not flood the cluster with new members."""
        not_before = self._tried_at + _ATTEMPT_INTERVAL_S
        if len(self._lives) == _LIVES_BURST:
            not_before = max(not_before, self._lives[0] + _LIFE_INTERVAL_S)
        with anyio.move_on_at(not_before):
            await self._leaving.wait()
        self._tried_at = anyio.current_time()


async def _connect(settings: ServerSettings) -> EtcdClient:
    tls = None
    if settings.etcd_ca_file is not None:
        cert, key = settings.etcd_cert_file, settings.etcd_key_file
        tls = TlsFiles(str(settings.etcd_ca_file), str(cert) if cert else None, str(key) if key else None)
    password = looked_up(settings.etcd_password)
    return await connect(settings.etcd, tls=tls, user=settings.etcd_user or None, password=password or None)
