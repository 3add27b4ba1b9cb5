"""Diff schedule: compares source and sink of changefeeds that ask for it, on the owner, and stores each result.

One comparison at a time, whatever the changefeeds: each holds its tables at a Ts, and reads both sides. The time of the
last one is stored with its result, so another owner continues the schedule. One that was asked for counts, too.
"""

import time
from collections.abc import Callable
from typing import Protocol

import anyio
import structlog

from capture.api import port as views
from capture.member.ownership import router
from capture.member.schedules.results import result_of, store_result
from capture.member.services import CaptureState
from reactor.errors import NotOwnerError, OwnerNotFoundError, WeirError
from reactor.ids import ChangefeedId
from reactor.records.changefeed import ChangefeedInfo, FeedState, Unit
from reactor.records.schedules import LastDiff
from reactor.state import ChangefeedState

_LOOK_S = 5.0
_RUNNING = (FeedState.NORMAL, FeedState.WARNING)

_log = structlog.get_logger()


class Compares(Protocol):
    """The part of ``capture.member.cluster_service`` that a schedule needs."""

    async def compare(self, changefeed_id: str, asked: views.DiffAsked) -> list[views.TableDiff]:
        """Compare, and leave the result to the caller."""
        ...


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
            found = await self._service.compare(info.id, views.DiffAsked(sample=sample, resume=True))
            result = result_of(found)
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
            await store_result(membership, info, result)
