"""Handled signals: the rows of a changefeed's signal table that have been handled, one key per changefeed."""

from reactor.records.base import Record


class HandledSignals(Record):
    """Written by the capture that was owner. ``ids``: of the rows that were there when it last looked, as texts."""

    ids: tuple[str, ...] = ()
