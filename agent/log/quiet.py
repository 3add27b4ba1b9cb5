"""Quiet moves: heads of logs in which nothing was committed move less often, and together, where a capture has many.

A head that moves without a segment only says that its source was heard. Each move costs the store a transaction, and
every capture an event and a round of its owners: a hundred changefeeds that move every second would keep two cores
busy. So a capture's quiet logs move ten times a second, as long as none has to wait for more than five seconds. Those
whose turn comes in the same quarter of a second share a transaction. What was committed waits for none of this.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from reactor.store.grouped import GroupedTxns
from reactor.store.port import MetaStore

_PER_S: Final = 10
#: below what makes an owner say that the source is not heard (``owner.feed.blocking.STILL_S``)
_INTERVAL_S_MAX: Final = 5.0
_TURN_S: Final = 0.25


class QuietMoves:
    """Those of one capture, in one session with the store. ``txns``: for moves that may wait a moment."""

    def __init__(self, client: MetaStore) -> None:
        self.txns = GroupedTxns(client)
        self._logs = 0

    @contextmanager
    def of_a_log(self) -> Iterator[None]:
        """The head of one more log is moved during the block."""
        self._logs += 1
        try:
            yield
        finally:
            self._logs -= 1

    def next_at(self, moved_at: float, usual_s: float) -> float:
        """Return when the head of a log that moved at ``moved_at`` moves again if nothing is committed, in seconds of
        ``time.monotonic``. ``usual_s``: the interval for a single log."""
        interval_s = min(self._logs / _PER_S, _INTERVAL_S_MAX)
        if interval_s <= usual_s:
            return moved_at + usual_s
        return math.ceil((moved_at + interval_s) / _TURN_S) * _TURN_S
