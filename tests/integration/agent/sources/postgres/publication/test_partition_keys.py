"""Partitions with a replica identity that is not that of their root, on a real server."""

from pathlib import Path

import pytest

from agent.errors import TableIneligibleError
from agent.sources.postgres.preflight import check_source
from agent.sources.postgres.server.catalog import read_schemas
from agent.sources.postgres.server.connection import connect
from capture.embedded import EmbeddedPostgres
from reactor.records.changefeed import SinkMode
from reactor.records.tables.schema_change import SchemaChangeKind
from tests.integration.agent.sources.postgres.sync_rig import SyncRig, drop_slots, make_rig

_SCHEMA = """
CREATE TABLE r (id int, k int, o int NOT NULL, PRIMARY KEY (id, k), UNIQUE (o, k)) PARTITION BY LIST (k);
CREATE TABLE r1 PARTITION OF r FOR VALUES IN (1);
CREATE TABLE r2 PARTITION OF r FOR VALUES IN (2);
CREATE TABLE a (id int PRIMARY KEY);
CREATE TABLE b (k int PRIMARY KEY);
"""
#: where the server leaves the table's key out of updates or deletes
_OTHERS = {
    "of a partition": "ALTER TABLE r1 REPLICA IDENTITY USING INDEX r1_o_k_key",
    "of the root": "ALTER TABLE r REPLICA IDENTITY USING INDEX r_o_k_key; ALTER TABLE r2 REPLICA IDENTITY FULL",
}
_SAME = {
    "whole rows": "ALTER TABLE r1 REPLICA IDENTITY FULL",
    "of both": "ALTER TABLE r REPLICA IDENTITY USING INDEX r_o_k_key; "
    "ALTER TABLE r1 REPLICA IDENTITY USING INDEX r1_o_k_key; ALTER TABLE r2 REPLICA IDENTITY USING INDEX r2_o_k_key",
    "whole rows of the root": "ALTER TABLE r REPLICA IDENTITY FULL",
}


def make(postgres: EmbeddedPostgres, path: Path, identity: str = "") -> SyncRig:
    rig = make_rig(postgres, path, f"{_SCHEMA}; {identity}", ["r", "a", "b"])
    with connect(rig.uri) as connection:
        rig.first_schemas = read_schemas(connection, [table.table_id for table in rig.tables])
    return rig


def reasons(rig: SyncRig) -> dict[str, str]:
    changes = [change for record in rig.ddl() for change in record.changes]
    return {change.table.name: change.reason for change in changes if change.is_hold and change.table}


@pytest.mark.sample(0.25)
@pytest.mark.parametrize("identity", _OTHERS)
async def test_another_identity_holds_the_table(postgres: EmbeddedPostgres, tmp_path: Path, identity: str) -> None:
    """Its deletes and changes of keys left the old rows at the sink."""
    rig = make(postgres, tmp_path)
    async with rig.running():
        rig.execute("INSERT INTO r VALUES (1, 1, 1), (2, 1, 2); INSERT INTO a VALUES (1)")
        await rig.wait_resolved()
        assert reasons(rig) == {}
        rig.execute(_OTHERS[identity])
        # the server declares the root again with a partition that it has not declared, or that has been altered
        rig.execute("INSERT INTO r VALUES (3, 2, 3); DELETE FROM r WHERE id = 1; TRUNCATE a, b")
        await rig.wait_resolved()
    assert reasons(rig).keys() == {"r"}
    assert "ALTER TABLE public.r1 REPLICA IDENTITY FULL" in reasons(rig)["r"]
    drop_slots(rig)


@pytest.mark.sample(0.15)
@pytest.mark.parametrize("identity", _SAME)
async def test_identities_with_the_key_of_the_table_hold_nothing(
    postgres: EmbeddedPostgres, tmp_path: Path, identity: str
) -> None:
    rig = make(postgres, tmp_path, _SAME[identity])
    async with rig.running():
        rig.execute("INSERT INTO r VALUES (1, 1, 1), (2, 1, 2), (3, 2, 3); UPDATE r SET o = o + 9; DELETE FROM r")
        rig.execute("TRUNCATE a, b; TRUNCATE b, a, r")
        await rig.wait_resolved()
    assert rig.ddl() == []
    drop_slots(rig)


async def test_a_new_primary_key_is_one_of_all_partitions(postgres: EmbeddedPostgres, tmp_path: Path) -> None:
    """The table is declared with it before a partition that has no row yet."""
    rig = make(postgres, tmp_path)
    async with rig.running():
        rig.execute("INSERT INTO r VALUES (1, 1, 1), (2, 2, 2)")
        await rig.wait_resolved()
        rig.execute("ALTER TABLE r DROP CONSTRAINT r_pkey, ADD PRIMARY KEY (o, k)")
        for k in (2, 1):
            rig.execute(f"UPDATE r SET id = 9 WHERE k = {k}; DELETE FROM r WHERE k = {k}")
            await rig.wait_resolved()
    assert reasons(rig) == {}
    drop_slots(rig)


async def test_a_new_table_with_another_identity_is_not_taken_in(postgres: EmbeddedPostgres, tmp_path: Path) -> None:
    rig = make_rig(postgres, tmp_path, "CREATE TABLE a (id int PRIMARY KEY)", ["a"], publication=_ALL)
    rig.rules = ("public.*",)
    async with rig.running():
        rig.execute(f"BEGIN; {_SCHEMA.partition('CREATE TABLE a')[0]}; {_OTHERS['of a partition']}; COMMIT")
        rig.execute("INSERT INTO r VALUES (1, 1, 1); DELETE FROM r")
        await rig.wait_resolved()
    assert [change.kind for record in rig.ddl() for change in record.changes] == [SchemaChangeKind.HOLD]
    assert "with its own key" in reasons(rig)["r"]
    drop_slots(rig)


_ALL = "FOR ALL TABLES WITH (publish_via_partition_root)"


@pytest.mark.parametrize("identity", _OTHERS)
def test_another_identity_is_refused(postgres: EmbeddedPostgres, tmp_path: Path, identity: str) -> None:
    rig = make(postgres, tmp_path, _OTHERS[identity])
    with pytest.raises(TableIneligibleError, match=r"partition public\.r1 of table public\.r .* with its own key"):
        check_source(rig.uri, ["*.*"], force_replicate=False, sink_mode=SinkMode.UPSERT)
    rig.execute("; ".join(f"ALTER TABLE {table} REPLICA IDENTITY FULL" for table in ("r1", "r2")))
    check_source(rig.uri, ["*.*"], force_replicate=False, sink_mode=SinkMode.UPSERT)
    drop_slots(rig)
