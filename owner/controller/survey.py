"""Survey: what the plan of the schedule depends on, and whether it has changed since the last plan.

Records of changefeeds change all the time, with each move of a log's head; what places their owners hardly ever does.
"""

from reactor.ids import ChangefeedId
from reactor.state import ChangefeedState, ClusterState


class Survey:
    """``look`` at the state in each tick."""

    def __init__(self) -> None:
        #: what matters of each changefeed
        self._seen: dict[ChangefeedId, object] = {}
        #: the state that was seen last, and its changes until then
        self._at: tuple[ClusterState | None, int] = None, 0
        self._shared: object = None

    def look(self, state: ClusterState, shared: object) -> bool:
        """Return whether there may be something to plan. ``shared``: what matters besides changefeeds."""
        has_changed, self._shared = shared != self._shared, shared
        (of, at), self._at = self._at, (state, state.changes.latest)
        for id in state.changes.since(at) if of is state else {**self._seen, **state.changefeeds}:
            feed, known = state.changefeeds.get(id), self._seen.pop(id, None)
            if feed is not None:
                self._seen[id] = _basis(feed)
            has_changed = has_changed or known != self._seen.get(id)
        return has_changed

    def forget(self) -> None:
        """Something was planned, which may not be stored: there is another plan in any case."""
        self._shared = None


def tables_of(feed: ChangefeedState) -> int:
    return sum(len(unit.tables) for unit in feed.units.values())


def _basis(feed: ChangefeedState) -> object:
    return feed.assignment, feed.owner_revision, feed.has_records, frozenset(feed.broken), tables_of(feed)
