"""The sync unit against a real PostgreSQL: what the log holds is what the server has committed, once each."""

from collections.abc import Callable, Iterator
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from agent.errors import LogFencedError, PositionLostError
from agent.log.head import LogWriter
from agent.settings import SyncSettings
from agent.sources.postgres.decode.types import ENUM_OID
from agent.sources.postgres.publication.slots import drop_slot, slot_status
from agent.sources.postgres.server.connection import Connection, connect
from capture.embedded import EmbeddedPostgres
from reactor.ids import CaptureId, Ts
from reactor.records.log_head import LogHead
from reactor.store.port import Put
from tests.integration.agent.sources.postgres.sync_rig import SyncRig, drop_slots, make_rig, wait_until

_SCHEMA = """
CREATE TABLE a (id int PRIMARY KEY, v text, big text);
CREATE TABLE b (x int, y int, n numeric(12,2), PRIMARY KEY (x, y));
CREATE TABLE c (id bigint PRIMARY KEY, t timestamptz, u uuid);
CREATE TABLE unwatched (id int PRIMARY KEY);
"""


def confirmed_ts(connection: Connection, rig: SyncRig) -> int:
    status = slot_status(connection, rig.names.slot)
    assert status is not None
    return status.confirmed_ts


def is_past(seq: int) -> Callable[[LogHead], bool]:
    return lambda head: head.last_seq > seq


@pytest.fixture
def rig(postgres: EmbeddedPostgres, tmp_path: Path) -> Iterator[SyncRig]:
    rig = make_rig(postgres, tmp_path, _SCHEMA, ["a", "b", "c"])
    yield rig
    drop_slots(rig)


async def test_every_kind_of_change_arrives_as_the_server_sent_it(rig: SyncRig) -> None:
    async with rig.running():
        rig.execute("INSERT INTO a SELECT i, 'v' || i, repeat(md5(i::text), 300) FROM generate_series(1, 200) i")
        rig.execute("INSERT INTO b SELECT i, -i, i / 7.0 FROM generate_series(1, 100) i; DELETE FROM b WHERE x < 50")
        rig.execute("UPDATE a SET v = 'w' WHERE id <= 100; UPDATE a SET id = id + 1000 WHERE id > 190")
        rig.execute("INSERT INTO unwatched VALUES (1); INSERT INTO c VALUES (1, now(), gen_random_uuid())")
        rig.execute("TRUNCATE a, c")
        rig.execute("INSERT INTO a VALUES (1, NULL, NULL)")
        await rig.wait_resolved()
    assert rig.logged() == rig.expected()
    assert len(rig.logged()) > 400


@pytest.mark.parametrize("is_running", [True, False])
async def test_a_table_that_is_altered_continues_under_its_new_schema(rig: SyncRig, is_running: bool) -> None:
    """Also when the unit starts long afterwards: older changes have the columns of their own time."""

    def alter() -> None:
        rig.execute("INSERT INTO a VALUES (1, 'x', 'y')")
        rig.execute("ALTER TABLE a ADD COLUMN extra int; INSERT INTO a VALUES (2, 'x', 'y', 5)")
        rig.execute(
            "BEGIN; INSERT INTO a VALUES (3, 'x', 'y', 5); ALTER TABLE a DROP COLUMN big;"
            "INSERT INTO a VALUES (4, 'x', 5); COMMIT"
        )

    if not is_running:
        alter()
    async with rig.running():
        if is_running:
            alter()
        await rig.wait_resolved()
    assert rig.logged() == rig.expected()
    assert [len(schema.columns) for schema in rig.schemas()][-1] == 3
    assert sum(len(schema.columns) == 4 for schema in rig.schemas()) >= 1


async def test_a_transaction_larger_than_a_segment_spreads_over_several(rig: SyncRig) -> None:
    rig.settings = SyncSettings(segment_bytes=1 << 20)
    async with rig.running() as unit:
        rig.execute("INSERT INTO b VALUES (0, 0, 0)")
        rig.execute("INSERT INTO a SELECT i, 'v' || i, repeat('x', 60) FROM generate_series(1, 60000) i")
        rig.execute("INSERT INTO b VALUES (1, 1, 1)")
        head = await rig.wait_resolved()
        assert unit.statistics().segments >= 6
    assert head.complete_seq == head.last_seq
    assert rig.logged() == rig.expected()


async def test_a_row_larger_than_an_arena_passes(rig: SyncRig) -> None:
    rig.settings = SyncSettings(segment_bytes=1 << 16)
    async with rig.running():
        rig.execute("INSERT INTO a SELECT i, 'v', repeat(md5(i::text), 10000) FROM generate_series(1, 5) i")
        rig.execute("INSERT INTO b VALUES (1, 1, 1)")
        await rig.wait_resolved()
    assert rig.logged() == rig.expected()


