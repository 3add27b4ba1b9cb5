"""Fail-over: a standby is promoted in place of its primary. The log continues there if the standby has all that was
read, and the position is lost if it has not."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from anyio import to_thread

from agent.errors import PositionLostError, SourceConfigError, SourceUnreachableError
from agent.ports.source import BEGIN, Identity, Scope
from agent.settings import SyncSettings
from agent.sources import open_source
from agent.sources.postgres.publication import slots
from agent.sources.postgres.server.connection import connect
from capture.embedded import EmbeddedPostgres
from reactor.records.changefeed import ChangefeedConfig, SinkMode
from tests.integration.agent.sources.postgres.standby import StandbyPostgres
from tests.integration.agent.sources.postgres.sync_rig import SyncRig, make_rig, wait_until

_VERSION = 17  # of failover slots


@pytest.fixture
def primary(tmp_path: Path) -> Iterator[EmbeddedPostgres]:
    with EmbeddedPostgres(tmp_path / "primary", unsafe_no_fsync=True) as server:
        yield server


@pytest.fixture
def standby(tmp_path: Path, primary: EmbeddedPostgres) -> Iterator[StandbyPostgres]:
    with connect(primary.uri()) as connection:
        if connection.server_version < _VERSION:
            pytest.skip("failover slots need PostgreSQL 17")
    with StandbyPostgres(tmp_path / "standby", primary) as server:
        server.hold_back_primary(is_on=True)
        yield server


@pytest.fixture
def rig(primary: EmbeddedPostgres, standby: StandbyPostgres, tmp_path: Path) -> SyncRig:
    rig = make_rig(primary, tmp_path, "CREATE TABLE t (id int PRIMARY KEY, v text)", ["t"])
    rig.settings = SyncSettings(progress_s=0.05, reconnect_s=0.05, reconnect_max_s=0.2)
    return rig


async def _until_ready(rig: SyncRig, standby: StandbyPostgres) -> None:
    """Until the standby has all that the primary has written, and the slot."""
    [[end]] = rig.database.execute("SELECT pg_current_wal_insert_lsn()::text")
    await wait_until(lambda: standby.execute(f"SELECT pg_last_wal_replay_lsn() >= '{end}'::pg_lsn") == [[True]])
    await wait_until(lambda: standby.has_slot(rig.names.slot))


def _ids(rig: SyncRig) -> list[int]:
    """The keys of the rows in the log, as the stream has them in binary form."""
    rows = [event[3] for event in rig.logged()]
    return [int.from_bytes(row[13:17], "big") for row in rows if row[:1] == b"I"]


async def test_the_log_continues_on_a_promoted_standby(rig: SyncRig, standby: StandbyPostgres) -> None:
    """Also for the connection that is open meanwhile, and again when it is opened there once more."""
    servers: list[Identity] = []
    unit = rig.unit(system_id=_system_id(rig))

    async def note(server: Identity) -> None:
        servers.append(server)

    unit._on_server = note
    async with rig.running(unit):
        rig.execute("INSERT INTO t SELECT n, 'before' FROM generate_series(1, 100) n")
        await rig.wait_resolved()
        await _until_ready(rig, standby)
        await to_thread.run_sync(rig.database.stop)  # it waits until the stream's end is acknowledged
        await to_thread.run_sync(lambda: standby.promote(port=rig.database.port))
        rig.database = standby
        rig.execute("INSERT INTO t SELECT n, 'after' FROM generate_series(101, 200) n")
        await rig.wait_resolved()
        await rig.kill_walsender()
        rig.execute("INSERT INTO t VALUES (201, 'later')")
        await rig.wait_resolved()
    assert _ids(rig) == list(range(1, 202))
    assert [server.timeline for server in dict.fromkeys(servers)] == [1, 2]


async def test_what_the_standby_lacks_is_a_lost_position(rig: SyncRig, standby: StandbyPostgres) -> None:
    standby.hold_back_primary(is_on=False)
    unit = rig.unit(system_id=_system_id(rig))
    async with rig.running(unit):
        rig.execute("INSERT INTO t VALUES (1, 'both')")
        await rig.wait_resolved()
        await _until_ready(rig, standby)
        standby.cut_off()
        await wait_until(lambda: standby.execute("SELECT count(*) FROM pg_stat_wal_receiver") == [[0]])
        rig.execute("INSERT INTO t VALUES (2, 'primary only')")
        await rig.wait_resolved()
    rig.database.kill()
    standby.promote(port=rig.database.port)
    rig.database = standby
    with pytest.raises(PositionLostError, match=r"was promoted and has another log than timeline 1 from .* on"):
        await rig.unit(system_id=_system_id(rig)).run()


async def test_a_standby_is_waited_for(rig: SyncRig, standby: StandbyPostgres) -> None:
    """An address that leads to a standby for a while, as during a switch-over, loses nothing."""
    rig.execute("INSERT INTO t VALUES (1, 'before')")
    async with rig.running(rig.unit(system_id=_system_id(rig))):
        await rig.wait_resolved()
        await _until_ready(rig, standby)
    rig.uri = standby.uri(rig.name)
    unit = rig.unit(system_id=_system_id(rig))
    async with rig.running(unit):
        await wait_until(lambda: unit.statistics().error_code == SourceUnreachableError.code)
        assert "is a standby; it is tried again until it is promoted" in unit.statistics().error
        rig.database.stop()
        standby.promote()
        rig.database = standby
        rig.execute("INSERT INTO t VALUES (2, 'after')")
        await rig.wait_resolved()
    assert _ids(rig) == [1, 2]


@pytest.mark.matrix
async def test_the_primary_is_found_among_several_hosts(rig: SyncRig, standby: StandbyPostgres) -> None:
    """The standby comes first; where it has found the primary last, it looks first."""
    rig.uri = (
        f"postgresql://postgres:{standby.password}@127.0.0.1:{standby.port},127.0.0.1:{rig.database.port}/{rig.name}"
    )
    async with rig.running(rig.unit(system_id=_system_id(rig))):
        rig.execute("INSERT INTO t VALUES (1, 'before')")
        await rig.wait_resolved()
        await _until_ready(rig, standby)
        await to_thread.run_sync(rig.database.stop)
        await to_thread.run_sync(standby.promote)
        rig.execute("INSERT INTO t VALUES (2, 'after')")
        await rig.wait_resolved()
    assert _ids(rig) == [1, 2]
    standby.stop()
    with pytest.raises(SourceUnreachableError, match=r"no primary of postgresql://127.* answers: .* tried again"):
        rig.execute("SELECT 1")


@pytest.mark.matrix
async def test_a_slot_of_an_earlier_version_is_copied_from_now_on(rig: SyncRig, standby: StandbyPostgres) -> None:
    """Those that were made with a snapshot were made without ``FAILOVER``."""
    slot = f"pg_replication_slots WHERE slot_name = '{rig.names.slot}'"
    with connect(rig.uri, replication=True) as connection:
        connection.query(f'ALTER_REPLICATION_SLOT "{rig.names.slot}" (FAILOVER false)')
    assert rig.database.execute(f"SELECT failover FROM {slot}") == [[False]]
    async with rig.running(rig.unit(system_id=_system_id(rig))):
        await rig.wait_resolved()
        assert rig.database.execute(f"SELECT failover FROM {slot}") == [[True]]
        await _until_ready(rig, standby)


@pytest.mark.matrix
async def test_a_standby_is_no_source_and_nothing_is_taken_for_gone_there(
    rig: SyncRig, standby: StandbyPostgres
) -> None:
    """An address may lead to it for a moment; what it lacks, or does not let go, is not lost."""
    async with rig.running(rig.unit(system_id=_system_id(rig))):
        await _until_ready(rig, standby)
    source = open_source(standby.uri(rig.name), Scope("t", rig.name, SinkMode.UPSERT, ChangefeedConfig()))
    names = rig.names
    for ask in (
        source.current_ts,
        source.discover,
        lambda: source.prepare(()),
        lambda: source.begin(rig.tables),
        lambda: source.begin_again(rig.tables, BEGIN, Identity(_system_id(rig), 1)),
        lambda: slots.drop_upstream(standby.uri(rig.name), names),
    ):
        with pytest.raises(SourceUnreachableError, match="is a standby"):
            ask()
    with pytest.raises(SourceConfigError, match="is a standby, which cannot hold a publication; name the primary"):
        source.check()
    assert rig.database.execute(f"SELECT 1 FROM pg_replication_slots WHERE slot_name = '{names.slot}'") == [[1]]


async def test_an_old_primary_is_not_followed(rig: SyncRig) -> None:
    """One that was cut off, and still answers."""
    unit = rig.unit(system_id=_system_id(rig), timeline=2)
    async with rig.running(unit):
        await wait_until(lambda: unit.statistics().error_code == SourceUnreachableError.code)
        assert "is on timeline 1, and the log was read on 2: it is an old primary" in unit.statistics().error


def _system_id(rig: SyncRig) -> str:
    [[system_id]] = rig.database.execute("SELECT system_identifier::text FROM pg_control_system()")
    return str(system_id)
