"""Dropping: removes rows of the open transaction from the arena, or skips them.

- A transaction that the server rolled back, entirely or to a savepoint, may be in the binlog if it also changed
  temporary or non-transactional tables. If some of its rows have been cut already, the stream is restarted and skips
  them (``rolled_back``).
- The rows of a prepared transaction are read again when it is committed. So if it fills an arena, its rows are dropped.
"""

from collections.abc import Callable

import numpy as np
import structlog

from agent.errors import NEW_POSITION, SourceError
from agent.kernels.jit import Ints
from agent.kernels.row_cells import SEQ
from agent.ports.source import StreamRestart
from agent.rows.arena import Arena
from agent.sources.mysql.binlog import split, txn
from agent.sources.mysql.binlog.rolled_back import Range, RolledBack
from reactor.ids import Ts

_log = structlog.get_logger()

_NONE = -1
_EVER = (1 << 63) - 1


class Dropping:
    """``place`` returns the stream's place for messages: server, file and offset."""

    def __init__(self, state: Ints, rolled_back: RolledBack, place: Callable[[], str]) -> None:
        self._state = state
        self._rolled_back = rolled_back
        self._place = place
        #: ordinals of savepoints in one transaction
        self._savepoints: dict[str, int] = {}
        self._savepoints_txn = 0
        #: the last cut transaction, and the ordinal after the rows that were cut
        self._cut_txn = self._cut_until = 0
        #: the transaction that filled the arena and is only prepared
        self._overflowing = _NONE
        self._leave_out()

    def on_part(self, last: int) -> None:
        """Note that rows of the open transaction have left the arena, up to ordinal ``last``."""
        self._cut_txn, self._cut_until = int(self._state[txn.TXNS]), last + 1

    def set_savepoint(self, name: str) -> None:
        opened = int(self._state[txn.TXNS])
        if opened != self._savepoints_txn:
            self._savepoints, self._savepoints_txn = {}, opened
        self._savepoints[name] = int(self._state[txn.SEQ])

    def roll_back_to(self, name: str, arena: Arena) -> None:
        is_known = self._savepoints_txn == self._state[txn.TXNS] and name in self._savepoints
        # without a savepoint in the binlog, the transaction had changed nothing before it
        self.drop(self._savepoints[name] if is_known else 0, arena)

    def drop(self, first: int, arena: Arena) -> None:
        """Drop the open transaction's rows from ordinal ``first``.

        :raises StreamRestart: some are on their way into the log; the next stream skips them.
        """
        state = self._state
        if self._cut_txn == state[txn.TXNS] and first < self._cut_until:
            found = Range(Ts(int(state[txn.COMMIT_TS])), first, int(state[txn.SEQ]))
            if not self._rolled_back.add(found):
                raise SourceError(f"what is in the log already was rolled back by {self._place()}; {NEW_POSITION}")
            _log.info("reading a transaction again without what was rolled back", place=self._place(), ts=found.ts)
            raise StreamRestart
        done = int(state[txn.DONE_ROWS])
        ordinals = arena.rows[done : int(state[txn.ROWS]), SEQ] >> split.SEQ_SHIFT
        state[txn.ROWS] = done + int(np.searchsorted(ordinals, first))
        self._leave_out()

    def on_full(self) -> bool:
        """Handle a full arena: drop the rows of a transaction that is only prepared, and skip its further rows."""
        state = self._state
        is_prepared = state[txn.PREPARES] and state[txn.IN_TXN] != txn.CLOSED
        if not is_prepared or state[txn.ROWS] == 0 or state[txn.DONE_ROWS] > 0:
            return False
        self._overflowing = int(state[txn.TXNS])
        state[txn.ROWS] = 0
        self._leave_out()
        return True

    def end_overflow(self) -> bool:
        """End the transaction, or begin it again at its first row; return whether it had filled the arena."""
        had = self._overflowing == int(self._state[txn.TXNS])
        self._overflowing = _NONE
        if had:
            self._state[txn.SEQ] = 0
            self._leave_out()
        return had

    def _leave_out(self) -> None:
        """Skip the next known range of rolled-back rows; each range ends where this is called."""
        state = self._state
        at = self._rolled_back.following(Ts(int(state[txn.COMMIT_TS])), int(state[txn.SEQ]))
        if self._overflowing == state[txn.TXNS]:
            at = Range(Ts(int(state[txn.COMMIT_TS])), 0, _EVER)
        state[txn.DROP_TS], state[txn.DROP_FIRST], state[txn.DROP_UNTIL] = at.ts, at.first, at.until
