"""Draining: marks a capture as leaving, so that owners and the controller give its work to others.

The mark is in the capture's own record; the capture reads it, and hands over. It is one-way, like a capture that is
being stopped.
"""

from collections import Counter
from collections.abc import Sequence

from capture.errors import CaptureNotFoundError, JobRefusedError
from capture.member.ownership.router import Member
from reactor import keys
from reactor.ids import CaptureId
from reactor.records.capture import CaptureInfo
from reactor.store.port import Compare, MetaStore, Put, Target
from reactor.views import ChangefeedView


async def mark(client: MetaStore, member: Member, capture: CaptureId) -> None:
    """:raises CaptureNotFoundError: there is no such capture.
    :raises JobRefusedError: it is the controller, or another one is being drained.
    """
    state = member.state
    if capture not in state.captures:
        raise CaptureNotFoundError(f"no capture {capture}; `weir capture list` shows which there are")
    if capture == member.info.id:
        raise JobRefusedError(f"capture {capture} is the owner; let it resign first (owner resign), then drain it")
    others = sorted(id for id, info in state.captures.items() if info.is_leaving and id != capture)
    if others:
        raise JobRefusedError(f"capture {others[0]} is being drained; ask again when it is empty")
    key = str(keys.CaptureKey(state.cluster, capture))
    stored = await client.get(key)
    if stored is None:
        raise CaptureNotFoundError(f"capture {capture} has just left; `weir capture list` shows which there are")
    info = CaptureInfo.decode(stored.value, key=key)
    if not info.is_leaving:
        same = Compare(key, Target.MOD_REVISION, stored.mod_revision)
        await client.txn([same], [Put(key, info.with_(is_leaving=True).encode(), stored.lease)])


def span_counts(feeds: Sequence[ChangefeedView]) -> Counter[str]:
    """Return how many table spans each capture replicates."""
    counts: Counter[str] = Counter()
    for feed in feeds:
        counts.update(feed.span_counts)
        if not feed.table_count:  # an owner of an earlier version shows each span
            counts.update(span.capture for table in feed.tables for span in table.spans)
    return counts


def remaining(member: Member, capture: CaptureId, feeds: Sequence[ChangefeedView]) -> int:
    """Return how many spans, workers and owners the capture still has."""
    spans = span_counts(feeds)[capture]
    workers = sum(bool(feed.unit) and feed.worker == capture for feed in feeds)
    owned = [feed for feed in member.state.changefeeds.values() if feed.owner and feed.owner.capture == capture]
    return spans + workers + len(owned)
