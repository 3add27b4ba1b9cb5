"""Tables copied again in a real cluster under load; the commands are those of ``docs/one-table-is-wrong.md``."""

import re
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from deltalake import DeltaTable

from agent.sinks.delta.table.commit import on_newest
from agent.sinks.delta.table.place import TablePlace, commit_properties
from capture.api.client import Client
from capture.api.port import RepairAsked
from capture.cli.main import main
from reactor.records.changefeed import ChangefeedConfig, FeedState, SinkMode
from reactor.records.schedules import LastDiff
from tests.acceptance.bed import Bed
from tests.acceptance.checks import CHANGELOG, changelog, sink_rows, source_rows
from tests.acceptance.maria_bed import MariaBed

pytestmark = [pytest.mark.acceptance, pytest.mark.spark, pytest.mark.timeout(280)]

PAGE = (Path(__file__).parents[3] / "docs" / "one-table-is-wrong.md").read_text()
SHOP = "shop"
ONE_ROW = "INSERT INTO item (id, value) SELECT coalesce(max(id), 0) + 1, 5 FROM item"


@pytest.fixture(scope="module")
def bed(bed: Bed) -> Bed:
    bed.create_feed(SHOP)
    return bed


def flows(bed: Bed, feed: str = SHOP) -> Callable[[], bool]:
    """Nothing joins, is copied or held any more."""
    return lambda: not any(((view := bed.query(feed)).joining, view.lost_tables, view.resyncs, view.held))


def resync(bed: Bed, table: str, feed: str = SHOP) -> None:
    bed.ask(lambda client: client.resync_table(feed, table))
    bed.wait_for(f"{table} flows", flows(bed, feed), timeout_s=90.0)


def check(bed: Bed, table: str, columns: str) -> None:
    sql = f"SELECT {columns} FROM {{table}} ORDER BY id"
    assert sink_rows(bed.lake(SHOP), table, sql) == source_rows(bed, sql.format(table=table)), table


def test_a_table_that_is_gone_and_a_wrong_one_are_right_again_under_load(bed: Bed) -> None:
    with bed.load():
        bed.wait_for("the load writes", lambda: bed.transactions() > 50)
        # at once: a flush may add a file to a directory that is being removed
        (bed.lake(SHOP) / "public" / "item").rename(bed.lake(SHOP) / "removed-item")
        bed.wait_for("a table is held", lambda: [t.table for t in bed.query(SHOP).held] == ["public.item"])
        resync(bed, "public.item")
        resync(bed, "public.account")
        ts = bed.last_ts()
        bed.wait_for("all tables continue", lambda: bed.covers(SHOP, ts))
    ts = bed.last_ts()
    bed.wait_for("all is there", lambda: bed.covers(SHOP, ts))
    check(bed, "item", "id, value")
    check(bed, "account", "id, balance, note")
    bed.wait_for("it is normal", lambda: bed.query(SHOP).state is FeedState.NORMAL, timeout_s=30.0)


@pytest.mark.matrix  # the contract of sinks has it for each
def test_a_column_that_was_renamed_before_the_copy_keeps_its_values(bed: Bed) -> None:
    """The log has the rename with the next row."""
    bed.execute("ALTER TABLE account RENAME COLUMN note TO notes")
    resync(bed, "public.account")
    bed.execute("UPDATE account SET balance = 77 WHERE id = 5")
    ts = bed.last_ts()
    bed.wait_for("all is there", lambda: bed.covers(SHOP, ts))
    check(bed, "account", "id, balance, notes")
    bed.execute("ALTER TABLE account RENAME COLUMN notes TO note")


