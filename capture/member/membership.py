"""Membership: everything that runs under one session and one capture id, started together and ended together."""

import os
import socket
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import anyio
import structlog

from agent.control.processors import Processors
from capture.config import ServerSettings
from capture.member.asking import Asking
from capture.member.candidacy import Candidacy
from capture.member.joining import join
from capture.member.owner_watch import OwnerLiveness
from capture.member.processor_host import AGENT_TOPIC, OWNER_TOPIC, ProcessorHost
from capture.member.services import DataPlane
from capture.messaging.messenger import Messenger
from capture.messaging.transport import Transport
from capture.version import installed_version
from reactor import keys
from reactor.errors import EtcdError, SessionDoneError
from reactor.ids import CaptureId
from reactor.membership.session import Session, open_session
from reactor.messages import Message
from reactor.records import formats
from reactor.records.changefeed import CaptureInfo
from reactor.settings import ReactorSettings
from reactor.state import ClusterState
from reactor.store.port import Compare, EtcdClient, Target
from reactor.worker import EtcdWorker

_UNREGISTER_TIMEOUT_S = 5.0
_DRAIN_TIMEOUT_S = 30.0
_DRAIN_LOOK_S = 0.1
_HEARING_LOOK_S = 0.5
#: more than one, with time between: what has come while the process was held up is handled first
_HEARING_LOOKS = 2

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Base:
    """What outlives memberships."""

    settings: ServerSettings
    data_plane: DataPlane
    transport: Transport


class Membership:
    """The parts of one membership. Made by ``live``."""

    def __init__(
        self, info: CaptureInfo, *, client: EtcdClient, state: ClusterState, candidacy: Candidacy, host: ProcessorHost
    ) -> None:
        self.info = info
        self.client = client
        #: as the processors' worker sees the cluster; read it, never change it
        self.state = state
        self.candidacy = candidacy
        self.host = host
        self._ended = anyio.Event()

    async def wait_end(self) -> None:
        await self._ended.wait()

    async def listen(self, liveness: OwnerLiveness) -> None:
        """End when the owner is not heard any more.

        :raises FormatError: the cluster's format was raised past what this capture knows.
        """
        silent = 0
        while silent < _HEARING_LOOKS:
            await anyio.sleep(_HEARING_LOOK_S)
            formats.refuse_unknown(self.state.format)
            is_deaf = liveness.is_deaf(self.state.owner, self.state.changefeeds.values(), anyio.current_time())
            silent = silent + 1 if is_deaf else 0
        _log.warning("the owner is not heard: this capture starts again", capture=self.info.id)
        self._ended.set()

    async def leave(self) -> None:
        """Let others take over what runs here, for a while, then end."""
        self.host.stop_serving()
        self.candidacy.leave()
        with anyio.move_on_after(_DRAIN_TIMEOUT_S):
            while len(self.state.captures) > 1 and not await self.host.is_idle():  # noqa: ASYNC110 - asks actors
                await anyio.sleep(_DRAIN_LOOK_S)
        self._ended.set()


@asynccontextmanager
async def live(base: Base, client: EtcdClient) -> AsyncIterator[Membership]:
    """Register, run all parts, unregister.

    :raises SessionDoneError: the session was lost; nothing of this membership runs any more.
    :raises EtcdError: etcd refused or cannot be reached.
    """
    settings = ReactorSettings(session_ttl_s=base.settings.session_ttl_seconds)
    try:
        async with (
            open_session(client, ttl_s=settings.session_ttl_s) as session,
            _parts(base, client, session, settings) as life,
        ):
            yield life
    except BaseExceptionGroup as group:
        raise _cause(group) from None


@asynccontextmanager
async def _parts(
    base: Base, client: EtcdClient, session: Session, settings: ReactorSettings
) -> AsyncIterator[Membership]:
    cluster, capture_id = base.settings.cluster_id, CaptureId(str(uuid.uuid4()))
    state = ClusterState(cluster, removal_grace_s=0.0)
    messenger = Messenger(capture_id, listen=base.settings.listen_peer_addr, transport=base.transport)
    async with messenger, anyio.create_task_group() as tasks:
        info = _info(base, capture_id, messenger.address)
        key = str(keys.CaptureKey(cluster, capture_id))
        registered = await join(client, cluster, info, lease=session.lease)
        _log.info("registered", capture=capture_id, address=info.address, peer_address=info.peer_address)
        processors = Processors(capture_id, cluster=cluster)
        data_plane = base.data_plane.for_life(client, capture_id, state)
        host = ProcessorHost(
            capture_id, peers=messenger, plant=data_plane, tasks=tasks, post=lambda event: worker.post(event)
        )
        worker = EtcdWorker(
            client,
            processors,
            state=state,
            session=session,
            perform=host.perform,
            fences=[Compare(key, Target.CREATE_REVISION, registered)],
            interval_s=settings.tick_interval_s,
            idle_interval_s=settings.idle_interval_s,
        )
        candidacy = Candidacy(
            capture_id,
            cluster=cluster,
            client=client,
            session=session,
            peers=messenger,
            settings=settings,
            ask=Asking(data_plane, tasks).ask,
        )
        liveness = OwnerLiveness(capture_id, session_ttl_s=settings.session_ttl_s)

        async def on_order(message: Message) -> None:
            liveness.note(message.header.owner_revision, anyio.current_time())
            await host.on_message(message)

        messenger.register(AGENT_TOPIC, on_order)
        messenger.register(OWNER_TOPIC, candidacy.on_message)
        tasks.start_soon(worker.run, name="processors' worker")
        tasks.start_soon(candidacy.run, name="owner actor")
        life = Membership(info, client=client, state=state, candidacy=candidacy, host=host)
        tasks.start_soon(life.listen, liveness, name="listening for the owner")
        try:
            yield life
        finally:
            tasks.cancel_scope.cancel()
            if not session.is_done:  # else etcd does it, and may not even be there to be asked
                await _unregister(client, key)


def _info(base: Base, capture_id: CaptureId, peer_address: str) -> CaptureInfo:
    settings = base.settings
    return CaptureInfo(
        id=capture_id,
        address=settings.advertise_addr or settings.addr,
        peer_address=settings.advertise_peer_addr or peer_address,
        version=installed_version(),
        cluster_id=settings.cluster_id,
        started_at=time.time(),
        hostname=socket.gethostname(),
        pid=os.getpid(),
        format=formats.NEWEST,
    )


async def _unregister(client: EtcdClient, key: str) -> None:
    """Best effort: the lease takes the key with it anyway."""
    with anyio.move_on_after(_UNREGISTER_TIMEOUT_S, shield=True):
        try:
            await client.delete(key)
        except EtcdError as error:
            _log.warning("not unregistered", key=key, error=str(error))


def _cause(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The end of the session explains everything else that failed with it."""
    leaves = list(_leaves(group))
    return next((leaf for leaf in leaves if isinstance(leaf, SessionDoneError)), leaves[0])


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for part in error.exceptions for leaf in _leaves(part)]
    return [error]
