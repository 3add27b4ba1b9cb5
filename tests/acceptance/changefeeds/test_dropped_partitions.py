"""Event filters that ignore the end of partitions: the sink keeps their rows, until their keys come again."""

from pathlib import Path
from typing import Any, Final

import pytest
from deltalake import DeltaTable

from reactor.records.changefeed import ChangefeedConfig, EventFilter, FilterConfig
from tests.acceptance import maria_bed
from tests.acceptance.bed import Bed
from tests.acceptance.maria_bed import MariaBed

pytestmark = [pytest.mark.acceptance, pytest.mark.matrix, pytest.mark.spark, pytest.mark.timeout(300)]

SHOP: Final = "shop"
_POSTGRES: Final = (
    "CREATE TABLE r (id int PRIMARY KEY, v int) PARTITION BY RANGE (id)",
    "CREATE TABLE p0 PARTITION OF r FOR VALUES FROM (0) TO (10)",
    "CREATE TABLE p1 PARTITION OF r FOR VALUES FROM (10) TO (20)",
    "CREATE TABLE p2 PARTITION OF r FOR VALUES FROM (20) TO (30)",
    "CREATE TABLE p3 PARTITION OF r FOR VALUES FROM (30) TO (40)",
)
_MARIADB: Final = (
    "CREATE TABLE r (id int PRIMARY KEY, v int) PARTITION BY RANGE (id) (PARTITION p0 VALUES LESS THAN (10), "
    "PARTITION p1 VALUES LESS THAN (20), PARTITION p2 VALUES LESS THAN (30), PARTITION p3 VALUES LESS THAN (40))",
)
_ENDS: Final = {
    Bed: ("DROP TABLE p0", "TRUNCATE p1", "ALTER TABLE r DETACH PARTITION p2"),
    MariaBed: (
        "ALTER TABLE r DROP PARTITION p0",
        "ALTER TABLE r TRUNCATE PARTITION p1",
        "ALTER TABLE r DROP PARTITION p2",
    ),
}


@pytest.mark.parametrize(
    ("kind", "schema", "tables"),
    [(Bed, "public", _POSTGRES), (MariaBed, maria_bed.DATABASE, _MARIADB)],
    ids=["postgresql", "mariadb"],
)
def test_rows_of_partitions_that_end_stay(
    kind: type[Bed], schema: str, tables: tuple[str, ...], tmp_path: Path
) -> None:
    kept = EventFilter(matcher=(f"{schema}.r",), ignore_event=("drop table partition", "truncate table partition"))
    config = ChangefeedConfig(filter=FilterConfig(rules=(f"{schema}.r",), event_filters=(kept,)))
    rows = {1: 0, 11: 0, 21: 0, 31: 0}
    with kind(tmp_path, captures=1) as bed:
        for statement in tables:
            bed.execute(statement)
        bed.execute("INSERT INTO r VALUES (1, 0), (11, 0), (21, 0)")
        bed.create_feed(SHOP, config=config)
        bed.execute("INSERT INTO r VALUES (31, 0)")
        for statement in _ENDS[kind]:
            bed.execute(statement)
            bed.execute("UPDATE r SET v = v + 1 WHERE id = 31")
            rows[31] += 1
            _wait_for(bed, schema, rows)
        assert bed.query(SHOP).held == ()

        bed.execute("INSERT INTO r VALUES (11, 5)")
        _wait_for(bed, schema, rows | {11: 5})


def _wait_for(bed: Bed, schema: str, rows: dict[int, int]) -> None:
    bed.wait_for(f"the sink has {rows}", lambda: _here(bed, schema) == sorted(rows.items()))


def _here(bed: Bed, schema: str) -> list[tuple[Any, Any]]:
    rows = DeltaTable(bed.lake(SHOP) / schema / "r").to_pyarrow_table().to_pylist()
    return sorted((row["id"], row["v"]) for row in rows)
