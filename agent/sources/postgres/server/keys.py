"""Keys of tables: the columns that updates and deletes carry, and by which rows are upserted."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from agent.sources.postgres.server.connection import Connection
from agent.sources.postgres.server.sql import is_text

#: columns of every index that can be a key, best first: the replica identity, the primary key, then by name
_KEYS_SQL = """
SELECT i.indrelid::int8, i.indexrelid::int8, i.indisprimary, i.indisreplident, a.attname
  FROM pg_catalog.pg_index i
  JOIN pg_catalog.pg_class x ON x.oid = i.indexrelid
 CROSS JOIN LATERAL pg_catalog.unnest(i.indkey::int2[]) WITH ORDINALITY k(attnum, place)
  JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
 WHERE i.indrelid IN ({ids}) AND i.indisunique AND i.indisvalid AND i.indimmediate AND i.indpred IS NULL
   AND k.place <= i.indnkeyatts
   AND NOT EXISTS (SELECT FROM pg_catalog.unnest(i.indkey::int2[]) WITH ORDINALITY e(attnum, place)
                     LEFT JOIN pg_catalog.pg_attribute b ON b.attrelid = i.indrelid AND b.attnum = e.attnum
                    WHERE e.place <= i.indnkeyatts AND b.attnotnull IS NOT TRUE)
 ORDER BY i.indrelid, i.indisreplident DESC, i.indisprimary DESC, x.relname, k.place
"""


@dataclass(frozen=True, slots=True)
class Key:
    """One index that identifies rows."""

    columns: tuple[str, ...]
    is_primary: bool
    is_identity: bool


def read_keys(connection: Connection, table_ids: Sequence[str]) -> dict[int, list[Key]]:
    """Return the tables' keys, without those of columns whose names are not UTF-8."""
    rows = connection.query(_KEYS_SQL.format(ids=", ".join(table_ids) or "0"))
    keys: dict[int, list[Key]] = {}
    for (table, _, is_primary, is_identity), columns in groupby(rows, key=lambda row: row[:4]):
        key = Key(tuple(str(row[4]) for row in columns), is_primary == "t", is_identity == "t")
        if is_text(*key.columns):
            keys.setdefault(int(table or 0), []).append(key)
    return keys


def key_of(connection: Connection, table_id: int) -> tuple[str, ...]:
    """Return the key columns that updates and deletes of a table carry; empty if there are none to upsert by, or the
    table is gone."""
    return keys_of(connection, [table_id]).get(table_id, ())


def keys_of(connection: Connection, table_ids: Iterable[int]) -> dict[int, tuple[str, ...]]:
    """Return the same of several tables, by id, without those that are gone."""
    ids = [str(int(table)) for table in table_ids]
    rows = connection.query(
        f"SELECT oid::int8, relreplident FROM pg_catalog.pg_class WHERE oid IN ({', '.join(ids) or '0'})"
    )
    keys = read_keys(connection, ids)
    return {int(table or 0): key_columns(str(identity), keys.get(int(table or 0), [])) for table, identity in rows}


def key_columns(identity: str, keys: Sequence[Key]) -> tuple[str, ...]:
    """Return the key columns that updates and deletes carry; with a full identity, those of the best key."""
    match identity:
        case "i":
            usable = [key for key in keys if key.is_identity]
        case "d":
            usable = [key for key in keys if key.is_primary]
        case "f":
            usable = list(keys)
        case _:
            usable = []
    return usable[0].columns if usable else ()
