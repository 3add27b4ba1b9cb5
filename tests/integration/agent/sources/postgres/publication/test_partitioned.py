"""Partitioned tables on a real server: by root or by leaf, and what comes and goes with their partitions."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.settings import SyncSettings
from agent.sources.postgres.server.catalog import read_schemas
from agent.sources.postgres.server.connection import connect
from capture.embedded import EmbeddedPostgres
from reactor.records.changefeed import SchemaChangeKind, TableChange
from tests.integration.agent.sources.postgres.sync_rig import SyncRig, drop_slots, make_rig

_SCHEMA = """
CREATE TABLE r (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);
CREATE TABLE r0 PARTITION OF r FOR VALUES FROM (0) TO (10);
CREATE TABLE r1 (v text, gone int, id int NOT NULL);
ALTER TABLE r1 DROP gone;
ALTER TABLE r ATTACH PARTITION r1 FOR VALUES FROM (10) TO (20);
CREATE TABLE r2 PARTITION OF r FOR VALUES FROM (20) TO (40) PARTITION BY RANGE (id);
CREATE TABLE r20 PARTITION OF r2 FOR VALUES FROM (20) TO (30);
CREATE TABLE rest PARTITION OF r DEFAULT;
CREATE TABLE a (id int PRIMARY KEY, v text);
"""
_LEAVES = ["r0", "r1", "r20", "rest"]


def make(postgres: EmbeddedPostgres, path: Path, tables: list[str], publication: str = "") -> SyncRig:
    rig = make_rig(postgres, path, _SCHEMA, tables, publication=publication)
    rig.settings = SyncSettings(progress_s=0.05)
    rig.rules = ("public.*",)
    with connect(rig.uri) as connection:
        rig.first_schemas = read_schemas(connection, [table.table_id for table in rig.tables])
    return rig


@pytest.fixture
def by_root(postgres: EmbeddedPostgres, tmp_path: Path) -> Iterator[SyncRig]:
    """As a changefeed makes it by itself."""
    rig = make(postgres, tmp_path, ["r", "a"])
    yield rig
    drop_slots(rig)


@pytest.fixture
def by_leaf(postgres: EmbeddedPostgres, tmp_path: Path) -> Iterator[SyncRig]:
    rig = make(postgres, tmp_path, [*_LEAVES, "a"], "FOR TABLE r, a")
    yield rig
    drop_slots(rig)


def changes(rig: SyncRig) -> list[TableChange]:
    return [change for record in rig.ddl() for change in record.changes]


def named(rig: SyncRig) -> list[tuple[str, SchemaChangeKind]]:
    return [(change.table.name if change.table else "", change.kind) for change in changes(rig)]


_ROWS = (
    "INSERT INTO r VALUES (1, 'a'), (11, 'b'), (21, 'c'), (99, 'd')",
    "UPDATE r SET v = 'x'",
    "UPDATE r SET id = id + 11 WHERE id = 1",
    "DELETE FROM r WHERE id = 21",
    "INSERT INTO r20 VALUES (22, 'e')",
)


async def test_by_root_all_rows_are_the_roots(by_root: SyncRig) -> None:
    async with by_root.running():
        for statement in (*_ROWS[:2], "UPDATE r SET id = 2 WHERE id = 11", *_ROWS[3:], "TRUNCATE r"):
            by_root.execute(statement)
        by_root.execute("CREATE TABLE r21 PARTITION OF r2 FOR VALUES FROM (30) TO (40)")
        by_root.execute("INSERT INTO r VALUES (31, 'f')")
        await by_root.wait_resolved()
    assert changes(by_root) == []
    assert {table for table, *_ in by_root.logged()} == {by_root.tables[0].table_id}
    assert by_root.logged() == by_root.expected()


_LOSSES = {
    "detach": "ALTER TABLE r DETACH PARTITION r0",
    "drop": "DROP TABLE r1",
    "truncate": "TRUNCATE r20",
    "attach": "CREATE TABLE x (id int NOT NULL, v text); INSERT INTO x VALUES (35, 'x'); "
    "ALTER TABLE r2 ATTACH PARTITION x FOR VALUES FROM (30) TO (40)",
    "detach and attach": "ALTER TABLE r DETACH PARTITION r0; INSERT INTO r0 VALUES (5, 'x'); "
    "ALTER TABLE r ATTACH PARTITION r0 FOR VALUES FROM (0) TO (10)",
    "attach in its transaction": "BEGIN; CREATE TABLE x (id int NOT NULL, v text); INSERT INTO x VALUES (35, 'x'); "
    "ALTER TABLE r2 ATTACH PARTITION x FOR VALUES FROM (30) TO (40); COMMIT",
}


@pytest.mark.parametrize("loss", _LOSSES)
async def test_by_root_rows_that_come_or_go_with_a_partition_hold_the_root(by_root: SyncRig, loss: str) -> None:
    """They are in no stream."""
    async with by_root.running():
        by_root.execute(_ROWS[0])
        await by_root.wait_resolved()
        by_root.execute(_LOSSES[loss])
        by_root.execute("INSERT INTO a VALUES (1)")
        await by_root.wait_resolved()
    assert named(by_root) == [("r", SchemaChangeKind.HOLD)]


async def test_by_root_what_takes_no_rows_along_holds_nothing(by_root: SyncRig) -> None:
    async with by_root.running():
        by_root.execute(_ROWS[0])
        await by_root.wait_resolved()
        for statement in (
            "VACUUM FULL r0",
            "ALTER TABLE r ADD w int",
            "CREATE INDEX ON r (v)",
            "CREATE TABLE x (id int NOT NULL, v text, w int)",
            "ALTER TABLE r2 ATTACH PARTITION x FOR VALUES FROM (30) TO (40)",
            "INSERT INTO r VALUES (31, 'y')",
            "TRUNCATE r",
            "INSERT INTO r VALUES (1, 'y')",
            "TRUNCATE r, a",
        ):
            by_root.execute(statement)
            await by_root.wait_resolved()
    assert [kind for _, kind in named(by_root)] == [SchemaChangeKind.ALTER]


async def test_by_leaf_each_partition_is_a_table(by_leaf: SyncRig) -> None:
    async with by_leaf.running():
        for statement in _ROWS:
            by_leaf.execute(statement)
        await by_leaf.wait_resolved()
        by_leaf.execute("CREATE TABLE r21 PARTITION OF r2 FOR VALUES FROM (30) TO (40)")
        by_leaf.execute("INSERT INTO r VALUES (31, 'f')")
        by_leaf.execute("TRUNCATE r20")
        await by_leaf.wait_resolved()
        by_leaf.execute("DROP TABLE r1")
        await by_leaf.wait_resolved()
        await by_leaf.wait_resolved()
    assert named(by_leaf) == [("r21", SchemaChangeKind.CREATE), ("", SchemaChangeKind.DROP)]


async def test_by_leaf_a_partition_that_leaves_is_held_and_one_that_comes_with_rows_too(by_leaf: SyncRig) -> None:
    async with by_leaf.running():
        by_leaf.execute(_ROWS[0])
        await by_leaf.wait_resolved()
        by_leaf.execute("ALTER TABLE r DETACH PARTITION r0")
        by_leaf.execute(_LOSSES["attach"])
        by_leaf.execute("INSERT INTO r VALUES (36, 'z')")
        await by_leaf.wait_resolved()
    assert sorted(named(by_leaf)) == [("r0", SchemaChangeKind.HOLD), ("x", SchemaChangeKind.HOLD)]


@pytest.mark.parametrize("via_root", [True, False])
async def test_for_all_tables_a_new_partitioned_table_comes_as_the_publication_sends_it(
    postgres: EmbeddedPostgres, tmp_path: Path, via_root: bool
) -> None:
    tables = ["r", "a"] if via_root else [*_LEAVES, "a"]
    rig = make(postgres, tmp_path, tables, f"FOR ALL TABLES WITH (publish_via_partition_root = {via_root})")
    async with rig.running():
        for statement in _ROWS:
            rig.execute(statement)
        rig.execute("CREATE TABLE n (id int PRIMARY KEY) PARTITION BY RANGE (id)")
        rig.execute("CREATE TABLE n0 PARTITION OF n FOR VALUES FROM (0) TO (10)")
        rig.execute("INSERT INTO n VALUES (1)")
        await rig.wait_resolved()
    assert named(rig) == [("n" if via_root else "n0", SchemaChangeKind.CREATE)]
    drop_slots(rig)
