"""Silent tables: finds tables that the filter wants and the stream has not named.

A partition that is detached keeps its rows, which were sent under its root's name. A table that is attached to a root
without rows makes that a table with rows. A table that gets a name which the filter wants (as in a swap of a table with
its successor), or that is made LOGGED, has rows of before. The stream names none of them before its next row, which may
never come. It never names a table that no publication sends, such as a new one of a publication with a list of tables.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Final

from agent.sources.postgres.publication import losses
from agent.sources.postgres.publication.newcomers import Newcomers, late
from agent.sources.postgres.publication.partitions import Partitions
from agent.sources.postgres.publication.proof import Proof
from agent.sources.postgres.publication.published import Catalog, Relation
from agent.sources.postgres.server import xids
from agent.sources.postgres.server.connection import Connection
from reactor.ids import Ts
from reactor.records.tables.table import TableRecord

#: tables that can be published, without those that pg_repack makes for its work; whether it is an ordinary one, which
#: is no partition
_TABLES_SQL: Final = """
SELECT c.oid::int8, n.nspname, c.relname, c.xmin::text, c.relkind = 'r' AND NOT c.relispartition
  FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relkind IN ('r', 'p') AND c.relpersistence = 'p'
   AND n.nspname !~ '^pg_' AND n.nspname <> 'information_schema'
   AND NOT (n.nspname = 'repack' AND c.relname ~ '^(table|log)_[0-9]+$')
