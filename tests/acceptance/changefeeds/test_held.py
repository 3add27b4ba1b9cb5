"""Held tables in a real cluster: what one table cannot do holds it alone, and it comes back when its cause is cured."""

from collections.abc import Iterator

import pytest

from reactor.records.changefeed import FeedState
from tests.acceptance.bed import Bed
from tests.acceptance.checks import UPSERT, sink_rows, source_rows

pytestmark = [pytest.mark.acceptance, pytest.mark.spark, pytest.mark.matrix, pytest.mark.timeout(300)]

TABLES = tuple(f"h{number}" for number in range(1, 6))


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    with Bed(tmp_path_factory.mktemp("bed"), captures=2) as bed:
        for table in TABLES:
            bed.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, v text); INSERT INTO {table} VALUES (1, 'a')")
        bed.execute("CREATE TABLE bent (d date PRIMARY KEY); INSERT INTO bent VALUES ('2000-01-01'), ('infinity')")
        bed.create_feed(UPSERT)
        yield bed


def names_held(bed: Bed) -> list[str]:
    return [table.table for table in bed.query(UPSERT).held]


def rows(bed: Bed, table: str) -> int:
    return int(sink_rows(bed.lake(UPSERT), table, "SELECT count(*) FROM {table}")[0][0])


def test_a_table_that_cannot_be_copied_is_held_alone(bed: Bed) -> None:
    bed.wait_for("it is held", lambda: names_held(bed) == ["public.bent"], timeout_s=60.0)
    [held] = bed.query(UPSERT).held
    assert held.message.startswith("public.bent could not be copied: public.bent: key column d cannot be read")
    assert held.message.count("`weir table resync` copies the table again") == 1
    ts = bed.last_ts()
    bed.wait_for("the others flow", lambda: bed.covers(UPSERT, ts), timeout_s=60.0)
    assert [rows(bed, table) for table in TABLES] == [1] * 5
    bed.execute("DROP TABLE bent")
    bed.wait_for("it is gone", lambda: not names_held(bed), timeout_s=60.0)


def test_others_flow_and_what_is_cured_catches_up(bed: Bed) -> None:
    lake = bed.lake(UPSERT) / "public"
    (lake / "h1").rename(lake / ".away")
    (lake / "h2b").mkdir()
    (lake / "h2b" / "somebody.txt").write_text("else's")
    bed.execute("ALTER TABLE h2 RENAME TO h2b; INSERT INTO h2b VALUES (2, 'b')")
    for table in ("h1", "h3", "h4", "h5"):
        bed.execute(f"INSERT INTO {table} SELECT i, 'x' FROM generate_series(2, 200) AS i")
    bed.wait_for("two are held", lambda: len(names_held(bed)) == 2, timeout_s=60.0)
    assert names_held(bed) == ["public.h1", "public.h2"]  # as the sink has it; renamed_to is the source's
    ts = bed.last_ts()
    bed.wait_for("the others flow", lambda: bed.covers(UPSERT, ts), timeout_s=60.0)
    assert [rows(bed, table) for table in ("h3", "h4", "h5")] == [200] * 3
    view = bed.query(UPSERT)
    assert view.state is FeedState.WARNING
    assert view.warning is not None
    assert "public.h1" in view.warning.message
    assert "public.h2b" in view.warning.message
    tables = bed.ask(lambda client: client.tables(UPSERT))
    assert sorted(table.table for table in tables if table.held is not None) == ["public.h1", "public.h2"]

    (lake / ".away").rename(lake / "h1")
    (lake / "h2b" / "somebody.txt").unlink()
    (lake / "h2b").rmdir()
    bed.ask(lambda client: client.resume(UPSERT))
    bed.wait_for("none is held any more", lambda: not names_held(bed), timeout_s=60.0)
    ts = bed.last_ts()
    bed.wait_for("all are there", lambda: bed.covers(UPSERT, ts), timeout_s=60.0)
    bed.wait_for("it is normal", lambda: bed.query(UPSERT).state is FeedState.NORMAL, timeout_s=60.0)
    assert rows(bed, "h1") == 200
    assert sink_rows(bed.lake(UPSERT), "h2b", "SELECT * FROM {table} ORDER BY id") == source_rows(
        bed, "SELECT * FROM h2b ORDER BY id"
    )
    found = bed.ask(lambda client: client.diff(UPSERT), timeout_s=60.0)
    assert [one.table for one in found if not one.equal] == []
