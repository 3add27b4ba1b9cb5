"""Tables that change at the source while rows flow: the sink follows, once, whoever falls on the way."""

from functools import partial
from pathlib import Path

import pytest
from deltalake import DeltaTable

from agent.ports.source import Scope
from agent.sources import open_source
from reactor.failpoints import Point
from reactor.records.changefeed import ChangefeedConfig, FeedState, SinkMode
from tests.acceptance.bed import Bed
from tests.acceptance.checks import CHANGELOG, FEEDS, UPSERT, check_upsert, follows, sink_rows, source_rows

pytestmark = [pytest.mark.acceptance, pytest.mark.spark, pytest.mark.timeout(400)]

CATCH_UP_TIMEOUT_S = 120.0
#: swap their names, and spread over both captures
MOVERS = ("mover1", "mover2", "mover3", "mover4")
POINTS = (Point.SCHEMA_BEFORE_SINK, Point.SCHEMA_AFTER_SINK)


@pytest.fixture(scope="module")
def bed(bed: Bed) -> Bed:
    bed.execute("CREATE TABLE thing (id int PRIMARY KEY, a text, b int, gone text)")
    bed.execute("INSERT INTO thing SELECT i, 'a' || i, i, 'g' FROM generate_series(1, 1000) AS i")
    for name in MOVERS:
        bed.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, v text); INSERT INTO {name} VALUES (1, '{name}')")
    bed.create_feed(UPSERT, SinkMode.UPSERT)
    bed.create_feed(CHANGELOG, SinkMode.CHANGELOG)
    return bed


def catch_up(bed: Bed) -> None:
    bed.wait_for("both changefeeds follow", follows(bed), timeout_s=CATCH_UP_TIMEOUT_S)


def check_thing(bed: Bed, columns: str, *, table: str = "thing") -> None:
    sql = f"SELECT {columns} FROM {{table}} ORDER BY id"
    stored = DeltaTable(bed.lake(UPSERT) / "public" / table).schema().to_arrow()
    assert sorted(pa_names(stored)) == sorted(name.strip() for name in columns.split(","))
    assert sink_rows(bed.lake(UPSERT), table, sql) == source_rows(bed, sql.format(table=table))


def pa_names(schema: object) -> list[str]:
    return list(schema.names)  # type: ignore[attr-defined]


def check_diff(bed: Bed, *feeds: str) -> None:
    """Weir's own comparison says so too, also of what the changelog comes to."""
    for feed in feeds or FEEDS:
        found = bed.ask(lambda client, feed=feed: client.diff(feed), timeout_s=60.0)  # type: ignore[misc]
        assert [(feed, one.table) for one in found if not one.equal] == []


def test_columns_come_go_and_change(bed: Bed) -> None:
    with bed.load():
        bed.execute("ALTER TABLE thing ADD n bigint NOT NULL DEFAULT 7; INSERT INTO thing (id) VALUES (2001)")
        bed.execute("ALTER TABLE thing RENAME a TO c; UPDATE thing SET c = 'x' WHERE id < 50")
        bed.execute("ALTER TABLE thing DROP gone, ALTER b TYPE bigint; UPDATE thing SET b = 1 << 40 WHERE id = 7")
        bed.execute("ALTER TABLE account ADD extra text DEFAULT 'e'; UPDATE account SET extra = note WHERE id < 9")
        bed.execute(
            "BEGIN; INSERT INTO thing VALUES (3001, 'before', 1, 2); ALTER TABLE thing RENAME c TO d; "
            "ALTER TABLE thing ADD t timestamp DEFAULT '2024-02-03 04:05:06'; INSERT INTO thing VALUES (3002); COMMIT"
        )
    catch_up(bed)
    assert [held.message for feed in FEEDS for held in bed.query(feed).held] == []
    check_thing(bed, "id, d, b, n, t")
    check_upsert(bed)
    check_diff(bed)
    names = pa_names(DeltaTable(bed.lake(CHANGELOG) / "public" / "thing").schema().to_arrow())
    assert {"d", "gone", "n", "t"} <= set(names)


@pytest.mark.parametrize("point", [pytest.param(POINTS[0], marks=pytest.mark.matrix), *POINTS[1:]])
def test_the_owner_falls_at_a_schema_change(bed: Bed, traps: Path, point: Point) -> None:
    """In the transaction that swaps names of tables, too: at the sink, none lies where a new writer looks for it."""
    column = f"after_{point.replace('-', '_')}"
    (traps / point).touch()
    turns = "".join(
        f"ALTER TABLE {a} RENAME TO aside; ALTER TABLE {b} RENAME TO {a}; ALTER TABLE aside RENAME TO {b};"
        for a, b in zip(MOVERS[::2], MOVERS[1::2], strict=True)
    )
    with bed.load():
        bed.execute(
            f"BEGIN; ALTER TABLE thing ADD {column} int DEFAULT 5; {turns} "
            f"UPDATE thing SET {column} = 6 WHERE id < 20; "
            f"INSERT INTO {MOVERS[0]} SELECT max(id) + 1 FROM {MOVERS[0]}; COMMIT"
        )
        # either of the two changefeeds' owners: the first one that reaches the point
        owner = bed.found("the owner that falls", lambda: next(one for one in bed.processes if one.has_fallen))
        assert not (traps / point).exists()
        catch_up(bed)
        bed.start(owner)
    catch_up(bed)
    check_upsert(bed)
    columns = pa_names(DeltaTable(bed.lake(UPSERT) / "public" / "thing").schema().to_arrow())
    check_thing(bed, ", ".join(columns))
    assert column in columns
    for name in MOVERS:
        check_thing(bed, "id, v", table=name)
    check_diff(bed)