async def test_nothing_is_lost_or_doubled_when_the_walsender_dies_again_and_again(rig: SyncRig) -> None:
    rig.settings = SyncSettings(segment_bytes=1 << 19, reconnect_s=0.02, reconnect_max_s=0.05)
    async with rig.running() as unit:
        for round_ in range(6):
            rig.execute(
                f"INSERT INTO a SELECT i, 'v', repeat('y', 80) FROM generate_series({round_}0000, {round_}9999) i"
            )
            await rig.wait_head(is_past(rig.head().last_seq))
            epoch = rig.head().epoch
            await rig.kill_walsender()
            await rig.wait_head(lambda head, epoch=epoch: head.epoch > epoch)  # type: ignore[misc]
        head = await rig.wait_resolved()
        assert unit.statistics().sessions > 5
    assert head.epoch > 6
    assert rig.logged() == rig.expected()


async def test_the_slot_advances_on_an_idle_database(rig: SyncRig) -> None:
    rig.settings = SyncSettings(progress_s=0.1)
    async with rig.running():
        before = await rig.wait_resolved()
        # activity that is none of this database's business still makes WAL
        rig.database.execute("SELECT pg_logical_emit_message(true, 'noise', repeat('n', 100000))")
        after = await rig.wait_head(lambda head: head.resolved_ts > before.resolved_ts + 100_000)
        assert after.last_seq == 0, "no segment is written for an empty range"
        with connect(rig.uri) as connection:
            await wait_until(lambda: confirmed_ts(connection, rig) > before.resolved_ts + 100_000)
        first = rig.head().resolved_time
        await rig.wait_head(lambda head: head.resolved_time > first)


async def test_a_unit_that_was_replaced_stops_and_leaves_nothing_in_the_log(rig: SyncRig) -> None:
    async def replace() -> None:
        rig.execute("INSERT INTO b VALUES (1, 1, 1)")
        await rig.wait_resolved()
        # the slot has one reader only: the new one gets it when the old one has found itself fenced
        await LogWriter(rig.store(), capture=CaptureId("new")).take_over(Ts(0))
        rig.execute("INSERT INTO b VALUES (2, 2, 2)")

    async with anyio.create_task_group() as group:
        group.start_soon(replace)
        with pytest.raises(LogFencedError, match="taken over by new"):
            await rig.unit("old").run()
    async with rig.running(rig.unit("newest")):
        await rig.wait_resolved()
    assert rig.head().writer == "newest"
    assert rig.logged() == rig.expected()


async def test_a_store_that_was_put_back_does_not_continue_a_newer_log(rig: SyncRig) -> None:
    """An older export was imported, say: the slot is past the old head, and what lies between would be left out."""
    async with rig.running():
        rig.execute("INSERT INTO b VALUES (1, 1, 1)")
        await rig.wait_resolved()
    old = rig.head()
    async with rig.running():
        rig.execute("INSERT INTO b VALUES (2, 2, 2)")
        await rig.wait_resolved()
    rig.etcd.txn([], [Put(str(rig.head_key), old.encode())])
    with pytest.raises(PositionLostError, match="the store was put back to an earlier state"):
        await rig.unit().run()
    assert rig.head() == old


async def test_a_reader_that_sleeps_does_not_keep_the_slot_from_its_successor(rig: SyncRig) -> None:
    """A stopped process reads nothing and answers nothing; the server would wait a minute for it."""
    rig.execute("INSERT INTO b SELECT i, i, i FROM generate_series(1, 1000) i")
    with connect(rig.uri, replication=True) as sleeper:
        options = f"(proto_version '1', publication_names '{rig.names.publication}')"
        sleeper.start_copy(f"START_REPLICATION SLOT {rig.names.slot} LOGICAL 0/0 {options}")
        async with rig.running():
            await rig.wait_resolved(timeout_s=10)
    assert rig.logged() == rig.expected()


