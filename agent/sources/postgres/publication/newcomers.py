"""Newcomers: tables that the stream names for the first time, and whether it has all their rows.

The catalog has the transaction that created a table (in the row of its ``ctid`` column, which is never rewritten) and
the one that published it. If one transaction did both, rows that it inserted in between have an older command id. If
there were two, the table must have been empty when all transactions had ended that began before it was published.
"""

import itertools
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

from agent.errors import RESYNC, SourceError
from agent.sources.postgres.publication import losses, type_facts
from agent.sources.postgres.publication.proof import Proof
from agent.sources.postgres.publication.published import Catalog, Relation
from agent.sources.postgres.publication.row_search import has_rows, may_be_exchanged
from agent.sources.postgres.server import xids
from agent.sources.postgres.server.connection import Connection, Row
from agent.sources.postgres.server.keys import key_of
from agent.sources.postgres.server.rewriters import writers_sql, written_sql
from agent.sources.postgres.server.sql import identifier, qualified
from reactor.records.tables.table import TableRecord

#: asked each time, of a fact that may be missing
_EMPTY_LOCK_MS: Final = 100
_CREATED_SQL: Final = (
    "SELECT xmin::text FROM pg_catalog.pg_attribute WHERE attrelid = {table} AND attname = 'ctid' AND attnum < 0"
)
#: the last command by which a transaction attached one of these
_ATTACHED_SQL: Final = (
    "SELECT max(cmin::text::int8) FROM pg_catalog.pg_inherits WHERE inhrelid IN ({tables}) AND xmin::text = '{xid}'"
)
_AGES_SQL: Final = (
    "SELECT attrelid::int8, xmin::text FROM pg_catalog.pg_attribute "
    "WHERE attrelid IN ({tables}) AND attname = 'ctid' AND attnum < 0"
)
#: the last row that published the table in the transaction that created it
_PUBLISHED_SQL: Final = (
    "SELECT coalesce(max(cmin::text::int8), -1) FROM "
    "(SELECT xmin, cmin FROM pg_catalog.pg_publication_rel WHERE prrelid IN ({lineage}) "
    "UNION ALL SELECT xmin, cmin FROM pg_catalog.pg_inherits WHERE inhrelid IN ({lineage})) rows "
    "WHERE xmin::text = '{xmin}'"
)
#: whether a transaction altered a column of the table, or left an index of it as it was
_ALTERED_SQL: Final = (
    "SELECT EXISTS (SELECT FROM pg_catalog.pg_attribute WHERE attrelid = {table} AND xmin::text = '{xid}') "
    "OR EXISTS (SELECT FROM pg_catalog.pg_index i JOIN pg_catalog.pg_class c ON c.oid = i.indexrelid "
    "WHERE i.indrelid = {table} AND pg_catalog.age(c.xmin) > pg_catalog.age('{xid}'::pg_catalog.xid))"
)
#: the oldest row of its columns
_COLUMNS_SQL: Final = (
    "SELECT xmin::text FROM pg_catalog.pg_attribute WHERE attrelid = {table} AND attnum > 0 AND NOT attisdropped "
    "ORDER BY pg_catalog.age(xmin) DESC LIMIT 1"
)
_REWRITTEN: Final = (
    "xmin::text IN (SELECT c.xmin::text FROM pg_catalog.pg_class c WHERE c.oid = {table} AND c.relam = 2 OR c.oid IN "
    "(SELECT i.indexrelid FROM pg_catalog.pg_index i WHERE i.indrelid = {table}))"
)
#: of a partition without indexes, and a transaction: the command with the oldest row that the table has of it, the one
#: that made it a partition, and those that have left rows in the catalog, so that they wrote none in it
_COMMANDS_SQL: Final = (
    "SELECT (SELECT min(cmin::text::int8) FROM ONLY {name} WHERE xmin::text = '{xid}' AND xmax::text = '0'), "
    "(SELECT max(cmin::text::int8) FROM pg_catalog.pg_inherits WHERE inhrelid = {table} AND xmin::text = '{xid}'), "
    "(SELECT reltoastrelid <> 0 FROM pg_catalog.pg_class WHERE oid = {table}), "
    "ARRAY(SELECT cmin::text::int8 FROM pg_catalog.pg_class WHERE xmin::text = '{xid}' UNION "
    "SELECT cmin::text::int8 FROM pg_catalog.pg_attribute WHERE xmin::text = '{xid}' UNION "
    "SELECT cmin::text::int8 FROM pg_catalog.pg_inherits WHERE xmin::text = '{xid}' UNION "
    "SELECT cmin::text::int8 FROM pg_catalog.pg_depend WHERE xmin::text = '{xid}' UNION "
    "SELECT cmin::text::int8 FROM pg_catalog.pg_type WHERE xmin::text = '{xid}')::text "
    "WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_index WHERE indrelid = {table})"
)
#: new columns; whether they have a default, or may not be NULL, of their own or by their type; and whether they have
#: what makes the server fill all rows: a default that it calls for each, as one of its functions is volatile
_ADDED_SQL: Final = (
    "SELECT attname, attnotnull OR atthasdef OR atthasmissing OR typdefault IS NOT NULL OR typnotnull, NOT "
    "atthasmissing AND (attidentity <> '' OR attgenerated = 's' OR typtype = 'd' OR EXISTS (SELECT FROM "
    "pg_catalog.pg_attrdef d, regexp_matches(d.adbin::text, ':(?:op)?funcid (\\d+)', 'g') called "
    "JOIN pg_catalog.pg_proc f ON f.oid = called[1]::pg_catalog.oid AND f.provolatile = 'v' "
    "WHERE d.adrelid = attrelid AND d.adnum = attnum)), attnum::int4 FROM pg_catalog.pg_attribute "
    "JOIN pg_catalog.pg_type t ON t.oid = atttypid WHERE attrelid = {table} AND attnum IN ({numbers}) ORDER BY attnum"
)
#: those of these columns whose domain was altered since
_OF_DOMAINS_SQL: Final = (
    "SELECT attnum::int4 FROM pg_catalog.pg_attribute JOIN (SELECT oid, {is_old} AS is_old FROM pg_catalog.pg_type "
    "WHERE typtype = 'd') d ON d.oid = atttypid WHERE attrelid = {table} AND attnum IN ({numbers}) AND NOT is_old"
)
#: a partition is created by one command, which counts up to here
_OWN_COMMANDS: Final = 2


