"""Cluster service: carries out ``capture.api.port.Cluster`` on a capture.

What the owner has to decide goes to the candidacy as a job; creating a changefeed and comparing its tables need the
source and the sink, and are done by this capture's data plane. While there is no membership (the session was lost a
moment ago), everything answers ``OwnerNotFoundError``, which says to ask again.
"""

import builtins
import os
import time
import uuid
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

import anyio
import structlog

from agent import sources
from agent.ports.source import Position
from capture.api import port as views
from capture.config import ServerSettings
from capture.errors import ChangefeedExistsError, ChangefeedNotFoundError, JobRefusedError
from capture.member import amendment
from capture.member import diff as comparison
from capture.member.preflight import refuse_split
from capture.version import installed_version
from owner import jobs
from owner.scheduler.spans import shared_spans
from reactor import keys
from reactor.errors import NotOwnerError, OwnerNotFoundError
from reactor.ids import CaptureId, ChangefeedId, Ts, parse_changefeed_id
from reactor.messages import Liveness
from reactor.records import formats
from reactor.records.changefeed import CaptureInfo, ChangefeedInfo, ChangefeedStatus, LogHead, UnitRecord
from reactor.records.partitioning import TablePartitioning
from reactor.state import ClusterState
from reactor.store.port import Compare, EtcdClient, Put, Target
from reactor.views import ChangefeedView, TableView

if TYPE_CHECKING:
    from capture.member.services import DataPlane

_SEEN_TIMEOUT_S = 10.0
_SEEN_LOOK_S = 0.02
_NO_JOB = ""

_log = structlog.get_logger()


class PresentCandidacy(Protocol):
    """The candidacy of this capture, elected or not."""

    @property
    def is_owner(self) -> bool: ...

    async def submit(self, job: jobs.Job) -> Any: ...


class PresentMembership(Protocol):
    """The present membership."""

    @property
    def info(self) -> CaptureInfo: ...

    @property
    def client(self) -> EtcdClient: ...

    @property
    def state(self) -> ClusterState: ...

    @property
    def candidacy(self) -> PresentCandidacy: ...


class CaptureState(Protocol):
    """What the service belongs to: ``capture.capture.Capture``. ``life`` is None before and between memberships."""

    @property
    def settings(self) -> ServerSettings: ...

    @property
    def data_plane(self) -> "DataPlane": ...

    @property
    def life(self) -> PresentMembership | None: ...

    @property
    def has_lived(self) -> bool:
        """Whether there was a membership at all: Spark starts before the first one."""
        ...

    @property
    def liveness(self) -> Liveness: ...


