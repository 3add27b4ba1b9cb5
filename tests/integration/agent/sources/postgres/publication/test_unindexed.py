"""Partitions without an index on a real server: emptied and filled again by the transaction that made them."""

from pathlib import Path

import pytest

from capture.embedded import EmbeddedPostgres
from reactor.records.tables.schema_change import SchemaChangeKind
from tests.integration.agent.sources.postgres.publication.test_partitioned import named
from tests.integration.agent.sources.postgres.sync_rig import drop_slots, make_rig

_P0 = "CREATE TABLE p0 PARTITION OF p FOR VALUES FROM (0) TO (10)"
_P0_ROW = "INSERT INTO p VALUES (1)"
_P0_ATTACH = "CREATE TABLE p0 (LIKE p); ALTER TABLE p ATTACH PARTITION p0 FOR VALUES FROM (0) TO (10)"
_OTHER = "INSERT INTO p VALUES (91)"
#: statements of one transaction, and whether it empties a partition that it has filled
_UNINDEXED = {
    "created and filled": (f"{_P0}; {_P0_ROW}", False),
    "filled behind the whole table's": (f"TRUNCATE p; {_OTHER}; {_OTHER}", False),
    "created, emptied and filled": (f"{_P0}; {_P0_ROW}; TRUNCATE p0; {_P0_ROW}", True),
    "granted in between": (f"{_P0}; {_P0_ROW}; GRANT SELECT ON p0 TO PUBLIC; TRUNCATE p0; {_P0_ROW}", True),
    "attached, emptied and filled": (f"{_P0_ATTACH}; {_P0_ROW}; TRUNCATE p0; {_P0_ROW}", True),
    "emptied behind the whole table": (f"TRUNCATE p; {_OTHER}; TRUNCATE p9; {_OTHER}", True),
}


@pytest.mark.sample(0.2)
@pytest.mark.parametrize("type", ["int", "text"])
@pytest.mark.parametrize("case", _UNINDEXED)
async def test_by_root_a_partition_without_an_index_that_is_emptied_at_once_holds_the_root(
    postgres: EmbeddedPostgres, tmp_path: Path, case: str, type: str
) -> None:
    """The server declares it once only. With a column that may be long it has a TOAST table."""
    statements, is_emptied = _UNINDEXED[case]
    schema = (
        f"CREATE TABLE p (id int, v {type}) PARTITION BY RANGE (id); "
        "CREATE TABLE p9 PARTITION OF p FOR VALUES FROM (90) TO (99); INSERT INTO p VALUES (92)"
    )
    rig = make_rig(postgres, tmp_path, schema, ["p"], publication="FOR TABLE p WITH (publish_via_partition_root)")
    rig.execute(f"BEGIN; {statements}; COMMIT")
    async with rig.running():
        await rig.wait_resolved()
    assert [kind for _, kind in named(rig)] == ([SchemaChangeKind.HOLD] if is_emptied else [])
    drop_slots(rig)
