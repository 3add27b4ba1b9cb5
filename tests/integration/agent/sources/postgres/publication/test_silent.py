"""Silent tables on a real server: a table that takes another one's name brings rows that no stream has."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.settings import SyncSettings
from agent.sources.postgres.server.catalog import read_schemas
from agent.sources.postgres.server.connection import connect
from capture.embedded import EmbeddedPostgres
from reactor.records.changefeed import SinkMode
from tests.integration.agent.sources.postgres.sync_rig import SyncRig, drop_slots, make_rig

_SCHEMA = """
CREATE TABLE a (id int PRIMARY KEY, v text);
CREATE TABLE t (id int PRIMARY KEY, v text);
INSERT INTO t VALUES (1, 'old');
CREATE TABLE keyless (v text);
INSERT INTO keyless VALUES ('left out from the beginning');
CREATE TABLE parts (id int PRIMARY KEY) PARTITION BY RANGE (id);
CREATE TABLE parts_0 PARTITION OF parts FOR VALUES FROM (0) TO (10);
INSERT INTO parts VALUES (1);
"""
_NEXT = "CREATE TABLE t_next (LIKE t INCLUDING ALL)"
_UNLOGGED = "CREATE UNLOGGED TABLE t_next (id int PRIMARY KEY)"
_LATE = "CREATE UNLOGGED TABLE late (id int PRIMARY KEY)"
_ROW = "INSERT INTO t_next VALUES (1, 'new')"
_SWAP = "BEGIN; ALTER TABLE t RENAME TO t_old; ALTER TABLE t_next RENAME TO t; COMMIT"
_REPLACE = "BEGIN; DROP TABLE t; ALTER TABLE t_next RENAME TO t; COMMIT"
#: statements, and whether the new table has rows that no stream has
_STORIES = {
    "swapped": ((_NEXT, _ROW, _SWAP), True),
    "replaced": ((_NEXT, _ROW, _REPLACE), True),
    "swapped in one transaction": ((f"{_NEXT}; {_ROW}; {_SWAP}",), True),
    "swapped, then written": ((_NEXT, _ROW, _SWAP, "INSERT INTO t VALUES (2, 'x')"), True),
    "swapped while empty": ((_NEXT, _SWAP), False),
    "swapped while empty, then written": ((_NEXT, _SWAP, "INSERT INTO t VALUES (2, 'x')"), False),
    "made LOGGED": ((_UNLOGGED, "INSERT INTO t_next VALUES (1)", "ALTER TABLE t_next SET LOGGED", _REPLACE), True),
    "renamed": ((_NEXT, _ROW, "ALTER TABLE t_next RENAME TO late"), True),
    "renamed by a transaction that takes long": (
        (_NEXT, _ROW, "BEGIN; ALTER TABLE t_next RENAME TO late; SAVEPOINT s; ALTER TABLE a ADD w int; COMMIT"),
        True,
    ),
    "renamed, then emptied": ((_NEXT, _ROW, "ALTER TABLE t_next RENAME TO late", "TRUNCATE late"), False),
    "renamed while empty": ((_NEXT, "ALTER TABLE t_next RENAME TO late"), False),
    "LOGGED by itself": ((_LATE, "INSERT INTO late VALUES (1)", "ALTER TABLE late SET LOGGED"), True),
    "LOGGED while empty": ((_LATE, "ALTER TABLE late SET LOGGED", "INSERT INTO late VALUES (1)"), False),
    "a new one": (("CREATE TABLE late (id int PRIMARY KEY)", "INSERT INTO late VALUES (1)"), False),
    "a new one, filled at once": (
        ("BEGIN; CREATE TABLE late (id int PRIMARY KEY); INSERT INTO late VALUES (1); COMMIT",),
        False,
    ),
    "another one is altered": (("ALTER TABLE a ADD w int",), False),
    "an unwanted one": ((_NEXT, _ROW, "ALTER TABLE a ADD w int"), False),
}


@pytest.fixture(params=[SinkMode.UPSERT, SinkMode.CHANGELOG])
def rig(postgres: EmbeddedPostgres, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[SyncRig]:
    is_changelog = request.param is SinkMode.CHANGELOG
    # which takes tables without a key
    known = ["a", "t", "parts", *(["keyless"] if is_changelog else [])]
    via_root = "FOR ALL TABLES WITH (publish_via_partition_root = true)"
    rig = make_rig(postgres, tmp_path, _SCHEMA, known, publication=via_root)
    rig.settings = SyncSettings(progress_s=0.05)
    rig.sink_mode = request.param
    rig.rules = ("public.a", "public.t", "public.keyless", "public.parts*", "public.late")
    with connect(rig.uri) as connection:
        rig.first_schemas = read_schemas(connection, [table.table_id for table in rig.tables])
    yield rig
    drop_slots(rig)


@pytest.mark.sample(0.05)
@pytest.mark.parametrize("is_running", [True, False])
@pytest.mark.parametrize("story", _STORIES)
async def test_a_table_that_takes_a_wanted_name_is_held_if_it_has_rows(
    rig: SyncRig, story: str, is_running: bool
) -> None:
    """Also where nobody writes to it afterwards, and the stream never names it."""
    statements, has_rows = _STORIES[story]
    old = rig.tables[1].table_id
    async with rig.running():
        rig.execute("INSERT INTO a VALUES (1)")
        await rig.wait_resolved()
        for statement in statements if is_running else ():
            rig.execute(statement)
        if is_running:
            await rig.wait_resolved()
    for statement in () if is_running else statements:
        rig.execute(statement)
    async with rig.running(rig.unit("b")):
        await rig.wait_resolved()
        rig.execute("INSERT INTO a VALUES (2)")
        await rig.wait_resolved()
    held = {change.table.table_id: change.table.name for one in rig.ddl() for change in one.holds if change.table}
    assert set(held.values()) <= {"t", "late"}
    assert len(held) == has_rows
    assert old not in held
