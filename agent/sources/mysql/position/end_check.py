"""End check: finds out, while a stream is quiet, that the server's binlog no longer has what was read."""

import time
from typing import Final

from agent.errors import SourceError, SourceUnreachableError
from agent.rows.arena import LogChunk
from agent.sources.mysql.position.consistency import current_place
from agent.sources.mysql.position.positions import SourcePosition, split_file_name
from agent.sources.mysql.server.connection import connect
from agent.sources.mysql.server.identity import read_identity
from agent.sources.mysql.server.uri import Target
from reactor.ids import Ts

#: each time is a connection of its own, of each changefeed
_PAUSE_S: Final = 60.0


class EndCheck:
    """After RESET MASTER a server lets its readers wait, and sends heartbeats, until its new file is as long as the old
    one was. ``pause_s``: how long a stream is quiet before the server is asked, and then between two times."""

    def __init__(self, target: Target, *, pause_s: float = _PAUSE_S) -> None:
        self._target = target
        self._pause_s = pause_s
        self._resolved_ts = Ts(0)
        self._since = 0.0

    def check(self, cut: LogChunk) -> None:
        """:raises SourceUnreachableError: the binlog ends before ``cut``; ``resume`` checks whether it can continue."""
        now = time.monotonic()
        if cut.resolved_ts != self._resolved_ts:
            self._resolved_ts, self._since = cut.resolved_ts, now
        elif now - self._since >= self._pause_s:
            self._since = now
            self._refuse_shorter(SourcePosition.from_json(cut.position))

    def _refuse_shorter(self, position: SourcePosition) -> None:
        try:
            with connect(self._target) as connection:
                place, server = current_place(connection), read_identity(connection).system_id
        except SourceError:
            return  # the stream itself reports a server that has gone
        base, _ = split_file_name(place.binlog.file)
        is_same = (server, base) == (position.epoch.server, position.epoch.base)
        if is_same and place.ts(position.epoch.number) < position.resolved:
            raise SourceUnreachableError(
                f"the binlog of {self._target} ends at {place.binlog}, before {position.binlog}, up to which it was "
                "read; it is opened again"
            )
