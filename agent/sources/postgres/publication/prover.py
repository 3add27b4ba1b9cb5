"""Publication proof: reads the catalog before the head passes, so that nothing is passed that was not sent.

That the tables are published now says nothing of the log that was read. So the head moves to a position only after a
reading of the catalog that began when the server's log had reached it: it has to find every row that publishes a
table as the last reading found it (``losses``). What a table lost in between it has lost somewhere behind the last
position, and is held from there on; everybody else continues. The proof is attached to the head, so a gap in which
nobody read, however long, is judged in the same way.

The question is asked over a connection that is kept (``digest``); the rows themselves are read only where something has
changed.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from agent.errors import NEW_SNAPSHOT, PositionLostError
from agent.rows.arena import LogChunk
from agent.rows.schema import TableSchema
from agent.sources.postgres.publication import digest, losses, published, type_facts
from agent.sources.postgres.publication.findings import Findings
from agent.sources.postgres.publication.newcomers import Newcomers
from agent.sources.postgres.publication.partitions import Partitions
from agent.sources.postgres.publication.proof import FIRST_MAX, Proof
from agent.sources.postgres.publication.published import Catalog, one_moment
from agent.sources.postgres.publication.readded import readded
from agent.sources.postgres.publication.rewrites import Rewrites
from agent.sources.postgres.publication.truncations import Truncations
from agent.sources.postgres.server.connection import Connection
from agent.sources.postgres.server.keys import key_of
from agent.sources.postgres.server.lsn import format_lsn
from agent.sources.postgres.server.sql import literal
from reactor.ids import Ts
from reactor.records.changefeed import DdlRecord, TableRecord


def first_proof(connection: Connection, publications: Sequence[str], table_ids: Sequence[int]) -> str:
    """What a changefeed begins with: in the transaction whose snapshot is its start, or before its slot is made."""
    digest.prepare(connection, publications, table_ids)
    seen = digest.read(connection)
    proof = losses.first(published.read(connection, publications, table_ids), seen, table_ids)
    return replace(proof, types=dict(type_facts.read(connection, table_ids).told)).to_text(FIRST_MAX)


@dataclass(frozen=True, slots=True)
class Wants:
    """Which new tables are taken in: by schema and name, and those that can be replicated."""

    named: Callable[[str, str], bool]
    takes: Callable[[TableRecord], bool]


class Prover:
    """For one stream. ``known``: the tables at ``at``, where ``proof`` is of; it is empty where the log is of a version
    that had none: then what is found first counts."""

    def __init__(
        self,
        connect: Callable[[], Connection],
        publications: Sequence[str],
        known: dict[int, TableRecord],
        *,
        at: Ts,
        proof: str,
        wants: Wants,
        truncations: Truncations,
        schemas: Mapping[int, TableSchema] | None = None,
    ) -> None:
        self._connect = connect
        self._publications = publications
        self._known = known
        self._at = at
        self._proof = Proof.from_text(proof) if proof else None
        self._text = proof
        self._wants = wants
        self._truncations = truncations
        self._connection: Connection | None = None
        self._is_prepared = False
        #: before it has looked once itself, the digest says too little
        self._must_read = True
        #: of all catalogs, when the digest was the proof's
        self._changes = ""
        #: tables that are gone, and where the log ended when that was seen
        self._gone: dict[int, Ts] = {}
        #: tables that were published after they were made
        self._unsettled: set[int] = set()
        #: as the stream has them
        self._schemas = dict(schemas or {})
        #: tables with a column that the stream may take for an old one, and where the log ended when that was seen
        self._readded: dict[int, Ts] = {}

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def abort(self) -> None:
        if self._connection is not None:
            self._connection.abort()

    def prove(self, cut: LogChunk) -> LogChunk:
        """The chunk ``cut`` with what is found to be lost, and the proof that the head may pass it.

        :raises PositionLostError: the publications are not those that they were.
        :raises SourceError: the catalog cannot be read.
        """
        if not cut.is_complete or cut.resolved_ts <= self._at:
            return replace(cut, attachment=self._text)
        connection = self._session()
        is_quiet = not (self._must_read or cut.ddl or self._unsettled or self._gone or self._readded)
        if is_quiet and self._proof and self._is_unchanged(connection, self._proof):
            self._at = cut.resolved_ts
            return replace(cut, attachment=self._text)
        ddl = self._judge(connection, cut)
        self._at = cut.resolved_ts
        return replace(cut, attachment=self._text, ddl=ddl)

    def _is_unchanged(self, connection: Connection, proof: Proof) -> bool:
        """What counts for the tables is in the catalog as at the last proof."""
        changes = digest.changes(connection)
        if changes != self._changes:
            if digest.read(connection) != proof.digest:
                return False
            self._changes = changes
        return True

    def _session(self) -> Connection:
        if self._connection is None:
            self._connection = self._connect()
            self._is_prepared = False
        if not self._is_prepared:
            digest.prepare(self._connection, self._publications, list(self._known))
            self._is_prepared = True
        return self._connection

    def _judge(self, connection: Connection, cut: LogChunk) -> tuple[DdlRecord, ...]:
        """The chunk's changes of tables, and what else has become of them."""
        upto = cut.resolved_ts
        found = Findings(cut.ddl, self._known, self._proof.held if self._proof else ())
        asked_for = set(found.known)
        digest.prepare(connection, self._publications, list(asked_for))
        with one_moment(connection):
            seen = digest.read(connection)
            now = published.read(connection, self._publications, found.known)
            told = type_facts.read(connection, found.known)
            before = self._proof or replace(losses.first(now, seen, found.known), types=dict(told.told))
            self._refuse_other_publications(before, now)
            for table, reason in losses.lost(before, now, found.old).items():
                found.hold(found.old[table], Ts(self._at + 1), reason)
            self._judge_types(connection, type_facts.altered(before.types, told), found)
            asked = Newcomers(connection, before, now)
            self._judge_roots(Partitions(asked, self._was_truncated), found)
            self._judge_rewrites(Rewrites(asked, self._was_truncated), found)
            self._judge_readded(now, found, cut)
            clean = self._judge_newcomers(asked, found, upto)
            self._judge_gone(connection, now, found, upto)
        self._is_prepared = found.known.keys() == asked_for
        self._known = found.known
        proof = losses.following(before, now, seen, known=found.known, held=found.held, clean=clean)
        self._proof = replace(proof, types=dict(told.told))
        self._text = self._proof.to_text()
        self._must_read = False
        self._changes = ""
        return found.records()

    def _refuse_other_publications(self, before: Proof, now: Catalog) -> None:
        """:raises PositionLostError: none is there as it was, so there may be a gap in every table."""
        if losses.is_of_publications(before, now, self._publications):
            raise PositionLostError(
                f"publication {' and '.join(self._publications)} was dropped or altered behind "
                f"{format_lsn(self._at)}, so changes may be in no stream; {NEW_SNAPSHOT}"
            )

    def _judge_types(self, connection: Connection, altered: Mapping[int, int], found: Findings) -> None:
        """Rows that existed say something else since a type was altered, and the log does not tell."""
        names = type_facts.names(connection, set(altered.values())) if altered else {}
        for table, kind in altered.items():
            if table in found.old and table not in found.held:
                record = found.old[table]
                reason = (
                    f"table {record.schema_name}.{record.name} has rows of the type {names.get(kind, kind)}, which was "
                    f"altered: what they say now is not in the log; {losses.CURE}"
                )
                found.hold(record, Ts(self._at + 1), reason)

    def _judge_roots(self, partitions: Partitions, found: Findings) -> None:
        for table, record in found.old.items():
            if table not in found.held and (trouble := partitions.trouble(table)):
                name = f"{record.schema_name}.{record.name}"
                found.hold(record, Ts(self._at + 1), f"table {name} {trouble}; {losses.CURE}")

    def _judge_rewrites(self, rewrites: Rewrites, found: Findings) -> None:
        for table, record in found.old.items():
            if table not in found.held and (trouble := rewrites.trouble(table)):
                name = f"{record.schema_name}.{record.name}"
                found.hold(record, Ts(self._at + 1), f"table {name} {trouble}; {losses.CURE}")

    def _judge_readded(self, now: Catalog, found: Findings, cut: LogChunk) -> None:
        """A column that was dropped and added again is another one; the stream has said so by now, or never will."""
        changes = [change for record in cut.ddl for change in record.changes if change.after]
        self._schemas |= {change.table_id: TableSchema.from_json(change.after) for change in changes}
        seen: dict[int, Ts] = {}
        for table, record in found.old.items():
            if table in found.held or table not in self._schemas or table not in now.tables:
                continue
            if column := readded(self._schemas[table], now.tables[table]):
                seen[table] = self._readded.get(table, now.end_ts)
                if seen[table] <= cut.resolved_ts:
                    reason = (
                        f"table {record.schema_name}.{record.name}: column {column} was dropped and added again, and "
                        f"what its rows hold in it is in no stream; {losses.CURE}"
                    )
                    found.hold(record, Ts(self._at + 1), reason)
                    del seen[table]
        self._readded = seen

    def _was_truncated(self, table_id: int, upto: Ts) -> bool:
        return self._truncations.has(table_id, since=self._at, upto=upto)

    def _judge_newcomers(self, asked: Newcomers, found: Findings, upto: Ts) -> frozenset[int]:
        """Hold those that are not in the stream as a whole; returns those that will be, once they have rows."""
        now, before = asked.now, asked.before
        for table, ts in list(found.created.items()):
            if table not in now.tables:
                found.forget(table, since=ts)  # it is gone again, and nothing of it is left to be shown
                del found.known[table], found.created[table]
            elif not asked.is_whole(table):
                found.hold(found.known[table], ts, _late(now, table))
        clean = {table for table in before.clean if table in now.tables and table not in found.known}
        self._unsettled.clear()
        for table in self._candidates(now, found) - clean:
            record = _record(asked, table)
            if not self._wants.takes(record):
                found.hold(record, upto, _keyless(record))
            elif not asked.is_settled(table):
                self._unsettled.add(table)
            elif asked.is_clean(table):
                clean.add(table)
            else:
                found.hold(record, upto, _late(now, table))
        return frozenset(clean)

    def _candidates(self, now: Catalog, found: Findings) -> set[int]:
        """Tables that are published by name, and that the stream has not named yet."""
        members = {table for publication in now.publications.values() for table in publication.members}
        unknown = members.difference(found.known, found.held).intersection(now.tables)
        return {
            table
            for table in unknown
            if now.ways(table) and self._wants.named(now.tables[table].schema_name, now.tables[table].name)
        }

    def _judge_gone(self, connection: Connection, now: Catalog, found: Findings, upto: Ts) -> None:
        """A dropped table goes when the stream is behind its end, unless another one has its name and is not sent."""
        gone = {table for table in found.known if table not in now.tables}
        self._gone = {table: self._gone.get(table, now.end_ts) for table in gone}
        for table, end_ts in list(self._gone.items()):
            record = found.known[table]
            if _is_replaced(connection, now, record):
                name = f"{record.schema_name}.{record.name}"
                reason = f"table {name} was dropped and created again, and the new one is not published; {losses.CURE}"
                found.hold(record, upto, reason)
                del found.known[table], self._gone[table]
            elif end_ts <= upto:
                found.drop(table, upto)
                del self._gone[table]


