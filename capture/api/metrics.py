"""Prometheus metrics of the changefeeds, created at each scrape from their owners' views.

A capture exposes the changefeeds that it owns, so scraping the whole cluster yields each of them once. Every capture
exposes its process's own metrics.
"""

from collections.abc import Sequence
from contextlib import suppress

from prometheus_client import CollectorRegistry, Gauge, generate_latest

from capture.api import port as views
from reactor.errors import WeirError
from reactor.records.changefeed import FeedState
from reactor.views import ChangefeedView


async def exposition(cluster: views.Cluster) -> bytes:
    """Return the text of one scrape. If the owners cannot answer a query now, only their metrics are missing."""
    registry = CollectorRegistry()
    gauge("weir_capture_is_owner", "1 on the elected owner", registry).set(cluster.is_owner)
    is_fit = (await cluster.ready()).is_fit
    gauge("weir_capture_fault", "1 while a fault of this capture keeps it from work", registry).set(not is_fit)
    feeds: Sequence[ChangefeedView] = ()
    with suppress(WeirError):
        feeds = await cluster.owned(tables=False)
    gauge("weir_capture_owned_changefeeds", "changefeeds that this capture owns", registry).set(len(feeds))
    _add_feeds(registry, feeds)
    return generate_latest(registry) + generate_latest()


def gauge(name: str, text: str, registry: CollectorRegistry, *labels: str) -> Gauge:
    return Gauge(name, text, labels, registry=registry)


def _add_feeds(registry: CollectorRegistry, feeds: Sequence[ChangefeedView]) -> None:
    checkpoint = gauge("weir_changefeed_checkpoint_ts", "all commits up to it are in the sink", registry, "changefeed")
    resolved = gauge("weir_changefeed_resolved_ts", "all commits up to it are in the log", registry, "changefeed")
    lag = gauge("weir_changefeed_lag_seconds", "age of the checkpoint", registry, "changefeed")
    changes = gauge("weir_changefeed_changes", "row changes written under this epoch", registry, "changefeed")
    blocked = gauge("weir_changefeed_blocked", "1 while something holds it up", registry, "changefeed")
    state = gauge("weir_changefeed_state", "1 for the state it is in", registry, "changefeed", "state")
    diff = _LastDiffs(registry)
    for feed in feeds:
        diff.add(feed)
        checkpoint.labels(feed.id).set(feed.checkpoint_ts)
        resolved.labels(feed.id).set(feed.resolved_ts)
        changes.labels(feed.id).set(feed.changes)
        blocked.labels(feed.id).set(bool(feed.blocked_by))
        if feed.lag_seconds is not None:
            lag.labels(feed.id).set(feed.lag_seconds)
        for one in FeedState:
            state.labels(feed.id, one.value).set(one is feed.state)


class _LastDiffs:
    """The newest comparison of each changefeed, by schedule or asked for."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._equal = gauge("weir_diff_equal", "1 if source and sink were equal", registry, "changefeed")
        self._time = gauge("weir_diff_time_seconds", "when the comparison ended, Unix time", registry, "changefeed")
        self._ts = gauge("weir_diff_ts", "the Ts of the comparison", registry, "changefeed")
        self._tables = gauge("weir_diff_tables", "tables by result", registry, "changefeed", "result")

    def add(self, feed: ChangefeedView) -> None:
        found = feed.last_diff
        if found is None:
            return
        self._equal.labels(feed.id).set(found.is_equal)
        self._time.labels(feed.id).set(found.time)
        self._ts.labels(feed.id).set(found.ts)
        counts = {"equal": found.compared - found.differ, "differs": found.differ, "waiting": found.wait}
        for result, count in counts.items():
            self._tables.labels(feed.id, result).set(count)