"""


class SilentTables:
    """The silent tables of one stream. ``wants`` selects by schema and name, ``takes`` what can be replicated."""

    def __init__(self, wants: Callable[[str, str], bool], takes: Callable[[TableRecord], bool]) -> None:
        self._wants = wants
        self._takes = takes
        #: tables with rows under a wanted name, or that are not sent, and where the log ended when that was seen first
        self._since: dict[int, Ts] = {}
        #: tables with wanted names
        self._wanted: set[int] = set()
        #: ordinary ones of them that the stream has not named
        self._named: set[int] = set()
        #: the first transaction that was running when they were looked for
        self._horizon: int | None = None
        #: by which transactions their rows in ``pg_class`` were written then
        self._seen: dict[int, int] = {}
        #: tables that were empty or cannot be replicated when these transactions had written theirs
        self._harmless: dict[int, int] = {}

    @property
    def is_due(self) -> bool:
        """Return whether the stream may still name what was found, so that the catalog must be read again."""
        return bool(self._since)

    def has_news(self, connection: Connection, known: Collection[int]) -> bool:
        """Return whether a table that is none of ``known`` has got a wanted name, or become LOGGED, since ``find``."""
        if self._horizon is None:
            return True
        since = f"AND pg_catalog.age(c.xmin) <= pg_catalog.age('{xids.short(self._horizon)}'::pg_catalog.xid)"
        for oid, schema, name, xmin, _ in connection.query(_TABLES_SQL + since):
            table_id, seen = int(oid or 0), self._seen.get(int(oid or 0))
            if seen is not None and xids.short(seen) == int(xmin or 0):
                continue
            if table_id not in known and self._wants(str(schema), str(name)):
                return True
        return False

    def candidates(self, connection: Connection, before: Proof | None, known: Collection[int]) -> set[int]:
        """Return the tables that ``find`` looks at."""
        rows = connection.query(_TABLES_SQL)
        wanted = {int(oid or 0): is_plain == "t" for oid, *name, _, is_plain in rows if self._wants(*map(str, name))}
        self._wanted = set(wanted)
        self._named = {table for table in self._wanted.difference(known) if wanted[table]}
        return _old_leaves(before) | self._wanted.difference(known)

    def find(
        self, asked: Newcomers, partitions: Partitions, known: Collection[int], upto: Ts
    ) -> Iterator[tuple[int, str]]:
        """Yield the tables that none of ``known`` is, each with the reason why its rows are in no stream that is at
        ``upto``."""
        now, since = asked.now, self._since
        self._since, self._horizon = {}, now.horizon
        self._seen = {table: now.tables[table].written_by for table in self._wanted.intersection(now.tables)}
        detached = _old_leaves(asked.before) - now.parents.keys()
        for table_id in sorted(
            {*detached, *losses.roots(now), *self._named}.intersection(now.tables).difference(known)
        ):
            relation = now.tables[table_id]
            if not now.ways(table_id) or not self._wants(relation.schema_name, relation.name):
                continue
            trouble = partitions.trouble_of_arrivals(table_id) if relation.is_partitioned else ""
            if trouble:
                yield table_id, f"table {relation.qualified_name} {trouble}; {losses.CURE}"
            elif table_id in detached:
                if asked.has_rows(relation):
                    yield table_id, late(now, table_id)
            elif self._has_rows(asked, relation) and self._is_passed(table_id, since, now, upto):
                yield table_id, _unnamed(relation.qualified_name)
        for table_id in self._unsent(asked, known):
            if self._is_passed(table_id, since, now, upto):
                yield table_id, _unpublished(now.tables[table_id].qualified_name)

    def _is_passed(self, table_id: int, since: Mapping[int, Ts], now: Catalog, upto: Ts) -> bool:
        """Return whether the stream is at a position behind what was seen of the table."""
        self._since[table_id] = since.get(table_id, now.end_ts)
        if self._since[table_id] > upto:
            return False
        del self._since[table_id]
        return True

    def _unsent(self, asked: Newcomers, known: Collection[int]) -> Iterator[int]:
        """Yield the tables that no publication sends. One without a key to upsert by may have been left out when the
        changefeed was created."""
        now = asked.now
        tables = (place(now, table, self._wanted) for table in self._with_rows(now) if _is_apart(now, table, known))
        for table_id in sorted({table for table in tables if table}.difference(known)):
            written_by = now.tables[table_id].written_by
            if self._harmless.get(table_id) == written_by:
                continue
            if self._takes(asked.record(table_id)) or asked.younger([table_id]):
                yield table_id
            else:
                self._harmless[table_id] = written_by

    def _with_rows(self, now: Catalog) -> set[int]:
        """Return the tables that hold the rows of those with wanted names."""
        found: set[int] = set()
        for table_id in self._wanted.intersection(now.tables):
            found.update(now.leaves(table_id) if now.is_partitioned(table_id) else [table_id])
        return found

    def _has_rows(self, asked: Newcomers, relation: Relation) -> bool:
        """Later rows of an empty table are sent under the name that it has then; without a change of name or kind, that
        is this one."""
        table_id = relation.table_id
        if self._harmless.get(table_id) == relation.written_by:
            return False
        is_new = self._takes(asked.record(table_id)) or bool(asked.younger([table_id]))
        if is_new and any(asked.has_rows(one) for one in asked.now.holders(relation)):
            return True
        self._harmless[table_id] = relation.written_by
        return False


def place(now: Catalog, table_id: int, wanted: Collection[int]) -> int | None:
    """Return the table under whose name the rows of ``table_id`` belong to the sink: that of its root, unless the
    publication sends other partitions of that under their own names. ``wanted``: tables with wanted names."""
    lineage = [table for table in now.lineage(table_id) if table in wanted]
    if lineage and any(now.ways(leaf) for leaf in now.leaves(lineage[-1])):
        return table_id if lineage[0] == table_id else None
    return lineage[-1] if lineage else None


def _old_leaves(before: Proof | None) -> set[int]:
    """Return the partitions that were there at a proof."""
    return {leaf for leaves in before.leaves.values() for leaf in leaves} if before else set()


def _is_apart(now: Catalog, table_id: int, known: Collection[int]) -> bool:
    """Return whether the table's rows are sent under no name, and no table of the stream has them."""
    lineage = now.lineage(table_id)
    is_sent = any(now.ways(table) for table in lineage)
    return now.tables[table_id].is_logged and not is_sent and not set(known).intersection(lineage)


def _unpublished(name: str) -> str:
    return (
        f"table {name} is in no publication of the changefeed, so its changes are not sent; it is published and copied "
        "as soon as that is possible, or leave it out by a filter rule"
    )


def _unnamed(name: str) -> str:
    return (
        f"table {name} has rows from before it had this name, was LOGGED or detached, which are in no stream; `weir "
        "table resync` copies the table again, or leave it out by a filter rule"
    )
