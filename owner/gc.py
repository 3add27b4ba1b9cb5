"""What must be kept: the least Ts that any changefeed may still ask for, by source.

A changefeed holds its source's log and its own change log in every state in which it may run again; one that failed
because its position is lost already holds nothing. (Segments are removed by the sync unit, slots by the source; both
take this as their limit.)
"""

from collections.abc import Iterable

from reactor.ids import Ts
from reactor.records import ChangefeedInfo, ChangefeedStatus, FeedState

_HOLDING = frozenset({FeedState.NORMAL, FeedState.WARNING, FeedState.PENDING, FeedState.STOPPED, FeedState.FAILED})
_LOST = frozenset({"PositionLost"})


def holds_log(info: ChangefeedInfo) -> bool:
    """The changefeed may run again and needs what comes behind its checkpoint."""
    is_lost = info.state is FeedState.FAILED and info.error is not None and info.error.code in _LOST
    return info.state in _HOLDING and not is_lost


def needed_ts(feeds: Iterable[tuple[str, ChangefeedInfo, ChangefeedStatus | None]]) -> dict[str, Ts]:
    """Source → the least checkpoint of the changefeeds that hold its log; a feed without status needs its start."""
    needed: dict[str, Ts] = {}
    for source, info, status in feeds:
        if holds_log(info):
            ts = status.checkpoint_ts if status else info.start_ts
            needed[source] = min(ts, needed.get(source, ts))
    return needed
