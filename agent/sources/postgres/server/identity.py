"""Server identity: distinguishes servers, and tells how far two timelines of one server have the same log.

A standby that is promoted continues the log under a new timeline, which shares with the old one what lies in front of
the place where it branched off (https://www.postgresql.org/docs/current/continuous-archiving.html#BACKUP-TIMELINES).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from agent.errors import SourceAuthError, SourceUnreachableError, StatementRefusedError
from agent.ports.source import Identity
from agent.sources.postgres.server.connection import Connection, catalog_session
from agent.sources.postgres.server.lsn import parse_lsn
from reactor.ids import Ts

#: a primary's timeline, in hexadecimal: the name of the file that it writes begins with it
_TIMELINE_SQL: Final = "SELECT left(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_insert_lsn()), 8)"


@dataclass(frozen=True, slots=True)
class SystemIdentity:
    """``flushed_ts``: the current end of the server's log."""

    system_id: str
    timeline: int
    flushed_ts: Ts

    @property
    def identity(self) -> Identity:
        return Identity(self.system_id, self.timeline)


@dataclass(frozen=True, slots=True)
class Timelines:
    """The timelines of a server's log. ``now``: the one that it writes, 0 if it is not known. ``branches``: those that
    this one descends from, and the first position at which it has another log than each."""

    now: int = 0
    branches: Mapping[int, Ts] = field(default_factory=dict)


UNKNOWN_TIMELINES: Final = Timelines()


def read_identity(connection: Connection) -> SystemIdentity:
    """Read the identity over a replication connection.

    :raises SourceError: the server refuses.
    """
    system_id, timeline, position, _ = connection.query("IDENTIFY_SYSTEM")[0]
    return SystemIdentity(str(system_id), int(timeline or 0), parse_lsn(position or "0/0"))


def read_branches(connection: Connection, timeline: int) -> dict[int, Ts]:
    """Return ``Timelines.branches``, as far as the server's file tells. ``connection``: a replication connection.

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
    """Return the timeline on which the server writes; 0 if it has no files that tell, as one whose storage is not
    PostgreSQL's own.

    :raises SourceUnreachableError: it is a standby.
    """
    session.refuse_standby()
    try:
        [[digits]] = session.query(_TIMELINE_SQL)
    except (StatementRefusedError, SourceAuthError):
        return 0
    return int(digits or "0", 16)


def session_on(source: str, timeline: int) -> Connection:
    """Open a catalog session with the server of a stream: behind one address may be several, and more than one of them
    may believe to be the primary.

    :raises SourceUnreachableError: it is a standby, or on another timeline.
    :raises SourceError: see ``connect``.
    """
    session = catalog_session(source)
    try:
        refuse_another(session, primary_timeline(session), timeline)
    except BaseException:
        session.close()
        raise
    return session


def refuse_another(session: Connection, found: int, timeline: int) -> None:
    """:raises SourceUnreachableError: ``found``, the session's, is another than the stream's ``timeline``."""
    if found not in (0, timeline):
        raise SourceUnreachableError(
            f"{session.target} answers on timeline {found}, and the stream is on {timeline}: it is another server; the "
            "stream is opened again"
        )
