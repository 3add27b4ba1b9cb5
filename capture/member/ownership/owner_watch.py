"""Owner watch: decides whether this capture still receives the messages of the owners, as it should while a changefeed
runs.

A capture that reaches etcd but not an owner would keep its spans and workers, with the last barrier it received, and no
other capture could take them over while its lease is alive. So it ends its membership by itself, if it has work of that
owner's changefeeds, or if the owner may be waiting for its first answer, and the others continue. Its deadline is
longer than a lease: an owner that has died or is suspended is replaced before that, and every owner gets the whole time
again. ``capture.member.membership`` polls it; decisions only, no clock.
"""

from collections.abc import Collection

from reactor import keys
from reactor.ids import CaptureId, ChangefeedId
from reactor.records.changefeed import FeedState
from reactor.state import ChangefeedState, ClusterState, Owner

#: in addition to the lease's time: to detect a dead owner, and for the tick that was due
_MARGIN_S = 2.0
_RUNNING = (FeedState.NORMAL, FeedState.WARNING)


class OwnerLiveness:
    """``registered``: the revision of the membership. ``session_ttl_s``: how long a silent owner may still be owner."""

    def __init__(self, me: CaptureId, *, registered: int, session_ttl_s: float) -> None:
        self._me = me
        self._registered = registered
        #: the elected capture when the membership began
        self._first: Owner | None = None
        self._patience_s = session_ttl_s + _MARGIN_S
        #: captures with owners → the newest revision of an ownership there, and when they were heard
        self._heard: dict[CaptureId, tuple[int, float]] = {}
        #: what the two mappings below follow from
        self._seen: object = None
        #: captures with owners → their changefeeds that run, and the newest revision of an ownership
        self._spoken: dict[CaptureId, list[ChangefeedId]] = {}
        self._newest: dict[CaptureId, int] = {}

    def note(
        self, state: ClusterState, sender: CaptureId, changefeed: ChangefeedId, owner_revision: int, now: float
    ) -> None:
        """Record a message; only those of the owner that the store shows count, for all that its capture owns."""
        known = self._heard.get(sender)
        if known is not None and state.owner_of(changefeed) == Owner(sender, owner_revision):
            self._heard[sender] = known[0], now

    def unheard(self, state: ClusterState, now: float) -> Collection[ChangefeedId]:
        """Return the changefeeds whose owners should have sent messages for this long, and none has arrived."""
        self._first = self._first or state.owner
        self._look(state)
        self._heard = {
            capture: known if (known := self._heard.get(capture)) and known[0] == revision else (revision, now)
            for capture, revision in self._newest.items()
        }
        deaf_to = [capture for capture, (_, at) in self._heard.items() if now - at > self._patience_s]
        return [id for capture in deaf_to for id in self._spoken[capture]]

    def awaiting(self, state: ClusterState) -> set[ChangefeedId]:
        """Return the changefeeds whose owners may wait for this capture's first answer (``owner.scheduler.captures``),
        since they began a run after it had joined: if none reaches them, they cannot start while this membership
        lasts."""
        self._first = self._first or state.owner
        return {id for id in state.changefeeds if self._has_changed(state, id)}

    def _look(self, state: ClusterState) -> None:
        """Note the owners, if there is news of any changefeed: progress alone does not matter."""
        seen = state.changes.news, state.owner, state.format
        if seen == self._seen:
            return
        self._seen = seen
        self._spoken, self._newest = {}, {}
        for id, feed in state.changefeeds.items():
            owner = state.owner_of(id)
            if owner is not None and owner.capture != self._me and _is_spoken_of(feed):
                self._spoken.setdefault(owner.capture, []).append(id)
                self._newest[owner.capture] = max(self._newest.get(owner.capture, 0), owner.revision)

    def _has_changed(self, state: ClusterState, id: ChangefeedId) -> bool:
        """The revision of an election is older: that of the candidacy."""
        owner, info = state.owner_of(id), state.raw.get(str(keys.InfoKey(state.cluster, state.namespace, id)))
        if not state.has_owners and owner != self._first:
            return True
        changes = (owner.revision if owner else 0, info.mod_revision if info else 0)
        return max(changes) > self._registered


def _is_spoken_of(feed: ChangefeedState) -> bool:
    """Return whether the owner sends every capture heartbeats about it."""
    return feed.info is not None and feed.info.state in _RUNNING and not feed.broken
