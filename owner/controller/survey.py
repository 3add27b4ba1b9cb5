"""Survey: what the plan of the schedule depends on, and whether it has changed since the last plan.

Records of changefeeds change all the time, with each move of a log's head; what places their owners hardly ever does.
"""

from reactor.ids import ChangefeedId
from reactor.state import ChangefeedState, ClusterState


class Survey:
    """``look`` at the state in each tick."""

    def __init__(self) -> None:
        #: the change of each changefeed's records that was seen last, and what of them matters
        self._seen: dict[ChangefeedId, tuple[int, object]] = {}
        self._shared: object = None

    def look(self, state: ClusterState, shared: object) -> bool:
        """Return whether there may be something to plan. ``shared``: what matters besides changefeeds."""
        has_changed, self._shared = shared != self._shared, shared
        for id, feed in state.changefeeds.items():
            known = self._seen.get(id)
            if known is not None and known[0] == feed.change:
                continue
            basis = _basis(feed)
            has_changed = has_changed or known is None or known[1] != basis
            self._seen[id] = feed.change, basis
        if len(self._seen) == len(state.changefeeds):
            return has_changed
        self._seen = {id: seen for id, seen in self._seen.items() if id in state.changefeeds}
        return True

    def forget(self) -> None:
        """Something was planned, which may not be stored: there is another plan in any case."""
        self._shared = None


def tables_of(feed: ChangefeedState) -> int:
    return sum(len(unit.tables) for unit in feed.units.values())


def _basis(feed: ChangefeedState) -> object:
    return feed.assignment, feed.owner_revision, feed.has_records, frozenset(feed.broken), tables_of(feed)
