"""Rewrites: finds tables that were rewritten with values that no conversion of types explains (``USING``).

``ALTER COLUMN … TYPE`` writes the column's row in the catalog, and where values become others the whole table: into a
new file, every row as one of its transaction. What else makes a new file keeps the rows as they were (``VACUUM FULL``,
``CLUSTER``, another tablespace), writes no column's row (see below), or is in the stream (``TRUNCATE``). So
a table with a new file, none of its old rows, and a new row for a column whose types the server would have converted
without touching a value, has been given values that are in no log. A domain with constraints makes the server rewrite
a table without an expression too, and the catalog does not show which it was: such a table is suspect in both cases.

Where another column of the table got a type that does touch values, or the table was emptied, the new file says
nothing; then a column is suspect only if nothing else is seen to have changed in its row. What the server rewrites by
itself (``int`` as ``bigint``) looks the same with an expression and without: there rows are compared, when the sink
follows (``snapshot.survivors``), also in other columns that got another type in the same transaction.

SET UNLOGGED and SET LOGGED rewrite a table too, without changing a column. Its rows then have the ``xmin`` of the
transaction that gave the table its file, which is also the ``xmin`` of its row, or of an index's row, in ``pg_class``.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

from agent.rows.schema import Column, TableSchema
from agent.sources.postgres.decode import types
from agent.sources.postgres.publication.newcomers import Newcomers
from agent.sources.postgres.publication.published import Relation
from agent.sources.postgres.publication.row_search import BEFORE_INDEXES
from agent.sources.postgres.publication.sightings import Shape
from agent.sources.postgres.server.connection import Connection
from reactor.ids import Ts

_VARCHAR: Final = 1043
_VARBIT: Final = 1562
_NUMERIC: Final = 1700
#: time, timestamp, timestamptz, timetz: their modifier is how many digits they keep, six at most
_MOMENTS: Final = frozenset((1083, 1114, 1184, 1266))
_MOMENT_DIGITS: Final = 6
_HEADER: Final = 4
_NAME_SQL: Final = "SELECT attname FROM pg_catalog.pg_attribute WHERE attrelid = {table} AND attnum = {number}"
#: the types that a type is made of as a domain; whether one's values are the other's
_RELATION_SQL: Final = """
WITH RECURSIVE chain(start, type, base, modifier) AS (
  SELECT oid, oid, typbasetype, typtypmod FROM pg_catalog.pg_type t WHERE oid IN ({before}, {after})
  UNION ALL
  SELECT c.start, t.oid, t.typbasetype, CASE WHEN c.modifier >= 0 THEN c.modifier ELSE t.typtypmod END
    FROM chain c JOIN pg_catalog.pg_type t ON t.oid = c.base)
SELECT b.type::int8, a.type::int8, a.modifier, EXISTS
       (SELECT FROM pg_catalog.pg_cast WHERE castsource = b.type AND casttarget = a.type AND castmethod = 'b')
  FROM chain b, chain a WHERE b.start = {before} AND a.start = {after} AND b.base = 0 AND a.base = 0
