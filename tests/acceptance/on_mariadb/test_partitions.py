"""Partitions that go with their rows: the table is copied by itself, and stays held where that is asked for."""

import pytest

from reactor.records.changefeed import FeedState
from tests.acceptance.maria_bed import MariaBed, is_installed

pytestmark = [
    pytest.mark.acceptance,
    pytest.mark.spark,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not is_installed(), reason="sysbench is not installed (Debian: apt-get install sysbench)"),
]

_PARTITIONS = (
    "PARTITION old VALUES LESS THAN (100), PARTITION young VALUES LESS THAN (200), "
    "PARTITION rest VALUES LESS THAN MAXVALUE"
)


@pytest.mark.matrix
def test_a_table_is_copied_whose_partitions_go(bed: MariaBed) -> None:
    bed.execute(f"CREATE TABLE aside.p_t (id int PRIMARY KEY, v int) PARTITION BY RANGE (id) ({_PARTITIONS})")
    bed.execute("CREATE TABLE aside.p_out (id int PRIMARY KEY, v int)")
    bed.execute("INSERT INTO aside.p_t SELECT seq, seq FROM seq_1_to_300")
    bed.create("parts", config={"filter": {"rules": ["aside.p_*"]}})
    bed.create("still", config={"filter": {"rules": ["aside.p_*"]}, "source": {"partition-rows": "hold"}})
    for name in ("parts", "still"):
        bed.wait_for("they are there", lambda name=name: len(bed.query(name).tables) == 2)  # type: ignore[misc]
    bed.execute("ALTER TABLE aside.p_t DROP PARTITION old")
    bed.execute("ALTER TABLE aside.p_t EXCHANGE PARTITION young WITH TABLE aside.p_out")
    bed.execute("INSERT INTO aside.p_t VALUES (1000, 0)")
    ts = bed.ask(lambda client: client.query("parts")).resolved_ts

    def is_whole() -> bool:
        view = bed.query("parts")
        return view.state is FeedState.NORMAL and view.checkpoint_ts > ts and not view.resyncs and not view.held

    def is_equal() -> bool:
        if not is_whole():
            return False
        found = bed.ask(lambda client: client.diff("parts"), timeout_s=120.0)
        return sorted((one.table, one.equal, one.sink_rows) for one in found) == [
            ("aside.p_out", True, 100),
            ("aside.p_t", True, 102),
        ]

    bed.wait_for("they are copied", is_equal)
    held = {one.table: one.code for one in bed.query("still").held}
    assert held == {"aside.p_t": "NotFollowed", "aside.p_out": "NotFollowed"}
    for name in ("parts", "still"):
        bed.ask(lambda client, name=name: client.remove(name))  # type: ignore[misc]
