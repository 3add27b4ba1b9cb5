"""Beginnings: tables that come and go between the reading of a new changefeed's tables and its position."""

from contextlib import closing

import pytest

from tests.acceptance.maria_bed import MariaBed, is_installed

pytestmark = [
    pytest.mark.acceptance,
    pytest.mark.spark,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not is_installed(), reason="sysbench is not installed (Debian: apt-get install sysbench)"),
]

_WAITING = (
    "SELECT id FROM information_schema.processlist "
    "WHERE state LIKE 'Waiting for table metadata lock' AND info LIKE '%b_locked%' AND time_ms > 1000"
)


@pytest.mark.matrix
def test_tables_that_come_and_go_while_a_snapshot_begins(bed: MariaBed) -> None:
    """A new one is in no event of the binlog behind the position; one that is gone refused the changefeed for good."""
    bed.execute("CREATE TABLE aside.b_locked (id int PRIMARY KEY)")
    bed.execute("INSERT INTO aside.b_locked VALUES (1)")
    for name in ("dropped", "swapped"):
        bed.execute(f"CREATE TABLE aside.b_{name} (id int PRIMARY KEY, old int)")
    with closing(bed.mariadb.connect("aside")) as locker, locker.cursor() as cursor:
        cursor.execute("LOCK TABLES b_locked WRITE")
        bed.create("begun", config={"filter": {"rules": ["aside.b_*"]}})
        bed.wait_for("the dump waits for the lock", lambda: bool(bed.execute(_WAITING)))
        bed.execute("DROP TABLE aside.b_swapped, aside.b_dropped")
        bed.execute("CREATE TABLE aside.b_swapped (id int PRIMARY KEY, new varchar(9))")
        bed.execute("INSERT INTO aside.b_swapped VALUES (1, 'a')")
        bed.execute("CREATE TABLE aside.b_new (id int PRIMARY KEY)")
        bed.execute("INSERT INTO aside.b_new VALUES (1), (2)")
        cursor.execute("UNLOCK TABLES")
    tables = {"aside.b_locked", "aside.b_new", "aside.b_swapped"}
    bed.wait_for("all tables flow", lambda: bed.flows("begun", tables))
    found = bed.ask(lambda client: client.diff("begun"), timeout_s=120.0)
    assert sorted((one.table, one.equal, one.sink_rows) for one in found) == [
        ("aside.b_locked", True, 1),
        ("aside.b_new", True, 2),
        ("aside.b_swapped", True, 1),
    ]
    bed.ask(lambda client: client.remove("begun"))
