"""Chunk plans: they cover everything once, whatever the numbers."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.rows.schema import Column, TableSchema
from agent.sources.postgres.snapshot.chunks import ChunkPlan, PlanKind, plan_chunks

_SCHEMA = TableSchema(1, "s", "t", (Column("id", 20, -1, is_key=True), Column("name", 25, -1)))


class Catalog:
    """Answers the planner's questions as a server would."""

    def __init__(
        self,
        *,
        blocks: int,
        pages: int,
        tuples: int,
        bounds: tuple[int, int] = (0, 0),
        kind: str = "r",
        longest: int | None = -1,
    ) -> None:
        self._answers: dict[str, tuple[object, ...]] = {
            "SELECT oid::int8, relkind": (1, kind),
            "relpages": (1, blocks, blocks if longest == -1 else longest, pages, tuples, True),
            "min(": bounds,
            "count(*)": (1, tuples),
            "SAVEPOINT": (),
        }

    def query(self, sql: str) -> Sequence[Sequence[Any]]:
        return [next(answer for words, answer in self._answers.items() if words in sql)]


def _plan(catalog: Catalog, *, key: Sequence[str] = ("id",), chunk_rows: int = 1000, version: int = 18) -> ChunkPlan:
    return plan_chunks(catalog, [(_SCHEMA, key)], chunk_rows=chunk_rows, server_version=version)[1]


@given(low=st.integers(-(2**63), 2**63 - 1), width=st.integers(1, 2**64), count=st.integers(1, 2000), data=st.data())
def test_every_place_is_in_exactly_one_chunk(low: int, width: int, count: int, data: st.DataObject) -> None:
    plan = ChunkPlan(PlanKind.KEYS, count, 0, "id", low, low + width)
    ends = [low]
    for number in {0, count - 1, data.draw(st.integers(0, count - 1))} | set(range(min(count, 50))):
        chunk = plan.chunk(number)
        assert low <= chunk.low <= chunk.high <= low + width
        if number + 1 < count:
            assert plan.chunk(number + 1).low == chunk.high
        ends.append(chunk.high)
    assert plan.chunk(0).low == low
    assert plan.chunk(count - 1).high == low + width


def test_a_dense_integer_key_is_cut_by_key() -> None:
    plan = _plan(Catalog(blocks=100, pages=50, tuples=2500, bounds=(1, 5000)))
    assert (plan.kind, plan.count, plan.rows) == (PlanKind.KEYS, 5, 5000)
    assert plan.chunk(4).predicate == '"id" >= 4001 AND "id" <= 5000'


def test_a_key_with_wide_gaps_and_any_other_key_is_cut_by_blocks() -> None:
    sparse = Catalog(blocks=100, pages=100, tuples=5000, bounds=(1, 10**12))
    for plan in (_plan(sparse), _plan(sparse, key=["name"]), _plan(sparse, key=[]), _plan(sparse, key=["id", "name"])):
        assert (plan.kind, plan.count) == (PlanKind.BLOCKS, 5)
    assert plan.chunk(0).predicate == "ctid >= '(0,0)'::tid AND ctid < '(20,0)'::tid"


def test_an_old_server_reads_such_a_table_in_one_piece() -> None:
    assert _plan(Catalog(blocks=100, pages=100, tuples=5000), key=[], version=13).kind is PlanKind.WHOLE


def test_a_partitioned_table_is_cut_by_its_integer_key_or_by_the_blocks_of_its_largest_partition() -> None:
    dense = Catalog(blocks=100, pages=100, tuples=5000, bounds=(1, 5000), kind="p", longest=40)
    sparse = Catalog(blocks=100, pages=100, tuples=5000, bounds=(1, 10**12), kind="p", longest=40)
    assert _plan(dense).kind is PlanKind.KEYS
    for plan in (_plan(sparse), _plan(dense, key=["id", "name"])):
        assert (plan.kind, plan.count, plan.high) == (PlanKind.BLOCKS, 5, 40)
    assert (_plan(sparse, version=13).kind, _plan(dense, key=[], version=13).kind) == (PlanKind.KEYS, PlanKind.WHOLE)


def test_a_table_with_a_foreign_partition_is_not_cut_by_blocks() -> None:
    foreign = Catalog(blocks=100, pages=100, tuples=5000, bounds=(1, 10**12), kind="p", longest=None)
    assert (_plan(foreign).kind, _plan(foreign, key=[]).kind) == (PlanKind.KEYS, PlanKind.WHOLE)


def test_a_small_table_is_one_chunk() -> None:
    plan = _plan(Catalog(blocks=1, pages=1, tuples=999))
    assert (plan.kind, plan.count, plan.chunk(0).predicate) == (PlanKind.WHOLE, 1, "true")
    assert _plan(Catalog(blocks=0, pages=0, tuples=0)).count == 1


@pytest.mark.parametrize(("blocks", "rows"), [(100, 3000), (10_000, 500_000)])
def test_a_table_without_statistics_is_counted_or_guessed(blocks: int, rows: int) -> None:
    assert _plan(Catalog(blocks=blocks, pages=0, tuples=3000, bounds=(1, 3000))).rows == rows


def test_a_huge_table_has_a_bounded_number_of_chunks() -> None:
    plan = _plan(Catalog(blocks=10**9, pages=10**9, tuples=10**12, bounds=(1, 10**12)))
    assert plan.count == 100_000
    assert plan.chunk(99_999).high == 10**12 + 1


def test_fields_and_back() -> None:
    plan = ChunkPlan(PlanKind.BLOCKS, 3, 10, high=8)
    assert ChunkPlan.from_fields(plan.to_fields()) == plan
