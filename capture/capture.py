"""Capture: one member of the cluster, from registration to a clean leave.

    run ─► actor, under supervision ─► one membership after the other (``capture.member.capture_actor``)
             │
             ├─ session: a lease kept alive; CaptureInfo registered under it
             ├─ processors' worker: watches etcd, keeps a processor for every running changefeed
             ├─ candidacy: the controller's actor, which campaigns, and runs the controller's worker while elected
             ├─ owners' worker: decides for the changefeeds that the controller has assigned to this capture
             └─ messenger: orders and answers between captures

When any part of a membership ends, all of it is cancelled at once: the sink's records and the log's epoch fence what
still runs in threads. Spark and the HTTP API survive memberships: they belong to the process.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress

import anyio

from capture.actors.actor import ActorRef, Cell
from capture.actors.supervised import Supervised
from capture.config import ServerSettings
from capture.errors import ActorError
from capture.member import waiting
from capture.member.access import ClusterAccess, OwnToken
from capture.member.capture_actor import CaptureActor, CaptureMemory, LeaveCluster
from capture.member.cluster_service import ClusterService
from capture.member.joining import refuse_halted
from capture.member.membership import Base, Membership
from capture.member.ownership.gathering import HttpOwners, RemoteOwners
from capture.member.schedules.diffs import DiffSchedule
from capture.member.schedules.read_back import ReadBack
from capture.member.schedules.signals import SignalTables
from capture.member.services import DataPlane, build_data_plane
from capture.member.subscriptions.service import SubscriptionService
from capture.messaging.tls import NodeTls, Tls
from capture.messaging.transport import TcpTransport, Transport
from capture.store import connect_store
from reactor.messages import Liveness
from reactor.restarts import RestartPolicy
from reactor.store.port import MetaStore

#: longer than a membership takes to hand over its work
_LEAVE_TIMEOUT_S = 120.0
_MAILBOX_SIZE = 16


Connect = Callable[[ServerSettings], Awaitable[MetaStore]]


class Capture:
    """The process's side of a membership: memberships change, ``cluster`` answers for the current one.

    A simulated cluster replaces ``data_plane``, ``connect_etcd``, ``transport`` and ``remote``.
    """

    def __init__(
        self,
        settings: ServerSettings,
        *,
        data_plane: DataPlane | None = None,
        connect_etcd: Connect | None = None,
        transport: Transport | None = None,
        remote: RemoteOwners | None = None,
    ) -> None:
        self.settings = settings
        self.data_plane = data_plane or build_data_plane(settings)
        self.own_token = OwnToken()
        tls = node_tls(settings)
        self._base = Base(settings, self.data_plane, transport or TcpTransport(), tls, self.own_token)
        self.cluster = ClusterService(self, remote or HttpOwners(self.own_token, str(settings.tls_ca_file or "")))
        self.access = ClusterAccess(self, self.own_token)
        self.subscriptions = SubscriptionService(self)
        self._diffs = DiffSchedule(self, self.cluster)
        self._read_back = ReadBack(self, self.cluster)
        self._signals = SignalTables(self, self.cluster, self.access, self.data_plane)
        self._connect = connect_etcd or connect_store
        self._state = CaptureMemory(ready=anyio.Event(), leaving=anyio.Event())
        self._ref: ActorRef[LeaveCluster] | None = None

    async def run(self) -> None:
        """Be a member until ``leave``; when cancelled, stop at once.

        :raises WeirError: it cannot start (etcd unreachable, no Java, foreign log storage), or failed permanently.
        """
        # in a child task: asyncio's ``cancel`` reaches a task only once, while a scope repeats it to its children until
        # they end. Otherwise a membership that is just being lost would replace the cancellation by its own error, and
        # the capture would continue
        failure: Exception | None = None

        async def work() -> None:
            nonlocal failure
            try:
                await self._work()
            except Exception as error:
                failure = error  # kept out of the task group, which would wrap it
            tasks.cancel_scope.cancel()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(work, name="capture")
            tasks.start_soon(self._diffs.run, name="comparisons by schedule")
            tasks.start_soon(self._read_back.run, name="copies of tables with unknown rows")
            tasks.start_soon(self._signals.run, name="signals from sources")
        if failure is not None:
            raise failure

    @property
    def membership(self) -> Membership | None:
        """The current membership; None before the first and between two."""
        return self._state.membership

    @property
    def liveness(self) -> Liveness:
        is_drained = self.membership is not None and self.membership.host.is_leaving
        return Liveness.STOPPING if is_drained or self._state.leaving.is_set() else Liveness.ALIVE

    @property
    def absence(self) -> str:
        """Why there is no membership, as a sentence without its end."""
        reason = self._state.absence_reason
        cause = f": {reason}" if reason else ""
        if self._state.ready.is_set():
            return f"this capture lost its session with the metadata store and starts again{cause}"
        waits_for = self.data_plane.waits_for  # Spark starts before the first membership
        return f"this capture {waits_for or 'is starting, and has not joined its cluster yet'}{cause}"

    async def ready(self) -> None:
        """Return when registered and able to answer ``cluster``."""
        await self._state.ready.wait()

    async def leave(self) -> None:
        """Hand over spans and workers, unregister, and let ``run`` return."""
        self._state.leaving.set()
        if self._ref is not None:
            with suppress(ActorError):  # it has left, or takes too long
                await self._ref.ask(LeaveCluster(), _LEAVE_TIMEOUT_S)

    async def _work(self) -> None:
        client = await self._connect(self.settings)
        try:
            await refuse_halted(client, self.settings.cluster_id)
            # join only when able to move rows: the first flush after a fail-over must not wait for a JVM
            await waiting.start(self.data_plane, client, self.settings)
            await self._run_actor(client)
        finally:
            with anyio.CancelScope(shield=True):
                await self.data_plane.stop()
                await client.close()

    async def _run_actor(self, client: MetaStore) -> None:
        """:raises WeirError: an error that requires intervention."""
        cell: Cell[LeaveCluster] = Cell(
            lambda: CaptureActor(self._base, client, self._state), "capture", mailbox_size=_MAILBOX_SIZE
        )
        self._ref, supervised = cell.ref, Supervised(cell, RestartPolicy())
        try:
            await supervised.run()
        finally:
            supervised.close()
        if self._state.failure is not None:
            raise self._state.failure


def node_tls(settings: ServerSettings) -> NodeTls | None:
    """Return this node's certificate, if it has one.

    :raises ConfigError: its files cannot be used.
    """
    ca, certificate, key = settings.tls_ca_file, settings.tls_cert_file, settings.tls_key_file
    return NodeTls(Tls(ca, certificate, key)) if ca and certificate and key else None
