"""Tables that join and leave a running changefeed by its filter, while they are written; no row is lost in between."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import psycopg
import pytest
from deltalake import DeltaTable

from capture.api.client import Client, RemoteError
from capture.api.port import ChangefeedUpdate
from reactor.records.changefeed import ChangefeedConfig, ColumnSelector, EventFilter, FilterConfig, SinkMode
from tests.acceptance.bed import DATABASE, Bed
from tests.acceptance.checks import sink_rows
from tests.acceptance.maria_bed import MariaBed
from tests.soak.sinks import folded

pytestmark = [pytest.mark.acceptance, pytest.mark.spark, pytest.mark.timeout(480)]

SHOP = "shop"
#: a question that the owner asks the source about
_LOOK_S = 60.0


def without(*rules: str) -> ChangefeedConfig:
    return ChangefeedConfig(filter=FilterConfig(rules=("*.*", *(f"!{rule}" for rule in rules))))


@contextmanager
def written(bed: Bed, table: str, first: int) -> Iterator[None]:
    """A row after the other comes while the block runs."""
    is_over = threading.Event()

    def write() -> None:
        number = first
        while not is_over.wait(0.02):
            bed.execute(f"INSERT INTO {table} (id, v) VALUES ({number}, {number})")
            number += 1

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield
    finally:
        is_over.set()
        writer.join()


def flows(bed: Bed, table: str) -> bool:
    view = bed.query(SHOP)
    is_coming = view.joining or view.lost_tables or view.resyncs or view.held
    return not is_coming and any(one.table == table for one in view.tables)


def synced(bed: Bed) -> None:
    ts = bed.last_ts()
    bed.wait_for("all is there", lambda: bed.covers(SHOP, ts))


def rows_of(bed: Bed, table: str) -> list[tuple[int, int]]:
    sql = "SELECT id, v FROM {table} ORDER BY id"
    if isinstance(bed, MariaBed):
        found = bed.delta(SHOP, table).select(["id", "v"]).sort_by("id")
        return list(zip(*(column.to_pylist() for column in found.columns), strict=True))
    return [(int(row[0]), int(row[1])) for row in sink_rows(bed.lake(SHOP), table, sql)]


def at_source(bed: Bed, table: str) -> list[tuple[int, int]]:
    return [(int(str(row[0])), int(str(row[1]))) for row in bed.execute(f"SELECT id, v FROM {table} ORDER BY id")]


def move(bed: Bed, action: str, table: str) -> None:
    method = Client.add_table if action == "add" else Client.remove_table
    bed.ask(partial(method, changefeed_id=SHOP, table=table), timeout_s=_LOOK_S)


def is_marked(bed: Bed, schema: str, table: str) -> bool:
    """Whether the sink's table says that it is no longer replicated."""
    return "left" in json.loads(DeltaTable(bed.lake(SHOP) / schema / table).metadata().description)["weir"]


def tables_join_and_leave(bed: Bed, schema: str) -> None:
    first, second = f"{schema}.extra", f"{schema}.more"
    with pytest.raises(RemoteError, match="has no table"):
        move(bed, "remove", first)
    with written(bed, "extra", 10_001), written(bed, "more", 20_001):
        move(bed, "add", first)
        [process] = bed.processes
        bed.kill(process)
        bed.start(process)
        bed.wait_for("it has joined", lambda: flows(bed, first))
        bed.ask(lambda client: client.update(SHOP, ChangefeedUpdate(config=ChangefeedConfig())), timeout_s=_LOOK_S)
        bed.wait_for("the other one has joined", lambda: flows(bed, second))
        move(bed, "remove", first)
        assert first not in [one.table for one in bed.query(SHOP).tables]
        bed.wait_for("the sink says so", lambda: [one.table for one in bed.query(SHOP).left if one.marked] == [first])
        assert is_marked(bed, schema, "extra")
    synced(bed)
    assert rows_of(bed, "more") == at_source(bed, "more")
    left = rows_of(bed, "extra")
    assert 1_000 < len(left) < len(at_source(bed, "extra")), "the sink keeps what it has"
    bed.execute("DELETE FROM extra WHERE id < 500")
    with written(bed, "extra", 30_001):
        move(bed, "add", first)
        bed.wait_for("it has joined again", lambda: flows(bed, first))
    synced(bed)
    assert rows_of(bed, "extra") == at_source(bed, "extra")
    assert bed.query(SHOP).left == ()
    assert not is_marked(bed, schema, "extra")
    with pytest.raises(RemoteError, match=r"has \S+ already"):
        move(bed, "add", first)
    with pytest.raises(RemoteError, match="there is no table"):
        move(bed, "add", f"{schema}.nowhere")


