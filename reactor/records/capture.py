"""Capture record: one member of the cluster."""

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
