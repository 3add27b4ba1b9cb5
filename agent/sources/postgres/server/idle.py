"""Idle server: a record in its log, so that the stream of a server to which nobody writes comes to a later position."""

import time
from contextlib import suppress
from typing import Final

from agent.errors import SourceAuthError, StatementRefusedError
from agent.sources.postgres.server.connection import Connection

_PAUSES_S: Final = 0.5, 60.0
#: it is flushed at once, and waits for no standby
_SQL: Final = ("SET synchronous_commit = local", "SELECT pg_catalog.pg_logical_emit_message(true, 'weir', '')")


class IdleServer:
    """Writes such records for one stream, in growing intervals while something waits."""

    def __init__(self) -> None:
        self._pause_s = _PAUSES_S[0]
        self._next_at = float("-inf")

    def rest(self) -> None:
        """Nothing waits for a later position."""
        self._pause_s = _PAUSES_S[0]
        self._next_at = min(self._next_at, time.monotonic() + self._pause_s)

    def write(self, connection: Connection) -> None:
        """Write a record if it is time to. A server that refuses writes one by itself, when somebody uses it."""
        if (now := time.monotonic()) < self._next_at:
            return
        self._next_at, self._pause_s = now + self._pause_s, min(2 * self._pause_s, _PAUSES_S[1])
        with suppress(SourceAuthError, StatementRefusedError):
            for sql in _SQL:
                connection.query(sql)