@pytest.mark.matrix
def test_a_new_table_a_new_name_and_another_key(bed: Bed) -> None:
    with bed.load():
        bed.execute(
            "BEGIN; CREATE TABLE fresh (id int PRIMARY KEY, v text); "
            f"{publish(bed, 'fresh')} INSERT INTO fresh SELECT i, 'v' FROM generate_series(1, 500) AS i; COMMIT"
        )
        bed.execute("UPDATE fresh SET v = 'w' WHERE id < 100; DELETE FROM fresh WHERE id > 400")
        catch_up(bed)
        check_thing(bed, "id, v", table="fresh")
        bed.execute("ALTER TABLE fresh RENAME TO fresher; INSERT INTO fresher VALUES (1000, 'z')")
        bed.execute(
            "UPDATE fresher SET v = 'u' || id; ALTER TABLE fresher ALTER v SET NOT NULL; "
            "ALTER TABLE fresher DROP CONSTRAINT fresh_pkey; ALTER TABLE fresher ADD PRIMARY KEY (v); "
        )
        bed.execute("UPDATE fresher SET id = id + 5000 WHERE v < 'u2'; TRUNCATE item")
        # the filter lets them in, but one has no key, and of the other nothing has come yet
        bed.execute(
            f"CREATE TABLE unheard (v text); CREATE TABLE silent (id int PRIMARY KEY); {publish(bed, 'silent')}"
        )
    catch_up(bed)
    check_thing(bed, "id, v", table="fresher")
    check_upsert(bed)
    check_diff(bed, UPSERT)  # a changelog's rows of before are distinguished by the key of before


def publish(bed: Bed, table: str) -> str:
    """In the transaction that creates it, so that no row is missed."""
    rows = bed.execute("SELECT pubname FROM pg_publication WHERE pubname NOT LIKE '%_append'")
    return "".join(f"ALTER PUBLICATION {name} ADD TABLE {table}; " for (name,) in rows)


@pytest.mark.matrix
def test_what_cannot_follow_waits_alone(bed: Bed) -> None:
    """Its table is held, with the reason shown; the others flow, and the checkpoint with them."""
    bed.execute("ALTER TABLE thing ALTER t TYPE text USING 'no'; UPDATE thing SET t = 'moment' WHERE id = 1")
    # of the first test, as it has no key and no publication
    bed.wait_for("it is held", lambda: held_in(bed) == {"public.thing", "public.unheard"}, timeout_s=CATCH_UP_TIMEOUT_S)
    [held] = [one for one in bed.query(UPSERT).held if one.table == "public.thing"]
    assert "column t has another type" in held.message
    assert bed.query(UPSERT).state is FeedState.WARNING
    with bed.load():
        before = source_rows(bed, "SELECT count(*) FROM audit")[0][0]
        bed.wait_for("others flow", lambda: count(bed, "audit") > before + 50)
    ts = bed.last_ts()
    bed.wait_for("the checkpoint moves", lambda: bed.query(UPSERT).checkpoint_ts >= ts, timeout_s=CATCH_UP_TIMEOUT_S)
    assert held.ts < ts


def held_in(bed: Bed) -> set[str]:
    return {held.table for held in bed.query(UPSERT).held}


def count(bed: Bed, table: str) -> int:
    return int(sink_rows(bed.lake(UPSERT), table, "SELECT count(*) FROM {table}")[0][0])


def test_a_changefeed_on_an_empty_database_follows_what_comes(bed: Bed) -> None:
    """Also partitions of one table, and tables that take each other's names."""
    bed.postgres.create_database("late")
    run = partial(bed.postgres.execute, database="late")
    run("CREATE PUBLICATION late FOR ALL TABLES WITH (publish_via_partition_root)")
    uri = bed.postgres.uri("late")
    bed.create("late", source_uri=uri, config=ChangefeedConfig(publication="late"))
    bed.wait_for("the changefeed waits for tables", lambda: bed.query("late").checkpoint_ts > 0)
    run("CREATE TABLE part (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)")
    run("CREATE TABLE part0 PARTITION OF part FOR VALUES FROM (0) TO (10)")
    run("CREATE TABLE part_rest PARTITION OF part DEFAULT")
    run("INSERT INTO part VALUES (1, 'a'), (2, 'b'), (30, 'c')")
    run("UPDATE part SET id = id + 10 WHERE id < 3")
    run("CREATE TABLE t (id int PRIMARY KEY)")
    run("INSERT INTO t VALUES (1), (2)")
    run("DROP TABLE t")
    run("CREATE TABLE t (id int PRIMARY KEY, v text)")
    run("INSERT INTO t VALUES (3, 'new')")
    run("ALTER TABLE t RENAME TO old")
    run("CREATE TABLE t (id int PRIMARY KEY, w int)")
    run("INSERT INTO t VALUES (4, 4)")
    source = open_source(uri, Scope("bed", "late", SinkMode.UPSERT, ChangefeedConfig()))
    end_ts = source.current_ts()
    bed.wait_for("it follows", lambda: bed.covers("late", end_ts), timeout_s=CATCH_UP_TIMEOUT_S)
    lake = bed.lake("late")
    assert sink_rows(lake, "part", "SELECT * FROM {table} ORDER BY id") == [(11, "a"), (12, "b"), (30, "c")]
    assert sink_rows(lake, "t", "SELECT * FROM {table}") == [(4, 4)]
    assert sink_rows(lake, "old", "SELECT * FROM {table}") == [(3, "new")]
    check_diff(bed, "late")
    bed.ask(lambda client: client.remove("late"))
