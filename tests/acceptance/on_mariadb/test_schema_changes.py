"""Definitions in the binlog while sysbench writes: the sink follows, once, also when the owner falls in between."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from reactor.records.changefeed import SinkMode
from tests.acceptance import families
from tests.acceptance.checks import FEEDS, UPSERT, follows
from tests.acceptance.maria_bed import DATABASE, MariaBed, is_installed

pytestmark = [
    pytest.mark.acceptance,
    pytest.mark.spark,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not is_installed(), reason="sysbench is not installed (Debian: apt-get install sysbench)"),
]

CATCH_UP_TIMEOUT_S = 120.0
#: bytes of a row, and transactions with a row for each one of sysbench's
_BLOB, _LARGE = 4_000, 8


def catch_up(bed: MariaBed) -> None:
    bed.wait_for("both changefeeds follow", follows(bed), timeout_s=CATCH_UP_TIMEOUT_S)


def stored(bed: MariaBed, table: str) -> pa.Table:
    return bed.delta(UPSERT, table)


def check(bed: MariaBed, table: str, *columns: str) -> None:
    found = stored(bed, table)
    assert sorted(found.column_names) == sorted(columns)
    rows = zip(*(found.sort_by("id").column(name).to_pylist() for name in columns), strict=True)
    there = [tuple(row) for row in bed.execute(f"SELECT {', '.join(columns)} FROM {table} ORDER BY id")]
    assert [tuple(map(plain, row)) for row in rows] == [tuple(map(plain, row)) for row in there]


def plain(value: Any) -> str | None:
    return None if value is None else str(value)


def check_diff(bed: MariaBed) -> None:
    for feed in FEEDS:
        found = bed.ask(lambda client, feed=feed: client.diff(feed), timeout_s=120.0)  # type: ignore[misc]
        assert [(feed, one.table) for one in found if not one.equal] == []


def test_columns_come_go_and_change(bed: MariaBed) -> None:
    with bed.load(rate=30):
        bed.execute("ALTER TABLE thing ADD n bigint NOT NULL DEFAULT 7 AFTER id, ADD e enum('x','y') DEFAULT 'y'")
        bed.execute("UPDATE thing SET n = 8 WHERE id < 50")
        bed.execute("ALTER TABLE thing CHANGE a c varchar(40), DROP COLUMN gone")
        bed.execute("UPDATE thing SET c = 'x' WHERE id < 20")
        bed.execute("ALTER TABLE thing MODIFY b bigint")
        bed.execute("UPDATE thing SET b = 1 << 40 WHERE id = 7")
        bed.execute("ALTER TABLE sbtest1 ADD extra int DEFAULT 3")
        bed.execute("ALTER TABLE ring CHANGE a x int, CHANGE b a bigint, RENAME COLUMN c TO b")
        bed.execute("INSERT INTO ring VALUES (3, 1, 2, 3)")
        bed.execute("ALTER TABLE ring RENAME COLUMN x TO y, ADD x varchar(9) DEFAULT 4")
        bed.execute("INSERT INTO ring VALUES (4, 5, 6, 7, '8')")
    catch_up(bed)
    check(bed, "thing", "id", "n", "c", "b", "e")
    check(bed, "ring", "id", "y", "a", "b", "x")
    check(bed, "sbtest1", "id", "k", "c", "pad", "extra")
    check_diff(bed)


@pytest.mark.matrix
def test_tables_come_go_and_change_names(bed: MariaBed) -> None:
    with bed.load(rate=30):
        bed.execute("CREATE TABLE fresh (id int PRIMARY KEY, v varchar(10))")
        bed.execute("INSERT INTO fresh SELECT id, 'v' FROM sbtest2 WHERE id < 500")
        bed.execute("RENAME TABLE fresh TO fresher, thing TO fresh")
        bed.execute("UPDATE fresher SET v = 'w' WHERE id < 100")
        bed.execute("UPDATE fresh SET n = 9 WHERE id < 10")
        bed.execute("DROP TABLE sbtest8")
        bed.execute("CREATE TABLE sbtest8 (id int PRIMARY KEY, other int)")
        bed.execute("INSERT INTO sbtest8 VALUES (1, 2), (3, 4)")
        bed.execute("TRUNCATE TABLE sbtest7")
        bed.execute("INSERT INTO sbtest7 (id, k, c, pad) VALUES (1, 2, 'c', 'p')")
    catch_up(bed)
    check(bed, "fresher", "id", "v")
    check(bed, "fresh", "id", "n", "c", "b", "e")
    check(bed, "sbtest8", "id", "other")
    check(bed, "sbtest7", "id", "k", "c", "pad")
    check_diff(bed)


@pytest.mark.matrix
def test_an_online_schema_change_while_the_owner_falls(bed: MariaBed, trap: Path) -> None:
    trap.touch()
    with bed.load(rate=30):
        bed.execute("CREATE TABLE _sbtest2_gho LIKE sbtest2")
        bed.execute("ALTER TABLE _sbtest2_gho ADD extra varchar(5) NOT NULL DEFAULT 'q'")
        bed.execute("INSERT INTO _sbtest2_gho (id, k, c, pad) SELECT id, k, c, pad FROM sbtest2")
        bed.execute("RENAME TABLE sbtest2 TO _sbtest2_del, _sbtest2_gho TO sbtest2")
        bed.execute("DROP TABLE _sbtest2_del")
        owner = bed.found("the owner that falls", lambda: next(one for one in bed.processes if one.has_fallen))
        catch_up(bed)
        bed.start(owner)
    catch_up(bed)
    names = stored(bed, "sbtest2").column_names
    assert "extra" in names
    assert not (bed.lake(UPSERT) / DATABASE / "_sbtest2_gho").exists()


@pytest.mark.matrix
@pytest.mark.parametrize("format", ["delta", "iceberg"])
def test_a_table_is_replaced_while_the_owner_falls(bed: MariaBed, trap: Path, format: str) -> None:
    """One statement drops a table and makes another one in its place, where no writer finds the first any more. The
    checkpoint is behind that: another table has more rows than a flush takes."""
    feed = f"replaced-{format}"
    bed.execute("CREATE OR REPLACE TABLE aside.large (id int AUTO_INCREMENT PRIMARY KEY, v blob)")
    bed.execute("CREATE OR REPLACE TABLE aside.replaced (id int PRIMARY KEY, v varchar(10))")
    bed.execute("INSERT INTO aside.replaced VALUES (1, 'a'), (2, 'b')")
    sink, rules = f"{format}+file://{bed.lake(feed)}", ["aside.replaced", "aside.large"]
    bed.create_feed(feed, SinkMode.UPSERT, sink_uri=sink, config={"filter": {"rules": rules}})
    holder = bed.span_holders(feed)[0]
    for table in rules:
        bed.ask(lambda client, table=table: client.move_table(feed, table, bed.id_of(holder)))  # type: ignore[misc]
    bed.wait_for("one capture has both", lambda: bed.span_holders(feed) == [holder])
    bed.own(holder, feed)
    for _ in range(_LARGE):
        bed.execute(f"INSERT INTO aside.large (v) SELECT RANDOM_BYTES({_BLOB}) FROM sbtest1")
    trap.touch()
    bed.execute("CREATE OR REPLACE TABLE aside.replaced (id int PRIMARY KEY, w int)")
    bed.execute("INSERT INTO aside.replaced VALUES (3, 30)")
    owner = bed.found("the owner that falls", lambda: next(one for one in bed.processes if one.has_fallen))
    ts = bed.last_ts()
    bed.wait_for("the changefeed follows", lambda: bed.covers(feed, ts), timeout_s=CATCH_UP_TIMEOUT_S)
    bed.start(owner)
    assert families.stored(bed.lake(feed), "aside/replaced", format).rows() == [{"id": 3, "w": 30}]
    bed.ask(lambda client: client.remove(feed), timeout_s=CATCH_UP_TIMEOUT_S)
    catch_up(bed)


def is_there(bed: MariaBed, feed: str, table: str) -> bool:
    view = bed.query(feed)
    return any(one.table == table for one in view.tables) and not (view.lost_tables or view.resyncs or view.held)


@pytest.mark.matrix
def test_a_table_that_is_renamed_into_the_filter_is_copied_with_its_rows(bed: MariaBed) -> None:
    bed.execute("CREATE TABLE aside.late (id int PRIMARY KEY, v varchar(10))")
    bed.execute("INSERT INTO aside.late VALUES (1, 'a'), (2, 'b')")
    bed.execute("RENAME TABLE aside.late TO late")
    bed.execute("INSERT INTO late VALUES (3, 'c')")
    for feed in FEEDS:
        bed.wait_for("it is copied", lambda feed=feed: is_there(bed, feed, f"{DATABASE}.late"))  # type: ignore[misc]
    bed.execute("UPDATE late SET v = 'd' WHERE id = 1")
    catch_up(bed)
    check(bed, "late", "id", "v")
    check_diff(bed)
