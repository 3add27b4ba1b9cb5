"""Changefeeds from Python, for notebooks: the cluster's door with words as arguments.

async with Capture.embedded("weir-data") as capture:
    feed = await capture.changefeeds.create("shop", source="postgresql://…", sink="delta+file:///lake")
    await capture.changefeeds.wait_synced(feed.id)
"""

import builtins

import anyio

from capture.cluster import ChangefeedSpec, ChangefeedView, Cluster, TableDiff
from reactor.errors import WeirError
from reactor.records import ChangefeedConfig, FeedState, Mode, SinkMode, Unit

_LOOK_S = 0.1
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
        return await self._cluster.create(spec)

    async def list(self) -> list[ChangefeedView]:
        return await self._cluster.list()

    async def query(self, changefeed_id: str) -> ChangefeedView:
        return await self._cluster.query(changefeed_id)

    async def pause(self, changefeed_id: str) -> ChangefeedView:
        return await self._cluster.pause(changefeed_id)

    async def resume(self, changefeed_id: str) -> ChangefeedView:
        return await self._cluster.resume(changefeed_id)

    async def remove(self, changefeed_id: str) -> None:
        await self._cluster.remove(changefeed_id)

    async def diff(self, changefeed_id: str) -> builtins.list[TableDiff]:
        """Source and sink, table by table, at one position."""
        return await self._cluster.diff(changefeed_id)

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
