"""Idle server: messages in its log, so that the stream of a server to which nobody writes comes to later positions."""

import time
from typing import Final

from agent.errors import SourceAuthError, StatementRefusedError
from agent.sources.postgres.server.connection import Connection

_PAUSES_S: Final = 0.5, 60.0


def write_message(connection: Connection, *, size: int = 0) -> str:
    """Write a message of ``size`` bytes, outside of a transaction. It is flushed at once, and waits for no standby.

    Return why the server refuses it; empty: it does not.
    """
    try:
        connection.query("SET synchronous_commit = local")
        connection.query(f"SELECT pg_catalog.pg_logical_emit_message(true, 'weir', repeat(' ', {size}))")
    except (SourceAuthError, StatementRefusedError) as error:
        return str(error)
    return ""


class IdleServer:
    """Writes messages for one stream, in growing pauses while something waits for a later position."""

    def __init__(self) -> None:
        self._pause_s = _PAUSES_S[0]
        self._next_at = float("-inf")

    def rest(self) -> None:
        """Nothing waits."""
        self._pause_s = _PAUSES_S[0]
        self._next_at = min(self._next_at, time.monotonic() + self._pause_s)

    def write(self, connection: Connection) -> None:
        """Write a message if it is time to. A server that refuses it continues when somebody writes to it."""
        if (now := time.monotonic()) < self._next_at:
            return
        self._next_at, self._pause_s = now + self._pause_s, min(2 * self._pause_s, _PAUSES_S[1])
        write_message(connection)
