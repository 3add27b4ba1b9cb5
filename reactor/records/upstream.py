"""Upstreams: the records of which server a source is."""

from reactor.records.base import Count, Record


class UpstreamInfo(Record):
    """An upstream's identity: positions of different identities are never compared."""

    source: str
    kind: str
    #: PostgreSQL: system identifier and timeline
    system_id: str
    timeline: Count = 1
