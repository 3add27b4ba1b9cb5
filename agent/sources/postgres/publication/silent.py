"""Silent tables: finds tables with rows that the stream is to send and has not named.

A partition that is detached keeps its rows, which were sent under its root's name. A table that is attached to a root
without rows makes that a table with rows. A table that gets a name which the filter wants (as in a swap of a table with
its successor), or that is made LOGGED, has rows of before. The stream names none of them before its next row, which may
never come.
"""

from collections.abc import Callable, Collection, Iterator
from typing import Final

from agent.sources.postgres.publication import losses, xids
from agent.sources.postgres.publication.newcomers import Newcomers, late
from agent.sources.postgres.publication.partitions import Partitions
from agent.sources.postgres.publication.proof import Proof
from agent.sources.postgres.publication.published import Relation
from agent.sources.postgres.server.connection import Connection
from reactor.ids import Ts
from reactor.records.changefeed import TableRecord

#: ordinary tables; partitions and partitioned tables are found by the proof
_TABLES_SQL: Final = """
SELECT c.oid::int8, n.nspname, c.relname, c.xmin::text
  FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relkind = 'r' AND c.relpersistence = 'p' AND NOT c.relispartition
   AND n.nspname !~ '^pg_' AND n.nspname <> 'information_schema'
"""


class SilentTables:
    """The silent tables of one stream. ``wants`` selects by schema and name, ``takes`` what can be replicated."""

    def __init__(self, wants: Callable[[str, str], bool], takes: Callable[[TableRecord], bool]) -> None:
        self._wants = wants
        self._takes = takes
        #: tables with rows under a wanted name, and where the log ended when that was seen first
        self._since: dict[int, Ts] = {}
        #: ordinary tables with wanted names that the stream has not named
        self._named: set[int] = set()
        #: the first transaction that was running when they were looked for
        self._horizon: int | None = None
        #: tables that were empty or cannot be replicated when their rows in ``pg_class`` were of these transactions
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
        for oid, schema, name, xmin in connection.query(_TABLES_SQL + since):
            table_id, seen = int(oid or 0), self._harmless.get(int(oid or 0))
            if seen is not None and xids.short(seen) == int(xmin or 0):
                continue
            if table_id not in known and self._wants(str(schema), str(name)):
                return True
        return False

    def candidates(self, connection: Connection, before: Proof | None, known: Collection[int]) -> set[int]:
        """Return the tables that ``find`` looks at."""
        rows = connection.query(_TABLES_SQL)
        found = {int(oid or 0) for oid, schema, name, _ in rows if self._wants(str(schema), str(name))}
        self._named = found.difference(known)
        return _old_leaves(before) | self._named

    def find(
        self, asked: Newcomers, partitions: Partitions, known: Collection[int], upto: Ts
    ) -> Iterator[tuple[int, str]]:
        """Yield the tables that none of ``known`` is, each with the reason why its rows are in no stream that is at
        ``upto``."""
        now, since = asked.now, self._since
        self._since, self._horizon = {}, now.horizon
        detached = _old_leaves(asked.before) - now.parents.keys()
        for table_id in sorted(
            {*detached, *losses.roots(now), *self._named}.intersection(now.tables).difference(known)
        ):
            relation = now.tables[table_id]
            if not now.ways(table_id) or not self._wants(relation.schema_name, relation.name):
                continue
            if relation.is_partitioned:
                if trouble := partitions.trouble_of_arrivals(table_id):
                    yield table_id, f"table {relation.qualified_name} {trouble}; {losses.CURE}"
            elif table_id in detached:
                if asked.has_rows(relation):
                    yield table_id, late(now, table_id)
            elif self._has_rows(asked, relation):
                self._since[table_id] = since.get(table_id, now.end_ts)
                if self._since[table_id] <= upto:
                    del self._since[table_id]
                    yield table_id, _unnamed(relation.qualified_name)

    def _has_rows(self, asked: Newcomers, relation: Relation) -> bool:
        """Later rows of an empty table are sent under the name that it has then; without a change of name or kind, that
        is this one."""
        table_id = relation.table_id
        if self._harmless.get(table_id) == relation.written_by:
            return False
        if self._takes(asked.record(table_id)) and asked.has_rows(relation):
            return True
        self._harmless[table_id] = relation.written_by
        return False


def _old_leaves(before: Proof | None) -> set[int]:
    """Return the partitions that were there at a proof."""
    return {leaf for leaves in before.leaves.values() for leaf in leaves} if before else set()


def _unnamed(name: str) -> str:
    return (
        f"table {name} has rows from before it had this name, or was LOGGED, which are in no stream; `weir table "
        "resync` copies the table again, or leave it out by a filter rule"
    )
