"""Schedules: records of what an owner does from time to time, one key per changefeed each."""

from typing import Annotated

from pydantic import Field

from reactor.ids import Ts
from reactor.records.base import Count, Record, StoredTs


class LastDiff(Record):
    """Written by the capture that was owner. ``time``: Unix seconds when it ended, after ``seconds``. ``ts``: where the
    tables were compared, 0 if none was. How many were ``compared``, ``differ``, and ``wait``, as they did not reach the
    Ts; ``differing`` and ``waiting``: the first of their names. ``sample``: the share of each table that was looked
    at. ``error``: why there was no comparison; empty if there was one.
    """

    time: float
    seconds: float = 0.0
    ts: StoredTs = Ts(0)
    compared: Count = 0
    differ: Count = 0
    wait: Count = 0
    differing: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    sample: Annotated[float, Field(gt=0, le=1)] = 1.0
    error: str = ""

    @property
    def is_equal(self) -> bool:
        """Whether there was a comparison, and all that was compared is equal."""
        return not (self.error or self.differ)


class HandledSignals(Record):
    """Rows of the signal table that have been handled. Written by the capture that was owner. ``ids``: of the rows that
    were there when it last looked, as texts."""

    ids: tuple[str, ...] = ()
