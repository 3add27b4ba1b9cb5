"""Cluster service: implements ``capture.api.port.Cluster`` on a capture.

Decisions of owners and controller are requested as jobs (``capture.member.ownership.router``). Creating a changefeed
and comparing its tables need the source and the sink, and are done by this capture's data plane. Without a membership
(the session was just lost), everything raises ``OwnerNotFoundError``, which is retryable.
"""

import builtins
import os
import time
from collections.abc import Mapping
from typing import Any

import anyio
import structlog

from capture.api import port as views
from capture.member.amendments.amendments import Amendments
from capture.member.amendments.rewind import rewind
from capture.member.comparisons import diff as comparison
from capture.member.copies import CopyPlace, CopyProgress, with_problems, with_progress
from capture.member.creation import ChangefeedCreation, view_of
from capture.member.kept_progress import KeptProgress
from capture.member.ownership import draining, gathering, router
from capture.member.ownership.gathering import RemoteOwners
from capture.member.preflight import refuse_resync, refuse_split
from capture.member.querier import Querier
from capture.member.schedules.results import result_of, store_result
from capture.member.services import CaptureState, DataPlane, PresentMembership
from capture.security.key_rotation import rotate
from capture.version import installed_version
from owner import jobs
from owner.scheduler.spans import shared_spans
from reactor.errors import NotOwnerError, OwnerNotFoundError
from reactor.ids import CaptureId, ChangefeedId, Ts
from reactor.records.capture import CaptureInfo
from reactor.records.changefeed import ChangefeedInfo, UnitRecord
from reactor.records.log_head import LogHead
from reactor.records.sync_point import SyncPoint
from reactor.records.tables.partitioning import TablePartitioning
from reactor.records.tables.schema_change import DdlRecord
from reactor.state import ClusterState
from reactor.views import ChangefeedView, OwnerMoveView

_SEEN_TIMEOUT_S = 10.0
_SEEN_POLL_S = 0.02
#: captures read their key files every two seconds
_ROTATION_WAIT_S, _ROTATION_POLL_S = 5.0, 0.5
_NO_JOB = ""
_ISOLATED = "it reaches the store but no other capture: repair the network, or stop it"

_log = structlog.get_logger()


