"""Catalog digest: over all rows that decide what the publications send, and whether any of them can have changed.

``changes`` is asked for each move of the head: how many rows the catalogs have, of all tables, and the sum of the
transactions that wrote them; with them the one setting that counts (see ``type_facts``). Only where that differs,
``read`` takes the digest of the rows that count; only where the digest differs, ``published`` reads these rows. None of
it takes a lock on a table, so it never waits for somebody who changes one.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from agent.sources.postgres.publication import type_facts
from agent.sources.postgres.server.connection import Connection
from agent.sources.postgres.server.sql import literal

_NAMESPACES_VERSION: Final = 15
#: a table that changes its schema has another row in pg_class
_CATALOGS: Final = (
    *("pg_attribute", "pg_class", "pg_index", "pg_inherits", "pg_namespace", "pg_type", "pg_enum"),
    *("pg_publication", "pg_publication_rel"),
)
#: rows of the server's own transactions, whose age never changes; that of others grows with each transaction
_OWN_SQL: Final = "SELECT count(*) FROM pg_catalog.{catalog} WHERE pg_catalog.age(xmin) = 2147483647"
_CHANGES: Final = (
    "SELECT pg_catalog.concat_ws(':', count(*), (count(*) - {own}) * pg_catalog.age('3'::pg_catalog.xid) "
    "- sum(pg_catalog.age(xmin))) FROM pg_catalog.{catalog}"
)
_SETTING: Final = "pg_catalog.current_setting('lc_monetary')"

_PUBLICATIONS: Final = (
    "SELECT string_agg(p.xmin::text || p::text, ';' ORDER BY p.oid) FROM pg_catalog.pg_publication p WHERE {ours}"
)
_MEMBERS: Final = (
    "SELECT string_agg(pg_catalog.concat_ws(':', r.oid, r.xmin), ',' ORDER BY r.oid) "
    "FROM pg_catalog.pg_publication_rel r JOIN pg_catalog.pg_publication p ON p.oid = r.prpubid WHERE {ours}"
)
_NAMESPACES: Final = (
    "SELECT string_agg(pg_catalog.concat_ws(':', n.oid, n.xmin), ',' ORDER BY n.oid) "
    "FROM pg_catalog.pg_publication_namespace n JOIN pg_catalog.pg_publication p ON p.oid = n.pnpubid WHERE {ours}"
)
#: a table that changes its schema, and comes back, has another row
_SCHEMAS: Final = (
    "SELECT string_agg(pg_catalog.concat_ws(':', d.objid, d.refobjid, d.xmin), ',' ORDER BY d.objid) "
    "FROM pg_catalog.pg_depend d WHERE d.classid = 1259 AND d.objid = ANY ({ids}) AND d.objsubid = 0 "
    "AND d.refclassid = 2615 AND EXISTS (SELECT FROM pg_catalog.pg_publication_namespace n "
    "JOIN pg_catalog.pg_publication p ON p.oid = n.pnpubid WHERE {ours})"
)
_TABLES: Final = (
    "SELECT string_agg(pg_catalog.concat_ws(':', c.oid, c.relpersistence, c.relkind, c.relispartition, "
    "c.relreplident, EXISTS (SELECT FROM pg_catalog.pg_index i WHERE i.indrelid = c.oid AND i.indisprimary), "
    "c.relfilenode, quote_ident(n.nspname), quote_ident(c.relname)), ',' ORDER BY c.oid) FROM pg_catalog.pg_class c "
    "JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = ANY ({ids})"
)
#: a column that is altered has another row, by a later transaction
_COLUMNS: Final = (
    "SELECT pg_catalog.concat_ws(':', count(*), sum(a.xmin::text::int8)) FROM pg_catalog.pg_attribute a "
    "WHERE a.attrelid = ANY ({ids}) AND a.attnum > 0"
)
_PARTITIONS: Final = (
    "SELECT string_agg(pg_catalog.concat_ws(':', i.inhrelid, i.inhparent, i.xmin, x.relkind, x.relfilenode), ',' "
    "ORDER BY i.inhrelid, i.inhparent) FROM pg_catalog.pg_inherits i "
    "JOIN pg_catalog.pg_class x ON x.oid = i.inhrelid AND x.relispartition WHERE EXISTS "
    "(SELECT FROM pg_catalog.pg_class c WHERE c.oid = ANY ({ids}) AND (c.relkind = 'p' OR c.relispartition))"
)
#: where the stream sends whole rows it does not say what the key is
_KEYS: Final = (
    "SELECT string_agg(pg_catalog.concat_ws(':', i.indexrelid, i.xmin, a.attnum, a.attnotnull, a.xmin), ',' "
    "ORDER BY i.indexrelid, a.attnum) FROM pg_catalog.pg_index i "
    "JOIN pg_catalog.pg_class c ON c.oid = i.indrelid AND c.relreplident = 'f' "
    "JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey::int2[]) "
    "WHERE i.indisunique AND i.indrelid = ANY ({ids})"
)


def prepare(connection: Connection, publications: Iterable[str], table_ids: Sequence[int]) -> None:
    """Prepare the session; call again when the tables have changed."""
    parts = [_PUBLICATIONS, _MEMBERS, _TABLES, _COLUMNS, _PARTITIONS, _KEYS]
    if connection.server_version >= _NAMESPACES_VERSION:
        parts += [_NAMESPACES, _SCHEMAS]
    typed = type_facts.tables_with_types(connection, table_ids)
    if typed:
        parts.append(type_facts.DIGEST)
    ids = "'{" + ",".join(str(int(table)) for table in sorted(table_ids)) + "}'::pg_catalog.oid[]"
    ours = "p.pubname IN (" + (", ".join(literal(name) for name in publications) or "NULL") + ")"
    columns = ", ".join(f"({part.format(ids=ids, ours=ours, typed=type_facts.ids_of(typed))})" for part in parts)
    catalogs = list(_CATALOGS)
    if connection.server_version >= _NAMESPACES_VERSION:
        catalogs.append("pg_publication_namespace")
    own = {catalog: connection.query(_OWN_SQL.format(catalog=catalog))[0][0] for catalog in catalogs}
    sums = ", ".join(f"({_CHANGES.format(catalog=catalog, own=own[catalog])})" for catalog in catalogs)
    connection.query("SET jit = off; DEALLOCATE ALL")
    connection.query(f"PREPARE weir_changes AS SELECT pg_catalog.concat_ws(';', {sums}, {_SETTING})")
    connection.query(f"PREPARE weir_digest AS SELECT md5(ROW({columns})::text)")


def read(connection: Connection) -> str:
    """Return the digest of the current catalog."""
    [[digest]] = connection.query("EXECUTE weir_digest")
    return str(digest)


def changes(connection: Connection) -> str:
    """A sum over the catalogs' rows: while it stays the same, no row was added, removed or updated."""
    [[changes]] = connection.query("EXECUTE weir_changes")
    return str(changes)
