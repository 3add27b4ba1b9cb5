"""Shared progress: writes how far all changefeeds of one capture are, in one record and at most once per interval.

Entries that count are kept, also of changefeeds that do not run at the moment: without them, a position would go back
to the stored status. The transaction requires no assignments: an owner hands over by writing the status, which makes
its entry void (``reactor.membership.progress``), and one whose capture is gone is fenced by the capture's record.
"""

from collections.abc import Collection, Iterable, Mapping

from owner.progress.watermark import has_advanced
from owner.settings import OwnerSettings
from reactor import keys, patches
from reactor.effects import Commit, Effect, WakeAt
from reactor.ids import CaptureId, ChangefeedId
from reactor.membership.progress import CaptureProgress, OwnedProgress, counts, entry_of
from reactor.records.changefeed import ChangefeedStatus
from reactor.records.formats import Feature
from reactor.state import ChangefeedState, ClusterState


class SharedProgress:
    def __init__(self, capture: CaptureId, settings: OwnerSettings) -> None:
        self._capture = capture
        self._settings = settings
        self._written_at = float("-inf")
        self._times_written_at = float("-inf")
        #: the changefeeds whose newest positions the last tick has found not to be stored
        self.ahead: Collection[ChangefeedId] = ()

    def tick(
        self, state: ClusterState, latest: Mapping[ChangefeedId, ChangefeedStatus], now: float, *, owned: int = 1
    ) -> list[Effect]:
        """``latest``: the newest positions of changefeeds that run here; those of others are stored. ``owned``: how
        many there are."""
        self.ahead = ()
        if state.format < Feature.PROGRESS:
            return []
        known = ((id, status, state.changefeeds[id].status) for id, status in latest.items())
        ahead = {id: status for id, status, stored in known if status is not stored and status != stored}
        self.ahead = ahead.keys()
        if not ahead:
            return []
        has_moved = any(has_advanced(state.changefeeds[id].status, status) for id, status in ahead.items())
        due_at = self._written_at + self._interval_s(owned)
        if not has_moved:
            due_at = max(due_at, self._times_written_at + self._settings.status_time_interval_s)
        if now < due_at:
            return [WakeAt(due_at)]
        self._written_at = self._times_written_at = now
        return [Commit(patches.group([self._put(state, ahead)]))]

    def _interval_s(self, owned: int) -> float:
        """Return the interval of writes: each has an entry for every changefeed, and every capture reads it."""
        settings = self._settings
        return max(settings.status_interval_s, min(owned / settings.statuses_per_s, settings.status_interval_max_s))

    def _put(self, state: ClusterState, ahead: Mapping[ChangefeedId, ChangefeedStatus]) -> patches.Patch:
        before = state.progress.get(self._capture)
        entries = dict(_counting(before.changefeeds.items() if before else (), state))
        for id, status in ahead.items():
            info = state.changefeeds[id].info
            assert info is not None, "what runs has been read"
            entries[id] = entry_of(info, status)
        key = keys.ProgressKey(state.cluster, state.namespace, self._capture)
        after = (before or CaptureProgress()).with_(changefeeds=entries)
        if str(key) in state.broken:
            return patches.put_record(key, after)  # only this capture writes it, and knows what it held
        return patches.replace_record(key, before, after)


def remaining(record: CaptureProgress, state: ClusterState) -> list[ChangefeedState]:
    """Return the changefeeds whose entries in ``record`` count."""
    return [state.changefeeds[id] for id, _ in _counting(record.changefeeds.items(), state)]


def _counting(
    entries: Iterable[tuple[ChangefeedId, OwnedProgress]], state: ClusterState
) -> Iterable[tuple[ChangefeedId, OwnedProgress]]:
    for id, entry in entries:
        feed = state.changefeeds.get(id)
        if feed is not None and counts(entry, feed.info, feed.stored_status):
            yield id, entry
