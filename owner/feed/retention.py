"""Retention: the lowest Ts that any changefeed may still need, by source; and for how long it may need it.

A changefeed holds its source's log and its own change log in every state in which it may run again. One that is stopped
or failed for longer than its ``gc_ttl_seconds`` fills its source's disk for nothing: it fails permanently
(``GCTTLExceeded``), and its slot is released. One whose position is already gone, by that or because the source has
removed what it needs (``SnapshotLostByGC``), holds nothing. (The sync unit removes segments, the source slots; both
take this as their limit.)
"""

from reactor.records.changefeed import ChangefeedInfo, FeedState, RunningError

GC_TTL_EXCEEDED = "GCTTLExceeded"

_HOLDING = frozenset({FeedState.NORMAL, FeedState.WARNING, FeedState.PENDING, FeedState.STOPPED, FeedState.FAILED})
_STANDING = frozenset({FeedState.STOPPED, FeedState.FAILED})
_LOST = frozenset({"PositionLost", "SnapshotLostByGC", GC_TTL_EXCEEDED})


def holds_log(info: ChangefeedInfo) -> bool:
    """Return whether the changefeed may run again and needs the log after its checkpoint."""
    is_lost = info.state is FeedState.FAILED and info.error is not None and info.error.code in _LOST
    return info.state in _HOLDING and not is_lost


def is_released(info: ChangefeedInfo) -> bool:
    """Return whether it was stopped for too long, so that its data at the source is, or is being, removed."""
    return info.state is FeedState.FAILED and info.error is not None and info.error.code == GC_TTL_EXCEEDED


def expiry(info: ChangefeedInfo) -> float:
    """Return when (Unix seconds) a stopped changefeed's time runs out; infinity if never."""
    ttl_s = info.config.gc_ttl_seconds
    if info.state not in _STANDING or not holds_log(info) or not ttl_s:
        return float("inf")
    return (info.state_since or info.created_at) + ttl_s


def expired(info: ChangefeedInfo, wall: float) -> RunningError | None:
    """Return the error of a changefeed that has been stopped for too long at ``wall`` (Unix seconds)."""
    if wall < expiry(info):
        return None
    before = f" (it failed with {info.error.code}: {info.error.message})" if info.error else ""
    text = (
        f"{info.state} for longer than gc-ttl-seconds = {info.config.gc_ttl_seconds}{before}: its slot is released, "
        "and with it its position; `weir changefeed resume --resync` takes a new one and copies its tables again"
    )
    return RunningError(code=GC_TTL_EXCEEDED, message=text, time=wall, retryable=False)
