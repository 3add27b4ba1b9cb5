"""Chunk plans of MySQL tables: every row lies in exactly one chunk, whatever its key is made of."""

import sqlite3
from collections.abc import Sequence
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.rows.schema import Column, TableSchema
from agent.sources.mysql.decode.types import FieldType
from agent.sources.mysql.snapshot.chunk_plan import plan_chunks
from agent.sources.mysql.snapshot.chunks import WHOLE_TABLE, ChunkPlan, PlanKind

_KEYS = st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 3))
_ID = Column("id", FieldType.LONGLONG, 0, is_key=True)
_NAME = Column("name", FieldType.VARCHAR, 40, is_key=True, collation=45)


class Catalog:
    """Answers the planner's questions about a table with these keys as a server would, a walk by position."""

    def __init__(
        self,
        *,
        rows: int,
        size: int = 1 << 30,
        bounds: tuple[int, int] = (0, 0),
        index: Sequence[tuple[str, str | None]] = (("id", None),),
        walk: Sequence[tuple[str, ...]] = (),
    ) -> None:
        self._rows, self._size, self._ends, self._index = rows, size, bounds, index
        self._walk = iter([*walk])
        self._last: tuple[str, ...] = ()
        self.asked: list[str] = []

    def query(self, sql: str, *, timeout_s: float = 0) -> Sequence[Sequence[str | None]]:
        self.asked.append(sql)
        if "information_schema.tables" in sql:
            return [(str(self._rows), str(self._size))]
        if "count(*)" in sql:
            return [(str(self._rows),)]
        if "min(" in sql:
            return [(str(self._ends[0]), str(self._ends[1]))]
        if "statistics" in sql:
            return [("PRIMARY", column, prefix, "BTREE") for column, prefix in self._index]
        if " DESC" in sql:
            return [self._last]
        bound = next(self._walk, None)
        if bound is None:
            return []
        self._last = bound
        return [bound]


def _plan(catalog: Catalog, *columns: Column, chunk_rows: int = 1000) -> ChunkPlan:
    schema = TableSchema(1, "s", "t", columns or (_ID,))
    return plan_chunks(catalog, schema, key=schema.key, chunk_rows=chunk_rows)


@given(st.sets(_KEYS, max_size=40), st.sets(_KEYS, min_size=1, max_size=6))
def test_composite_bounds_put_every_row_into_exactly_one_chunk(
    rows: set[tuple[int, int, int]], bounds: set[tuple[int, int, int]]
) -> None:
    ends = sorted(bounds | {max(rows | bounds)})
    plan = ChunkPlan(
        PlanKind.BOUNDS, len(ends), 0, ("a", "b", "c"), bounds=tuple(tuple(map(str, bound)) for bound in ends)
    )
    with closing(sqlite3.connect(":memory:")) as database:
        database.execute("CREATE TABLE t (a INTEGER, b INTEGER, c INTEGER)")
        database.executemany("INSERT INTO t VALUES (?, ?, ?)", rows)
        found = [
            database.execute(f"SELECT * FROM t WHERE {plan.chunk(number).predicate} ORDER BY a, b, c").fetchall()
            for number in range(plan.count)
        ]
    assert [row for chunk in found for row in chunk] == sorted(rows)


@given(low=st.integers(-(2**63), 2**64 - 2), width=st.integers(1, 2**64), count=st.integers(1, 500))
def test_integer_ranges_follow_each_other(low: int, width: int, count: int) -> None:
    plan = ChunkPlan(PlanKind.KEYS, count, 0, ("id",), low, low + width)
    reached = low
    for number in range(count):
        _, _, start, _, _, _, end = plan.chunk(number).predicate.split(" ")
        assert int(start) == reached
        reached = int(end) + 1
    assert reached == low + width


def test_a_dense_integer_key_is_cut_by_ranges() -> None:
    plan = _plan(Catalog(rows=5000, bounds=(1, 5000)))
    assert (plan.kind, plan.count, plan.rows) == (PlanKind.KEYS, 5, 5000)
    assert plan.chunk(4).predicate == "`id` >= 4001 AND `id` <= 5000"


def test_an_integer_key_with_wide_gaps_is_cut_where_its_rows_are() -> None:
    plan = _plan(Catalog(rows=2500, bounds=(1, 10**12), walk=[("7",), ("10000000000",)]))
    assert (plan.kind, plan.count) == (PlanKind.BOUNDS, 3)
    assert plan.chunk(0).predicate == "`id` <= 7"
    assert plan.chunk(1).predicate == "`id` > 7 AND `id` <= 10000000000"


def test_text_bounds_are_constants_of_the_columns_character_set() -> None:
    catalog = Catalog(rows=2500, index=(("name", None), ("id", None)), walk=[("C3A4", "5")])
    plan = _plan(catalog, _NAME, _ID)
    assert plan.bounds[0] == ("_utf8mb4 X'C3A4'", "5")
    assert plan.chunk(0).predicate == (
        "`name` <= _utf8mb4 X'C3A4' AND ((`name` < _utf8mb4 X'C3A4') OR (`name` = _utf8mb4 X'C3A4' AND `id` <= 5))"
    )
    assert "FORCE INDEX (`PRIMARY`)" in catalog.asked[-1]


@pytest.mark.parametrize(
    ("column", "prefix"),
    [
        (_NAME, "10"),
        (Column("name", FieldType.ENUM, 1, is_key=True, members=("b", "a")), None),
        (Column("name", FieldType.DOUBLE, 8, is_key=True), None),
    ],
)
def test_a_key_counts_up_to_the_first_column_without_a_plain_order(column: Column, prefix: str | None) -> None:
    index = (("id", None), ("name", prefix))
    plan = _plan(Catalog(rows=2500, index=index, walk=[("5",)]), _ID, column)
    assert plan.columns == ("id",)
    assert _plan(Catalog(rows=2500, index=index[::-1]), column, _ID).kind is PlanKind.WHOLE


def test_a_small_table_and_one_without_key_are_one_chunk() -> None:
    assert _plan(Catalog(rows=999)) == ChunkPlan(PlanKind.WHOLE, 1, 999)
    assert _plan(Catalog(rows=10**7), Column("a", FieldType.LONG, 0)).chunk(0) == WHOLE_TABLE


def test_small_tables_are_counted_and_large_ones_without_statistics_guessed() -> None:
    small = Catalog(rows=0, size=1 << 20)
    assert _plan(small).rows == 0
    assert "count(*)" in small.asked[-1]
    assert _plan(Catalog(rows=0, size=1 << 30, bounds=(1, 10**7))).rows == (1 << 30) // 100


def test_fields_and_back() -> None:
    plan = ChunkPlan(PlanKind.BOUNDS, 2, 10, ("a", "b"), bounds=(("1", "''"), ("2", "X'00'")))
    assert ChunkPlan.from_fields(plan.to_fields()) == plan