"""

#: type and modifier
Kind = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Rewrites:
    """``was_truncated``: as for ``Partitions``."""

    asked: Newcomers
    was_truncated: Callable[[int, Ts, int | None], bool]

    def trouble(self, table_id: int, declared: TableSchema | None) -> str:
        """Why the table's rows may have values that are in no stream; empty where they have none. ``declared``: the
        table as the stream has it."""
        before, relation = self.asked.before, self.asked.now.tables.get(table_id)
        if relation is None or relation.is_partitioned:
            return ""
        if before.files.get(table_id, relation.file) == relation.file:
            return self._trouble_of_defaults(relation, declared)
        altered = self._altered(relation)
        added = relation.columns.keys() - before.columns.get(table_id, {}).keys()
        filling = self.asked.filling(relation, added)
        if table_id in before.columns:
            if trouble := self._trouble_of_exchange(relation, altered, declared):
                return trouble
            if column := self.asked.filled_column(relation, added):
                return _filled(column)
            if not altered and not filling:
                return self._trouble_alone(relation)
        suspects = [number for number in altered if self._keeps(relation, number)]
        if not suspects or self.asked.has_old_rows(relation) or not self.asked.has_rows(relation):
            return ""
        # every rewrite stores the values that rows have in an added column
        are_explained = all(self._is_explained(relation, number) for number in suspects)
        if are_explained and not self.asked.has_rows_of_rewrite(relation):
            return ""
        suspects = self._narrowed(relation, suspects, altered, filling)
        if not suspects:
            return ""
        rows = self.asked.connection.query(_NAME_SQL.format(table=table_id, number=suspects[0]))
        return (
            f"was rewritten when its column {rows[0][0] if rows else suspects[0]} was altered, as by ALTER COLUMN … "
            "TYPE … USING: what its values are now is not in the log"
        )

    def _narrowed(
        self, relation: Relation, suspects: Collection[int], altered: Collection[int], filling: Collection[int]
    ) -> list[int]:
        """Return those of the suspects that count where the table has a new file for another reason as well, if it has:
        then it matters what else can have been done to a column, and whose transaction wrote the rows."""
        was_truncated = self.was_truncated(relation.table_id, self.asked.now.end_ts, None)
        if not filling and len(suspects) == len(altered) and not was_truncated:
            return list(suspects)
        rewritten = {self._xid(relation.table_id, number) for number in altered if not self._keeps(relation, number)}
        others = rewritten | {self._xid(relation.table_id, number) for number in filling}
        is_known_why = was_truncated or any(self.asked.has_made_file(relation, xid) for xid in others)
        return [
            number
            for number in suspects
            if not self._is_explained(relation, number) or (not is_known_why and self._is_retyped(relation, number))
            if not self._is_compared(relation, number, rewritten)
        ]

    def came_back(self, table_id: int) -> bool:
        """Return whether the table has another file that no TRUNCATE in the stream explains, and all of its columns
        were altered to what they were, as by ATTACH and DETACH PARTITION."""
        before, relation = self.asked.before, self.asked.now.tables.get(table_id)
        known = before.columns.get(table_id)
        if not known or relation is None or before.files.get(table_id, relation.file) == relation.file:
            return False
        altered = self._altered(relation)
        is_as_before = len(altered) == len(known) and all(known[at] == relation.columns[at] for at in altered)
        return is_as_before and not self.was_truncated(table_id, self.asked.now.end_ts, None)

    def _trouble_of_defaults(self, relation: Relation, declared: TableSchema | None) -> str:
        """Return the trouble of a column that the stream has not declared yet, if it, or its domain, has been altered
        since it was seen first: its rows may have got a default that is gone."""
        known = self.asked.before.columns.get(relation.table_id, {})
        places = {column.place for column in declared.columns} if declared else set(known)
        undeclared = [at for at in known.keys() - places if at in relation.columns]
        altered = {at for at in undeclared if self._is_explained(relation, at)}
        altered.update(self.asked.of_altered_domains(relation, undeclared))
        column = self.asked.filled_column(relation, altered)
        return _filled(column) if column else ""

    def _trouble_of_exchange(self, relation: Relation, altered: Collection[int], declared: TableSchema | None) -> str:
        """Return the trouble of a table that another program has rewritten. That changes no value, but hides whether
        the server has, before."""
        known = self.asked.before.columns[relation.table_id]
        places = {column.place for column in declared.columns} if declared else known.keys()
        new = relation.columns.keys() - (places & known.keys())
        if not (altered or new) or not self.asked.was_exchanged(relation):
            return ""
        is_suspect = any(
            self._keeps(relation, at) and (self._is_retyped(relation, at) or not self._is_explained(relation, at))
            for at in altered
        )
        if not (
            is_suspect
            or self.asked.filling(relation, new)
            or self.asked.filled_column(relation, new, rewritten=BEFORE_INDEXES)
        ):
            return ""
        return (
            "was rewritten after its columns were altered, as by pg_repack or VACUUM FULL: what its rows hold in them "
            "is not in the log"
        )

    def retyped(self, table_id: int, declared: TableSchema | None) -> Shape:
        """Return the columns of a partitioned table that have types which explain that its partitions were rewritten:
        name, type and modifier as they are now. None, if anything else may have been done to values too, or a column
        came that the stream has not declared yet."""
        before, relation = self.asked.before, self.asked.now.tables[table_id]
        places = {column.place for column in declared.columns} if declared else set()
        altered = self._altered(relation) if table_id in before.columns else []
        if relation.columns.keys() - places or any(self._keeps(relation, number) for number in altered):
            return frozenset()
        names = {number: name for name, number in relation.numbers.items()}
        return frozenset((names[number], *relation.columns[number][:2]) for number in altered)

    def trouble_of_new(self, table_id: int, first: TableSchema | None) -> str:
        """Like ``trouble``, for a table that the stream has named since the last proof: as ``first`` behind the
        transaction with its first rows.

        A rewrite by the transaction that created the table has left no trace of what was there before. A later one has
        changed no value only if every column that it altered has a type that explains it.
        """
        relation = self.asked.now.tables[table_id]
        if first is not None and (column := self._filled_of_new(relation, first)):
            return _filled(column)
        if not (rewriters := self.asked.rewriters(relation)):
            return ""
        created_by = self.asked.created_by(table_id)
        if created_by not in rewriters and first is not None and self._explains(relation, first, created_by):
            return ""
        return (
            "was rewritten with rows since it was created, as by ALTER COLUMN … TYPE … USING, or SET LOGGED: what its "
            "values are now is not in the log"
        )

    def _filled_of_new(self, relation: Relation, first: TableSchema) -> str:
        """Return a column with values that no stream has, as for a known table; without a rewrite, the catalog has
        them."""
        if relation.is_partitioned or relation.file == relation.table_id:
            return ""
        added = relation.columns.keys() - {column.place for column in first.columns}
        return self.asked.filled_column(relation, added, is_new=True)

    def _explains(self, relation: Relation, first: TableSchema, created_by: int) -> bool:
        """Return whether the types of altered columns, or what new ones are filled with, are reason enough for the
        server to rewrite the table, and no column was altered that they do not explain."""
        known = {column.place: _kind(column) for column in first.columns}
        added = relation.columns.keys() - known.keys()
        altered = [
            number for number in relation.columns.keys() - added if self._xid(relation.table_id, number) != created_by
        ]
        connection = self.asked.connection
        if any(keeps(connection, known[at], relation.columns[at][:2]) for at in altered):
            return False
        return bool(altered) or bool(self.asked.filling(relation, added))

    def _trouble_alone(self, relation: Relation) -> str:
        """Return the trouble of a table with another file and unchanged columns."""
        if self.asked.has_old_rows(relation) or not self.asked.has_rows_of_rewrite(relation):
            return ""
        if self.was_truncated(relation.table_id, self.asked.now.end_ts, None):
            return ""
        return (
            "was rewritten though no column was altered, as by SET UNLOGGED and SET LOGGED: what was changed "
            "meanwhile is in no log"
        )

    def _altered(self, relation: Relation) -> list[int]:
        """Columns that were there, and have another row now."""
        table_id, before = relation.table_id, self.asked.before
        known = before.columns.get(table_id, {})
        return [
            number
            for number in relation.columns
            if number in known and not before.has_seen(f"c{table_id}.{number}", self._xid(table_id, number))
        ]

    def _xid(self, table_id: int, number: int) -> int:
        return self.asked.now.xids[f"c{table_id}.{number}"]

    def _is_explained(self, relation: Relation, number: int) -> bool:
        """Return whether the column's row differs in something else than the type: the name, NOT NULL, a default."""
        return self.asked.before.columns[relation.table_id][number][2] != relation.columns[number][2]

    def _is_retyped(self, relation: Relation, number: int) -> bool:
        return self.asked.before.columns[relation.table_id][number][:2] != relation.columns[number][:2]

    def _is_compared(self, relation: Relation, number: int, rewritten: Collection[int]) -> bool:
        """Return whether the sink compares the column's values with the source's rows, when it follows: the column has
        another type since a transaction that made the server rewrite the table for the type of another column."""
        return self._is_retyped(relation, number) and self._xid(relation.table_id, number) in rewritten

    def _keeps(self, relation: Relation, number: int) -> bool:
        before, after = self.asked.before.columns[relation.table_id][number], relation.columns[number]
        return keeps(self.asked.connection, before[:2], after[:2])


