"""Schema changes of tables that get no rows afterwards, on a real PostgreSQL: found all the same, and only once."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.rows.schema import TableSchema
from agent.settings import SyncSettings
from agent.sources.postgres.server.catalog import read_schemas
from agent.sources.postgres.server.connection import connect
from capture.embedded import EmbeddedPostgres
from reactor.records.tables.schema_change import SchemaChangeKind, TableChange
from tests.integration.agent.sources.postgres.sync_rig import SyncRig, drop_slots, make_rig, wait_until

pytestmark = pytest.mark.sample(0.2)  # cases of a few causes each, on a real server

_SCHEMA = """
CREATE TABLE a (id int PRIMARY KEY, v text, n int);
CREATE TABLE b (id int PRIMARY KEY, v text);
CREATE TABLE root (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);
CREATE TABLE leaf PARTITION OF root FOR VALUES FROM (0) TO (10);
"""


@pytest.fixture
def rig(postgres: EmbeddedPostgres, tmp_path: Path) -> Iterator[SyncRig]:
    rig = make_rig(postgres, tmp_path, _SCHEMA, ["a", "b", "leaf"])
    rig.settings = SyncSettings(progress_s=0.05)
    with connect(rig.uri) as connection:
        rig.first_schemas = read_schemas(connection, [table.table_id for table in rig.tables])
    rig.execute("INSERT INTO a VALUES (1, 'v', 1); INSERT INTO b VALUES (1, 'v'); INSERT INTO leaf VALUES (1, 'v')")
    yield rig
    drop_slots(rig)


def changes(rig: SyncRig) -> list[TableChange]:
    return [change for record in rig.ddl() for change in record.changes]


def columns(change: TableChange) -> list[str]:
    return [column.name for column in TableSchema.from_json(change.after).columns]


async def settle(rig: SyncRig) -> None:
    """The first position has the catalog read, which is noted at the second; the third shows that nothing follows."""
    for _ in range(3):
        await rig.wait_resolved()


@pytest.mark.parametrize(
    ("statement", "names", "renames", "fills"),
    [
        ("ALTER TABLE a ADD x int DEFAULT 7", ["id", "v", "n", "x"], {}, {"x": "7"}),
        ("ALTER TABLE a DROP v", ["id", "n"], {}, {}),
        ("ALTER TABLE a RENAME v TO w", ["id", "w", "n"], {"w": "v"}, {}),
        ("ALTER TABLE a ALTER n TYPE bigint", ["id", "v", "n"], {}, {}),
        ("ALTER TABLE root ADD x int DEFAULT 7", ["id", "v", "x"], {}, {"x": "7"}),
    ],
)
@pytest.mark.parametrize("is_running", [True, False])
async def test_a_schema_change_without_rows_is_found_once(
    rig: SyncRig, statement: str, names: list[str], renames: dict[str, str], fills: dict[str, str], is_running: bool
) -> None:
    async with rig.running():
        await settle(rig)
        if is_running:
            rig.execute(statement)
            await settle(rig)
    assert len(changes(rig)) == is_running
    if not is_running:
        rig.execute(statement)
    async with rig.running():
        await settle(rig)
        rig.execute("UPDATE a SET id = id; UPDATE leaf SET id = id")
        await settle(rig)
    [change] = changes(rig)
    assert (change.kind, columns(change)) == (SchemaChangeKind.ALTER, names)
    assert (change.renames, change.fills) == (renames, fills)


async def test_tables_that_swap_names_without_rows(rig: SyncRig) -> None:
    async with rig.running():
        await settle(rig)
        rig.execute("ALTER TABLE a RENAME TO x; ALTER TABLE b RENAME TO a; ALTER TABLE x RENAME TO b")
        await settle(rig)
        rig.execute("INSERT INTO a VALUES (2, 'of b'); INSERT INTO b VALUES (2, 'of a', 2)")
        await settle(rig)
    [record] = rig.ddl()
    assert {change.table and change.table.name: len(columns(change)) for change in record.changes} == {"a": 2, "b": 3}


async def test_a_server_that_writes_nothing_else_is_no_reason_to_wait(rig: SyncRig) -> None:
    async with rig.running():
        await settle(rig)
        rig.execute("ALTER TABLE root ADD x int; ALTER TABLE a ADD x int")
        await wait_until(lambda: len(changes(rig)) == 2)


async def test_each_table_changes_at_a_place_of_its_own(rig: SyncRig) -> None:
    """A table that cannot follow its change holds no other."""
    async with rig.running():
        await settle(rig)
        rig.execute("BEGIN; ALTER TABLE a ADD x int; ALTER TABLE b ADD x int; ALTER TABLE root ADD x int; COMMIT")
        await settle(rig)
    assert sorted(change.table.name for change in changes(rig) if change.table) == ["a", "b", "leaf"]
    assert len({record.ts for record in rig.ddl()}) == 3


async def test_a_key_that_is_away_between_two_rows_is_no_change(rig: SyncRig) -> None:
    async with rig.running():
        await settle(rig)
        rig.execute("ALTER TABLE a DROP CONSTRAINT a_pkey")
        await settle(rig)
        rig.execute("ALTER TABLE a ADD PRIMARY KEY (id)")
        rig.execute("UPDATE a SET id = 2")
        await settle(rig)
    assert changes(rig) == []


async def test_a_key_whose_column_is_gone_is_away_for_good(rig: SyncRig) -> None:
    """Also of a table that has another name by now."""
    async with rig.running():
        await settle(rig)
        rig.execute("ALTER TABLE a DROP id; ALTER TABLE a RENAME TO z")
        await settle(rig)
    [change] = changes(rig)
    assert change.table is not None
    assert (change.table.key, change.table.name, columns(change)) == ((), "z", ["v", "n"])


async def test_rows_of_before_keep_their_definition(rig: SyncRig) -> None:
    """The catalog has been at the last definition for long when the stream comes to the first rows."""
    rig.execute("ALTER TABLE a ADD x int; INSERT INTO a VALUES (2, 'v', 2, 2)")
    rig.execute("ALTER TABLE a DROP x; INSERT INTO a VALUES (3, 'v', 3)")
    rig.execute("ALTER TABLE a ADD y text DEFAULT 'y'")
    async with rig.running():
        await settle(rig)
    assert [columns(change) for change in changes(rig)] == [
        ["id", "v", "n", "x"],
        ["id", "v", "n"],
        ["id", "v", "n", "y"],
    ]
    assert [change.fills for change in changes(rig)] == [{}, {}, {"y": "y"}]