def test_diff_sums_both_sides_and_names_the_row_that_differs(bed: Bed) -> None:
    bed.execute("INSERT INTO item SELECT i, i FROM generate_series(1, 500) AS i ON CONFLICT DO NOTHING")
    ts = bed.last_ts()
    bed.wait_for("all is there", lambda: bed.covers(SHOP, ts))
    found = bed.ask(lambda client: client.diff(SHOP), timeout_s=120.0)
    assert [(one.table, one.equal, one.by_rows) for one in found if one.table == "public.item"] == [
        ("public.item", True, "")
    ]
    DeltaTable(bed.lake(SHOP) / "public" / "item").update({"value": "value + 1"}, predicate="id = 7")
    found = bed.ask(lambda client: client.diff(SHOP), timeout_s=120.0)
    assert [one.differences for one in found if one.table == "public.item"] == [("id=7: differs in value",)]


@pytest.mark.matrix
def test_rows_are_repaired_under_load(bed: Bed) -> None:
    """First what another writer has changed, before anybody noticed; then what looks like our own commits."""
    ours = [({"id": "7"}, "updated", ("value",))]
    assert repaired(bed, dry_run=True) == ours
    assert repaired(bed) == ours
    bed.execute("INSERT INTO item SELECT i, i FROM generate_series(7001, 7009) AS i")
    with bed.load():
        ts = bed.last_ts()
        bed.wait_for("the rows are there", lambda: bed.covers(SHOP, ts))
        damage(bed, "delete", "id = 7001")
        damage(bed, "update", "id = 7002")
        wanted = [({"id": "7001"}, "inserted", ()), ({"id": "7002"}, "updated", ("value",))]
        assert repaired(bed, dry_run=True) == wanted
        assert repaired(bed) == wanted
        assert repaired(bed) == []
    ts = bed.last_ts()
    bed.wait_for("all is there", lambda: bed.covers(SHOP, ts))
    check(bed, "item", "id, value")
    assert bed.query(SHOP).held == ()


def repaired(bed: Bed, *, dry_run: bool = False) -> list[tuple[dict[str, str], str, tuple[str, ...]]]:
    asked = RepairAsked(tables=("public.item",), dry_run=dry_run)
    [found] = bed.ask(lambda client: client.repair(SHOP, asked), timeout_s=120.0)
    assert (found.refused, found.waiting) == ("", "")
    return sorted(((one.key, one.what, one.columns) for one in found.keys), key=repr)


def damage(bed: Bed, what: str, predicate: str, feed: str = SHOP) -> None:
    """As a bug of Weir's own would, between two flushes."""

    def attempt(table: DeltaTable) -> None:
        properties = commit_properties(table, {})
        if what == "delete":
            table.delete(predicate, commit_properties=properties)
        else:
            table.update({"value": "value + 1"}, predicate=predicate, commit_properties=properties)

    place = TablePlace(str(bed.lake(feed) / "public" / "item"))
    on_newest(place, place.opened, attempt)


def newest_diff(bed: Bed, feed: str = SHOP) -> LastDiff:
    return bed.query(feed).last_diff or LastDiff(time=0.0, error="none yet")


