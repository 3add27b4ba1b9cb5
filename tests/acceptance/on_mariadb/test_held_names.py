"""Held tables with other names since: they are copied under these names, also where they have taken each other's."""

from collections.abc import Sequence

import pytest

from tests.acceptance.maria_bed import MariaBed, is_installed

pytestmark = [
    pytest.mark.acceptance,
    pytest.mark.spark,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not is_installed(), reason="sysbench is not installed (Debian: apt-get install sysbench)"),
]


def hold(bed: MariaBed, tables: Sequence[str]) -> None:
    """In lax mode NULL becomes what the binlog does not say."""
    for number, table in enumerate(tables):
        bed.execute(f"CREATE TABLE aside.{table} (id int PRIMARY KEY, v int DEFAULT 5)")
        bed.execute(f"INSERT INTO aside.{table} VALUES (1, NULL), (2, {number})")
    bed.wait_for("they are there", lambda: len(bed.query("names").tables) >= len(tables) + 1)
    for table in tables:
        bed.execute(f"SET STATEMENT sql_mode = '' FOR ALTER TABLE aside.{table} MODIFY v int NOT NULL")
    bed.wait_for(
        "they are held", lambda: {one.table for one in bed.query("names").held} == {f"aside.{t}" for t in tables}
    )


@pytest.mark.sample(1.0)
def test_held_tables_are_copied_under_their_names(bed: MariaBed) -> None:
    bed.execute("CREATE TABLE aside.n_other (id int PRIMARY KEY)")
    bed.create("names", config={"filter": {"rules": ["aside.n_*"]}})
    hold(bed, ("n_alone", "n_one", "n_two", "n_three"))
    bed.execute("RENAME TABLE aside.n_alone TO aside.n_away")
    bed.execute(
        "RENAME TABLE aside.n_one TO aside.n_x, aside.n_two TO aside.n_one, aside.n_three TO aside.n_two, "
        "aside.n_x TO aside.n_three"
    )
    names = {"aside.n_away", "aside.n_three", "aside.n_one", "aside.n_two"}
    bed.wait_for("the names are known", lambda: {one.renamed_to for one in bed.query("names").held} == names)
    for table in ("aside.n_alone", "aside.n_two"):
        bed.ask(lambda client, table=table: client.resync_table("names", table))  # type: ignore[misc]
    bed.wait_for("all tables flow", lambda: bed.flows("names", {*names, "aside.n_other"}))
    found = bed.ask(lambda client: client.diff("names"), timeout_s=120.0)
    assert [one.table for one in found if not one.equal] == []
    assert {one.table: one.sink_rows for one in found} == {"aside.n_other": 0, **dict.fromkeys(names, 2)}
    bed.ask(lambda client: client.remove("names"))
