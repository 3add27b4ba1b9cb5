"""Opening the replication stream, again and again for as long as a sync unit runs.

Before each opening it is checked that the server is the one it was, and that the slot can go on exactly where the log
stands. A stream that declares a type without a binary form is opened again, in text form, from then on.
"""

from collections.abc import Sequence
from functools import partial

import structlog

from agent.errors import NEW_SNAPSHOT, PositionLostError, SourceUnreachableError
from agent.schema import TableSchema
from agent.sources.arena import Arena
from agent.sources.postgres import slots
from agent.sources.postgres.connection import Connection, connect
from agent.sources.postgres.identity import read_identity
from agent.sources.postgres.lsn import format_lsn
from agent.sources.postgres.resolver import TextFormNeeded, TypeResolver
from agent.sources.postgres.slots import Names
from agent.sources.postgres.stream import ReplicationStream
from agent.sources.source import Position, StreamOrder, StreamRestart
from reactor.ids import Ts

_log = structlog.get_logger()


class PostgresStreams:
    """``agent.sources.source.Streams`` over one slot. Where nobody says which server it is, the first one counts."""

    def __init__(self, uri: str, names: Names, order: StreamOrder) -> None:
        self._uri = uri
        self._names = names
        self._table_ids = frozenset(table.table_id for table in order.tables)
        self._identity = order.identity
        self._is_text = False

    def open(self, at: Position, arena: Arena) -> "PostgresStream":
        publications = self._check_position(at.ts)
        connection = connect(self._uri, replication=True)
        try:
            self._check_identity(connection, at.ts)
            return PostgresStream(connection, self._start(connection, publications, at.ts, arena))
        except BaseException:
            connection.close()
            raise

    def check(self) -> None:
        try:
            with connect(self._uri) as connection:
                slots.check_members(connection, self._names, self._table_ids)
        except SourceUnreachableError as error:
            _log.info("publication could not be looked at", error=str(error))

    def _check_position(self, resolved_ts: Ts) -> tuple[str, ...]:
        """Also returns the publications.

        Questions go through a session of their own: what a walsender learns of a table through SQL stays in its
        caches, and it would decode older changes of that table with today's columns.
        """
        names = self._names
        with connect(self._uri) as session:
            if names.owns_slot:
                slots.evict_reader(session, names.slot)
            slots.check_position(session, names.slot, resolved_ts)
            publications = slots.publications(session, names)
            slots.check_members(session, names, self._table_ids)
        return publications

    def _check_identity(self, connection: Connection, resolved_ts: Ts) -> None:
        found = read_identity(connection)
        if not self._identity.system_id:
            self._identity = found.identity
        expected = self._identity
        if found.identity != expected:
            raise PositionLostError(
                f"{connection.target} is system {found.system_id}, timeline {found.timeline}, but the changefeed began "
                f"on {expected.system_id}, timeline {expected.timeline}, whose positions mean nothing here; "
                f"{NEW_SNAPSHOT}"
            )
        if found.flushed_ts < resolved_ts:
            raise PositionLostError(
                f"{connection.target} was set back to {format_lsn(found.flushed_ts)}, behind the log's "
                f"{format_lsn(resolved_ts)}; {NEW_SNAPSHOT}"
            )

    def _start(
        self, connection: Connection, publications: Sequence[str], resolved_ts: Ts, arena: Arena
    ) -> ReplicationStream:
        resolver = TypeResolver(partial(connect, self._uri), sorted(self._table_ids))
        binary = not (self._is_text or resolver.needs_text)
        stream = ReplicationStream(
            connection,
            arena,
            resolved=resolved_ts,
            is_wanted=self._table_ids.__contains__,
            resolve=partial(self._resolve, resolver, binary=binary),
        )
        stream.start(self._names.slot, publications, binary=binary)
        return stream

    def _resolve(self, resolver: TypeResolver, declared: TableSchema, *, binary: bool) -> TableSchema:
        try:
            return resolver.resolve(declared, binary=binary)
        except TextFormNeeded as reason:
            _log.info("stream goes on in text form", table=str(reason))
            self._is_text = True
            raise StreamRestart from None


class PostgresStream:
    """``agent.sources.source.OpenStream``."""

    def __init__(self, connection: Connection, stream: ReplicationStream) -> None:
        self._connection = connection
        self.stream = stream

    def abort(self) -> None:
        self._connection.abort()

    def close(self) -> None:
        self._connection.close()
