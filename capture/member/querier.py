"""Querier: plain reads of changefeeds, on any capture, as of one revision of the store (after TiCDC's cdcv2 metadata).

It reads what the worker's watch has brought, so no read costs the store a request.
"""

from collections.abc import Iterable, Mapping

from capture.errors import ChangefeedNotFoundError
from reactor.ids import ChangefeedId
from reactor.records.changefeed import ChangefeedInfo, ChangefeedStatus, FeedState, RunningError, UnitRecord
from reactor.records.log_head import LogHead
from reactor.records.tables.partitioning import TablePartitioning
from reactor.records.tables.schema_change import DdlRecord
from reactor.state import ChangefeedState, ClusterState


class Querier:
    """Without ids, reads return all changefeeds; with ids, each of them.

    :raises ChangefeedNotFoundError: from every read: there is no changefeed of that id.
    """

    def __init__(self, state: ClusterState) -> None:
        self._state = state

    def changefeeds(self, *ids: str) -> list[ChangefeedInfo]:
        return [info for _, info in self._found(ids)]

    def states(self, *ids: str) -> dict[ChangefeedId, tuple[FeedState, RunningError | None, RunningError | None]]:
        """Return state, error and warning."""
        return {feed.id: (info.state, info.error, info.warning) for feed, info in self._found(ids)}

    def progress(self, *ids: str) -> dict[ChangefeedId, ChangefeedStatus]:
        """Return the newest progress that is stored, by the owner or with the changefeed; it never goes back over a
        move."""
        begins = ((feed, ChangefeedStatus(checkpoint_ts=info.start_ts)) for feed, info in self._found(ids))
        return {feed.id: feed.status or begin for feed, begin in begins}

    def changefeed(self, id: str) -> ChangefeedState:
        """Return all that is stored about one."""
        ((feed, _),) = self._found((id,))
        return feed

    def unit(self, id: str) -> UnitRecord | None:
        """Return the record of its units; None before the first has begun."""
        return next(iter(self.changefeed(id).units.values()), None)

    def partitionings(self, id: str) -> Mapping[int, TablePartitioning]:
        """Return the partitionings by table id, of tables that are, or will be, more than one span."""
        return self.changefeed(id).partitionings

    def pending(self, id: str) -> tuple[DdlRecord, ...]:
        """Return the schema changes that the sink does not have, in the log's order."""
        return self.changefeed(id).ddl.pending

    def head(self, id: str) -> LogHead:
        """Return the head of the changefeed's log; at 0 without a log."""
        return next(iter(self.changefeed(id).heads.values()), LogHead())

    def _found(self, ids: Iterable[str]) -> list[tuple[ChangefeedState, ChangefeedInfo]]:
        known = self._state.changefeeds
        found: list[tuple[ChangefeedState, ChangefeedInfo]] = []
        asked = [*ids]
        for id in asked or sorted(known):
            feed = known.get(ChangefeedId(id))
            if feed is not None and feed.info is not None:
                found.append((feed, feed.info))
            elif asked:
                raise ChangefeedNotFoundError(f"no changefeed {id!r}; `weir changefeed list` shows which there are")
        return found