@pytest.mark.matrix
def test_what_the_page_says_is_what_happens(
    bed: Bed, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEIR_TOKEN", bed.token_of(bed.processes[0]))
    bed.execute("INSERT INTO item SELECT i, 0 FROM generate_series(1, 500) AS i ON CONFLICT DO NOTHING")
    ts = bed.last_ts()
    bed.wait_for("all is there", lambda: bed.covers(SHOP, ts))
    DeltaTable(bed.lake(SHOP) / "public" / "item").delete("id < 10")
    [block] = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    address = bed.processes[0].address
    codes = [main([*line.split()[1:], "--server", f"http://{address}"]) for line in block.splitlines()]
    shown = capsys.readouterr().out
    assert codes == [1, 0, 0, 0], shown
    assert "public.item flows" in shown
    bed.wait_for("the page's last comparison is the newest", lambda: newest_diff(bed).is_equal)
    [script] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(script.replace("127.0.0.1:8300", address), {})
    bed.wait_for("it flows", flows(bed))
    check(bed, "item", "id, value")


@pytest.mark.matrix
def test_rows_are_found_by_a_schedule_and_copied_again_by_a_condition_and_slowly(
    bed: Bed, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEIR_TOKEN", bed.token_of(bed.processes[0]))
    feed, table = "slow", ["-c", "slow", "--table", "public.item", "--server", f"http://{bed.processes[0].address}"]
    bed.execute(
        "INSERT INTO item SELECT i, 0 FROM generate_series(1, 500) AS i ON CONFLICT (id) DO UPDATE SET value = 0"
    )
    bed.create_feed(feed, config=ChangefeedConfig(diff_every_seconds=1, read_rows_per_second=100_000))

    def last() -> LastDiff:
        return newest_diff(bed, feed)

    bed.wait_for("both sides are equal", lambda: last().is_equal and last().compared > 0, timeout_s=60.0)
    damage(bed, "delete", "id = 7", feed)
    damage(bed, "update", "id = 8", feed)
    bed.wait_for("that is seen", lambda: last().differing == ("public.item",), timeout_s=60.0)
    capsys.readouterr()
    assert main(["table", "resync", *table, "--where", "id BETWEEN 1 AND 7", "--rows-per-second", "1000"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "rows repaired: 1"
    assert main(["repair", *table, "--where", "value = 1 AND id <= 500", "--dry-run"]) == 1, (
        "it matches at the sink alone"
    )
    assert "id=8" in capsys.readouterr().out
    assert main(["repair", *table, "--where", "nope = 1"]) == 1
    assert "public.item is left as it is: the expression 'nope = 1' reads nope" in capsys.readouterr().out
    assert main(["repair", *table, "--where", "random() < 1"]) == 1
    assert "is not supported" in capsys.readouterr().err
    bed.ask(lambda client: client.resync_table(feed, "public.item", rows_per_second=100))
    bed.wait_for("it is copied", lambda: [one.limit for one in bed.query(feed).resyncs] == [100])
    bed.wait_for("it flows", flows(bed, feed), timeout_s=90.0)
    bed.wait_for("both sides are equal again", lambda: last().is_equal and last().compared > 0, timeout_s=60.0)
    bed.ask(lambda client: client.remove(feed))


@pytest.mark.matrix  # daily the page's commands
def test_a_table_that_the_log_cannot_follow_is_copied_as_its_message_says(bed: Bed) -> None:
    """What the new column's existing rows hold is in no stream. Behind its copy the table is followed as before."""
    bed.execute(f"{ONE_ROW}; {ONE_ROW}")
    cure_of(bed, "ALTER TABLE item ADD COLUMN code serial", ONE_ROW)
    bed.execute(f"{ONE_ROW}; DELETE FROM item WHERE id = (SELECT min(id) FROM item)")
    ts = bed.last_ts()
    bed.wait_for("all is there", lambda: bed.covers(SHOP, ts))
    check(bed, "item", "id, value, code")
    # it is judged as before: another such change holds it again
    cure_of(bed, "ALTER TABLE item ALTER code TYPE bigint USING code + 1000", ONE_ROW)
    check(bed, "item", "id, value, code")
    bed.execute(f"ALTER TABLE item DROP COLUMN code; {ONE_ROW}")
    ts = bed.last_ts()
    bed.wait_for("all is there", lambda: bed.covers(SHOP, ts))
    check(bed, "item", "id, value")


def cure_of(bed: Bed, *statements: str, table: str = "public.item") -> None:
    """Run statements that hold a table, and do what its message says."""
    for statement in statements:
        bed.execute(statement)
    bed.wait_for("it is held", lambda: [t.table for t in bed.query(SHOP).held] == [table])
    assert "`weir table resync`" in bed.query(SHOP).held[0].message
    resync(bed, table)


@pytest.mark.matrix
def test_a_changelog_whose_column_has_another_type_begins_again_with_its_copy(bed: Bed) -> None:
    bed.create_feed("retyped", SinkMode.CHANGELOG)
    bed.execute(f"{ONE_ROW}; {ONE_ROW}")
    bed.execute("ALTER TABLE item ADD size text; UPDATE item SET size = id::text WHERE id % 2 = 0")
    bed.execute("ALTER TABLE item ALTER size TYPE int USING size::int")
    bed.execute(ONE_ROW)
    bed.wait_for("it is held", lambda: [t.table for t in bed.query("retyped").held] == ["public.item"])
    resync(bed, "public.item", "retyped")
    ts = bed.last_ts()
    bed.wait_for("all is there", lambda: bed.covers("retyped", ts))
    found = bed.ask(lambda client: client.diff("retyped"), timeout_s=60.0)
    assert [(one.table, one.differences) for one in found if not one.equal] == []
    bed.ask(lambda client: client.remove("retyped"))
    bed.wait_for("it is held in the other one too", lambda: bool(bed.query(SHOP).held))
    resync(bed, "public.item")
    bed.execute("ALTER TABLE item DROP COLUMN size")


@pytest.mark.matrix
def test_a_changelog_of_a_table_that_was_copied_again_leads_to_the_source(bed: Bed) -> None:
    bed.create_feed(CHANGELOG, SinkMode.CHANGELOG)
    with bed.load():
        before = bed.transactions()
        bed.wait_for("the load writes", lambda: bed.transactions() > before + 100)
        resync(bed, "public.item", CHANGELOG)
        before = bed.transactions()
        bed.wait_for("the load continues", lambda: bed.transactions() > before + 100)
    ts = bed.last_ts()
    bed.wait_for("all is there", lambda: bed.covers(CHANGELOG, ts))
    found = bed.ask(lambda client: client.diff(CHANGELOG), timeout_s=60.0)
    assert [(one.table, one.differences) for one in found if not one.equal] == []
    assert changelog(bed, "item")["_change_type"].to_pylist().count("truncate") == 1


@pytest.mark.matrix
def test_mariadb(tmp_path: Path) -> None:
    with MariaBed(tmp_path, captures=2) as bed:
        bed.create_feed(SHOP)
        with bed.load():
            bed.wait_for("the load writes", lambda: bed.query(SHOP).changes > 100)
            shutil.rmtree(bed.lake(SHOP) / "sbtest" / "sbtest1")
            bed.wait_for("a table is held", lambda: [t.table for t in bed.query(SHOP).held] == ["sbtest.sbtest1"])
            resync(bed, "sbtest.sbtest1")
            resync(bed, "sbtest.sbtest2")
            cure_of(bed, "ALTER TABLE sbtest2 ADD COLUMN chance double DEFAULT (rand())", table="sbtest.sbtest2")
        found = bed.ask(lambda client: client.diff(SHOP), timeout_s=120.0)
        assert [(one.table, one.differences) for one in found if not one.equal] == []


@pytest.mark.matrix
def test_what_was_held_for_its_values_is_cured_as_its_message_says(tmp_path: Path) -> None:
    """A table that the snapshot could not copy, and one whose old values are not what its new type makes of them."""
    with Bed(tmp_path, captures=1) as bed:
        bed.execute(
            "CREATE TABLE bent (id date PRIMARY KEY, v int); INSERT INTO bent VALUES ('infinity', 1), ('2000-01-01', 2)"
        )
        bed.execute(
            "CREATE TABLE changed (id int PRIMARY KEY, v text); INSERT INTO changed VALUES (1, 'abc'), (2, 'd')"
        )
        bed.create_feed(SHOP)
        bed.wait_for("one is held", lambda: [t.table for t in bed.query(SHOP).held] == ["public.bent"])
        bed.execute("ALTER TABLE changed ALTER v TYPE int USING length(v); INSERT INTO changed VALUES (3, 3)")
        bed.wait_for("both are held", lambda: len(bed.query(SHOP).held) == 2)
        bed.execute("UPDATE bent SET id = '2001-01-01' WHERE v = 1")
        for held in bed.query(SHOP).held:
            assert "`weir table resync`" in held.message
            bed.ask(partial(Client.resync_table, changefeed_id=SHOP, table=held.table))
        bed.wait_for("both flow", flows(bed), timeout_s=90.0)
        ts = bed.last_ts()
        bed.wait_for("all is there", lambda: bed.covers(SHOP, ts))
        check(bed, "bent", "id, v")
        check(bed, "changed", "id, v")
