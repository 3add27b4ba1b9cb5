"""Changefeeds whose position is lost, in a real cluster; the commands are of ``docs/the-position-was-lost.md``."""

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread

import pytest
from deltalake import DeltaTable
from pg8000.exceptions import DatabaseError

from capture.api.port import ChangefeedUpdate
from capture.cli.main import main
from reactor.records.changefeed import ChangefeedConfig, FeedState
from tests.acceptance.bed import Bed
from tests.acceptance.maria_bed import MariaBed

pytestmark = [pytest.mark.acceptance, pytest.mark.spark, pytest.mark.timeout(280)]

PAGE = (Path(__file__).parents[3] / "docs" / "the-position-was-lost.md").read_text()
SHOP = "shop"


@contextmanager
def reader(table: Path) -> Iterator[None]:
    """Somebody who looks at a table all the time, and never sees less than before."""
    counts: list[int] = []
    is_over = Event()

    def look() -> None:
        while not is_over.is_set():
            counts.append(DeltaTable(table).count())
            is_over.wait(0.1)

    thread = Thread(target=look)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
    assert counts == sorted(counts), counts
    assert counts[0] > 0


def drop_slot(bed: Bed, feed: str) -> None:
    """While the changefeed stands; more is written then, and tables come, go and change."""
    bed.ask(lambda client: client.pause(feed))
    slot = f"slot_name LIKE 'weir_%_{feed}_%'"
    drop = f"SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE {slot}"

    def is_dropped() -> bool:
        with suppress(DatabaseError):  # a stream that was about to begin reads it, and ends
            return bed.execute(drop) != []
        return False

    bed.wait_for("nobody reads the slot, and it is dropped", is_dropped)


def fails(bed: Bed, feed: str, code: str) -> None:
    bed.ask(lambda client: client.resume(feed))
    bed.wait_for("it has failed", lambda: bed.query(feed).state is FeedState.FAILED)
    error = bed.query(feed).error
    assert error is not None
    assert error.code == code
    assert "`weir changefeed resume --resync`" in error.message


def differences(bed: Bed, feed: str) -> list[object]:
    found = bed.ask(lambda client: client.diff(feed), timeout_s=120.0)
    return [(one.table, one.differences, one.waiting) for one in found if not one.equal]


def copied(bed: Bed, feed: str) -> None:
    def is_copied() -> bool:
        view = bed.query(feed)
        return not (view.lost_tables or view.resyncs or view.held)

    bed.wait_for("all tables are copied", is_copied)


