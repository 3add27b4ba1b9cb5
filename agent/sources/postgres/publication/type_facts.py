"""Type facts: the labels of enums and parts of composites, on which the text of their values depends.

``ALTER TYPE`` changes what old rows say without writing one: a label that gets another name, a part that comes or goes.
The log does not say so: the facts are read with each proof and compared with those of the last one. They follow types
within types: of lists, domains, ranges, composites.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from agent.sources.postgres.server.connection import Connection

#: types from here on are users'
_FIRST_USERS_OID: Final = 16384
#: a column's type, and all that lie in it
_USED: Final = f"""
WITH RECURSIVE used(relation, type) AS (
  SELECT attrelid, atttypid FROM pg_catalog.pg_attribute
   WHERE attrelid = ANY ({{typed}}) AND attnum > 0 AND NOT attisdropped AND atttypid >= {_FIRST_USERS_OID}
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
"""
_TABLES_SQL: Final = (
    "SELECT DISTINCT attrelid::int8 FROM pg_catalog.pg_attribute WHERE attrelid = ANY ({ids}) AND attnum > 0 "
    f"AND NOT attisdropped AND atttypid >= {_FIRST_USERS_OID}"
)
_NAMES_SQL: Final = "SELECT oid::int8, pg_catalog.format_type(oid, NULL) FROM pg_catalog.pg_type WHERE oid IN ({types})"

#: for ``digest``: changes with every fact
DIGEST: Final = (
    "SELECT string_agg(concat_ws(':', fact, told), ',' ORDER BY fact, relation) "
    f"FROM ({_FACTS_SQL}) facts(relation, type, fact, told)"
)


@dataclass(frozen=True, slots=True)
class TypeFacts:
    """``told``: what is so, by fact. ``types``: which type a fact is of. ``used``: the types in each table."""

    told: Mapping[str, str]
    types: Mapping[str, int]
    used: Mapping[int, frozenset[int]]


def read(connection: Connection, table_ids: Collection[int]) -> TypeFacts:
    """The facts of those of the tables that exist."""
    rows = connection.query(_FACTS_SQL.format(typed=ids_of(table_ids)))
    used: dict[int, set[int]] = {}
    for relation, kind, _, _ in rows:
        used.setdefault(int(relation or 0), set()).add(int(kind or 0))
    return TypeFacts(
        told={str(fact): str(told) for _, _, fact, told in rows},
        types={str(fact): int(kind or 0) for _, kind, fact, _ in rows},
        used={table: frozenset(types) for table, types in used.items()},
    )


def tables_with_types(connection: Connection, table_ids: Collection[int]) -> list[int]:
    """Those that have columns of user-made types: there are few, mostly."""
    rows = connection.query(_TABLES_SQL.format(ids=ids_of(table_ids)))
    return [int(row[0] or 0) for row in rows]


def ids_of(table_ids: Collection[int]) -> str:
    """As SQL has them."""
    return "'{" + ",".join(str(int(table)) for table in sorted(table_ids)) + "}'::pg_catalog.oid[]"


def altered(before: Mapping[str, str], now: TypeFacts) -> dict[int, int]:
    """Tables whose rows may say something else than when ``before`` was so: with a type that was altered. A label that
    was added changes no row."""
    known = {_owner(fact) for fact in before}
    changed = {
        now.types[fact]
        for fact, told in now.told.items()
        if before.get(fact, told if fact[0] == "e" or _owner(fact) not in known else None) != told
    }
    # a part that went has left its fact behind
    gone = {_owner(fact) for fact in before if fact[0] == "c" and fact not in now.told}
    changed |= {kind for fact, kind in now.types.items() if _owner(fact) in gone}
    found = {table: sorted(types & changed) for table, types in now.used.items()}
    return {table: types[0] for table, types in found.items() if types}


def names(connection: Connection, types: Collection[int]) -> dict[int, str]:
    """As users call them."""
    rows = connection.query(_NAMES_SQL.format(types=", ".join(map(str, sorted(types))) or "0"))
    return {int(oid or 0): str(name) for oid, name in rows}


def _owner(fact: str) -> str:
    """The composite that a part belongs to; a label has none in its name."""
    return fact.partition(".")[0]
