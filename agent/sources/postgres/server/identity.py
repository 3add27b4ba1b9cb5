"""Server identity: distinguishes servers, since positions of different systems or timelines are never compared."""

from dataclasses import dataclass

from agent.ports.source import Identity
from agent.sources.postgres.server.connection import Connection
from agent.sources.postgres.server.lsn import parse_lsn
from reactor.ids import Ts


@dataclass(frozen=True, slots=True)
class SystemIdentity:
    """``flushed_ts``: the current end of the server's log."""

    system_id: str
    timeline: int
    flushed_ts: Ts

    @property
    def identity(self) -> Identity:
        return Identity(self.system_id, self.timeline)


def read_identity(connection: Connection) -> SystemIdentity:
    """Read the identity over a replication connection.

    :raises SourceError: the server refuses.
    """
    system_id, timeline, position, _ = connection.query("IDENTIFY_SYSTEM")[0]
    return SystemIdentity(str(system_id), int(timeline or 0), parse_lsn(position or "0/0"))
