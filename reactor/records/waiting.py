"""Waiting capture: a process that wants to join its cluster and cannot yet, as published in etcd."""

from reactor.ids import CaptureId
from reactor.records.base import Count, Record


class WaitingCapture(Record):
    """Exists as long as its lease; it has neither spans nor workers, and is no candidate."""

    id: CaptureId
    #: host:port of the HTTP API
    address: str
    version: str
    cluster_id: str
    #: one line: what it waits for, and what ends the wait
    waits_for: str
    started_at: float
    hostname: str = ""
    pid: Count = 0
