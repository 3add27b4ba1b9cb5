"""Rewritten tables: snapshots do not protect from statements that give a table another file, or other partitions.

The rows of a new file (ALTER TABLE, TRUNCATE) are newer than an earlier snapshot, which therefore shows no rows; a
partition that was detached is not read, and one that was attached is.
"""

from collections.abc import Iterable
from typing import Final

from agent.errors import TableAlteredError
from agent.sources.postgres.server.catalog import Queries

#: The functions return the present state, and the selected rows are those of the snapshot. Neither includes a partition
#: that is being detached (the column exists from version 14 on).
_REWRITTEN_SQL: Final = """
WITH RECURSIVE roots(root) AS (SELECT pg_catalog.unnest('{{{ids}}}'::pg_catalog.oid[])),
known(root, relid) AS (
  SELECT root, root FROM roots
  UNION ALL
  SELECT root, inhrelid FROM known JOIN pg_catalog.pg_inherits i ON inhparent = relid
   WHERE pg_catalog.to_jsonb(i) ->> 'inhdetachpending' IS DISTINCT FROM 'true'
     AND EXISTS (SELECT FROM pg_catalog.pg_class WHERE oid = relid AND relkind = 'p')
)
SELECT relid::pg_catalog.regclass FROM known JOIN pg_catalog.pg_class ON oid = relid
 WHERE relkind = 'r' AND relfilenode IS DISTINCT FROM pg_catalog.pg_relation_filenode(oid)
UNION ALL
SELECT root::pg_catalog.regclass FROM roots JOIN pg_catalog.pg_class ON oid = root
 WHERE relkind = 'p' AND ARRAY(SELECT relid::pg_catalog.oid FROM pg_catalog.pg_partition_tree(root) ORDER BY 1)
    <> ARRAY(SELECT relid FROM known WHERE known.root = roots.root ORDER BY 1)
LIMIT 1
"""


def rewritten(connection: Queries, table_ids: Iterable[int]) -> str:
    """Return the name of one of these tables, or of a partition, that was rewritten since the transaction's snapshot;
    empty: none. What the transaction has read or locked before stays as it is until the transaction ends."""
    rows = connection.query(_REWRITTEN_SQL.format(ids=", ".join(str(int(table)) for table in table_ids)))
    return str(rows[0][0]) if rows else ""


def refuse_rewritten(connection: Queries, table_id: int) -> None:
    """Check a table whose rows the transaction has read.

    :raises TableAlteredError: they are not those of the snapshot.
    """
    if name := rewritten(connection, [table_id]):
        raise TableAlteredError(
            f"table {name} was rewritten or got other partitions, as by ALTER TABLE or TRUNCATE, since the snapshot "
            "that is to read it; try again"
        )
