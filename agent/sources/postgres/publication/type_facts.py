"""Type facts: the labels of enums and parts of composites, on which the text of their values depends; and the setting
on which that of ``money`` does.

``ALTER TYPE`` changes the text of old rows without writing them: it renames a label, or adds or removes a part. The log
does not show it: the facts are read with each proof and compared with the last ones. They follow nested types: element
types of lists, domains, ranges, composites.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from agent.sources.postgres.server.connection import Connection

#: oids of user-defined types begin here
_FIRST_USERS_OID: Final = 16384
_MONEY: Final = 790
#: types with facts, and those that may have some nested in them; the last one is of lists of money
_WITH_FACTS: Final = f"(atttypid >= {_FIRST_USERS_OID} OR atttypid IN ({_MONEY}, 791))"
#: a column's type, and all types nested in it
_USED: Final = f"""
WITH RECURSIVE used(relation, type) AS (
  SELECT attrelid, atttypid FROM pg_catalog.pg_attribute
   WHERE attrelid = ANY ({{typed}}) AND attnum > 0 AND NOT attisdropped AND {_WITH_FACTS}
  UNION
  SELECT u.relation, inner_type FROM used u JOIN pg_catalog.pg_type t ON t.oid = u.type CROSS JOIN LATERAL (
    SELECT t.typelem UNION ALL SELECT t.typbasetype
    UNION ALL SELECT rngsubtype FROM pg_catalog.pg_range WHERE rngtypid = t.oid OR rngmultitypid = t.oid
    UNION ALL SELECT atttypid FROM pg_catalog.pg_attribute
               WHERE attrelid = t.typrelid AND attnum > 0 AND NOT attisdropped
  ) inner_types(inner_type) WHERE inner_type <> 0)
"""
_FACTS_SQL: Final = f"""{_USED}
SELECT u.relation::int8, u.type::int8, 'e' || e.oid, e.enumlabel
  FROM used u JOIN pg_catalog.pg_enum e ON e.enumtypid = u.type
UNION ALL
SELECT u.relation::int8, u.type::int8, 'c' || t.oid || '.' || a.attnum, a.atttypid || ':' || a.atttypmod
  FROM used u JOIN pg_catalog.pg_type t ON t.oid = u.type
  JOIN pg_catalog.pg_attribute a ON a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped
UNION ALL
SELECT u.relation::int8, u.type::int8, 'm', pg_catalog.current_setting('lc_monetary') FROM used u
 WHERE u.type = {_MONEY}
"""
_TABLES_SQL: Final = (
    "SELECT DISTINCT attrelid::int8 FROM pg_catalog.pg_attribute WHERE attrelid = ANY ({ids}) AND attnum > 0 "
    f"AND NOT attisdropped AND {_WITH_FACTS}"
)
#: of a table and since a transaction: types whose labels or parts were written again, after the type was. A label that
#: was added is younger than a table that has an older type.
_ALTERED_SQL: Final = f"""{_USED}
SELECT u.type::int8 FROM used u JOIN pg_catalog.pg_type t ON t.oid = u.type
  JOIN pg_catalog.pg_enum e ON e.enumtypid = t.oid
 WHERE pg_catalog.age(e.xmin) < least(pg_catalog.age(t.xmin), pg_catalog.age('{{xid}}'::pg_catalog.xid))
   AND (e.oid < u.relation OR t.oid > u.relation)
UNION ALL
SELECT u.type::int8 FROM used u JOIN pg_catalog.pg_type t ON t.oid = u.type
  JOIN pg_catalog.pg_attribute a ON a.attrelid = t.typrelid AND a.attnum > 0
 WHERE pg_catalog.age(a.xmin) < least(pg_catalog.age(t.xmin), pg_catalog.age('{{xid}}'::pg_catalog.xid))
LIMIT 1
"""
_NAME_SQL: Final = "SELECT pg_catalog.format_type(oid, NULL) FROM pg_catalog.pg_type WHERE oid = {type}"

#: input of ``digest``: changes with every fact
DIGEST: Final = (
    "SELECT string_agg(pg_catalog.concat_ws(':', fact, value), ',' ORDER BY fact, relation) "
    f"FROM ({_FACTS_SQL}) facts(relation, type, fact, value)"
)


@dataclass(frozen=True, slots=True)
class TypeFacts:
    """``values``: the value of each fact. ``types``: the type of each fact. ``used``: the types in each table."""

    values: Mapping[str, str]
    types: Mapping[str, int]
    used: Mapping[int, frozenset[int]]


def read(connection: Connection, table_ids: Collection[int]) -> TypeFacts:
    """Read the facts of those tables that exist."""
    rows = connection.query(_FACTS_SQL.format(typed=ids_of(table_ids)))
    used: dict[int, set[int]] = {}
    for relation, kind, _, _ in rows:
        used.setdefault(int(relation or 0), set()).add(int(kind or 0))
    return TypeFacts(
        values={str(fact): str(value) for _, _, fact, value in rows},
        types={str(fact): int(kind or 0) for _, kind, fact, _ in rows},
        used={table: frozenset(types) for table, types in used.items()},
    )


def tables_with_types(connection: Connection, table_ids: Collection[int]) -> list[int]:
    """Return the tables that have columns of such types, usually few."""
    rows = connection.query(_TABLES_SQL.format(ids=ids_of(table_ids)))
    return [int(row[0] or 0) for row in rows]


def ids_of(table_ids: Collection[int]) -> str:
    """Return the ids as an SQL list."""
    return "'{" + ",".join(str(int(table)) for table in sorted(table_ids)) + "}'::pg_catalog.oid[]"


def altered(before: Mapping[str, str], now: TypeFacts) -> dict[int, int]:
    """Return the tables whose rows may have another text than at ``before``, as they have an altered type. Added labels
    change no rows."""
    known = {_owner(fact) for fact in before}
    changed = {
        now.types[fact]
        for fact, value in now.values.items()
        if before.get(fact, value if fact[0] == "e" or _owner(fact) not in known else None) != value
    }
    # the fact of a removed part is missing now
    gone = {_owner(fact) for fact in before if fact[0] == "c" and fact not in now.values}
    changed |= {kind for fact, kind in now.types.items() if _owner(fact) in gone}
    found = {table: sorted(types & changed) for table, types in now.used.items()}
    return {table: types[0] for table, types in found.items() if types}


def altered_since(connection: Connection, table_id: int, xid: int) -> int:
    """Return a type that was altered since the transaction ``xid`` (32 bits), of those that the table uses; 0 if none
    was. Its values in rows that are in the stream may say something else now."""
    if not tables_with_types(connection, [table_id]):
        return 0
    rows = connection.query(_ALTERED_SQL.format(typed=ids_of([table_id]), xid=xid))
    return int(rows[0][0] or 0) if rows else 0


def trouble(connection: Connection, type_id: int) -> str:
    """Return what is wrong with a table that has rows of an altered type."""
    if type_id == _MONEY:
        return "has rows of the type money, and lc_monetary was changed: what they say now is not in the log"
    rows = connection.query(_NAME_SQL.format(type=int(type_id)))
    name = rows[0][0] if rows else type_id
    return f"has rows of the type {name}, which was altered: what they say now is not in the log"


def _owner(fact: str) -> str:
    """Return the composite that a part belongs to; the name of a label contains none."""
    return fact.partition(".")[0]
