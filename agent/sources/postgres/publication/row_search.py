"""Row search: whether a table has rows that a condition selects; and whether another program has made its file.

pg_repack and pg_squeeze copy a table's rows into one of their own, and then exchange the two tables' files: every row
is then one of the copying transaction, which the stream has under the other table's name. A rewrite by the server keeps
the numbers of the rows' transactions (``VACUUM FULL``), or makes them its own, and writes the rows of the table's
indexes in ``pg_class`` too: behind it no row is older than all of those.
"""

from typing import Final

from agent.errors import SourceError
from agent.sources.postgres.publication.published import Relation
from agent.sources.postgres.server.connection import Connection
from agent.sources.postgres.server.sql import qualified

_LOCK_MS: Final = 2_000
#: rows that are older than each of their table's indexes, as of a file that another program has made
BEFORE_INDEXES: Final = (
    "pg_catalog.age(xmin) > (SELECT max(pg_catalog.age(c.xmin)) FROM pg_catalog.pg_class c "
    "JOIN pg_catalog.pg_index i ON i.indexrelid = c.oid WHERE i.indrelid = {table})"
)


def has_rows(connection: Connection, relation: Relation, condition: str, *, otherwise: bool = True) -> bool:
    """Return ``otherwise`` if the query fails because the table is locked, or if the table has got another file since
    the transaction's snapshot, in which it has no row then."""
    name = qualified(relation.schema_name, relation.name)
    try:
        connection.query(f"SAVEPOINT weir; SET LOCAL lock_timeout = {_LOCK_MS}")
        if connection.query(f"SELECT 1 FROM ONLY {name} WHERE {condition} LIMIT 1"):
            return True
        [[file]] = connection.query(f"SELECT pg_catalog.pg_relation_filenode({relation.table_id})::int8")
        return otherwise and int(file or 0) != relation.file
    except SourceError:
        return otherwise
    finally:
        connection.query("ROLLBACK TO SAVEPOINT weir")


def may_be_exchanged(connection: Connection, relation: Relation) -> bool:
    """Return whether the table's file may be another program's, so that the numbers of its rows' transactions do not
    say when the rows were written. Also true after ``VACUUM FULL``, which the caller excludes where it matters."""
    if relation.is_partitioned or relation.file == relation.table_id:
        return False
    return has_rows(connection, relation, BEFORE_INDEXES.format(table=relation.table_id), otherwise=False)
