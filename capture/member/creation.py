"""Changefeed creation: checks source and sink, then stores the changefeed, and waits until it has an owner."""

import time
import uuid
from abc import ABC, abstractmethod

import anyio
import structlog

from agent import sources
from agent.ports.source import Position
from agent.sinks import formats_of
from capture.api import port as views
from capture.errors import ChangefeedExistsError, ChangefeedNotFoundError
from capture.member.ownership import gathering
from capture.member.ownership.gathering import RemoteOwners
from capture.member.schedules import signals
from capture.member.services import CaptureState, PresentMembership
from capture.security.key_mark import read_mark
from capture.security.secrets import mask_uri
from capture.version import installed_version
from reactor import keys
from reactor.errors import NotOwnerError, OwnerNotFoundError, WeirError
from reactor.ids import ChangefeedId, Ts, parse_changefeed_id
from reactor.records import formats
from reactor.records.changefeed import ChangefeedInfo, ChangefeedStatus, SinkMode
from reactor.records.formats import Feature
from reactor.store.port import Compare, Put, Target
from reactor.views import ChangefeedView

_SEEN_TIMEOUT_S = 10.0
_SEEN_POLL_S = 0.02

_log = structlog.get_logger()


class ChangefeedCreation(ABC):
    """The part of ``capture.member.cluster_service`` that creates changefeeds, on the controller."""

    _capture: CaptureState
    _remote: RemoteOwners

    @property
    @abstractmethod
    def is_owner(self) -> bool: ...

    @property
    @abstractmethod
    def _membership(self) -> PresentMembership: ...

    @abstractmethod
    async def query(self, changefeed_id: str, *, tables: bool = True) -> ChangefeedView: ...

    @abstractmethod
    async def remove(self, changefeed_id: str) -> None: ...

    @abstractmethod
    def answers(self, changefeed_id: str = "") -> bool: ...

    @abstractmethod
    async def owner_endpoint(self, changefeed_id: str = "") -> views.Endpoint: ...

    async def create(self, spec: views.ChangefeedSpec) -> ChangefeedView:
        """Check source and sink first, then store the changefeed in one transaction. If cancelled, remove what was
        stored.

        :raises WeirError: a malformed or existing id, or source or sink refuse.
        :raises NotOwnerError: this capture is not the owner; nothing is stored.
        """
        notices = (await self.check(spec)).notices
        changefeed, membership = ChangefeedId(spec.changefeed_id), self._membership
        info_key = str(keys.InfoKey(membership.state.cluster, membership.state.namespace, changefeed))
        same_key = await self.use_cluster_key()
        # epochs of one that was removed under the same name are all smaller: each of them took a revision
        info = self._info(changefeed, spec).with_(epoch=await self._check_absent(membership, info_key, changefeed))
        noted = await self._note_signals(membership, info)
        status = ChangefeedStatus(checkpoint_ts=info.start_ts)
        status_key = str(keys.StatusKey(membership.state.cluster, membership.state.namespace, changefeed))
        with anyio.CancelScope(shield=True):  # the outcome of storing has to be known
            stored = await membership.client.txn(
                [
                    Compare(info_key, Target.CREATE_REVISION, 0),
                    Compare(status_key, Target.CREATE_REVISION, 0),
                    same_key,
                ],
                [Put(info_key, info.encode()), Put(status_key, status.encode()), *noted],
            )
        if not stored.succeeded:
            if await self.use_cluster_key() != same_key:
                raise OwnerNotFoundError("the cluster's secret key was changed at this moment; create it again")
            raise _exists(changefeed)
        try:
            return (await self._first_view(changefeed)).model_copy(update={"notices": notices})
        except anyio.get_cancelled_exc_class():
            with anyio.CancelScope(shield=True):
                await self._withdraw(changefeed)
            raise

    async def check(self, spec: views.ChangefeedSpec) -> views.CheckView:
        """:raises WeirError: why it cannot be created, or not here and now."""
        if not self.is_owner:
            raise NotOwnerError("this capture is not the owner; ask the owner")
        changefeed = parse_changefeed_id(spec.changefeed_id)
        membership = self._membership
        info_key = str(keys.InfoKey(membership.state.cluster, membership.state.namespace, changefeed))
        await self._check_absent(membership, info_key, changefeed)
        if spec.sink_mode is SinkMode.HISTORY:
            formats.refuse_early("sink mode history", Feature.HISTORY, membership.state.format)
        for name, needed in formats.needed_by(spec.config).items():
            formats.refuse_early(name.replace("_", "-"), needed, membership.state.format)
        for name, needed in formats_of(spec.sink_uri).items():
            formats.refuse_early(f"option {name} of the sink", needed, membership.state.format)
        notices = await self._capture.data_plane.check(spec)
        return views.CheckView(
            id=changefeed, source=mask_uri(spec.source_uri), sink=mask_uri(spec.sink_uri), notices=notices
        )

    async def _note_signals(self, membership: PresentMembership, info: ChangefeedInfo) -> list[Put]:
        """Rows of the signal table that are there now ask for nothing; all that follow do.

        :raises WeirError: the table cannot be read, or has too many rows.
        """
        if not info.config.signal_table:
            return []
        ids = signals.ids_of(await self._capture.data_plane.signals(info, signals.ROWS_MAX + 1))
        key = keys.SignalsKey(membership.state.cluster, membership.state.namespace, info.id)
        return [Put(str(key), signals.handled_signals(info, ids).encode())]

    async def _withdraw(self, changefeed: ChangefeedId) -> None:
        """Remove a changefeed that was stored for a caller that has disconnected since."""
        try:
            await self._first_view(changefeed)
            await (
                self.remove(changefeed)
                if self.answers(changefeed)
                else self._remote.remove(await self.owner_endpoint(changefeed), changefeed)
            )
        except WeirError as error:
            _log.warning("a changefeed stays whose creator has left", changefeed=changefeed, error=str(error))

    async def _check_absent(self, membership: PresentMembership, info_key: str, changefeed: ChangefeedId) -> int:
        """The store's revision. :raises ChangefeedExistsError: the id is taken."""
        found = await membership.client.get_prefix(info_key)
        if any(item.key == info_key for item in found.items):
            raise _exists(changefeed)
        return found.revision

    async def use_cluster_key(self) -> Compare:
        """Seal with what the store's mark says; returns what holds while it says so."""
        membership = self._membership
        mark, same = await read_mark(membership.client, membership.state.cluster)
        self._capture.data_plane.keeper.use(mark.sealing)
        return same

    def _info(self, changefeed: ChangefeedId, spec: views.ChangefeedSpec) -> ChangefeedInfo:
        keeper = self._capture.data_plane.keeper
        return ChangefeedInfo(
            id=changefeed,
            source=keeper.seal(spec.source_uri),
            sink=keeper.seal(spec.sink_uri),
            mode=spec.mode,
            sink_mode=spec.sink_mode,
            start_ts=Ts(spec.start_ts or 0),
            target_ts=None if spec.target_ts is None else Ts(spec.target_ts),
            config=spec.config,
            created_at=time.time(),
            creator_version=installed_version(),
            incarnation=uuid.uuid4().hex[:8],
        )

    async def _first_view(self, changefeed: ChangefeedId) -> ChangefeedView:
        """Wait until the owner's watch has delivered what was just stored; one on another capture is not asked."""
        membership = self._membership
        with anyio.move_on_after(_SEEN_TIMEOUT_S):
            while True:
                state = membership.state
                feed, owner = state.changefeeds.get(changefeed), state.owner_of(changefeed)
                try:
                    if not state.has_owners or (owner and owner.capture == membership.info.id):
                        return await self.query(changefeed)
                    if feed is not None and owner is not None and (view := gathering.stored_view(feed)) is not None:
                        return view_of(view)
                    await anyio.sleep(_SEEN_POLL_S)
                except ChangefeedNotFoundError:
                    await anyio.sleep(_SEEN_POLL_S)
                except NotOwnerError:
                    break  # the next owner reads it from etcd
        raise OwnerNotFoundError(f"changefeed {changefeed} is stored, but the owner has not taken it up yet; query it")


def _exists(changefeed: ChangefeedId) -> ChangefeedExistsError:
    return ChangefeedExistsError(f"changefeed {changefeed!r} exists already; choose another id, or remove it first")


def view_of(view: ChangefeedView) -> ChangefeedView:
    try:
        place = sources.place_name(view.source, Position(Ts(view.log_ts), view.log_position))
    except Exception as error:  # a URI or position in etcd that no source wrote must not break other answers
        _log.warning("a position has no name", changefeed=view.id, error=f"{type(error).__name__}: {error}")
        place = ""
    return view.model_copy(update={"source_position": place})
