"""What the stream does not say of a changed table: its columns' numbers, its key, and the values of new columns.

``ADD COLUMN … DEFAULT`` writes no row: what the rows that were there now hold stands in the catalog alone, until
something rewrites the table. Where the default was not one value for all rows (``random()``, a sequence), or has been
rewritten since, what they hold is told nowhere: ``untold`` has the columns of which that is certain.
"""

from dataclasses import dataclass, field
from typing import Final

from agent.sources.postgres.connection import Connection
from agent.sources.postgres.preflight import key_of

_COLUMNS_SQL: Final = """
SELECT a.attname, a.attnum::int4, a.atthasmissing, (a.attmissingval::text::text[])[1],
       a.attnotnull AND NOT a.atthasmissing
  FROM pg_catalog.pg_attribute a
 WHERE a.attrelid = {table} AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
"""


@dataclass(frozen=True, slots=True)
class Look:
    """A table in the catalog of today; ``is_there`` False when it is gone.

    ``fills``: column → what rows without a value of it hold, in text. ``untold``: not NULL in them, but not told.
    ``key``: what upserts go by.
    """

    is_there: bool = False
    places: dict[str, int] = field(default_factory=dict)
    fills: dict[str, str] = field(default_factory=dict)
    untold: frozenset[str] = frozenset()
    key: tuple[str, ...] = ()


def look_at(connection: Connection, table_id: int) -> Look:
    """:raises SourceError: the catalog cannot be read."""
    rows = connection.query(_COLUMNS_SQL.format(table=int(table_id)))
    if not rows:
        return Look()
    return Look(
        is_there=True,
        places={str(name): int(place or 0) for name, place, *_ in rows},
        fills={str(name): value for name, _, has_missing, value, _ in rows if has_missing == "t" and value is not None},
        untold=frozenset(str(name) for name, *_, is_untold in rows if is_untold == "t"),
        key=key_of(connection, table_id),
    )
