"""Server identity: distinguishes servers, and tells how far two timelines of one server have the same log.

A standby that is promoted continues the log under a new timeline, which shares with the old one what lies in front of
the place where it branched off (https://www.postgresql.org/docs/current/continuous-archiving.html#BACKUP-TIMELINES).
"""

from dataclasses import dataclass
from typing import Final

from agent.errors import SourceUnreachableError, StatementRefusedError
from agent.ports.source import Identity
from agent.sources.postgres.server.connection import Connection, catalog_session
from agent.sources.postgres.server.lsn import parse_lsn
from reactor.ids import Ts

#: a primary's timeline, in hexadecimal: the name of the file that it writes begins with it
TIMELINE_SQL: Final = "left(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_insert_lsn()), 8)"
_PRIMARY_SQL: Final = f"SELECT CASE WHEN pg_catalog.pg_is_in_recovery() THEN NULL ELSE {TIMELINE_SQL} END"


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


def read_history(connection: Connection, timeline: int) -> dict[int, Ts]:
    """Return the timelines that ``timeline`` descends from, as far as its file tells, and the first position at which
    it has another log than each. ``connection``: a replication connection.

    :raises SourceError: the server does not answer.
    """
    if timeline <= 1:
        return {}
    try:
        [[_, history]] = connection.query(f"TIMELINE_HISTORY {timeline}")
    except StatementRefusedError:  # the file is gone
        return {}
    lines = (line.split() for line in (history or "").splitlines())
    return {int(line[0]): parse_lsn(line[1]) for line in lines if len(line) > 1 and line[0].isdigit()}


def primary_timeline(session: Connection) -> int:
    """Return the timeline on which the server writes.

    :raises SourceUnreachableError: it is a standby.
    """
    [[digits]] = session.query(_PRIMARY_SQL)
    if digits is None:
        raise SourceUnreachableError(
            f"{session.target} is a standby; it is tried again until it is promoted, or the primary answers there"
        )
    return int(digits, 16)


def session_on(source: str, timeline: int) -> Connection:
    """Open a catalog session with the server of a stream: behind one address may be several, and more than one of them
    may believe to be the primary.

    :raises SourceUnreachableError: it is a standby, or on another timeline.
    :raises SourceError: see ``connect``.
    """
    session = catalog_session(source)
    try:
        if (found := primary_timeline(session)) != timeline:
            raise SourceUnreachableError(
                f"{session.target} answers on timeline {found}, and the stream is on {timeline}: it is another server; "
                "the stream is opened again"
            )
    except BaseException:
        session.close()
        raise
    return session
