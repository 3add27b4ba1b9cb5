"""Attempts: what a capture is doing: the tables being written, the source being read; and the tables suspected of
having ended one.

An attempt outlives its capture's lease, so that a crash is traced to what the process was doing. Captures of v0.1.0
ignore these records.
"""

from reactor.ids import CaptureId, Ts
from reactor.records.base import Count, Record, StoredTs, TableId


class Attempt(Record):
    """Tables of one changefeed being written on one capture. Written by that capture, before the work begins; removed
    when nothing is in progress, and taken by the owner when the capture is gone.

    ``is_trial``: only suspects, and exactly those. Otherwise the tables of the last seconds.
    """

    tables: tuple[TableId, ...] = ()
    is_trial: bool = False


class Suspects(Record):
    """Tables that were being written when ``capture`` ended without leaving. Written by the owner only; a table whose
    spans have passed ``ts`` is cleared."""

    tables: tuple[TableId, ...] = ()
    ts: StoredTs = Ts(0)
    capture: CaptureId = CaptureId("")


class StreamAttempt(Record):
    """The capture that reads a source, under which epoch of the changefeed, and which captures have ended at ``ts``
    while they read it. Written by the sync worker only; ``capture`` is empty after one that has ended without its
    process."""

    capture: CaptureId = CaptureId("")
    #: ``CaptureInfo.process``
    process: str = ""
    epoch: Count = 0
    #: the log's position when it began
    ts: StoredTs = Ts(0)
    #: it has moved the log, or found the source quiet
    is_settled: bool = False
    ended: tuple[CaptureId, ...] = ()
