"""Owner watch: decides whether this capture still hears the owner, as it should while a changefeed runs.

A capture that etcd sees but the owner does not reach would hold its spans and workers, with the barrier that it last
heard of, and nobody else may take them while its lease is alive. So it gives up its membership by itself, and the
others continue. Its deadline is longer than a lease: an owner that has died or sleeps is replaced before that, and
every owner gets the whole time again. ``capture.member.membership`` asks at intervals; decisions only, no clock.
"""

from collections.abc import Iterable

from reactor.ids import CaptureId
from reactor.records.changefeed import FeedState
from reactor.state import ChangefeedState, Owner

#: beyond the time of a lease: for the owner to be found dead, and for the tick that was due
_MARGIN_S = 2.0
_RUNNING = (FeedState.NORMAL, FeedState.WARNING)


class OwnerLiveness:
    """``session_ttl_s``: how long a silent owner may still be owner."""

    def __init__(self, me: CaptureId, *, session_ttl_s: float) -> None:
        self._me = me
        self._patience_s = session_ttl_s + _MARGIN_S
        self._owner_revision = 0
        self._heard_at = float("-inf")

    def note(self, owner_revision: int, now: float) -> None:
        """A message of that owner has come."""
        if owner_revision == self._owner_revision:
            self._heard_at = now

    def is_deaf(self, owner: Owner | None, feeds: Iterable[ChangefeedState], now: float) -> bool:
        """The owner has had something to say for so long, and nothing of it has come."""
        is_silence_right = owner is None or owner.capture == self._me or not any(map(_is_spoken_of, feeds))
        revision = owner.revision if owner else 0
        if is_silence_right or revision != self._owner_revision:
            self._owner_revision, self._heard_at = revision, now
        return now - self._heard_at > self._patience_s


def _is_spoken_of(feed: ChangefeedState) -> bool:
    """The owner sends every capture heartbeats about it."""
    return feed.info is not None and feed.info.state in _RUNNING and not feed.broken
