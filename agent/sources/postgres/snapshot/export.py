"""Snapshot export: creates a slot together with a snapshot of exactly the moment at which it starts.

A slot streams the transactions whose commit record is at or after its consistent point; its snapshot shows all the
others. So ``start_ts`` is one below the consistent point: every change at or below it is in the snapshot, every change
above it in the stream.

The snapshot lives only as long as the connection that exported it, and only until that connection runs its next
command; so this module holds the connection and uses it again only to end the snapshot.
"""

import contextlib
from types import TracebackType
from typing import Final, Self

from agent.errors import SourceError
from agent.ports.snapshot import Wait
from agent.sources.postgres.server import slot_creation
from agent.sources.postgres.server.connection import Connection, connect
from agent.sources.postgres.server.identity import read_identity
from agent.sources.postgres.server.lsn import parse_lsn
from agent.sources.postgres.server.sql import identifier, literal
from agent.sources.postgres.server.uri import Target
from agent.sources.postgres.snapshot.rows import session
from reactor.ids import Ts

_DROP_TIMEOUT_S: Final = 5.0


class ExportedSnapshot:
    """``snapshot`` is what other sessions name to see what this one saw; a context manager ends it. ``timeline``: of
    the server."""

    def __init__(
        self, connection: Connection, snapshot: str, start_ts: Ts, timeline: int, *, temporary_slot: str = ""
    ) -> None:
        self._connection = connection
        self._temporary_slot = temporary_slot
        self.snapshot = snapshot
        self.start_ts = start_ts
        self.timeline = timeline

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End the snapshot. A temporary slot is gone then: the server removes that of a lost connection later,
        and refuses the next one of this name until then."""
        if slot := self._temporary_slot:
            self._temporary_slot = ""
            with contextlib.suppress(SourceError):
                self._connection.query(f"DROP_REPLICATION_SLOT {identifier(slot)}", timeout_s=_DROP_TIMEOUT_S)
        self._connection.close()

    def is_alive(self) -> bool:
        """Return whether other sessions can still use the snapshot; False also while the source cannot be reached."""
        try:
            with session(self._connection.target, self.snapshot):
                return True
        except SourceError:
            return False


def create_slot(
    source: str | Target, slot: str, wait: Wait | None = None, *, is_temporary: bool = False
) -> ExportedSnapshot:
    """Create a replication slot and export its snapshot; a temporary slot goes with the connection.

    :raises SourceError: the source refused: no free slot, no privilege, or the slot exists.
    :raises OpenTransactionsError: a transaction did not end in time.
    :raises ReadingStopped: the wait was ended.
    """
    connection = connect(source, replication=True)
    try:
        # The exporter is idle in a transaction for as long as the snapshot is needed.
        connection.unlimit()
        timeline = read_identity(connection).timeline
        version = connection.server_version
        command = slot_creation.command(slot, version, exports=True, is_temporary=is_temporary)
        [row] = slot_creation.create(connection, command, wait or Wait())
        _, consistent_point, snapshot, _ = row
        assert consistent_point is not None
        assert snapshot is not None
        start_ts = Ts(parse_lsn(consistent_point) - 1)
        return ExportedSnapshot(connection, snapshot, start_ts, timeline, temporary_slot=slot if is_temporary else "")
    except BaseException:
        connection.close()
        raise


def slot_position(connection: Connection, slot: str) -> Ts | None:
    """Return the first position that the slot still sends; an unused slot is at its consistent point.

    None if there is no such slot (or it was invalidated, and has no position any more).
    """
    rows = connection.query(
        "SELECT confirmed_flush_lsn FROM pg_catalog.pg_replication_slots "
        f"WHERE slot_name = {literal(slot)} AND wal_status IS DISTINCT FROM 'lost'"
    )
    return parse_lsn(rows[0][0]) if rows and rows[0][0] is not None else None
