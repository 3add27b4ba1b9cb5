"""Membership: everything that runs under one session and one capture id, started together and ended together."""

import os
import socket
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import anyio
import structlog
from anyio.abc import TaskGroup

from agent.control.processors import Processors
from agent.health.health import Health
from capture.config import ServerSettings
from capture.errors import ConfigError
from capture.member.access import OwnToken
from capture.member.asking import Asking
from capture.member.copies import CopyPlace, CopyProgress
from capture.member.joining import join
from capture.member.ownership.candidacy import Candidacy
from capture.member.ownership.owner_watch import OwnerLiveness
from capture.member.ownership.owners import Owners
from capture.member.ownership.performer import OwnerSite
from capture.member.processor_host import AGENT_TOPIC, OWNER_TOPIC, ProcessorHost
from capture.member.renewal import Renewal
from capture.member.services import DataPlane
from capture.messaging.admission import Admission, Registered, Registry
from capture.messaging.messenger import MessagingSettings, Messenger
from capture.messaging.tls import NodeTls
from capture.messaging.transport import Transport
from capture.security.key_mark import KeyMark, mark_key
from capture.security.peer_key import PeerKey
from capture.version import installed_version
from owner.controller.hearing import Hearing
from reactor import keys
from reactor.errors import SessionDoneError, StoreError
from reactor.ids import CaptureId
from reactor.membership.session import Session, open_session
from reactor.messages import Message
from reactor.records import formats
from reactor.records.capture import CaptureInfo
from reactor.settings import ReactorSettings
from reactor.state import ClusterState
from reactor.store.port import Compare, MetaStore, Target
from reactor.worker.loop import ReactorWorker

_UNREGISTER_TIMEOUT_S = 5.0
_DRAIN_TIMEOUT_S = 30.0
_DRAIN_POLL_S = 0.1
_CREATED = Target.CREATE_REVISION
_HEARING_POLL_S = 0.5
#: while another capture has joined and has not answered yet
_JOINING_POLL_S = 0.05
#: several, with time between: messages that arrived while the process was suspended are handled first
_HEARING_LOOKS = 2
#: keep-alives of a connection in one session time: a peer that has left three unanswered is silent
_KEEPALIVES = 6

#: distinguishes this process from one that starts in its place, under the same number
_PROCESS = uuid.uuid4().hex

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Base:
    """The state that survives memberships."""

    settings: ServerSettings
    data_plane: DataPlane
    transport: Transport
    tls: NodeTls | None = None
    own_token: OwnToken = field(default_factory=OwnToken)


@dataclass(frozen=True, slots=True)
class Work:
    """The work of a capture for its cluster: it decides as controller and for its changefeeds, moves rows, and tells
    others of itself."""

    candidacy: Candidacy
    owners: Owners
    host: ProcessorHost
    renewal: Renewal