def _filled(column: str) -> str:
    return (
        f"has got column {column} with values for the rows that were there, by a default that is gone: what they are "
        "is not in the log"
    )


def _kind(column: Column) -> Kind:
    return (column.modifier, -1) if column.type_id == types.ENUM_OID else (column.type_id, column.modifier)


def keeps(connection: Connection, before: Kind, after: Kind) -> bool:
    """Return whether converting the one type to the other without an expression changes no value.

    True also for a domain with constraints, for which the server rewrites the table to check its rows.
    """
    if before == after:
        return True
    rows = connection.query(_RELATION_SQL.format(before=before[0], after=after[0]))
    if not rows:
        return False  # a type is gone
    old_base, new_base, new_modifier, is_binary = rows[0]
    old = int(old_base or 0), before[1]  # the server forgets how long a domain's values are
    new = int(new_base or 0), int(new_modifier or -1) if after[1] < 0 else after[1]
    return fits(old, new) if old[0] == new[0] else is_binary == "t" and new[1] < 0


def fits(old: Kind, new: Kind) -> bool:
    """Return whether every value of the old kind is one of the new, for two kinds of one type."""
    (kind, before), (_, after) = old, new
    if after in (-1, before):
        return True
    if kind in _MOMENTS:
        return after >= _MOMENT_DIGITS or 0 <= before <= after
    if kind == _NUMERIC:
        return before >= 0 and _scale(before) == _scale(after) and before <= after
    return kind in (_VARCHAR, _VARBIT) and 0 <= before <= after


def _scale(modifier: int) -> int:
    return (modifier - _HEADER) & 0xFFFF