@pytest.mark.matrix
def test_postgres(bed: Bed) -> None:
    for table in ("extra", "more"):
        bed.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, v int)")
        bed.execute(f"INSERT INTO {table} SELECT i, i FROM generate_series(1, 1000) AS i")
    bed.create_feed(SHOP, config=without("public.extra", "public.more"))
    tables_join_and_leave(bed, "public")


@pytest.mark.matrix
def test_mariadb(tmp_path: Path) -> None:
    with MariaBed(tmp_path, captures=1) as bed:
        for table in ("extra", "more"):
            bed.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, v int)")
            bed.execute(f"INSERT INTO {table} SELECT seq, seq FROM seq_1_to_1000")
        bed.create_feed(SHOP, config=without("sbtest.extra", "sbtest.more"))
        tables_join_and_leave(bed, "sbtest")


@pytest.mark.matrix
def test_a_table_that_was_published_too_late_is_copied_when_it_is_added(tmp_path: Path) -> None:
    """Its transactions of before send nothing, and are waited for."""
    with Bed(tmp_path, captures=1) as bed:
        bed.execute("CREATE TABLE extra (id int PRIMARY KEY, v int); INSERT INTO extra VALUES (1, 1)")
        bed.execute("CREATE PUBLICATION mine FOR TABLE account, audit, item")
        publication = ChangefeedConfig(source={"publication": "mine"}).with_(filter=without("public.extra").filter)
        bed.create_feed(SHOP, config=publication)
        with pytest.raises(RemoteError, match="publication mine lacks "):
            move(bed, "add", "public.extra")
        with psycopg.connect(bed.postgres.dsn(DATABASE)) as before:
            before.execute("INSERT INTO extra VALUES (2, 2)")
            bed.execute("ALTER PUBLICATION mine ADD TABLE extra")
            move(bed, "add", "public.extra")
            bed.execute("INSERT INTO extra VALUES (3, 3)")
            synced(bed)
            assert bed.query(SHOP).joining == ("public.extra",)
            before.execute("INSERT INTO extra VALUES (4, 4)")
        with written(bed, "extra", 101):
            bed.wait_for("it has joined", lambda: flows(bed, "public.extra"))
        bed.execute("CREATE TABLE late (id int PRIMARY KEY, v int); INSERT INTO late VALUES (1, 1)")
        bed.execute("ALTER PUBLICATION mine ADD TABLE late")
        bed.wait_for("it is held", lambda: [one.table for one in bed.query(SHOP).held] == ["public.late"])
        assert "`weir table add` copies it" in bed.query(SHOP).held[0].message
        with written(bed, "late", 101):
            move(bed, "add", "public.late")
            bed.wait_for("it has joined", lambda: flows(bed, "public.late"))
        synced(bed)
        for table in ("extra", "late"):
            assert rows_of(bed, table) == at_source(bed, table)


def selects(bed: Bed, schema: str, *, resync: bool = False, **fields: object) -> tuple[str, ...]:
    """Have other filters of rows and columns; the tables that they concern."""
    config = ChangefeedConfig(filter=FilterConfig.model_validate({"rules": (f"{schema}.*",), **fields}))
    asked = ChangefeedUpdate(config=config, resync=resync)
    return bed.ask(lambda client: client.update(SHOP, asked), timeout_s=_LOOK_S).outdated