async def test_enums_and_domains_stay_binary_and_a_type_made_later_turns_the_stream_to_text(
    postgres: EmbeddedPostgres, tmp_path: Path
) -> None:
    rig = make_rig(
        postgres,
        tmp_path,
        "CREATE TYPE mood AS ENUM ('good', 'bad'); CREATE DOMAIN price AS numeric(8,2) CHECK (VALUE > 0);"
        "CREATE TABLE e (id int PRIMARY KEY, m mood, p price);",
        ["e"],
    )
    try:
        async with rig.running() as unit:
            rig.execute("INSERT INTO e VALUES (1, 'good', 7.5)")
            await rig.wait_resolved()
            assert unit.statistics().sessions == 1
            columns = rig.schemas()[-1].columns
            assert [(c.type_id, c.type_name) for c in columns[1:]] == [
                (ENUM_OID, "public.mood"),
                (1700, "public.price"),
            ]
            assert rig.logged() == rig.expected()

            rig.execute("ALTER TABLE e ADD COLUMN span interval; INSERT INTO e VALUES (2, 'bad', 8, '1 day')")
            await rig.wait_resolved()
            assert unit.statistics().sessions == 2
        assert b"1 day" in rig.logged()[-1][3]
        assert [event[2] for event in rig.logged()] == [0, 0]
        # a unit that starts now finds the column in the catalog
        async with rig.running() as unit:
            rig.execute("INSERT INTO e VALUES (3, 'bad', 8, '2 days')")
            await rig.wait_resolved()
            assert unit.statistics().sessions == 1
        assert b"2 days" in rig.logged()[-1][3]
    finally:
        drop_slots(rig)


async def test_an_application_may_update_a_table_without_identity(postgres: EmbeddedPostgres, tmp_path: Path) -> None:
    rig = make_rig(postgres, tmp_path, "CREATE TABLE k (id int PRIMARY KEY); CREATE TABLE h (v int);", ["k", "h"])
    try:
        async with rig.running():
            rig.execute("INSERT INTO k VALUES (1); INSERT INTO h VALUES (1); UPDATE h SET v = 2")
            rig.execute("UPDATE k SET id = 2; DELETE FROM h; TRUNCATE h")
            await rig.wait_resolved()
        logged = rig.logged()
        assert logged == rig.expected()
        assert [event[3][:1] for event in logged] == [b"I", b"I", b"U", b"T"]
    finally:
        drop_slots(rig)


async def test_a_lost_slot_is_an_error_of_its_own(rig: SyncRig) -> None:
    with connect(rig.uri) as connection:
        drop_slot(connection, rig.names.slot)
    with pytest.raises(
        PositionLostError, match=rf"slot {rig.names.slot} is gone from .*; `weir changefeed resume --resync`"
    ):
        await rig.unit().run()


async def test_a_slot_that_somebody_else_moved_is_an_error(rig: SyncRig) -> None:
    async with rig.running():
        await rig.wait_resolved()
    rig.execute("INSERT INTO b VALUES (1, 1, 1)")
    rig.execute(f"SELECT pg_replication_slot_advance('{rig.names.slot}', pg_current_wal_lsn())")
    with pytest.raises(PositionLostError, match=r"was moved to .* by somebody else"):
        await rig.unit().run()


async def test_another_server_is_never_mistaken_for_ours(rig: SyncRig) -> None:
    unit = rig.unit(system_id="12345")
    with pytest.raises(PositionLostError, match="began on 12345, whose positions mean nothing here"):
        await unit.run()


async def test_segments_that_all_spans_have_passed_are_removed(rig: SyncRig) -> None:
    rig.settings = SyncSettings(retention_check_s=0.0, progress_s=0.05)
    rig.retention_s = 0.0
    async with rig.running():
        for number in range(3):
            rig.execute(f"INSERT INTO b VALUES ({number}, 1, 1)")
            middle = await rig.wait_resolved()
        assert middle.first_seq == 1
        rig.checkpoint_ts = middle.resolved_ts
        await rig.wait_head(lambda head: head.first_seq == middle.last_seq + 1)
        rig.execute("INSERT INTO b VALUES (9, 1, 1)")
        head = await rig.wait_resolved()
    assert len([name for name in rig.directory.names() if name.endswith(".arrow")]) == 1
    assert head.removed_ts <= middle.resolved_ts
    assert len(rig.logged()) == 1


@pytest.mark.matrix
async def test_a_restart_of_the_server_is_waited_for(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> None:
    with EmbeddedPostgres(tmp_path_factory.mktemp("pg"), unsafe_no_fsync=True) as server:
        rig = make_rig(server, tmp_path, _SCHEMA, ["a", "b", "c"])
        rig.settings = SyncSettings(reconnect_s=0.05, reconnect_max_s=0.1)
        async with rig.running() as unit:
            rig.execute("INSERT INTO b VALUES (1, 1, 1)")
            await rig.wait_resolved()
            await anyio.to_thread.run_sync(server.kill)
            await wait_until(lambda: bool(unit.statistics().error))
            await anyio.to_thread.run_sync(server.start)
            rig.execute("INSERT INTO b VALUES (2, 2, 2)")
            await rig.wait_resolved()
            assert unit.statistics().error == ""
        assert rig.logged() == rig.expected()