class ClusterService(ChangefeedCreation, Amendments):
    """See ``capture.api.port.Cluster`` for the methods."""

    def __init__(self, capture: CaptureState, remote: RemoteOwners) -> None:
        self._capture = capture
        self._remote = remote
        self.copy_problems: dict[CopyPlace, str] = {}

    @property
    def is_owner(self) -> bool:
        return self._capture.membership is not None and self._capture.membership.candidacy.is_owner

    def answers(self, changefeed_id: str = "") -> bool:
        membership = self._capture.membership
        return membership is not None and router.answers(membership, changefeed_id)

    async def wait_for_owner(self, changefeed_id: str) -> None:
        if (membership := self._capture.membership) is not None:
            await router.wait_for_owner(membership, changefeed_id)

    async def owner_endpoint(self, changefeed_id: str = "") -> views.Endpoint:
        owner = router.answering(self._membership, changefeed_id)
        return views.Endpoint(owner.address, owner.node)

    async def status(self) -> views.StatusView:
        membership = self._capture.membership
        return views.StatusView(
            version=installed_version(),
            id=membership.info.id if membership else "",
            cluster_id=self._capture.settings.cluster_id,
            pid=os.getpid(),
            is_owner=self.is_owner,
            liveness=self._capture.liveness,
        )

    async def health(self) -> views.HealthView:
        membership = self._capture.membership
        if membership is None:
            return views.HealthView(healthy=False, problem=self._capture.absence)
        owner = membership.state.owner
        if owner is None:
            return views.HealthView(healthy=False, problem="no capture is owner at the moment")
        return views.HealthView(healthy=True, owner=owner.capture)

    async def captures(self) -> builtins.list[views.CaptureView]:
        """Only the owner knows what runs where: other captures show the members without it."""
        state = self._membership.state
        owner = state.owner.capture if state.owner else None
        waiting = [views.CaptureView(**one.model_dump()) for one in state.waiting.values()]
        feeds = await self.list(tables=False) if self.is_owner else []
        spans = draining.span_counts(feeds)
        members = [
            views.CaptureView(
                **(info.model_dump() | {"fault": info.fault or (_ISOLATED if info.is_isolated else "")}),
                is_owner=info.id == owner,
                owns=tuple(id for id in sorted(state.changefeeds) if _is_owner(state, id, info.id)),
                workers=tuple(f"{feed.id}/{feed.unit}" for feed in feeds if feed.unit and feed.worker == info.id),
                spans=spans[info.id],
                faults=_faults(state, info),
            )
            for info in sorted(state.captures.values(), key=lambda info: info.id)
        ]
        return members + sorted(waiting, key=lambda view: view.id)

    async def ready(self) -> views.ReadyView:
        """Return whether this capture is a member that moves rows."""
        is_member = self._capture.membership is not None
        is_fit = self._capture.data_plane.health.fault is None
        return views.ReadyView(ready=is_member, waits_for="" if is_member else self._capture.absence, is_fit=is_fit)

    async def list(self, *, tables: bool = True) -> list[ChangefeedView]:
        """On the controller: of all owners. :raises NotOwnerError: this capture is not elected."""
        membership = self._membership
        if not membership.state.has_owners:
            return await self._listed(tables=tables)
        if not self.is_owner:
            raise NotOwnerError("this capture is not the owner; ask the owner")
        return await gathering.gather(membership, self.owned, self._remote, tables=tables)

    async def owned(self, *, tables: bool = True) -> "builtins.list[ChangefeedView]":
        return await self._listed(tables=tables) if self._membership.state.has_owners or self.is_owner else []

    async def _listed(self, *, tables: bool) -> "builtins.list[ChangefeedView]":
        return [self._shown(view_of(view)) for view in await self.ask(jobs.List(_NO_JOB, tables))]

    async def query(self, changefeed_id: str, *, tables: bool = True) -> ChangefeedView:
        query = jobs.Query(_NO_JOB, ChangefeedId(changefeed_id), tables)
        return self._shown(view_of(await self.ask(query)))

    def _shown(self, view: ChangefeedView) -> ChangefeedView:
        return with_problems(with_progress(view, self.copies), self.copy_problems)

    async def pause(self, changefeed_id: str) -> ChangefeedView:
        await self.ask(jobs.Pause(_NO_JOB, ChangefeedId(changefeed_id)))
        return await self.query(changefeed_id)

    async def resume(
        self, changefeed_id: str, *, overwrite_checkpoint_ts: int | None = None, resync: bool = False
    ) -> ChangefeedView:
        overwrite = None if overwrite_checkpoint_ts is None else Ts(overwrite_checkpoint_ts)
        if resync:
            refuse_resync((await self.query(changefeed_id, tables=False)).sink, overwrite)
        await self.ask(jobs.Resume(_NO_JOB, ChangefeedId(changefeed_id), overwrite, is_resync=resync))
        return await self.query(changefeed_id)

    async def rotate_secret(self) -> views.RotationView:
        if not self.is_owner:
            raise NotOwnerError("this capture is not the owner; ask the owner")
        membership, keeper = self._membership, self._capture.data_plane.keeper
        deadline = anyio.current_time() + _ROTATION_WAIT_S
        while True:
            found = await rotate(membership.client, membership.state.cluster, keeper)
            if found.done or anyio.current_time() >= deadline:
                return views.RotationView.model_validate(found, from_attributes=True)
            await anyio.sleep(_ROTATION_POLL_S)

    @property
    def copies(self) -> Mapping[CopyPlace, CopyProgress]:
        """Return those in progress on this capture."""
        return self._membership.copies

    @property
    def data_plane(self) -> DataPlane:
        return self._capture.data_plane

    async def rewind(self, changefeed_id: str, ts: int) -> views.RewindView:
        """:raises JobRefusedError: it is not stopped, its log is too short, or the rewind would have no effect at its
        sink."""
        return await rewind(self, self._capture.data_plane, self.info_of(changefeed_id), Ts(ts))

    async def remove(self, changefeed_id: str) -> None:
        await self.ask(jobs.Remove(_NO_JOB, ChangefeedId(changefeed_id)))

    async def move_table(self, changefeed_id: str, table: str, capture_id: str) -> views.MoveView:
        table_id = await self.table_id(changefeed_id, table)
        spans = await self.ask(jobs.MoveTable(_NO_JOB, ChangefeedId(changefeed_id), table_id, CaptureId(capture_id)))
        return views.MoveView(changefeed_id=changefeed_id, table=table, capture=capture_id, spans=spans)

    async def split(self, changefeed_id: str, table: str, spans: int | None = None) -> views.CutView:
        table_id = await self.table_id(changefeed_id, table)
        wanted = shared_spans(len(self._membership.state.captures)) if spans is None else spans
        refuse_split((await self.query(changefeed_id, tables=False)).sink)
        now = await self.ask(jobs.Repartition(_NO_JOB, ChangefeedId(changefeed_id), table_id, wanted))
        return views.CutView(changefeed_id=changefeed_id, table=table, spans=now, wanted=wanted)

    async def rebalance(self, changefeed_id: str) -> None:
        await self.ask(jobs.Rebalance(_NO_JOB, ChangefeedId(changefeed_id)))

    async def drain(self, capture_id: str) -> views.DrainView:
        membership, capture = self._membership, CaptureId(capture_id)
        if not membership.state.has_owners:
            remaining = await self.ask(jobs.DrainCapture(_NO_JOB, capture))
        else:
            feeds = await self.list(tables=False)
            await draining.mark(membership.client, membership, capture)
            remaining = draining.remaining(membership, capture, feeds)
        return views.DrainView(capture=capture_id, remaining=remaining)

    async def move_owner(self, changefeed_id: str, capture_id: str) -> OwnerMoveView:
        await self.ask(jobs.MoveOwner(_NO_JOB, ChangefeedId(changefeed_id), CaptureId(capture_id)))
        return OwnerMoveView(changefeed_id=changefeed_id, capture=capture_id)

    async def resign_owner(self) -> views.ResignView:
        membership = self._membership
        await self.ask(jobs.ResignOwner(_NO_JOB))
        with anyio.move_on_after(_SEEN_TIMEOUT_S):
            while True:
                owner = membership.state.owner
                if owner is not None and owner.capture != membership.info.id:
                    return views.ResignView(capture=membership.info.id, owner=owner.capture)
                await anyio.sleep(_SEEN_POLL_S)
        raise OwnerNotFoundError(
            f"capture {membership.info.id} has resigned, but no other is owner yet; "
            "`weir capture list` shows which there are"
        )

    async def diff(self, changefeed_id: str, asked: views.DiffAsked = views.WHOLE) -> "builtins.list[views.TableDiff]":
        """Compare, and store the result as the changefeed's newest.

        :raises JobRefusedError: the changefeed does not run.
        """
        info, began = self.info_of(changefeed_id), time.time()
        found = await self.compare(changefeed_id, asked)
        if (membership := self._capture.membership) is not None:
            now = time.time()
            result = result_of(found).with_(time=now, seconds=max(now - began, 0.0), sample=asked.sample)
            await store_result(membership, info, result)
        return found

    async def compare(self, changefeed_id: str, asked: views.DiffAsked) -> "builtins.list[views.TableDiff]":
        """Hold all spans at one Ts, compare, and release them; in parts, if it takes long.

        :raises JobRefusedError: the changefeed does not run.
        """
        info = self.info_of(changefeed_id)
        kept = KeptProgress(self._membership, info)
        return await comparison.compare(self, self._capture.data_plane, info, asked, kept)

    async def repair(self, changefeed_id: str, asked: views.RepairAsked) -> "builtins.list[views.TableRepair]":
        return await comparison.repair(self, self._capture.data_plane, self.info_of(changefeed_id), asked)

    async def sync_points(self, changefeed_id: str) -> "builtins.list[SyncPoint]":
        """:raises ChangefeedNotFoundError: no such changefeed."""
        points = self._querier.changefeed(changefeed_id).sync_points
        return [points[ts] for ts in sorted(points)]

    def info_of(self, changefeed_id: str) -> ChangefeedInfo:
        """:raises ChangefeedNotFoundError: no such changefeed."""
        (info,) = self._querier.changefeeds(changefeed_id)
        return info

    def unit_of(self, changefeed_id: str) -> UnitRecord | None:
        """Return the record of its units; None before the first has begun."""
        return self._querier.unit(changefeed_id)

    def cuts_of(self, changefeed_id: str) -> Mapping[int, TablePartitioning]:
        """Return the partitionings by table id, of tables that are, or will be, more than one span."""
        return self._querier.partitionings(changefeed_id)

    def pending_of(self, changefeed_id: str) -> tuple[DdlRecord, ...]:
        """Return the schema changes that its sink does not have, in the log's order."""
        return self._querier.pending(changefeed_id)

    def head_of(self, changefeed_id: str) -> LogHead:
        """Return the head of the changefeed's log as this capture knows it; at 0 without a log."""
        return self._querier.head(changefeed_id)

    @property
    def _querier(self) -> Querier:
        return Querier(self._membership.state)

    async def ask(self, job: jobs.Job) -> Any:
        """:raises NotOwnerError: this capture is not the owner.
        :raises OwnerNotFoundError: the changefeed has no owner at the moment.
        :raises JobRefusedError: the owner refused; the error has the reason.
        """
        return await router.ask(self._membership, job)

    @property
    def _membership(self) -> PresentMembership:
        if self._capture.membership is None:
            raise OwnerNotFoundError(f"{self._capture.absence}; try again in a few seconds")
        return self._capture.membership


def _faults(state: ClusterState, info: CaptureInfo) -> tuple[str, ...]:
    """Return what a capture lacks to work for single changefeeds."""
    found = ((id, feed.positions.get(info.id)) for id, feed in sorted(state.changefeeds.items()))
    faults = ((id, position.fault.message) for id, position in found if position and position.fault)
    return tuple(f"{id}: {text}" for id, text in faults if text != info.fault)


def _is_owner(state: ClusterState, changefeed: ChangefeedId, capture: CaptureId) -> bool:
    owner = state.owner_of(changefeed)
    return owner is not None and owner.capture == capture
