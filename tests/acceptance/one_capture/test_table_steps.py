"""One table of a real cluster that is paused, resumed, and skips changes, while all others flow."""

from functools import partial
from pathlib import Path

import pytest

from capture.api.client import Client, RemoteError
from reactor.records.changefeed import ChangefeedConfig
from tests.acceptance.bed import Bed
from tests.acceptance.checks import sink_rows
from tests.acceptance.maria_bed import MariaBed

pytestmark = [pytest.mark.acceptance, pytest.mark.spark, pytest.mark.timeout(280)]

SHOP = "shop"


@pytest.fixture(scope="module")
def bed(bed: Bed) -> Bed:
    bed.execute("CREATE TABLE weir_signal (id bigserial PRIMARY KEY, kind text, data text)")
    bed.create_feed(SHOP, config=ChangefeedConfig(signal_table="public.weir_signal"))
    return bed


def synced(bed: Bed, *, held: int = 0) -> int:
    """Everything so far is in the sink, but for held tables."""
    ts = bed.last_ts()
    bed.wait_for("all is there", lambda: bed.covers(SHOP, ts) and len(bed.query(SHOP).held) == held)
    return ts


def ids(bed: Bed, table: str, above: int = 9000) -> list[int]:
    query = f"SELECT id FROM {{table}} WHERE id > {above} ORDER BY id"
    return [row[0] for row in sink_rows(bed.lake(SHOP), table, query)]


def test_a_table_is_paused_and_resumed_while_the_others_flow(bed: Bed) -> None:
    bed.ask(partial(Client.pause_table, changefeed_id=SHOP, table="public.item"))
    bed.execute("INSERT INTO item VALUES (9001, 1); INSERT INTO account VALUES (9001, 1, '')")
    synced(bed, held=1)
    [held] = bed.query(SHOP).held
    assert (held.table, held.origin, held.stage, held.code) == ("public.item", "pause", "held", "Paused")
    assert (ids(bed, "item"), ids(bed, "account")) == ([], [9001])
    bed.ask(partial(Client.resume_table, changefeed_id=SHOP, table="public.item"))
    synced(bed)
    assert ids(bed, "item") == [9001]


@pytest.mark.matrix
def test_a_table_skips_what_an_operator_confirms(bed: Bed) -> None:
    bed.ask(partial(Client.pause_table, changefeed_id=SHOP, table="public.item"))
    bed.execute("INSERT INTO item VALUES (9101, 1)")
    ts = synced(bed, held=1)
    bed.execute("INSERT INTO item VALUES (9102, 1)")
    skip = partial(Client.skip_table, changefeed_id=SHOP, table="public.item", ts=ts)
    with pytest.raises(RemoteError, match="confirm that"):
        bed.ask(skip)
    with pytest.raises(RemoteError, match="the change log reaches up to"):
        bed.ask(partial(skip, ts=ts + (1 << 40), confirmed=True))
    done = bed.ask(partial(skip, confirmed=True))
    assert "that the sink lacks are left out" in done.notices[0]
    synced(bed)
    assert ids(bed, "item", above=9100) == [9102]
    trail = bed.ask(lambda client: client.audit(20))
    assert f"table public.item, ts {ts}" in [one.detail for one in trail if one.status == 200]
    [shown] = [table for table in bed.ask(lambda client: client.tables(SHOP)) if table.table == "public.item"]
    assert shown.skipped_ts == ts
    [process] = bed.processes
    bed.kill(process)
    bed.start(process)
    bed.execute("INSERT INTO item VALUES (9103, 1)")
    synced(bed)
    assert ids(bed, "item", above=9100) == [9102, 9103], "whoever takes over leaves them out too"
    bed.ask(partial(Client.resync_table, changefeed_id=SHOP, table="public.item"))
    bed.wait_for("it flows", lambda: not bed.query(SHOP).resyncs and not bed.query(SHOP).held)
    assert ids(bed, "item", above=9100) == [9101, 9102, 9103]


@pytest.mark.matrix
def test_who_writes_at_the_source_can_ask_for_the_same(bed: Bed) -> None:
    def signal(kind: str, data: str) -> None:
        bed.execute(f"INSERT INTO weir_signal (kind, data) VALUES ('{kind}', '{data}')")

    signal("pause", "public.item")
    bed.wait_for("it is paused", lambda: [held.code for held in bed.query(SHOP).held] == ["Paused"])
    bed.execute("INSERT INTO item VALUES (9051, 1)")
    signal("resume", '{"table": "public.item"}')
    synced(bed)
    assert 9051 in ids(bed, "item")
    signal("resync", "public.nowhere")
    signal("resync", '{"table": "public.item", "where": "id = 9051"}')
    signal("resync", "public.item")

    def handled() -> list[tuple[int, str]]:
        """An entry has no status until what it asks for is done."""
        found = [one for one in bed.ask(partial(Client.audit, limit=100)) if one.method == "SIGNAL"]
        return sorted((one.status, one.detail) for one in found if one.status is not None)

    bed.wait_for("all are handled", lambda: len(handled()) == 5)
    bed.wait_for("its copy is there", lambda: not (bed.query(SHOP).held or bed.query(SHOP).resyncs))
    assert [status for status, _ in handled()] == [200, 200, 200, 200, 409]
    assert handled()[-1][1] == "public.nowhere"
    synced(bed)


@pytest.mark.matrix
def test_mariadb(tmp_path: Path) -> None:
    with MariaBed(tmp_path, captures=1) as bed:
        bed.execute("CREATE TABLE item (id int PRIMARY KEY, value int)")
        bed.create_feed(SHOP)
        table = "sbtest.item"
        bed.ask(lambda client: client.pause_table(SHOP, table))
        bed.execute("INSERT INTO item VALUES (9101, 1)")
        synced(bed, held=1)
        bed.execute("ALTER TABLE item ADD more int DEFAULT 5")
        bed.execute("INSERT INTO item VALUES (9102, 1, 2)")
        last = synced(bed, held=1)
        bed.ask(lambda client: client.skip_table(SHOP, table, last, confirmed=True))
        synced(bed)
        assert maria_ids(bed) == [], "the schema change was not left out, but both rows"
        bed.execute("INSERT INTO item VALUES (9103, 1, 3)")
        bed.ask(lambda client: client.pause_table(SHOP, table))
        bed.ask(lambda client: client.resume_table(SHOP, table))
        synced(bed)
        assert maria_ids(bed) == [(9103, 3)]


def maria_ids(bed: MariaBed) -> list[tuple[int, int]]:
    found = bed.delta(SHOP, "item").select(["id", "more"]).sort_by("id")
    return list(zip(*(column.to_pylist() for column in found.columns), strict=True))