def keyless(record: TableRecord) -> str:
    """Return why a new table without a key is held."""
    return (
        f"table {record.schema_name}.{record.name} has no key to upsert by, so it is not taken in; give it one, "
        f"and {RESYNC}; or leave it out by a filter rule, or set force-replicate = true"
    )


def late(now: Catalog, table_id: int) -> str:
    return (
        f"table {now.tables[table_id].qualified_name} was there before it was published, so rows of it may be in no "
        "stream; `weir table add` copies it; or publish a table in the transaction that creates it, or before it has "
        "rows"
    )


def renamed(now: Catalog, table_id: int) -> str:
    return (
        f"table {now.tables[table_id].qualified_name} had rows under another name, which no filter rule matches, so "
        f"they are in no log; {losses.CURE}"
    )


def unlogged(now: Catalog, table_id: int) -> str:
    return (
        f"table {now.tables[table_id].qualified_name} was rewritten with rows though no column was altered, as by SET "
        f"LOGGED: what was written while it was UNLOGGED is in no log; {losses.CURE}"
    )


@dataclass(frozen=True, slots=True)
class Newcomers:
    """Queries the server as of one moment, that of ``now``; ``before``: the last proof."""

    connection: Connection
    before: Proof
    now: Catalog

    def is_whole(self, table_id: int) -> bool:
        """Return whether the stream has every row that the table ever had."""
        if table_id in self.before.clean:
            return True
        relation = self.now.tables.get(table_id)
        rows = self.connection.query(_CREATED_SQL.format(table=int(table_id)))
        if relation is None or not rows:
            return False  # it was dropped, so it cannot be determined any more
        xmin = int(rows[0][0] or 0)
        created_by = xids.full(xmin, self.now.ahead)
        if not losses.is_whole(self.before, self.now, table_id, created_by) or self._has_unsent(relation, xmin):
            return False
        return not self._has_rows_of_root(relation, created_by)

    def is_whole_partition(
        self, root: int, table_id: int, writers: Callable[[int], Collection[int]] = lambda _: ()
    ) -> bool:
        """Return whether a new partition of ``root`` is complete: it has no rows from before it belonged to that, alone
        or with the table that it is a partition of. ``writers``: which transactions (32 bits) the stream has with rows
        of it as rows of its root.

        It cannot be written by others while it is being attached, so later ones of these wrote all their rows behind
        that. The numbers of any other transactions say nothing; a savepoint's is above that of its transaction.
        """
        relation, lineage = self.now.tables[table_id], self.now.lineage(table_id)
        attached = lineage[: lineage.index(root)]
        created_by, attached_by = self.created_by(table_id), max(self.now.xids[f"i{one}"] for one in attached)
        if attached_by == created_by:
            return not self._has_unsent(relation, xids.short(created_by))
        if not self._has_rows(relation, "true"):
            return True
        xid, listed = xids.short(attached_by), ", ".join(map(str, attached))
        [[command]] = self.connection.query(_ATTACHED_SQL.format(tables=listed, xid=xid))
        behind = f"xmin::text = '{xid}' AND xmax::text = '0' AND cmin::text::int8 > {command}"
        if not self._has_rows(relation, f"NOT ({behind})"):
            return True
        later = (xid for xid in writers(table_id) if xids.near(xid, self.now.ahead) > attached_by)
        known = ", ".join(f"'{xid}'" for xid in later) or "NULL"
        return not self._has_rows(relation, f"NOT ({behind}) AND (xmin::text IN ({known})) IS NOT TRUE")

    def may_have_been_emptied(self, relation: Relation, xid: int) -> bool:
        """Return whether the transaction may have emptied the table, which has no index, between its rows.

        Before the oldest row that is there were more commands then that have left nothing in the catalog: an INSERT,
        and a TRUNCATE that keeps the file, which is one only if there is a TOAST table. That makes one of its own when
        the table is made a partition, and one when its root is emptied, but no two in a row.
        """
        name = qualified(relation.schema_name, relation.name)
        sql = _COMMANDS_SQL.format(name=name, table=relation.table_id, xid=xids.short(xid))
        try:
            self.connection.query("SAVEPOINT weir")
            rows = self.connection.query(sql)
        except SourceError:
            return True
        finally:
            self.connection.query("ROLLBACK TO SAVEPOINT weir")
        if not rows:
            return False
        first, attached, has_toast, listed = rows[0]
        if first is None:
            return True
        known = {int(number) for number in str(listed).strip("{}").split(",") if number}
        since = 0 if attached is None else int(attached) + 1
        silent = [number for number in range(since, int(first)) if number not in known]
        if has_toast != "t":
            return bool(silent)
        if attached is None:
            return any(number + 1 == other for number, other in itertools.pairwise(silent))
        return len(silent) > _OWN_COMMANDS

    def has_old_rows(self, relation: Relation) -> bool:
        """Return whether there are rows from before the last proof."""
        return self._has_rows(relation, self._older_than(self.before.horizon), otherwise=False)

    def was_exchanged(self, relation: Relation) -> bool:
        """Return whether all rows are in a file that another program has made since the last proof (or all were changed
        since, before the server itself rewrote the table)."""
        return not self.has_old_rows(relation) and may_be_exchanged(self.connection, relation)

    def has_rows_of_rewrite(self, relation: Relation) -> bool:
        """Return whether the transaction that created the table's file, or its indexes', wrote rows. Rewrites that keep
        rows (``VACUUM FULL``) leave none; tables with another access method are excluded."""
        return self._has_rows(relation, _REWRITTEN.format(table=relation.table_id), otherwise=False)

    def filled_column(
        self, relation: Relation, numbers: Collection[int], *, is_new: bool = False, rewritten: str = _REWRITTEN
    ) -> str:
        """Return the first of these new columns that has no default, and yet a value in rows of before the last proof,
        or in those that a rewrite has written: it had a default when it was added. Empty if there is none. ``is_new``:
        of a table that the last proof did not have; then rows count that are older than the column's own row.
        ``rewritten``: the condition of rows of a rewrite."""
        rewritten = rewritten.format(table=relation.table_id)
        for name, has_default, *_ in self._added(relation, numbers):
            xid = self.now.xids[f"c{relation.table_id}.{relation.numbers[str(name)]}"]
            older = self._older_than(xid if is_new else self.before.horizon)
            filled = f"{identifier(str(name))} IS DISTINCT FROM NULL AND ({older} OR {rewritten})"
            if has_default != "t" and self._has_rows(relation, filled):
                return str(name)
        return ""

    def of_altered_domains(self, relation: Relation, numbers: Collection[int]) -> list[int]:
        """Return those of the columns whose type is a domain that was altered since the last proof."""
        if not numbers:
            return []
        rows = self.connection.query(
            _OF_DOMAINS_SQL.format(
                is_old=self._older_than(self.before.horizon),
                table=relation.table_id,
                numbers=", ".join(map(str, sorted(numbers))),
            )
        )
        return [int(row[0] or 0) for row in rows]

    def filling(self, relation: Relation, numbers: Collection[int]) -> list[int]:
        """Return those of these columns for which the server had to rewrite the table when they were added."""
        return [int(row[3] or 0) for row in self._added(relation, numbers) if row[2] == "t"]

    def has_made_file(self, relation: Relation, xid: int) -> bool:
        """Return whether the transaction wrote rows, and those of the table's indexes in ``pg_class``."""
        own = f"xmin::text = '{xids.short(xid)}' AND {_REWRITTEN.format(table=relation.table_id)}"
        return self._has_rows(relation, own, otherwise=False)

    def _added(self, relation: Relation, numbers: Collection[int]) -> list[Row]:
        listed = ", ".join(map(str, sorted(numbers)))
        return self.connection.query(_ADDED_SQL.format(table=relation.table_id, numbers=listed)) if numbers else []

    def rewriters(self, relation: Relation) -> set[int]:
        """Return the transactions that have written a table's rows into another file than its first one: a rewrite
        gives all indexes new rows in ``pg_class`` behind that. What a transaction writes behind a TRUNCATE is later."""
        if relation.is_partitioned or relation.file == relation.table_id:
            return set()
        writers = writers_sql(f"(SELECT {relation.table_id}::oid)")
        return {
            xids.full(int(xmin or 0), self.now.ahead)
            for xmin, command in self.connection.query(f"SELECT xmin, command FROM {writers} writers")
            if self._has_rows(relation, written_sql(int(xmin or 0), int(command or 0)), otherwise=False)
        }

    def empty(self, leaves: Collection[int]) -> frozenset[int]:
        """Return those whose files, as the catalog has them, have no page; none of them if one is locked."""
        listed = ", ".join(f"({leaf}, {self.now.tables[leaf].file})" for leaf in sorted(leaves))
        if not listed:
            return frozenset()
        try:
            self.connection.query(f"SAVEPOINT weir; SET LOCAL lock_timeout = {_EMPTY_LOCK_MS}")
            # the file's number is read last: a file that is no more the table's never will be again
            rows = self.connection.query(
                f"SELECT leaf FROM (VALUES {listed}) leaves(leaf, file) WHERE CASE WHEN "
                "pg_catalog.pg_relation_size(leaf::pg_catalog.oid::pg_catalog.regclass) = 0 THEN "
                "pg_catalog.pg_relation_filenode(leaf::pg_catalog.oid::pg_catalog.regclass)::int8 = file END"
            )
        except SourceError:
            return frozenset()
        finally:
            self.connection.query("ROLLBACK TO SAVEPOINT weir")
        return frozenset(int(row[0] or 0) for row in rows)

    def has_rows_of_before(self, relation: Relation, first_writer: int) -> bool:
        """Return whether the transaction that created the table wrote rows, or another program that has exchanged its
        file, and an earlier one than ``first_writer`` (32 bits) it was: none of them was sent. A savepoint's number is
        above that of its transaction."""
        created_by, first = self.created_by(relation.table_id), xids.near(first_writer, self.now.ahead)
        if first <= created_by or relation.is_partitioned:
            return False
        if self._has_rows(relation, f"xmin::text = '{xids.short(created_by)}'", otherwise=False):
            return True
        return may_be_exchanged(self.connection, relation) and self._has_rows(
            relation, self._older_than(min(first, self.now.ahead))
        )

    def trouble_of_types(self, table_id: int) -> str:
        """Return why the stream may have other texts than the table's rows have now; empty where it has not."""
        since = xids.short(self.created_by(table_id))
        kind = type_facts.altered_since(self.connection, table_id, since)
        return type_facts.trouble(self.connection, kind) if kind else ""

    def created_by(self, table_id: int) -> int:
        """Return the transaction that created the table."""
        [[xmin]] = self.connection.query(_CREATED_SQL.format(table=int(table_id)))
        return xids.full(int(xmin or 0), self.now.ahead)

    def record(self, table_id: int) -> TableRecord:
        """Return the record of a table that is taken in."""
        relation, key = self.now.tables[table_id], key_of(self.connection, table_id)
        return TableRecord.new(table_id, relation.schema_name, relation.name, key=key)

    def has_rows(self, relation: Relation) -> bool:
        """Return whether the table has any rows."""
        return self._has_rows(relation, "true")

    def younger(self, tables: Collection[int]) -> set[int]:
        """Return those of the tables that are there, and were created since the first proof: ``is_whole`` tells the
        others."""
        if not tables:
            return set()
        since = min(self.before.since.values(), default=xids.ANCIENT)
        rows = self.connection.query(_AGES_SQL.format(tables=", ".join(map(str, sorted(tables)))))
        return {int(table or 0) for table, xmin in rows if xids.full(int(xmin or 0), self.now.ahead) >= since}

    def was_unlogged(self, relation: Relation) -> bool:
        """Return whether the last transaction that wrote a new table's row in the catalog has rewritten the table with
        rows, though it altered no column, as SET LOGGED does. It is not known of the one that created the table."""
        xid = xids.short(relation.written_by)
        if relation.is_partitioned or relation.file == relation.table_id or relation.written_by == xids.ANCIENT:
            return False
        [[is_altered]] = self.connection.query(_ALTERED_SQL.format(table=relation.table_id, xid=xid))
        return is_altered != "t" and self._has_rows(relation, f"xmin::text = '{xid}'", otherwise=False)

    def is_settled(self, table_id: int) -> bool:
        """Return whether all transactions have ended that began before it was published."""
        return self._published_at(table_id) <= self.now.horizon

    def is_clean(self, table_id: int) -> bool:
        """Return whether all rows of a settled table are of transactions that began after it was published."""
        since = self._published_at(table_id)
        relation = self.now.tables.get(table_id)
        return relation is not None and not self._has_rows(relation, self._older_than(since))

    def _older_than(self, xid: int) -> str:
        """Return an SQL condition for rows that an older transaction wrote."""
        assert xid <= self.now.ahead
        return xids.older_sql(xid) if xids.is_comparable(xid, self.now.ahead) else "false"

    def _published_at(self, table_id: int) -> int:
        """Return the transaction id at which all catalog rows that publish the table had been seen."""
        ways = (
            max((self.before.since.get(row, xids.NEVER) for row in way if row[0] not in "di"), default=0)
            for way in self.now.ways(table_id)
        )
        return min(ways, default=xids.NEVER)

    def _has_unsent(self, relation: Relation, xmin: int) -> bool:
        """Return whether the creating transaction wrote rows before it published the table."""
        if any(one.is_all and not one.via_root for one in self.now.publications.values()):
            return False  # it was from its beginning on, and is whether it is a partition or not
        lineage = ", ".join(str(table) for table in self.now.lineage(relation.table_id))
        [[command]] = self.connection.query(_PUBLISHED_SQL.format(lineage=lineage, xmin=xmin))
        if int(command or 0) <= _OWN_COMMANDS:
            return False
        return self._has_rows(relation, f"xmin::text = '{xmin}' AND cmin::text::int8 < {command}")

    def _has_rows_of_root(self, relation: Relation, created_by: int) -> bool:
        """Return whether it was a partition before, and has rows of that time, which were sent under its root's name.
        Detaching a partition writes the catalog rows of all its columns, and the table's own."""
        if relation.table_id in self.now.parents or not any(one.via_root for one in self.now.publications.values()):
            return False
        rows = self.connection.query(_COLUMNS_SQL.format(table=relation.table_id))
        detached_by = xids.full(int(rows[0][0] or 0), self.now.ahead) if rows else created_by
        if detached_by == created_by or relation.written_by < detached_by:
            return False
        older = self._older_than(detached_by)
        return any(self._has_rows(one, older) for one in self.now.holders(relation))

    def _has_rows(self, relation: Relation, condition: str, *, otherwise: bool = True) -> bool:
        """Return ``otherwise`` if the table is locked, or was rewritten meanwhile."""
        return has_rows(self.connection, relation, condition, otherwise=otherwise)
