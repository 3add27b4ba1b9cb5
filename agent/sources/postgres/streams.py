"""Streams: open the replication stream, again and again for as long as a sync unit runs.

Before each opening it is checked that the server is the one it was, or a standby of it that was promoted and has all
that was read; and that the slot can continue exactly where the log is. A stream that declares a type without a binary
form is opened again, in text form, from then on.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

import structlog

from agent.errors import NEW_POSITION, PositionLostError, SourceError, SourceUnreachableError
from agent.filter.events import rules_for
from agent.filter.tables import TableFilter
from agent.ports.source import Identity, Position, Scope, StreamOrder, StreamRestart
from agent.rows.arena import Arena, LogChunk
from agent.rows.schema import TableSchema
from agent.rows.schema_change import known_tables
from agent.sources.postgres.publication import slots
from agent.sources.postgres.publication.choosing import Wanted
from agent.sources.postgres.publication.prover import Prover
from agent.sources.postgres.publication.quiet_changes import QuietChanges
from agent.sources.postgres.publication.sightings import Sightings
from agent.sources.postgres.publication.slots import Names
from agent.sources.postgres.server.connection import Connection, catalog_session, connect
from agent.sources.postgres.server.identity import (
    Timelines,
    primary_timeline,
    read_branches,
    read_identity,
    refuse_another,
    session_on,
)
from agent.sources.postgres.server.lsn import format_lsn
from agent.sources.postgres.server.refusals import UnconvertibleError
from agent.sources.postgres.server.sql import is_text
from agent.sources.postgres.server.terms import read_terms
from agent.sources.postgres.settings import PostgresSettings
from agent.sources.postgres.stream.catalog_lookup import CatalogTable, Guess, look_up, names_of, verified
from agent.sources.postgres.stream.converting import Converter, ConvertingLine
from agent.sources.postgres.stream.relation_cache import SchemaTracker
from agent.sources.postgres.stream.resolver import TextFormNeeded, TypeResolver
from agent.sources.postgres.stream.stream import ReplicationStream
from reactor.ids import Ts
from reactor.records.tables.schema_change import DdlRecord

_log = structlog.get_logger()


class PostgresStreams:
    """``agent.ports.source.Streams`` over one slot. Without a recorded identity, the first server is accepted."""

    def __init__(self, uri: str, names: Names, order: StreamOrder, scope: Scope) -> None:
        self._uri = uri
        self._names = names
        self._order = order
        self._scope = scope
        self._known = known_tables(order.tables, order.schemas, (), at=Ts(0))
        #: taken in by the proof of a position, and by nothing else
        self._joining: set[tuple[str, str]] = set()
        self._identity = order.identity
        #: opens a session with the server of the newest stream
        self._connect: Callable[[], Connection] = partial(catalog_session, uri)
        self._is_text = False
        #: once the server has met a text that it cannot convert
        self._converter: Converter | None = None

    def open(self, at: Position, arena: Arena, ddl: Sequence[DdlRecord] = ()) -> "PostgresStream":
        self._known = known_tables(self._order.tables, self._order.schemas, ddl, at=at.ts)
        there = {(table.record.schema_name, table.record.name) for table in self._known.values()}
        self._joining = {*self._order.joining} - there
        timeline, publications, has_failover = self._check_position(at.ts)
        connection = connect(self._uri, replication=True)
        try:
            server, timelines = self._check_identity(connection, at.ts)
            refuse_another(connection, timeline, server.timeline)
            if self._names.owns_slot and not has_failover:
                slots.enable_failover(connection, self._names.slot)
            self._connect = partial(session_on, self._uri, server.timeline)
            sightings, quiet = Sightings(), QuietChanges()
            stream = self._start(connection, publications, at.ts, arena, sightings, quiet)
            prover = self._prover(at, sightings, quiet, timelines)
            return PostgresStream(connection, stream, prover, server, self._converter)
        except BaseException:
            connection.close()
            if self._converter is not None:
                self._converter.close()
            raise

    def _check_position(self, resolved_ts: Ts) -> tuple[int, tuple[str, ...], bool]:
        """Check the position; return the server's timeline, the publications, and whether the slot follows a fail-over.

        Queries use a session of their own: a walsender would cache what it learns of a table through SQL, and decode
        older changes of that table with today's columns.
        """
        names = self._names
        with catalog_session(self._uri) as session:
            timeline = primary_timeline(session)  # a standby may have the slot, and does not lend it
            if names.owns_slot:
                slots.evict_reader(session, names.slot)
            status = slots.check_position(session, names.slot, resolved_ts)
            publications = slots.publications(session, names)
        return timeline, publications, status.has_failover

    def _prover(self, at: Position, sightings: Sightings, quiet: QuietChanges, timelines: Timelines) -> Prover:
        return Prover(
            self._connect,
            slots.all_publications(self._names),
            {table: known.record for table, known in self._known.items()},
            at=at.ts,
            proof=at.attachment or at.text,
            wanted=self._wanted(),
            sightings=sightings,
            quiet=quiet,
            joining=self._joining,
            schemas={table: known.schema for table, known in self._known.items() if known.schema is not None},
            is_ours=self._names.owns_publication,
            timelines=timelines,
        )

    def _wanted(self) -> Wanted:
        config = self._scope.config
        is_free = config.force_replicate or not self._scope.sink_mode.is_keyed
        wanted, joining = TableFilter(config.filter.rules), self._joining
        return Wanted(
            lambda schema, name: (schema, name) not in joining and is_text(schema, name) and wanted.wants(schema, name),
            lambda table: is_free or bool(table.key),
            copies=self._scope.settings(PostgresSettings).partition_rows == "copy",
            ignored=lambda schema, name: rules_for(config.filter, schema, name).events,
        )

    def _check_identity(self, connection: Connection, resolved_ts: Ts) -> tuple[Identity, Timelines]:
        """Check that the log's position means the same at this server. Return also its timelines; 0 among the
        branches is the one that was expected."""
        found, expected = read_identity(connection), self._identity
        if expected.system_id not in ("", found.system_id):
            raise PositionLostError(
                f"{connection.target} is system {found.system_id}, but the changefeed began on {expected.system_id}, "
                f"whose positions mean nothing here; {NEW_POSITION}"
            )
        if found.timeline < expected.timeline:
            raise SourceUnreachableError(
                f"{connection.target} is on timeline {found.timeline}, and the log was read on {expected.timeline}: it "
                "is an old primary; it is tried again until the new one answers there"
            )
        branches = read_branches(connection, found.timeline)
        if expected.system_id and found.timeline > expected.timeline:
            branches[0] = self._check_branch(connection, expected.timeline, branches, resolved_ts)
        if found.flushed_ts < resolved_ts:
            raise PositionLostError(
                f"{connection.target} was set back to {format_lsn(found.flushed_ts)}, behind the log's "
                f"{format_lsn(resolved_ts)}; {NEW_POSITION}"
            )
        self._identity = found.identity
        return found.identity, Timelines(found.timeline, branches)

    def _check_branch(self, connection: Connection, timeline: int, branches: Mapping[int, Ts], resolved_ts: Ts) -> Ts:
        """Return where a promoted server has another log than ``timeline``.

        :raises PositionLostError: more was read of that one.
        """
        branch = branches.get(timeline)
        # chunks of the snapshot may be of later moments than the log
        read_ts = max([resolved_ts, *(table.consistent_ts for table in self._order.tables)])
        if branch is None or branch <= read_ts:
            from_ts = f" from {format_lsn(branch)} on" if branch else ""
            raise PositionLostError(
                f"{connection.target} was promoted and has another log than timeline {timeline}{from_ts}, which was "
                f"read to {format_lsn(read_ts)}: what was committed in between may be lost there; {NEW_POSITION}"
            )
        _log.warning("the log continues on a promoted server", read=format_lsn(read_ts), from_lsn=format_lsn(branch))
        return branch

    def _start(
        self,
        connection: Connection,
        publications: Sequence[str],
        resolved_ts: Ts,
        arena: Arena,
        sightings: Sightings,
        quiet: QuietChanges,
    ) -> ReplicationStream:
        resolver = TypeResolver(self._connect, sorted(self._known), publications)
        converter = self._converter
        binary = not (self._is_text or converter or resolver.needs_text)
        tracker = self._tracker()
        if converter:
            connection.take_bytes()
            publications = converter.from_utf8(publications)
        stream = ReplicationStream(
            connection,
            arena,
            resolved=resolved_ts,
            is_wanted=tracker.is_wanted,
            resolve=partial(self._resolve, resolver, binary=binary),
            tracker=tracker,
            sightings=sightings,
            quiet=quiet,
            line=ConvertingLine(connection.socket, converter) if converter else None,
            refused=self._refused,
        )
        stream.start(self._names.slot, publications, binary=binary)
        return stream

    def _refused(self, error: SourceError) -> Exception:
        """The server names no table. Read without its conversion, the stream shows which one it is."""
        if self._converter or not isinstance(error, UnconvertibleError):
            return error
        _log.warning("the stream has a text that UTF-8 does not have; it continues in the database's encoding")
        self._converter = Converter(self._connect)
        return StreamRestart()

    def _tracker(self) -> SchemaTracker:
        wanted = self._wanted()
        return SchemaTracker(
            self._known,
            wants=wanted.named,
            takes=wanted.takes,
            look_up=self._look_up,
            names_of=self._names_of,
            verified=self._verified,
            needs_columns=self._scope.sink_mode.is_keyed,
        )

    def _look_up(self, table_id: int) -> CatalogTable:
        """Through a session of its own, as every question: see ``_check_position``."""
        with self._connect() as session:
            return look_up(session, table_id, read_terms(session, slots.all_publications(self._names), with_rows=False))

    def _names_of(self, table_ids: Iterable[int]) -> dict[int, tuple[str, str]]:
        with self._connect() as session:
            return names_of(session, table_ids)

    def _verified(self, table_id: int, guesses: Mapping[str, Guess]) -> tuple[dict[str, str], list[str]]:
        with self._connect() as session:
            return verified(session, table_id, guesses)

    def _resolve(self, resolver: TypeResolver, declared: TableSchema, *, binary: bool) -> TableSchema:
        try:
            return resolver.resolve(declared, binary=binary)
        except TextFormNeeded as reason:
            _log.info("stream continues in text form", table=str(reason))
            self._is_text = True
            raise StreamRestart from None


class PostgresStream:
    """``agent.ports.source.OpenStream``."""

    def __init__(
        self,
        connection: Connection,
        stream: ReplicationStream,
        prover: Prover,
        server: Identity,
        converter: Converter | None = None,
    ) -> None:
        self.server = server
        self._connection = connection
        self._prover = prover
        self._converter = converter
        self.stream = stream

    def prove(self, cut: LogChunk) -> LogChunk:
        return self._prover.prove(cut)

    def abort(self) -> None:
        self._connection.abort()
        self._prover.abort()

    def close(self) -> None:
        self._connection.close()
        self._prover.close()
        if self._converter is not None:
            self._converter.close()