class ClusterService:
    """See ``capture.api.port.Cluster`` for what each method promises."""

    def __init__(self, capture: CaptureState) -> None:
        self._capture = capture

    @property
    def is_owner(self) -> bool:
        return self._capture.life is not None and self._capture.life.candidacy.is_owner

    async def owner_address(self) -> str:
        state = self._life.state
        owner = state.captures.get(state.owner.capture) if state.owner else None
        if owner is None:
            raise OwnerNotFoundError("no capture is owner at the moment; try again in a few seconds")
        return owner.address

    async def status(self) -> views.StatusView:
        life = self._capture.life
        return views.StatusView(
            version=installed_version(),
            id=life.info.id if life else "",
            cluster_id=self._capture.settings.cluster_id,
            pid=os.getpid(),
            is_owner=self.is_owner,
            liveness=self._capture.liveness,
        )

    async def health(self) -> views.HealthView:
        life = self._capture.life
        if life is None:
            return views.HealthView(healthy=False, problem=self._absence)
        owner = life.state.owner
        if owner is None:
            return views.HealthView(healthy=False, problem="no capture is owner at the moment")
        return views.HealthView(healthy=True, owner=owner.capture)

    async def captures(self) -> builtins.list[views.CaptureView]:
        """What runs where is known to the owner alone: elsewhere the members are shown without it."""
        state = self._life.state
        owner = state.owner.capture if state.owner else None
        feeds = await self.list() if self.is_owner else []
        spans = Counter(span.capture for feed in feeds for table in feed.tables for span in table.spans)
        return [
            views.CaptureView(
                **info.model_dump(),
                is_owner=info.id == owner,
                workers=tuple(f"{feed.id}/{feed.unit}" for feed in feeds if feed.unit and feed.worker == info.id),
                spans=spans[info.id],
            )
            for info in sorted(state.captures.values(), key=lambda info: info.id)
        ]

    async def create(self, spec: views.ChangefeedSpec) -> ChangefeedView:
        """Check source and sink first, then store the changefeed in one transaction: nothing half-created.

        :raises WeirError: a malformed or taken id, or what source and sink say.
        :raises NotOwnerError: this capture is not the owner; nothing is stored.
        """
        if not self.is_owner:
            raise NotOwnerError("this capture is not the owner; ask the owner")
        changefeed = parse_changefeed_id(spec.changefeed_id)
        life = self._life
        info_key = str(keys.InfoKey(life.state.cluster, life.state.namespace, changefeed))
        await self._check_absent(life, info_key, changefeed)
        for name, needed in formats.needed_by(spec.config).items():
            formats.refuse_early(name.replace("_", "-"), needed, life.state.format)
        notices = await self._capture.data_plane.check(spec)
        # epochs of one that was removed under the same name are all smaller: each of them took a revision
        info = self._info(changefeed, spec).with_(epoch=await self._check_absent(life, info_key, changefeed))
        status = ChangefeedStatus(checkpoint_ts=info.start_ts)
        status_key = str(keys.StatusKey(life.state.cluster, life.state.namespace, changefeed))
        stored = await life.client.txn(
            [Compare(info_key, Target.CREATE_REVISION, 0), Compare(status_key, Target.CREATE_REVISION, 0)],
            [Put(info_key, info.encode()), Put(status_key, status.encode())],
        )
        if not stored.succeeded:
            raise _exists(changefeed)
        return (await self._first_view(changefeed)).model_copy(update={"notices": notices})

    async def _check_absent(self, life: "PresentMembership", info_key: str, changefeed: ChangefeedId) -> int:
        """The store's revision. :raises ChangefeedExistsError: the id is taken."""
        found = await life.client.get_prefix(info_key)
        if any(item.key == info_key for item in found.items):
            raise _exists(changefeed)
        return found.revision

    async def list(self) -> list[ChangefeedView]:
        return [_view(view) for view in await self.ask(jobs.List(_NO_JOB))]

    async def query(self, changefeed_id: str) -> ChangefeedView:
        return _view(await self.ask(jobs.Query(_NO_JOB, ChangefeedId(changefeed_id))))

    async def pause(self, changefeed_id: str) -> ChangefeedView:
        await self.ask(jobs.Pause(_NO_JOB, ChangefeedId(changefeed_id)))
        return await self.query(changefeed_id)

    async def resume(self, changefeed_id: str, *, overwrite_checkpoint_ts: int | None = None) -> ChangefeedView:
        overwrite = None if overwrite_checkpoint_ts is None else Ts(overwrite_checkpoint_ts)
        await self.ask(jobs.Resume(_NO_JOB, ChangefeedId(changefeed_id), overwrite))
        return await self.query(changefeed_id)

    async def update(self, changefeed_id: str, asked: views.ChangefeedUpdate) -> views.UpdateView:
        """What source and sink say against it is found out first. :raises JobRefusedError: it is not stopped."""
        return await amendment.update(self, self._capture.data_plane, self.info_of(changefeed_id), asked)

    async def rewind(self, changefeed_id: str, ts: int) -> views.RewindView:
        """:raises JobRefusedError: it is not stopped, its log is too short, or its sink would not notice."""
        return await amendment.rewind(self, self._capture.data_plane, self.info_of(changefeed_id), Ts(ts))

    async def remove(self, changefeed_id: str) -> None:
        await self.ask(jobs.Remove(_NO_JOB, ChangefeedId(changefeed_id)))

    async def move_table(self, changefeed_id: str, table: str, capture_id: str) -> views.MoveView:
        table_id = await self._table_id(changefeed_id, table)
        spans = await self.ask(jobs.MoveTable(_NO_JOB, ChangefeedId(changefeed_id), table_id, CaptureId(capture_id)))
        return views.MoveView(changefeed_id=changefeed_id, table=table, capture=capture_id, spans=spans)

    async def split(self, changefeed_id: str, table: str, spans: int | None = None) -> views.CutView:
        table_id = await self._table_id(changefeed_id, table)
        wanted = shared_spans(len(self._life.state.captures)) if spans is None else spans
        refuse_split((await self.query(changefeed_id)).sink)
        now = await self.ask(jobs.Repartition(_NO_JOB, ChangefeedId(changefeed_id), table_id, wanted))
        return views.CutView(changefeed_id=changefeed_id, table=table, spans=now, wanted=wanted)

    async def _table_id(self, changefeed_id: str, table: str) -> int:
        """:raises JobRefusedError: the changefeed has no such table."""
        for known in await self.tables(changefeed_id):
            if known.table == table:
                return known.table_id
        text = f"changefeed {changefeed_id} has no table {table}; `weir tables -c {changefeed_id}` shows its tables"
        raise JobRefusedError(text)

    async def rebalance(self, changefeed_id: str) -> None:
        await self.ask(jobs.Rebalance(_NO_JOB, ChangefeedId(changefeed_id)))

    async def drain(self, capture_id: str) -> views.DrainView:
        remaining = await self.ask(jobs.DrainCapture(_NO_JOB, CaptureId(capture_id)))
        return views.DrainView(capture=capture_id, remaining=remaining)

    async def resign_owner(self) -> views.ResignView:
        life = self._life
        await self.ask(jobs.ResignOwner(_NO_JOB))
        with anyio.move_on_after(_SEEN_TIMEOUT_S):
            while True:
                owner = life.state.owner
                if owner is not None and owner.capture != life.info.id:
                    return views.ResignView(capture=life.info.id, owner=owner.capture)
                await anyio.sleep(_SEEN_LOOK_S)
        raise OwnerNotFoundError(
            f"capture {life.info.id} has resigned, but no other is owner yet; `weir capture list` shows which there are"
        )

    async def tables(self, changefeed_id: str) -> "builtins.list[TableView]":
        return [*(await self.query(changefeed_id)).tables]

    async def diff(self, changefeed_id: str) -> "builtins.list[views.TableDiff]":
        """Hold all spans at one Ts, compare, let go. :raises JobRefusedError: the changefeed does not run."""
        return await comparison.compare(self, self._capture.data_plane, self.info_of(changefeed_id))

    def info_of(self, changefeed_id: str) -> ChangefeedInfo:
        """:raises ChangefeedNotFoundError: no such changefeed."""
        feed = self._life.state.changefeeds.get(ChangefeedId(changefeed_id))
        if feed is None or feed.info is None:
            raise ChangefeedNotFoundError(
                f"no changefeed {changefeed_id!r}; `weir changefeed list` shows which there are"
            )
        return feed.info

    def unit_of(self, changefeed_id: str) -> UnitRecord | None:
        """Where its units are; None before the first has begun."""
        feed = self._life.state.changefeeds.get(ChangefeedId(changefeed_id))
        return next(iter(feed.units.values()), None) if feed else None

    def cuts_of(self, changefeed_id: str) -> Mapping[int, TablePartitioning]:
        """By table id, of tables that are not one span, or shall not be."""
        feed = self._life.state.changefeeds.get(ChangefeedId(changefeed_id))
        return feed.partitionings if feed else {}

    def head_of(self, changefeed_id: str) -> LogHead:
        """Where the changefeed's log is, as this capture knows; at 0 without a log."""
        feed = self._life.state.changefeeds.get(ChangefeedId(changefeed_id))
        return next(iter(feed.heads.values()), LogHead()) if feed else LogHead()

    async def ask(self, job: jobs.Job) -> Any:
        """:raises NotOwnerError: this capture is not the owner. :raises JobRefusedError: the owner says why."""
        return await self._life.candidacy.submit(job)

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
        """The owner's watch brings what was stored a moment ago."""
        with anyio.move_on_after(_SEEN_TIMEOUT_S):
            while True:
                try:
                    return await self.query(changefeed)
                except ChangefeedNotFoundError:
                    await anyio.sleep(_SEEN_LOOK_S)
                except NotOwnerError:
                    break  # the next owner has it from etcd
        raise OwnerNotFoundError(f"changefeed {changefeed} is stored, but the owner has not taken it up yet; query it")

    @property
    def _life(self) -> PresentMembership:
        if self._capture.life is None:
            raise OwnerNotFoundError(f"{self._absence}; try again in a few seconds")
        return self._capture.life

    @property
    def _absence(self) -> str:
        """Why there is no membership."""
        if self._capture.has_lived:
            return "this capture lost its session with etcd and starts again"
        return "this capture is starting, and has not joined its cluster yet"


def _exists(changefeed: ChangefeedId) -> ChangefeedExistsError:
    return ChangefeedExistsError(f"changefeed {changefeed!r} exists already; choose another id, or remove it first")


def _view(view: ChangefeedView) -> ChangefeedView:
    try:
        place = sources.place_name(view.source, Position(Ts(view.log_ts), view.log_position))
    except Exception as error:  # a URI or position in etcd that no source wrote takes nobody's answer away
        _log.warning("a position has no name", changefeed=view.id, error=f"{type(error).__name__}: {error}")
        place = ""
    return view.model_copy(update={"source_position": place})