@pytest.mark.matrix
def test_what_the_page_says_is_what_happens(
    bed: Bed, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slot that is dropped, twice: at the command line, and in Python while the load continues."""
    bed.execute("INSERT INTO audit (account, delta) SELECT i, 0 FROM generate_series(1, 100) AS i")
    bed.execute("CREATE TABLE leaves (id int PRIMARY KEY); INSERT INTO leaves VALUES (1)")
    for name in ("again", "one", "two"):
        bed.execute(f"CREATE TABLE {name} (id int PRIMARY KEY); INSERT INTO {name} VALUES (1)")
    bed.create_feed(SHOP)
    monkeypatch.setenv("WEIR_TOKEN", bed.token_of(bed.processes[0]))
    drop_slot(bed, SHOP)
    bed.execute("DROP TABLE leaves; CREATE TABLE comes (id int PRIMARY KEY); INSERT INTO comes VALUES (1), (2)")
    bed.execute("DROP TABLE again; CREATE TABLE again (id int PRIMARY KEY, v text); INSERT INTO again VALUES (2, 'x')")
    bed.execute("ALTER TABLE one RENAME TO former; ALTER TABLE two RENAME TO one; ALTER TABLE former RENAME TO two")
    bed.execute("INSERT INTO one VALUES (2); DELETE FROM two")
    bed.execute("ALTER TABLE item ADD more text DEFAULT 'x'; INSERT INTO item VALUES (1, 1), (2, 2)")
    bed.execute("DELETE FROM account WHERE id = 7; UPDATE account SET balance = 1 WHERE id < 10")
    fails(bed, SHOP, "PositionLost")
    [block] = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    address = bed.processes[0].address
    with reader(bed.lake(SHOP) / "public" / "audit"):
        codes = [main([*line.split()[1:], "--server", f"http://{address}"]) for line in block.splitlines()]
    assert codes == [0, 0, 0], capsys.readouterr().out
    assert DeltaTable(bed.lake(SHOP) / "public" / "leaves").count() == 1
    assert DeltaTable(bed.lake(SHOP) / "public" / "comes").count() == 2
    counts = {name: DeltaTable(bed.lake(SHOP) / "public" / name).count() for name in ("again", "one", "two")}
    assert counts == {"again": 1, "one": 2, "two": 0}
    drop_slot(bed, SHOP)
    [script] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    with bed.load(), reader(bed.lake(SHOP) / "public" / "audit"):
        before = bed.transactions()
        bed.wait_for("the load writes", lambda: bed.transactions() > before + 50)
        exec(script.replace("127.0.0.1:8300", address), {})
        copied(bed, SHOP)
        ts = bed.last_ts()
        bed.wait_for("all tables continue", lambda: bed.covers(SHOP, ts))
    bed.wait_for("it is normal", lambda: bed.query(SHOP).state is FeedState.NORMAL)
    assert differences(bed, SHOP) == []


@pytest.mark.matrix
def test_a_changefeed_that_stood_for_too_long_and_one_that_helps_itself(tmp_path: Path) -> None:
    with Bed(tmp_path, captures=1) as bed:
        bed.create_feed(SHOP, config=ChangefeedConfig(gc_ttl_seconds=1))
        bed.ask(lambda client: client.pause(SHOP))
        bed.wait_for("it has stood for too long", lambda: bed.query(SHOP).state is FeedState.FAILED)
        bed.wait_for("its slot is gone", lambda: bed.execute("SELECT 1 FROM pg_replication_slots") == [])
        bed.execute("INSERT INTO item VALUES (1, 1), (2, 2)")
        bed.wait_for("it is released", lambda: bed.ask(lambda client: client.resume(SHOP, resync=True)).error is None)
        copied(bed, SHOP)
        assert differences(bed, SHOP) == []
        bed.ask(lambda client: client.pause(SHOP))
        config = ChangefeedConfig(on_lost_position="resync")
        bed.ask(lambda client: client.update(SHOP, ChangefeedUpdate(config=config)), timeout_s=60.0)
        bed.ask(lambda client: client.resume(SHOP))
        drop_slot(bed, SHOP)
        bed.execute("INSERT INTO item VALUES (3, 3)")
        bed.ask(lambda client: client.resume(SHOP))
        ts = bed.last_ts()
        bed.wait_for("it has gone on", lambda: bed.query(SHOP).checkpoint_ts >= ts)
        copied(bed, SHOP)
        assert differences(bed, SHOP) == []


@pytest.mark.matrix
def test_mariadb_after_a_purge_and_a_reset(tmp_path: Path) -> None:
    with MariaBed(tmp_path, captures=2) as bed:
        bed.create_feed(SHOP)
        for lose in ("PURGE", "RESET"):
            bed.ask(lambda client: client.pause(SHOP))
            bed.wait_for("nobody reads", lambda: bed.readers() == 0)
            bed.execute("UPDATE sbtest1 SET k = k + 1")
            bed.execute("FLUSH LOGS" if lose == "PURGE" else "RESET MASTER")
            newest, _ = bed.place()
            bed.wait_for("older files are gone", lambda: bed.purge(newest))  # noqa: B023  # called here
            fails(bed, SHOP, "SnapshotLostByGC" if lose == "PURGE" else "PositionLost")
            with bed.load():
                bed.ask(lambda client: client.resume(SHOP, resync=True))
                copied(bed, SHOP)
            assert differences(bed, SHOP) == []
