"""Changefeeds from Python, for notebooks: the cluster's operations with words as arguments.

async with Capture.embedded("weir-data") as capture:
    feed = await capture.changefeeds.create("shop", source="postgresql://…", sink="delta+file:///lake")
    await capture.changefeeds.wait_synced(feed.id)
"""

import builtins
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

import anyio
from anyio import CapacityLimiter, to_thread

from capture.api.client import Client, RemoteError
from capture.api.port import ChangefeedSpec, Cluster, TableDiff
from capture.errors import (
    CaptureNotFoundError,
    ChangefeedExistsError,
    ChangefeedNotFoundError,
    JobRefusedError,
    StillRunningError,
)
from reactor.errors import NotOwnerError, WeirError
from reactor.records.changefeed import ChangefeedConfig, FeedState, Mode, SinkMode, Unit
from reactor.views import ChangefeedView

_LOOK_S = 0.1
T = TypeVar("T")

_NAMED = (
    CaptureNotFoundError,
    ChangefeedExistsError,
    ChangefeedNotFoundError,
    JobRefusedError,
    NotOwnerError,
    StillRunningError,
)
_BY_CODE: dict[str, Callable[[str], WeirError]] = {kind.code: kind for kind in _NAMED}
_ENDED = (FeedState.FAILED, FeedState.STOPPED, FeedState.FINISHED, FeedState.REMOVED)


class Changefeeds:
    """What can be done with changefeeds; errors are ``WeirError``, one line with cause and cure."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def create(
        self,
        changefeed_id: str,
        *,
        source: str,
        sink: str,
        mode: Mode | str = Mode.ALL,
        sink_mode: SinkMode | str = SinkMode.UPSERT,
        config: ChangefeedConfig | None = None,
    ) -> ChangefeedView:
        """Source and sink are checked first; nothing is made when one of them does not fit."""
        spec = ChangefeedSpec(
            changefeed_id=changefeed_id,
            source_uri=source,
            sink_uri=sink,
            mode=Mode(mode),
            sink_mode=SinkMode(sink_mode),
            config=config or ChangefeedConfig(),
        )
        return await self._answer(lambda here: here.create(spec), lambda owner: owner.create(spec))

    async def list(self) -> list[ChangefeedView]:
        return await self._answer(lambda here: here.list(), lambda owner: owner.list())

    async def query(self, changefeed_id: str) -> ChangefeedView:
        return await self._answer(lambda here: here.query(changefeed_id), lambda owner: owner.query(changefeed_id))

    async def pause(self, changefeed_id: str) -> ChangefeedView:
        return await self._answer(lambda here: here.pause(changefeed_id), lambda owner: owner.pause(changefeed_id))

    async def resume(self, changefeed_id: str) -> ChangefeedView:
        return await self._answer(lambda here: here.resume(changefeed_id), lambda owner: owner.resume(changefeed_id))

    async def remove(self, changefeed_id: str) -> None:
        await self._answer(lambda here: here.remove(changefeed_id), lambda owner: owner.remove(changefeed_id))

    async def diff(self, changefeed_id: str) -> builtins.list[TableDiff]:
        """Source and sink, table by table, at one position."""
        return await self._answer(lambda here: here.diff(changefeed_id), lambda owner: owner.diff(changefeed_id))

    async def wait_synced(self, changefeed_id: str, *, ts: int = 1) -> ChangefeedView:
        """Until the snapshot is in the sink and the checkpoint has reached ``ts``.

        :raises WeirError: the changefeed has stopped, failed or finished before.
        """
        while True:
            feed = await self.query(changefeed_id)
            if feed.unit is Unit.SYNC and feed.checkpoint_ts >= ts:
                return feed
            if feed.state in _ENDED:
                why = f": {feed.error.message}" if feed.error else ""
                raise WeirError(f"changefeed {changefeed_id} is {feed.state}{why}")
            await anyio.sleep(_LOOK_S)

    async def _answer(self, here: Callable[[Cluster], Awaitable[T]], there: Callable[[Client], T]) -> T:
        """This capture's, if it is the owner, else the owner's, as over HTTP.

        :raises OwnerNotFoundError: there is none at the moment, and nothing was done.
        """
        if self._cluster.is_owner:
            return await here(self._cluster)
        ask = partial(_ask, await self._cluster.owner_address(), there)
        return await to_thread.run_sync(ask, abandon_on_cancel=True, limiter=CapacityLimiter(1))


def _ask(address: str, question: Callable[[Client], T]) -> T:
    """:raises WeirError: the one that the owner's capture raised, where it is one of the interface's."""
    with Client(address) as client:
        try:
            return question(client)
        except RemoteError as error:
            kind = _BY_CODE.get(error.code)
            raise (kind(str(error)) if kind else error) from None