def stored(bed: Bed, schema: str) -> dict[int, tuple[object, ...]]:
    """The sink's rows of ``extra`` by their ids; of a changelog what its changes come to."""
    delta = DeltaTable(bed.lake(SHOP) / schema / "extra").to_pyarrow_table()
    rows = folded(delta.to_pylist(), ("id",)) if "_change_type" in delta.schema.names else delta.to_pylist()
    return {row["id"]: (row["v"], row.get("note", "no column")) for row in rows}


def rows_and_columns_are_filtered_otherwise(bed: Bed, schema: str, mode: SinkMode) -> None:
    table, is_upsert = f"{schema}.extra", mode is SinkMode.UPSERT
    small = EventFilter(matcher=("*.extra",), ignore_insert_value_expr="v < 10")
    large = EventFilter(matcher=("*.extra",), ignore_insert_value_expr="v > 10")
    plain = ColumnSelector(matcher=("*.extra",), columns=("*", "!note"))
    bed.execute("INSERT INTO extra VALUES (1, 1, 'a'), (11, 11, 'b')")
    synced(bed)
    assert selects(bed, schema, event_filters=(small,), column_selectors=(plain,)) == (table,)
    bed.execute("INSERT INTO extra VALUES (2, 2, 'c'), (12, 12, 'd')")
    synced(bed)
    kept = stored(bed, schema)
    assert kept == {1: (1, "a"), 11: (11, "b"), 12: (12, None)}, "the filters are those of changes from now on"
    bed.execute("UPDATE extra SET v = 13 WHERE id = 11")
    synced(bed)
    assert stored(bed, schema)[11] == (13, "b" if is_upsert else None)
    assert bed.query(SHOP).held == ()
    strikes = [bed.owner(SHOP), bed.processes[-1]]
    assert selects(bed, schema, resync=True, event_filters=(large,), column_selectors=(plain,)) == (table,)
    for process in strikes:
        bed.kill(process)
        bed.start(process)
        bed.mend()
    bed.wait_for("it is copied", lambda: flows(bed, table))
    bed.execute("INSERT INTO extra VALUES (3, 3, 'e'), (14, 14, 'f')")
    synced(bed)
    column = "no column" if is_upsert else None
    assert stored(bed, schema) == {1: (1, column), 2: (2, column), 3: (3, column)}
    assert selects(bed, schema, resync=True) == (table,)
    bed.wait_for("it is copied again", lambda: flows(bed, table))
    bed.execute("INSERT INTO extra VALUES (4, 4, 'g')")
    synced(bed)
    assert stored(bed, schema) == {
        number: (value, text)
        for number, value, text in (
            *((1, 1, "a"), (2, 2, "c"), (3, 3, "e"), (4, 4, "g")),
            *((11, 13, "b"), (12, 12, "d"), (14, 14, "f")),
        )
    }
    found = bed.ask(lambda client: client.diff(SHOP), timeout_s=120.0)
    assert [(one.table, one.differences) for one in found if not one.equal] == []


@pytest.mark.matrix
@pytest.mark.in_turn("mode")
@pytest.mark.parametrize("mode", [SinkMode.UPSERT, SinkMode.CHANGELOG], ids=str)
@pytest.mark.parametrize("kind", [Bed, MariaBed], ids=["postgresql", "mariadb"])
def test_rows_and_columns_that_other_filters_choose(kind: type[Bed], mode: SinkMode, tmp_path: Path) -> None:
    with kind(tmp_path, captures=2) as bed:
        bed.execute("CREATE TABLE extra (id int PRIMARY KEY, v int, note text)")
        schema = "sbtest" if isinstance(bed, MariaBed) else "public"
        bed.create_feed(SHOP, mode, config=ChangefeedConfig(filter=FilterConfig(rules=(f"{schema}.*",))))
        rows_and_columns_are_filtered_otherwise(bed, schema, mode)
