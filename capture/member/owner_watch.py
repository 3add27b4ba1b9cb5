"""Owner watch: decides whether this capture still receives the owner's messages, as it should while a changefeed runs.

A capture that reaches etcd but not the owner would keep its spans and workers, with the last barrier it received, and
no other capture could take them over while its lease is alive. So it ends its membership by itself, and the others
continue. Its deadline is longer than a lease: an owner that has died or is suspended is replaced before that, and every
owner gets the whole time again. ``capture.member.membership`` polls it; decisions only, no clock.
"""

from collections.abc import Iterable

from reactor.ids import CaptureId
from reactor.records.changefeed import FeedState
from reactor.state import ChangefeedState, Owner

#: in addition to the lease's time: to detect a dead owner, and for the tick that was due
_MARGIN_S = 2.0
_RUNNING = (FeedState.NORMAL, FeedState.WARNING)


class OwnerLiveness:
    """``session_ttl_s``: how long a silent owner may still be owner."""

    def __init__(self, me: CaptureId, *, session_ttl_s: float) -> None:
        self._me = me
        self._patience_s = session_ttl_s + _MARGIN_S
        self._owner: CaptureId | None = None
        self._owner_revision = 0
        self._heard_at = float("-inf")

    def note(self, sender: CaptureId, owner_revision: int, now: float) -> None:
        """Record a message; only those of the owner that the store shows count."""
        if sender == self._owner and owner_revision == self._owner_revision:
            self._heard_at = now

    def is_deaf(self, owner: Owner | None, feeds: Iterable[ChangefeedState], now: float) -> bool:
        """Return whether the owner should have sent messages for this long, and none has arrived."""
        is_silence_right = owner is None or owner.capture == self._me or not any(map(_is_spoken_of, feeds))
        revision = owner.revision if owner else 0
        if is_silence_right or revision != self._owner_revision:
            self._owner = owner.capture if owner else None
            self._owner_revision, self._heard_at = revision, now
        return now - self._heard_at > self._patience_s


def _is_spoken_of(feed: ChangefeedState) -> bool:
    """Return whether the owner sends every capture heartbeats about it."""
    return feed.info is not None and feed.info.state in _RUNNING and not feed.broken
