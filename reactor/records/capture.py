"""Capture records: one member of the cluster, and which changefeed is assigned to it.

The elected controller writes assignments (after TiCDC's cdcv2 metadata). An assignment exists exactly while the
changefeed is launched or removing; without it, no capture owns it. Since every launch creates it, its creation revision
names one ownership: it grows from owner to owner of a changefeed, and is the *owner revision* of every order. A
transaction that requires the assignment unchanged is fenced: it fails once the ownership has ended
(``owner.metadata.observations``).
"""

from enum import StrEnum

from reactor.ids import CaptureId
from reactor.records.base import Count, Record, later


class CaptureInfo(Record):
    """One member of the cluster; lives exactly as long as its lease."""

    id: CaptureId
    #: host:port of the HTTP API
    address: str
    #: host:port where other captures connect
    peer_address: str
    version: str
    cluster_id: str
    started_at: float
    hostname: str = ""
    pid: Count = 0
    #: the newest format that it knows (``reactor.records.formats``)
    format: Count = later(1)
    #: what other captures know it by: that it proves the cluster's key, or its certificate's node and keys. While a
    #: certificate is renewed there are two keys
    proves: bool = later(False)
    node: str = later("")
    peer_keys: tuple[str, ...] = later(())
    #: fingerprints of the cluster's secret keys that it has
    secret_keys: tuple[str, ...] = later(())
    #: of its process, across memberships; and why it takes no work, in one line
    process: str = later("")
    fault: str = later("")
    #: it hands over its work, and takes none; one-way
    is_leaving: bool = later(False)
    #: it reaches the store, and hears no other capture
    is_isolated: bool = later(False)


class OwnerState(StrEnum):
    """``docs/states/schedule.md`` has the transitions. ``REMOVED`` is never stored."""

    REMOVED = "Removed"
    LAUNCHED = "Launched"
    REMOVING = "Removing"


class Assignment(Record):
    """``next``: where the changefeed is to be launched after its removal; empty: wherever there is room.
    ``is_chosen``: an operator chose the capture, so that evening out leaves it there."""

    capture: CaptureId
    state: OwnerState = OwnerState.LAUNCHED
    next: str = ""
    is_chosen: bool = False
