"""Publication proof: reads the catalog before the head passes, so that it passes no change that was not sent.

Tables that are published now may not have been when the log was written. So the head moves to a position only after a
reading of the catalog that began when the server's log had reached it. Every row that publishes a table must be the
same as in the previous reading (``losses``). A table with a difference has lost changes somewhere after the last
position, and is held from there on; all others continue. The proof is attached to the head, so gaps in reading, however
long, are covered in the same way.

The check uses a persistent connection (``digest``); the rows themselves are read only if something has changed.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial

from agent.errors import COPIED, SourceUnreachableError
from agent.rows.arena import LogChunk
from agent.rows.schema import TableSchema
from agent.rows.schema_change import KnownTable
from agent.sources.common.joining import Joining, Name, Reading
from agent.sources.postgres.publication import digest, losses, published, type_facts
from agent.sources.postgres.publication.choosing import Wanted
from agent.sources.postgres.publication.findings import Findings, schemas_after
from agent.sources.postgres.publication.held_newcomers import HeldNewcomers
from agent.sources.postgres.publication.newcomers import Newcomers, keyless, late, renamed, unlogged
from agent.sources.postgres.publication.partitions import Partitions
from agent.sources.postgres.publication.proof import FIRST_MAX, Proof
from agent.sources.postgres.publication.published import Catalog, Relation, one_moment
from agent.sources.postgres.publication.quiet_changes import QuietChanges
from agent.sources.postgres.publication.readded import ReaddedColumns
from agent.sources.postgres.publication.rewrites import Rewrites
from agent.sources.postgres.publication.sightings import Shape, Sightings
from agent.sources.postgres.publication.silent import SilentTables
from agent.sources.postgres.publication.unnamed_roots import UnnamedRoots
from agent.sources.postgres.server import xids
from agent.sources.postgres.server.catalog import read_schemas, table_ids_of
from agent.sources.postgres.server.connection import Connection
from agent.sources.postgres.server.identity import UNKNOWN_TIMELINES, Timelines
from agent.sources.postgres.server.idle import IdleServer
from agent.sources.postgres.server.keys import key_of
from agent.sources.postgres.server.terms import read_terms
from reactor.ids import Ts
from reactor.records.tables.held import PARTITION_ROWS
from reactor.records.tables.schema_change import DdlRecord, SchemaChangeKind
from reactor.records.tables.table import TableRecord


def first_proof(
    connection: Connection, publications: Sequence[str], table_ids: Sequence[int], *, timeline: int = 0
) -> str:
    """Return a changefeed's initial proof: read in the transaction whose snapshot is its start, or before its slot is
    created."""
    digest.prepare(connection, publications, table_ids)
    seen = digest.read(connection)
    proof = losses.first(published.read(connection, publications, table_ids), seen, table_ids)
    types = dict(type_facts.read(connection, table_ids).values)
    return replace(proof, types=types, timeline=timeline).to_text(FIRST_MAX)


class Prover:
    """The prover of one stream. ``known``: the tables at ``at``, the position of ``proof``, which is empty if the log
    is of a version without proofs: then the first reading is trusted. ``joining``: what has joined, or is given up, is
    removed. ``is_ours``: see ``losses.lost``. ``timelines``: the server's."""

    def __init__(
        self,
        connect: Callable[[], Connection],
        publications: Sequence[str],
        known: dict[int, TableRecord],
        *,
        at: Ts,
        proof: str,
        wanted: Wanted,
        sightings: Sightings,
        quiet: QuietChanges,
        joining: set[Name] | None = None,
        schemas: Mapping[int, TableSchema] | None = None,
        is_ours: bool = False,
        timelines: Timelines = UNKNOWN_TIMELINES,
    ) -> None:
        self._connect = connect
        self._publications = publications
        self._is_ours = is_ours
        self._timelines = timelines
        self._known = known
        self._at = at
        self._proof = Proof.from_text(proof) if proof else None
        self._text = proof
        self._wanted = wanted
        self._sightings = sightings
        self._quiet = quiet
        self._silent = SilentTables(wanted.named, wanted.takes)
        self._held_newcomers = HeldNewcomers(wanted.named)
        self._unnamed_roots = UnnamedRoots()
        self._joining = Joining(joining or set())
        self._connection: Connection | None = None
        self._is_ended = False
        self._is_prepared = False
        #: before it has looked once itself, the digest says too little
        self._must_read = True
        #: the change counter of all catalogs when the digest was the proof's
        self._changes = ""
        #: tables that are gone, and where the log ended when that was seen
        self._gone: dict[int, Ts] = {}
        #: tables that were published after they were made
        self._unsettled: set[int] = set()
        #: as the stream has them
        self._schemas = dict(schemas or {})
        self._readded = ReaddedColumns(sightings)
        self._idle = IdleServer()

    def close(self) -> None:
        self._is_ended = True
        if self._connection is not None:
            self._connection.close()

    def abort(self) -> None:
        self._is_ended = True
        if self._connection is not None:
            self._connection.abort()

    def prove(self, cut: LogChunk) -> LogChunk:
        """Return ``cut`` with the losses found, and the proof with which the head may pass it.

        :raises PositionLostError: the publications have been replaced.
        :raises SourceError: the catalog cannot be read.
        :raises StreamRestart: tables have joined that the stream does not know.
        """
        self._joining.restart()
        if not cut.is_complete or cut.resolved_ts <= self._at:
            if cut.is_complete and self._waits():
                self._idle.write(self._session())
            return replace(cut, attachment=self._text)
        connection = self._session()
        is_quiet = not (self._must_read or self._joining.is_due() or cut.ddl or self._unsettled or self._gone)
        is_quiet = is_quiet and not self._readded.is_due(cut.resolved_ts)
        is_quiet = is_quiet and not self._sightings.has_partitions(cut.resolved_ts)
        is_quiet = is_quiet and not self._sightings.has_passed_over(cut.resolved_ts)
        is_quiet = is_quiet and not self._unnamed_roots.is_due(cut.resolved_ts)
        is_quiet = is_quiet and not (
            self._joining.has_given_up or self._quiet.is_due() or self._silent.is_due or self._held_newcomers.is_due
        )
        if not self._waits():
            self._idle.rest()
        if is_quiet and self._proof and not self._proof.unseen and self._is_unchanged(connection, self._proof):
            self._pass(cut.resolved_ts)
            return replace(cut, attachment=self._text)
        ddl = self._judge(connection, cut)
        self._pass(cut.resolved_ts)
        return replace(cut, attachment=self._text, ddl=ddl)

    def _waits(self) -> bool:
        """Return whether something is judged at a later position."""
        waits = self._silent.is_due or self._held_newcomers.is_due or self._readded.waits
        return waits or bool(self._gone or self._joining.names or self._joining.has_given_up)

    def _pass(self, ts: Ts) -> None:
        self._at = ts
        self._sightings.forget(ts)

    def _is_unchanged(self, connection: Connection, proof: Proof) -> bool:
        """Return whether everything relevant to the tables is in the catalog as at the last proof."""
        changes = digest.changes(connection)
        if changes != self._changes:
            known = {*self._known, *proof.held}
            if digest.read(connection) != proof.digest or self._silent.has_news(connection, known):
                return False
            if self._held_newcomers.has_news(connection, proof.newcomers):
                return False
            self._changes = changes
        return True

    def _session(self) -> Connection:
        if self._connection is None:
            self._connection = self._connect()
            self._is_prepared = False
            if self._is_ended:  # by another thread, which may have found no connection
                self._connection.close()
                raise SourceUnreachableError("the stream was closed while the catalog was to be read")
        if not self._is_prepared:
            digest.prepare(self._connection, self._publications, list(self._known))
            self._is_prepared = True
        return self._connection

    def _judge(self, connection: Connection, cut: LogChunk) -> tuple[DdlRecord, ...]:
        """The chunk's changes of tables, and what else has become of them."""
        upto = cut.resolved_ts
        last = self._proof or Proof()
        found = Findings(cut.ddl, self._known, last.held, last.newcomers)
        asked_for = set(found.known)
        digest.prepare(connection, self._publications, list(asked_for))
        with one_moment(connection, last.files):
            joining = table_ids_of(connection, self._joining.names)
            watched = {*found.known, *joining.values()}
            seen = digest.read(connection)
            refused = (record.table_id for record, *_ in found.refused)
            others = self._silent.candidates(connection, self._proof, watched)
            now = published.read(connection, self._publications, {*watched, *refused}, others=others)
            facts = type_facts.read(connection, watched)
            before = self._proof or replace(losses.first(now, seen, found.known), types=dict(facts.values))
            losses.refuse_other_history(before, seen, self._timelines.branches)
            losses.refuse_other_publications(before, now, self._publications, behind=self._at)
            absorbed = losses.absorbed(now, found.known, self._wanted.named_or(self._joining.names))
            for table, reason in losses.lost(before, now, found.old, absorbed=absorbed, is_ours=self._is_ours).items():
                found.hold(found.old[table], Ts(self._at + 1), reason)
            self._judge_types(connection, type_facts.altered(before.types, facts), found)
            asked = Newcomers(connection, before, now)
            sightings = [*before.unseen, *self._sightings.take_partitions(upto)]
            unseen = [one for one in sightings if not now.shows(xids.near(one.xid, now.ahead))]
            shown = [one for one in sightings if one not in unseen]
            writers = partial(self._sightings.writers, upto=now.end_ts)
            rewrites, declared = Rewrites(asked, self._was_truncated), dict(self._schemas)
            retyped = partial(_retyped, rewrites, declared)
            partitions = Partitions(asked, self._was_truncated, shown, writers, self._sightings, retyped, self._wanted)
            self._judge_partitions(partitions, rewrites, found)
            self._schemas |= schemas_after(cut.ddl)
            self._judge_rewrites(rewrites, found, declared)
            self._judge_readded(connection, now, found, upto)
            passed_over = asked.younger(before.passed_over | self._sightings.take_passed_over(upto))
            self._judge_gone(now, found, absorbed, upto)
            first = schemas_after(cut.ddl, SchemaChangeKind.CREATE)
            clean = self._judge_newcomers(asked, partitions, first, found, passed_over, joining, upto)
            self._held_newcomers.judge(connection, now, found, upto, joining=self._joining.names)
            found.name_held(now, upto)
            self._quiet.look(connection, self._publications, before, now, found.flowing, self._schemas)
            self._join(connection, now, joining, found, upto)
            leaves = {table: self._recorded_leaves(asked, table, found, upto) for table in losses.roots(now)}
            empty = asked.empty({leaf for of_root in leaves.values() for leaf in of_root})
        self._unnamed_roots.forget(now)
        self._is_prepared = found.known.keys() == asked_for
        self._known = found.known
        proof = losses.following(before, now, seen, known=found.known, held=found.held, clean=clean, unseen=unseen)
        proof = replace(proof, timeline=self._timelines.now)
        passed = frozenset(passed_over - found.known.keys())
        self._proof = replace(
            proof, newcomers=found.newcomers, types=dict(facts.values), leaves=leaves, passed_over=passed, empty=empty
        )
        self._text = self._proof.to_text()
        self._quiet.move_on(connection)
        self._must_read = False
        self._changes = ""
        return found.records()

    def _judge_types(self, connection: Connection, altered: Mapping[int, int], found: Findings) -> None:
        """Rows that existed say something else since a type was altered, and the log does not tell."""
        for table, kind in altered.items():
            if table in found.old and table not in found.held:
                self._hold_old(found, table, type_facts.trouble(connection, kind))

    def _hold_old(self, found: Findings, table: int, trouble: str, cure: str = losses.CURE, *, code: str = "") -> None:
        record = found.old[table]
        reason = f"table {record.schema_name}.{record.name} {trouble}; {cure}"
        found.hold(record, Ts(self._at + 1), reason, code=code)

    def _judge_partitions(self, partitions: Partitions, rewrites: Rewrites, found: Findings) -> None:
        cure, code = (COPIED, PARTITION_ROWS) if self._wanted.copies else (losses.CURE, "")
        guests = partitions.guests()
        for table in sorted(found.old.keys() - found.held):
            trouble = partitions.trouble(table)
            if not trouble and (table in guests or rewrites.came_back(table)):
                trouble = "was attached as a partition and detached: its rows of that time are not in its stream"
            if trouble:
                self._hold_old(found, table, trouble, cure, code=code)

    def _judge_rewrites(self, rewrites: Rewrites, found: Findings, declared: Mapping[int, TableSchema]) -> None:
        """``declared``: at the last position, as a default may be gone since then and before the catalog was asked."""
        for table in found.old:
            if table not in found.held and (trouble := rewrites.trouble(table, declared.get(table))):
                self._hold_old(found, table, trouble)

    def _judge_readded(self, connection: Connection, now: Catalog, found: Findings, upto: Ts) -> None:
        """A column that was dropped and added again is another one; the stream has said so by now, or never will."""
        flowing = found.old.keys() & self._schemas.keys() & now.tables.keys() - found.held
        schemas = {table: self._schemas[table] for table in flowing}
        for table, column in list(self._readded.find(connection, now, schemas, upto)):
            self._hold_old(
                found,
                table,
                f"may have a new column in place of another: column {column} was dropped and added again, and what "
                "its rows hold in it is in no stream",
            )

    def _was_unlogged(self, asked: Newcomers, relation: Relation) -> bool:
        first_writer = self._sightings.first_writer(relation.table_id)
        is_late = first_writer is not None and asked.has_rows_of_before(relation, first_writer)
        is_rewritten = is_late or asked.was_unlogged(relation)
        return is_late or (is_rewritten and not self._was_truncated(relation.table_id, asked.now.end_ts, None))

    def _was_truncated(self, table_id: int, upto: Ts, xid: int | None) -> bool:
        short = None if xid is None else xids.short(xid)
        return self._sightings.has_truncate(table_id, since=self._at, upto=upto, xid=short)

    def _recorded_leaves(self, asked: Newcomers, root: int, found: Findings, upto: Ts) -> dict[int, int]:
        """Return the partitions that the proof has."""
        relation = asked.now.tables[root]
        if root in found.known or root in found.held or not self._wanted.named(relation.schema_name, relation.name):
            return asked.now.leaves(root)
        return self._unnamed_roots.recorded(asked, root, upto)

    def _judge_newcomers(
        self,
        asked: Newcomers,
        partitions: Partitions,
        first: Mapping[int, TableSchema],
        found: Findings,
        passed_over: Collection[int],
        joining: Mapping[Name, int],
        upto: Ts,
    ) -> frozenset[int]:
        """Hold those that are not in the stream as a whole; returns those that will be, once they have rows."""
        now, before, rewrites = asked.now, asked.before, Rewrites(asked, self._was_truncated)
        younger = asked.younger({record.table_id for record, *_ in found.refused})
        for record, ts, reason in found.refused:
            table = record.table_id
            # one without a key that was there before was left out when the changefeed was created
            counts = reason != keyless(record) or table in younger or asked.is_whole(table)
            if table not in found.held and counts:
                found.hold(record, ts, reason)
        for table, ts in list(found.created.items()):
            if table not in now.tables:
                found.drop(table, ts)
            elif not asked.is_whole(table):
                found.hold(found.known[table], ts, late(now, table))
            elif table in passed_over:
                found.hold(found.known[table], ts, renamed(now, table))
            elif self._was_unlogged(asked, now.tables[table]):
                found.hold(found.known[table], ts, unlogged(now, table))
            elif trouble := (
                rewrites.trouble_of_new(table, first.get(table))
                or partitions.trouble_of_new(table)
                or asked.trouble_of_types(table)
            ):
                found.hold(found.known[table], ts, f"table {now.tables[table].qualified_name} {trouble}; {losses.CURE}")
        clean = {table for table in before.clean if table in now.tables and table not in found.known}
        self._unsettled.clear()
        for table in self._candidates(now, found) - clean:
            record = asked.record(table)
            if not self._wanted.takes(record):
                found.hold(record, upto, keyless(record))
            elif not asked.is_settled(table):
                self._unsettled.add(table)
            elif asked.is_clean(table):
                clean.add(table)
            else:
                found.hold(record, upto, late(now, table))
        known = {*found.known, *found.held, *joining.values(), *clean, *self._unsettled}
        for table, reason in list(self._silent.find(asked, partitions, known, upto)):
            record = asked.record(table)
            found.hold(record, upto, reason if self._wanted.takes(record) else keyless(record))
        return frozenset(clean)

    def _join(
        self, connection: Connection, now: Catalog, joining: Mapping[Name, int], found: Findings, upto: Ts
    ) -> None:
        """Take in tables that are published, once all transactions have ended that began before that was seen: what
        those have not sent is in their copies. One that is not published took such a one's name, and is new."""
        there = {name: number for name, number in joining.items() if now.ways(number)}
        found.give_up(self._joining.give_up(there), upto)
        if not there:
            return
        schemas = read_schemas(
            connection, list(there.values()), read_terms(connection, self._publications, with_rows=False)
        )
        by_name = {(schema.schema_name, schema.name): schema for schema in schemas.values()}
        reading = Reading(by_name, now.end_ts, now.horizon, now.ahead)
        for (schema_name, name), schema in self._joining.ready(reading, upto).items():
            start_ts = Ts(upto - 1)
            record = TableRecord.new(
                schema.table_id,
                schema_name,
                name,
                key=key_of(connection, schema.table_id),
                start_ts=start_ts,
                consistent_ts=start_ts,
                to_copy=True,
            )
            found.join(KnownTable(record, schema), upto)

    def _candidates(self, now: Catalog, found: Findings) -> set[int]:
        """Tables that are published by name, and that the stream has not named yet."""
        members = {table for publication in now.publications.values() for table in publication.members}
        return {
            table
            for table in members.difference(found.known, found.held).intersection(now.tables)
            if now.ways(table) and self._wanted.named(now.tables[table].schema_name, now.tables[table].name)
        }

    def _judge_gone(self, now: Catalog, found: Findings, absorbed: Collection[int], upto: Ts) -> None:
        """A dropped or absorbed table goes when the stream is behind its end."""
        gone = {table for table in found.known if table not in now.tables or table in absorbed}
        self._gone = {table: self._gone.get(table, now.end_ts) for table in gone}
        for table, end_ts in list(self._gone.items()):
            if end_ts <= upto:
                found.drop(table, upto)
                del self._gone[table]


def _retyped(rewrites: Rewrites, declared: Mapping[int, TableSchema], root: int) -> Shape:
    return rewrites.retyped(root, declared.get(root))