def _record(asked: Newcomers, table_id: int) -> TableRecord:
    relation, key = asked.now.tables[table_id], key_of(asked.connection, table_id)
    return TableRecord(table_id=table_id, schema_name=relation.schema_name, name=relation.name, key=key)


def _late(now: Catalog, table_id: int) -> str:
    return (
        f"table {now.tables[table_id].qualified_name} was there before it was published, so rows of it may be in no "
        "stream; publish a table in the transaction that creates it, or before it has rows, or create the changefeed "
        "again"
    )


def _keyless(record: TableRecord) -> str:
    return (
        f"table {record.schema_name}.{record.name} has no key to upsert by, so it is not taken in; give it one and "
        "create the changefeed again, leave it out by a filter rule, or set force-replicate = true"
    )


def _is_replaced(connection: Connection, now: Catalog, record: TableRecord) -> bool:
    """Another table has its name, and no publication has that one."""
    rows = connection.query(
        "SELECT c.oid::int8, c.relnamespace::int8 FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n "
        f"ON n.oid = c.relnamespace WHERE n.nspname = {literal(record.schema_name)} "
        f"AND c.relname = {literal(record.name)} AND c.relkind IN ('r', 'p')"
    )
    return bool(rows) and not any(
        one.is_all or int(oid or 0) in one.members or int(schema or 0) in one.schemas
        for oid, schema in rows
        for one in now.publications.values()
    )