class Membership:
    """The parts of one membership. Created by ``live``."""

    def __init__(
        self,
        info: CaptureInfo,
        *,
        client: MetaStore,
        state: ClusterState,
        copies: Mapping[CopyPlace, CopyProgress],
        work: "Work",
        wait_change: Callable[[], Awaitable[bool]],
    ) -> None:
        self.info = info
        #: progress of the tables' copies on this capture
        self.copies = copies
        self.client = client
        #: the cluster as the processors' worker sees it; read-only
        self.state = state
        self._wait_change = wait_change
        self.candidacy = work.candidacy
        self.owners = work.owners
        self.host = work.host
        self._renewal = work.renewal
        self._ended = anyio.Event()

    @property
    def capture_id(self) -> CaptureId:
        return self.info.id

    async def wait_change(self) -> bool:
        """Return when ``state`` may have changed; False: the membership has ended, and it never will."""
        return await self._wait_change()

    async def wait_end(self) -> None:
        await self._ended.wait()

    async def listen(self, liveness: OwnerLiveness) -> None:
        """End when the owner of work that is done here is silent for too long.

        :raises FormatError: the cluster's format was raised past what this capture supports.
        """
        silent = 0
        while silent < _HEARING_LOOKS:
            await anyio.sleep(_HEARING_POLL_S)
            formats.refuse_unknown(self.state.format)
            unheard = set(liveness.unheard(self.state, anyio.current_time()))
            concerned = {*liveness.awaiting(self.state), *await self.host.at_work()} if unheard else set()
            is_deaf = not unheard.isdisjoint(concerned)
            silent = silent + 1 if is_deaf else 0
        _log.warning("an owner is not heard: this capture starts again", capture=self.info.id)
        self._ended.set()

    async def hear(self, hearing: Hearing, messenger: Messenger) -> None:
        """Let the controller know which captures this one hears, and all captures whether it is isolated."""
        self.candidacy.hear(hearing.heard)
        while True:
            contacts = messenger.contacts()
            if hearing.look(contacts, anyio.current_time()):
                self.candidacy.hear(hearing.heard)
                self._renewal.note_isolated(hearing.heard.is_isolated)
            joining = contacts.keys() - hearing.heard.heard - hearing.heard.silent
            await anyio.sleep(_JOINING_POLL_S if joining else _HEARING_POLL_S)

    async def follow_drain(self) -> None:
        """Hand over this capture's work once its record says that it leaves: an operator drains it."""
        while True:
            await anyio.sleep(_HEARING_POLL_S)
            known = self.state.captures.get(self.capture_id)
            if known is not None and known.is_leaving and not self.host.is_leaving:
                self.host.stop_serving()

    def owns_any(self) -> bool:
        """Return whether any changefeed is assigned to this capture."""
        feeds = self.state.changefeeds.values() if self.state.has_owners else ()
        return any(feed.owner is not None and feed.owner.capture == self.capture_id for feed in feeds)

    async def step_down(self, health: Health) -> None:
        """Let another capture be owner when this one falls ill and another is well: what the owner asks of sinks and
        Spark is done where it is."""
        while True:
            await health.changed()
            others = [info for id, info in self.state.captures.items() if id != self.capture_id]
            if health.fault is not None and any(not info.fault for info in others):
                self.candidacy.resign()

    async def leave(self) -> None:
        """Let others take over this capture's work, for a while, then end."""
        self.host.stop_serving()
        await self._renewal.look()  # the controller gives its changefeeds to others
        self.candidacy.leave()
        with anyio.move_on_after(_DRAIN_TIMEOUT_S):
            while len(self.state.captures) > 1 and (  # noqa: ASYNC110 - asks actors
                self.owns_any() or not await self.host.is_idle()
            ):
                await anyio.sleep(_DRAIN_POLL_S)
        self._ended.set()


@asynccontextmanager
async def live(base: Base, client: MetaStore) -> AsyncIterator[Membership]:
    """Register, run all parts, unregister.

    :raises SessionDoneError: the session was lost; nothing of this membership runs any more.
    :raises StoreError: etcd refused or cannot be reached.
    """
    settings = ReactorSettings(session_ttl_s=base.settings.session_ttl_seconds)
    try:
        async with (
            open_session(client, ttl_s=settings.session_ttl_s) as session,
            _parts(base, client, session, settings) as membership,
        ):
            yield membership
    except BaseExceptionGroup as group:
        raise _cause(group) from None


@asynccontextmanager
async def _parts(
    base: Base, client: MetaStore, session: Session, settings: ReactorSettings
) -> AsyncIterator[Membership]:
    cluster, capture_id = base.settings.cluster_id, CaptureId(str(uuid.uuid4()))
    with suppress(ConfigError):  # it has keys; the renewal says what is wrong with the file
        base.data_plane.keeper.read_again(base.data_plane.keeper.fingerprints)
    state = ClusterState(cluster, removal_grace_s=0.0)
    messenger = _messenger(base, capture_id, admission := _admission(base, state), settings)
    async with messenger, anyio.create_task_group() as tasks:
        info = _info(base, capture_id, messenger.address)
        key = str(keys.CaptureKey(cluster, capture_id))
        registered = await join(client, cluster, info, lease=session.lease)
        await base.own_token.register(client, cluster, capture_id, info.hostname, session.lease)
        _log.info("registered", capture=capture_id, address=info.address, peer_address=info.peer_address)
        fence = Compare(key, _CREATED, registered)
        data_plane = base.data_plane.for_member(client, capture_id, state)
        host = ProcessorHost(
            capture_id,
            peers=messenger,
            plant=data_plane,
            tasks=tasks,
            post=lambda event: worker.post(event),
            health=base.data_plane.health,
        )
        worker = ReactorWorker(
            client,
            Processors(capture_id, cluster=cluster),
            state=state,
            session=session,
            perform=host.perform,
            fences=[fence],
            interval_s=settings.tick_interval_s,
            idle_interval_s=settings.idle_interval_s,
        )
        site = OwnerSite(
            capture=capture_id,
            cluster=cluster,
            client=client,
            session=session,
            registered=fence,
            peers=messenger,
            settings=settings,
            ask=Asking(data_plane, tasks).ask,
        )
        candidacy, owners = Candidacy(site), Owners(site)
        liveness = OwnerLiveness(capture_id, registered=registered, session_ttl_s=settings.session_ttl_s)
        renewal = Renewal(base.tls, client, info, lease=session.lease, registered=fence)

        tasks.start_soon(worker.run, name="processors' worker")
        copies = data_plane.copies
        work = Work(candidacy, owners, host, renewal)
        membership = Membership(
            info, client=client, state=state, copies=copies, work=work, wait_change=worker.wait_tick
        )
        _listen(tasks, messenger, membership, liveness, Hearing(silence_s=settings.session_ttl_s / 2))
        _start(tasks, base, membership, renewal, admission)
        try:
            yield membership
        finally:
            tasks.cancel_scope.cancel()
            if not session.is_done:  # otherwise etcd does it, and may not be reachable
                await _unregister(client, key)


