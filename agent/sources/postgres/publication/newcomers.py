"""Newcomers: tables that the stream names for the first time, and whether all their rows are in it.

The catalog keeps who created a table (the row of its ``ctid`` column, which nothing ever writes again) and who
published it. Where one transaction did both, what it inserted in between is in the table, under an older command.
Where two did, the table must have been seen without rows when all had ended that began before it was published.
"""

from dataclasses import dataclass
from typing import Final

from agent.errors import SourceError
from agent.sources.postgres.publication import losses, xids
from agent.sources.postgres.publication.proof import Proof
from agent.sources.postgres.publication.published import Catalog, Relation
from agent.sources.postgres.server.connection import Connection
from agent.sources.postgres.server.sql import qualified

_LOCK_MS: Final = 2_000
_CREATED_SQL: Final = (
    "SELECT xmin::text FROM pg_catalog.pg_attribute WHERE attrelid = {table} AND attname = 'ctid' AND attnum < 0"
)
#: what published the table last in the transaction that created it
_PUBLISHED_SQL: Final = (
    "SELECT coalesce(max(cmin::text::int8), -1) FROM "
    "(SELECT xmin, cmin FROM pg_catalog.pg_publication_rel WHERE prrelid IN ({lineage}) "
    "UNION ALL SELECT xmin, cmin FROM pg_catalog.pg_inherits WHERE inhrelid IN ({lineage})) rows "
    "WHERE xmin::text = '{xmin}'"
)
_REWRITTEN: Final = (
    "xmin::text IN (SELECT c.xmin::text FROM pg_catalog.pg_class c WHERE c.oid = {table} AND c.relam = 2 OR c.oid IN "
    "(SELECT i.indexrelid FROM pg_catalog.pg_index i WHERE i.indrelid = {table}))"
)
#: a partition is made by one command, which counts so far
_OWN_COMMANDS: Final = 2


@dataclass(frozen=True, slots=True)
class Newcomers:
    """HeartbeatBudget to the server as of one moment, that of ``now``; ``before``: the last proof."""

    connection: Connection
    before: Proof
    now: Catalog

    def is_whole(self, table_id: int) -> bool:
        """Every row that the table ever had is in the stream."""
        if table_id in self.before.clean:
            return True
        relation = self.now.tables.get(table_id)
        rows = self.connection.query(_CREATED_SQL.format(table=int(table_id)))
        if relation is None or not rows:
            return False  # it is gone again, and nobody can say any more
        xmin = int(rows[0][0] or 0)
        created_by = xids.full(xmin, self.now.ahead)
        return losses.is_whole(self.before, self.now, table_id, created_by) and not self._has_unsent(relation, xmin)

    def is_whole_partition(self, table_id: int) -> bool:
        """A new partition is whole if it has no rows from before it was one."""
        relation = self.now.tables[table_id]
        [[xmin]] = self.connection.query(_CREATED_SQL.format(table=int(table_id)))
        created_by = xids.full(int(xmin or 0), self.now.ahead)
        if self.now.xids[f"i{table_id}"] == created_by:
            return not self._has_unsent(relation, int(xmin or 0))
        return not self._has_rows(relation, "true")  # nobody could write it while it was attached

    def has_old_rows(self, relation: Relation) -> bool:
        """Rows that existed at the last proof, as they were."""
        return self._has_rows(relation, self._older_than(self.before.horizon), otherwise=False)

    def has_rows_of_rewrite(self, relation: Relation) -> bool:
        """Rows of the very transaction that gave the table its file, or its indexes theirs. What keeps rows as they
        were (``VACUUM FULL``) leaves none; another access method than the usual one is left out."""
        return self._has_rows(relation, _REWRITTEN.format(table=relation.table_id), otherwise=False)

    def has_rows(self, relation: Relation) -> bool:
        """Whether the table has any rows. A concurrent rewrite of the table hides them."""
        if self._has_rows(relation, "true"):
            return True
        [[file]] = self.connection.query(f"SELECT pg_catalog.pg_relation_filenode({relation.table_id})::int8")
        return file is not None and int(file) != relation.file

    def is_settled(self, table_id: int) -> bool:
        """All have ended that began before it was published."""
        return self._published_at(table_id) <= self.now.horizon

    def is_clean(self, table_id: int) -> bool:
        """A settled table is clean if all its rows are of transactions that began after it was published."""
        since = self._published_at(table_id)
        relation = self.now.tables.get(table_id)
        return relation is not None and not self._has_rows(relation, self._older_than(since))

    def _older_than(self, xid: int) -> str:
        """SQL condition of rows that an older transaction wrote."""
        assert xid <= self.now.ahead
        return xids.older_sql(xid) if xids.is_comparable(xid, self.now.ahead) else "false"

    def _published_at(self, table_id: int) -> int:
        """By what every row was seen that publishes it."""
        ways = (
            max((self.before.since.get(row, xids.NEVER) for row in way if row[0] not in "di"), default=0)
            for way in self.now.ways(table_id)
        )
        return min(ways, default=xids.NEVER)

    def _has_unsent(self, relation: Relation, xmin: int) -> bool:
        """The transaction that created it wrote rows before it published it."""
        lineage = ", ".join(str(table) for table in self.now.lineage(relation.table_id))
        [[command]] = self.connection.query(_PUBLISHED_SQL.format(lineage=lineage, xmin=xmin))
        if int(command or 0) <= _OWN_COMMANDS:
            return False
        return self._has_rows(relation, f"xmin::text = '{xmin}' AND cmin::text::int8 < {command}")

    def _has_rows(self, relation: Relation, condition: str, *, otherwise: bool = True) -> bool:
        """``otherwise``: where that cannot be seen, as somebody holds the table locked."""
        name = qualified(relation.schema_name, relation.name)
        try:
            self.connection.query(f"SAVEPOINT weir; SET LOCAL lock_timeout = {_LOCK_MS}")
            return bool(self.connection.query(f"SELECT 1 FROM ONLY {name} WHERE {condition} LIMIT 1"))
        except SourceError:
            return otherwise
        finally:
            self.connection.query("ROLLBACK TO SAVEPOINT weir")
