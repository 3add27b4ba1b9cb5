"""Diff schedule: compares source and sink of changefeeds that ask for it, on the owner, and stores each result.

One comparison at a time, whatever the changefeeds: each holds its tables at a Ts, and reads both sides. The time of the
last one is stored with its result, so another owner continues the schedule.
"""

import time
from collections.abc import Callable, Sequence
from typing import Protocol

import anyio
import structlog

from capture.api import port as views
from capture.member.ownership import router
from capture.member.services import CaptureState, PresentMembership
from reactor import keys
from reactor.errors import EtcdError, NotOwnerError, OwnerNotFoundError, WeirError
from reactor.ids import ChangefeedId, Ts
from reactor.records.changefeed import ChangefeedInfo, FeedState, Unit
from reactor.records.schedules import LastDiff
from reactor.state import ChangefeedState
from reactor.store.port import Compare, Put, Target

_LOOK_S = 5.0
_NAMES_MAX = 20
_RUNNING = (FeedState.NORMAL, FeedState.WARNING)

_log = structlog.get_logger()


class Compares(Protocol):
    """The part of ``capture.member.cluster_service`` that a schedule needs."""

    async def diff(self, changefeed_id: str, asked: views.DiffAsked) -> list[views.TableDiff]: ...


class DiffSchedule:
    """Of one capture, over all its memberships."""

    def __init__(self, capture: CaptureState, service: Compares, *, wall: Callable[[], float] = time.time) -> None:
        self._capture = capture
        self._service = service
        self._wall = wall
        #: when a comparison was tried here, whether or not its result could be stored
        self._tried: dict[ChangefeedId, float] = {}

    async def run(self) -> None:
        while True:
            await anyio.sleep(_LOOK_S)
            for info in self._due():
                await self._compare(info)

    def _due(self) -> list[ChangefeedInfo]:
        membership = self._capture.membership
        if membership is None:
            return []
        feeds = membership.state.changefeeds
        self._tried = {id: at for id, at in self._tried.items() if id in feeds}
        mine = [feed for id, feed in sorted(feeds.items()) if router.answers(membership, id)]
        return [feed.info for feed in mine if feed.info and self._is_due(feed, feed.info)]

    def _is_due(self, feed: ChangefeedState, info: ChangefeedInfo) -> bool:
        every = info.config.diff_every_seconds
        is_syncing = any(unit.unit is Unit.SYNC for unit in feed.units.values())
        if not every or feed.broken or info.state not in _RUNNING or not is_syncing:
            return False
        stored = feed.last_diff.time if feed.last_diff else info.created_at
        return self._wall() >= max(stored, self._tried.get(info.id, 0.0)) + every

    async def _compare(self, info: ChangefeedInfo) -> None:
        """Errors are a result, too: nobody else would see them."""
        membership = self._capture.membership
        began, sample = self._wall(), info.config.diff_sample
        try:
            found = await self._service.diff(info.id, views.DiffAsked(sample=sample, resume=True))
            result = _result(found)
        except (NotOwnerError, OwnerNotFoundError):
            return  # the next owner compares
        except WeirError as error:
            result = LastDiff(time=0.0, error=str(error))
        except Exception as error:
            _log.exception("a comparison has crashed", changefeed=info.id)
            result = LastDiff(time=0.0, error=f"it has crashed ({type(error).__name__}); see the log of this capture")
        now = self._tried[info.id] = self._wall()
        result = result.with_(time=now, seconds=max(now - began, 0.0), sample=sample)
        if not result.is_equal:
            fields = {"differing": result.differing, "error": result.error}
            _log.warning("source and sink are not equal", changefeed=info.id, ts=result.ts, **fields)
        if membership is not None:
            await self._store(membership, info, result)

    async def _store(self, membership: PresentMembership, info: ChangefeedInfo, result: LastDiff) -> None:
        """Unless the changefeed is gone: a result must not outlive it."""
        state = membership.state
        stored = state.raw.get(str(keys.InfoKey(state.cluster, info.namespace, info.id)))
        if stored is None:
            return
        is_there = Compare(stored.key, Target.CREATE_REVISION, stored.create_revision)
        key = keys.LastDiffKey(state.cluster, info.namespace, info.id)
        try:
            await membership.client.txn([is_there], [Put(str(key), result.encode())])
        except EtcdError as error:
            _log.warning("the result of a comparison is not stored", changefeed=info.id, error=str(error))


def _result(found: Sequence[views.TableDiff]) -> LastDiff:
    waiting = [one.table for one in found if one.waiting]
    differing = [one.table for one in found if not (one.equal or one.waiting)]
    return LastDiff(
        time=0.0,
        ts=Ts(max((one.ts for one in found if not one.waiting), default=0)),
        compared=len(found) - len(waiting),
        differ=len(differing),
        wait=len(waiting),
        differing=tuple(differing[:_NAMES_MAX]),
        waiting=tuple(waiting[:_NAMES_MAX]),
    )