def _listen(
    tasks: TaskGroup, messenger: Messenger, membership: Membership, liveness: OwnerLiveness, hearing: Hearing
) -> None:
    """Pass orders to the processors, and answers to the owners; watch who is heard."""
    state = membership.state

    async def on_order(message: Message) -> None:
        now, revision = anyio.current_time(), message.header.owner_revision
        liveness.note(state, message.sender, message.changefeed, revision, now)
        await membership.host.on_message(message)

    async def on_answer(message: Message) -> None:
        await (membership.owners if state.has_owners else membership.candidacy).on_message(message)

    messenger.register(AGENT_TOPIC, on_order)
    messenger.register(OWNER_TOPIC, on_answer)
    tasks.start_soon(membership.listen, liveness, name="listening for the owner")
    tasks.start_soon(membership.hear, hearing, messenger, name="listening for peers")


def _start(tasks: TaskGroup, base: Base, membership: Membership, renewal: Renewal, admission: Admission) -> None:
    """Start to campaign, and to watch this capture's health, certificate and keys."""
    health, keeper, state = base.data_plane.health, base.data_plane.keeper, membership.state
    renewal.watch_health(health)
    if base.tls is not None or keeper.has_file:
        renewal.watch_keys(keeper, lambda: mark_of(state), admission)
    renewal.watch_leaving(lambda: membership.host.is_leaving)
    tasks.start_soon(membership.candidacy.run, name="controller's actor")
    tasks.start_soon(membership.owners.run, name="owners' actor")
    tasks.start_soon(membership.follow_drain, name="following an operator's drain")
    tasks.start_soon(health.run, name="self-test")
    tasks.start_soon(membership.host.follow_health, name="following the capture's health")
    tasks.start_soon(membership.step_down, health, name="stepping down")
    tasks.start_soon(renewal.run, name="renewal of what others know of this capture")


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
        proves=True,
        node=base.tls.certificate.node if base.tls else "",
        peer_keys=(base.tls.certificate.key,) if base.tls else (),
        secret_keys=base.data_plane.keeper.fingerprints if base.data_plane.keeper.has_file else (),
        process=_PROCESS,
    )


def _admission(base: Base, state: ClusterState) -> Admission:
    return Admission(
        registry_of(state),
        key=PeerKey(base.data_plane.keeper.keys, cluster=base.settings.cluster_id),
        tls=base.tls,
        accepts_unproved=base.settings.peer_auth == "accept",
    )


def _messenger(base: Base, capture_id: CaptureId, admission: Admission, settings: ReactorSettings) -> Messenger:
    return Messenger(
        capture_id,
        listen=base.settings.listen_peer_addr,
        admission=admission,
        topics=(AGENT_TOPIC, OWNER_TOPIC),
        transport=base.transport,
        settings=MessagingSettings(keepalive_s=settings.session_ttl_s / _KEEPALIVES),
    )


def mark_of(state: ClusterState) -> KeyMark:
    """The mark of the cluster's secret key, as the store shows it here."""
    return KeyMark.decode(state.raw.get(mark_key(state.cluster)))


def registry_of(state: ClusterState) -> Registry:
    """Return the members, as the store shows them here."""

    def look(capture: CaptureId) -> Registered | None:
        info = state.captures.get(capture)
        return Registered(info.node, info.peer_keys, info.proves) if info else None

    return look


async def _unregister(client: MetaStore, key: str) -> None:
    """Best effort: the lease removes the key anyway."""
    with anyio.move_on_after(_UNREGISTER_TIMEOUT_S, shield=True):
        try:
            await client.delete(key)
        except StoreError as error:
            _log.warning("not unregistered", key=key, error=str(error))


def _cause(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The end of the session explains everything else that failed with it."""
    leaves = list(_leaves(group))
    return next((leaf for leaf in leaves if isinstance(leaf, SessionDoneError)), leaves[0])


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for part in error.exceptions for leaf in _leaves(part)]
    return [error]
