"""Values that are in no log: with ``on-unknown-values = "resync"`` each table that has them becomes what its source is,
without a command."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from deltalake import DeltaTable

from reactor.records.changefeed import ChangefeedConfig, EventFilter, FilterConfig
from tests.acceptance import bed as postgres_bed
from tests.acceptance import maria_bed
from tests.acceptance.bed import Bed
from tests.acceptance.maria_bed import MariaBed

pytestmark = [pytest.mark.acceptance, pytest.mark.matrix, pytest.mark.spark, pytest.mark.timeout(600)]

SHOP: Final = "shop"
LEFT_OUT: Final = "left_out"
#: table → what gives its old rows values that the log does not have
_POSTGRES: Final = {
    "random": "ALTER TABLE {t} ADD x double precision DEFAULT random()",
    "serial": "ALTER TABLE {t} ADD x serial",
    "identity": "ALTER TABLE {t} ADD x int GENERATED ALWAYS AS IDENTITY",
    "stored": "ALTER TABLE {t} ADD x int GENERATED ALWAYS AS (v * 2) STORED",
    "retyped": "ALTER TABLE {t} ALTER w TYPE int USING length(w) + 1",
    "cut": "ALTER TABLE {t} ALTER w TYPE varchar(1) USING upper(left(w, 1))",
    LEFT_OUT: "UPDATE {t} SET v = 1 WHERE id = 7",
}
_MARIADB: Final = {
    "random": "ALTER TABLE {t} ADD x double DEFAULT (rand())",
    "uuid": "ALTER TABLE {t} ADD x varchar(36) DEFAULT (uuid())",
    "counted": "ALTER TABLE {t} ADD x int AUTO_INCREMENT UNIQUE",
    "stored": "ALTER TABLE {t} ADD x int GENERATED ALWAYS AS (v * 2) STORED",
    LEFT_OUT: "SET STATEMENT binlog_row_image = 'MINIMAL' FOR UPDATE {t} SET v = 1 WHERE id = 7",
}


@pytest.mark.parametrize(
    ("kind", "schema", "cases"),
    [(Bed, "public", _POSTGRES), (MariaBed, maria_bed.DATABASE, _MARIADB)],
    ids=["postgresql", "mariadb"],
)
def test_each_table_is_read_back(kind: type[Bed], schema: str, cases: Mapping[str, str], tmp_path: Path) -> None:
    drafts = EventFilter(matcher=(f"{schema}.{LEFT_OUT}",), ignore_insert_value_expr="v = 0")
    rules = tuple(f"{schema}.{table}" for table in cases)
    config = ChangefeedConfig(
        on_unknown_values="resync",
        filter=FilterConfig(rules=rules, event_filters=(drafts,)),
    )
    with kind(tmp_path, captures=1) as bed:
        for table in cases:
            bed.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, v int, w varchar(9000))")
            bed.execute(f"INSERT INTO {table} VALUES (1, 1, 'a'), (2, 2, 'bb'), (3, 3, 'ccc')")
        if kind is Bed:
            bed.execute(f"ALTER TABLE {LEFT_OUT} ALTER w SET STORAGE EXTERNAL")
        bed.create_feed(SHOP, config=config)
        bed.execute(f"INSERT INTO {LEFT_OUT} VALUES (7, 0, repeat('x', 9000))")
        for table, statement in cases.items():
            bed.execute(statement.format(t=table))
            bed.execute(f"UPDATE {table} SET v = v + 10 WHERE id = 1")
        ts = bed.last_ts()
        for table in cases:
            what = f"{table} is as at the source"
            bed.wait_for(what, lambda table=table: _here(bed, schema, table) == _there(bed, table))  # type: ignore[misc]
        bed.wait_for("all flow", lambda: bed.query(SHOP).held == () and bed.covers(SHOP, ts))
        found = bed.ask(lambda client: client.diff(SHOP), timeout_s=120.0)
        assert [(one.table, one.differences) for one in found if not one.equal] == []
        assert len(found) == len(cases)
        logged = (bed.directory / f"{bed.processes[0].name}.log").read_text()
        assert "rows of a held table are read back" in logged, "only the row that the sink lacks"
        assert not [line for line in logged.splitlines() if "are copied" in line and f"{schema}.{LEFT_OUT}" in line]


def _here(bed: Bed, schema: str, table: str) -> list[dict[str, Any]]:
    rows = DeltaTable(bed.lake(SHOP) / schema / table).to_pyarrow_table().to_pylist()
    return sorted(rows, key=lambda row: int(row["id"]))


def _there(bed: Bed, table: str) -> list[dict[str, Any]]:
    """By the columns of the sink, whose names are the source's."""
    names = [str(name) for (name,) in bed.execute(_COLUMNS.format(t=table))]
    listed = ", ".join(names)
    return [dict(zip(names, row, strict=True)) for row in bed.execute(f"SELECT {listed} FROM {table} ORDER BY id")]


_COLUMNS: Final = (
    "SELECT column_name FROM information_schema.columns WHERE table_name = '{t}' "
    f"AND table_schema IN ('public', '{maria_bed.DATABASE}', '{postgres_bed.DATABASE}') ORDER BY ordinal_position"
)
