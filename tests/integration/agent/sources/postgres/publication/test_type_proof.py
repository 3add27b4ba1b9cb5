"""The proof of user-made types on a real server: rows that say something else since their type was altered are held."""

from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from agent.settings import SyncSettings
from agent.sources.postgres.server.catalog import read_schemas
from agent.sources.postgres.server.connection import connect
from capture.embedded import EmbeddedPostgres
from tests.integration.agent.sources.postgres.sync_rig import SyncRig, drop_slots, make_rig

_SCHEMA = """
CREATE TYPE mood AS ENUM ('sad', 'ok');
CREATE TYPE host AS (at inet, mood mood);
CREATE TABLE a (id int PRIMARY KEY, v text);
CREATE TABLE b (id int PRIMARY KEY, v mood);
CREATE TABLE c (id int PRIMARY KEY, v host[]);
CREATE TABLE d (id int PRIMARY KEY, v money);
"""


@pytest.fixture
def rig(postgres: EmbeddedPostgres, tmp_path: Path) -> Iterator[SyncRig]:
    rig = make_rig(postgres, tmp_path, _SCHEMA, ["a", "b", "c", "d"], binary=False)
    rig.settings = SyncSettings(progress_s=0.05)
    with connect(rig.uri) as connection:
        rig.first_schemas = read_schemas(connection, [table.table_id for table in rig.tables])
    yield rig
    drop_slots(rig)


def _held(rig: SyncRig) -> dict[str, str]:
    return {change.table.name: change.reason for record in rig.ddl() for change in record.holds if change.table}


@pytest.mark.parametrize("is_running", [True, False])
async def test_tables_of_an_altered_type_are_held_before_anything_behind_it_counts(
    rig: SyncRig, *, is_running: bool
) -> None:
    alter = "ALTER TYPE mood RENAME VALUE 'ok' TO 'fine'"
    async with rig.running():
        rig.execute("INSERT INTO b VALUES (1, 'ok'); INSERT INTO a VALUES (1)")
        at = await rig.wait_resolved()
        if is_running:
            rig.execute(alter)
    if not is_running:
        rig.execute(alter)
    rig.execute("INSERT INTO b VALUES (2, 'fine'); INSERT INTO a VALUES (2)")
    async with rig.running(rig.unit("b")):
        await rig.wait_resolved()
    held, [record] = _held(rig), rig.ddl()
    assert held.keys() == {"b", "c"}
    assert "public.b has rows of the type public.mood, which was altered" in held["b"]
    [row] = [event for event in rig.logged() if event[0] == rig.tables[1].table_id and event[1] > at.resolved_ts]
    assert at.resolved_ts < record.ts <= row[1]
    async with rig.running(rig.unit("c")):  # nobody finds it twice
        rig.execute("INSERT INTO a VALUES (3)")
        await rig.wait_resolved()
    assert rig.ddl() == [record]


async def test_another_part_of_a_composite_holds_its_tables_and_a_new_label_none(rig: SyncRig) -> None:
    async with rig.running():
        rig.execute("INSERT INTO c VALUES (1, '{\"(10.0.0.1,ok)\"}')")
        await rig.wait_resolved()
        rig.execute("ALTER TYPE mood ADD VALUE 'glad'")
        rig.execute("INSERT INTO b VALUES (1, 'glad'); ALTER TABLE b ADD w host; INSERT INTO b VALUES (2)")
        await rig.wait_resolved()
        assert _held(rig) == {}
        rig.execute("ALTER TABLE b DROP w")
        rig.execute("ALTER TYPE host ADD ATTRIBUTE port int")
        rig.execute("INSERT INTO a VALUES (1)")
        await rig.wait_resolved()
    assert _held(rig).keys() == {"c"}


async def test_money_that_is_written_in_another_way_holds_its_tables(rig: SyncRig) -> None:
    """The stream's session and the prover's have the new setting at once, while no row of the catalog has changed."""
    async with rig.running():
        for number in range(4):
            rig.execute(f"INSERT INTO d VALUES ({number}, 1.5)")
            await rig.wait_resolved()
        rig.execute("ALTER SYSTEM SET lc_monetary = 'POSIX'")
        try:
            rig.execute("SELECT pg_reload_conf()")
            await anyio.sleep(0.5)
            rig.execute("INSERT INTO d VALUES (9, 1.5); INSERT INTO a VALUES (1)")
            await rig.wait_resolved()
        finally:
            rig.execute("ALTER SYSTEM RESET lc_monetary")
            rig.execute("SELECT pg_reload_conf()")
    held = _held(rig)
    assert held.keys() == {"d"}
    assert "lc_monetary" in held["d"]
