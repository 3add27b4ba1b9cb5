"""Task position: one capture's report to the owner about one changefeed."""

from typing import Self

from reactor.records.base import Record, later
from reactor.records.changefeed import RunningError


class TaskPosition(Record):
    """The reports of one capture's processor to the owner through etcd: only errors and warnings.

    ``tables``: errors that hold one table each, the newest of each table. ``crashes``: how often one of its actors for
    the changefeed (processor, span, the owner's part) crashed and was restarted, the last time with ``last_crash``.
    """

    error: RunningError | None = None
    warning: RunningError | None = None
    tables: tuple[RunningError, ...] = later(())
    crashes: int = later(0)
    last_crash: RunningError | None = later(None)
    #: what this capture lacks for the changefeed; others work for it meanwhile
    fault: RunningError | None = later(None)

    def crashed(self, count: int, error: RunningError) -> Self:
        return self.with_(crashes=self.crashes + count, last_crash=error)
