"""Tables that no publication sends, on a real server: each that the filter wants is held, as long as it is there."""

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
CREATE TABLE keyless (v text);
CREATE TABLE unwanted (id int PRIMARY KEY);
CREATE TABLE parts (id int PRIMARY KEY) PARTITION BY RANGE (id);
CREATE TABLE parts_0 PARTITION OF parts FOR VALUES FROM (0) TO (10);
CREATE SCHEMA other;
CREATE TABLE other.moved (id int PRIMARY KEY);
"""
_NEW = "CREATE TABLE n (id int PRIMARY KEY)"
_ROOT = "CREATE TABLE n (id int PRIMARY KEY) PARTITION BY RANGE (id)"
_TOP = "CREATE TABLE top (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)"
_LEAF = "CREATE TABLE n_0 PARTITION OF n FOR VALUES FROM (0) TO (10)"
_PUBLISH = "ALTER PUBLICATION {publication} ADD TABLE n"
#: statements, and the names of the tables that are held in the end
_STORIES: dict[str, tuple[tuple[str, ...], set[str]]] = {
    "a new one": ((_NEW,), {"n"}),
    "a new one with rows": ((_NEW, "INSERT INTO n VALUES (1)"), {"n"}),
    "made from a query": (("CREATE TABLE n AS SELECT 1 AS id",), {"n"}),
    "it comes and goes": ((_NEW, "DROP TABLE n"), set()),
    "it comes and goes in one transaction": ((f"BEGIN; {_NEW}; DROP TABLE n; COMMIT",), set()),
    "it is dropped and created again": (("DROP TABLE t", "CREATE TABLE t (id int PRIMARY KEY)"), {"t"}),
    "it takes the place of another one": ((_NEW, "ALTER TABLE t RENAME TO t_old", "ALTER TABLE n RENAME TO t"), {"t"}),
    "it is renamed": ((_NEW, "ALTER TABLE n RENAME TO m"), {"m"}),
    "it leaves the filter": ((_NEW, "ALTER TABLE n RENAME TO unwanted_n"), set()),
    "an old one is renamed into the filter": (("ALTER TABLE unwanted RENAME TO wanted",), {"wanted"}),
    "an old one moves into the filter": (("ALTER TABLE other.moved SET SCHEMA public",), {"moved"}),
    "an unwanted one": (("CREATE TABLE unwanted_n (id int PRIMARY KEY)",), set()),
    "a temporary one": (("CREATE TEMPORARY TABLE n (id int PRIMARY KEY)",), set()),
    "an UNLOGGED one": (("CREATE UNLOGGED TABLE n (id int PRIMARY KEY)",), set()),
    "an UNLOGGED one is LOGGED": (("CREATE UNLOGGED TABLE n (id int PRIMARY KEY)", "ALTER TABLE n SET LOGGED"), {"n"}),
    "a view": (("CREATE VIEW n AS SELECT 1 AS id",), set()),
    "published by the transaction that creates it": ((f"BEGIN; {_NEW}; {_PUBLISH}; COMMIT",), set()),
    "a root without partitions": ((_ROOT,), set()),
    "a root with a partition": ((_ROOT, _LEAF), {"n"}),
    "a table is attached to a new root": (
        (_ROOT, _NEW.replace(" n ", " n_0 "), "ALTER TABLE n ATTACH PARTITION n_0 DEFAULT"),
        {"n"},
    ),
    "a partition of a published root": (
        ("CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (10) TO (20)",),
        set(),
    ),
    "it becomes a partition": ((_NEW, "ALTER TABLE parts ATTACH PARTITION n FOR VALUES FROM (10) TO (20)"), set()),
    "a root becomes a partition of another": (
        (_TOP, "ALTER TABLE top ATTACH PARTITION t DEFAULT"),
        set(),
    ),
    "a partition beside it": (
        (
            _TOP,
            "ALTER TABLE top ATTACH PARTITION t DEFAULT",
            "CREATE TABLE top_1 PARTITION OF top FOR VALUES FROM (5) TO (6)",
        ),
        {"top_1"},
    ),
    "a detached partition": (
        ("INSERT INTO parts VALUES (1)", "ALTER TABLE parts DETACH PARTITION parts_0"),
        {"parts", "parts_0"},
    ),
    "a detached partition that never had rows": (("ALTER TABLE parts DETACH PARTITION parts_0",), {"parts_0"}),
    "the one without a key gets one": (("ALTER TABLE keyless ADD id int PRIMARY KEY",), {"keyless"}),
    "an index of a known one": (("CREATE INDEX ON a (v)", "VACUUM a"), set()),
}


@pytest.fixture
def rig(postgres: EmbeddedPostgres, tmp_path: Path) -> Iterator[SyncRig]:
    tables = "FOR TABLE a, t, parts WITH (publish_via_partition_root = true)"
    rig = make_rig(postgres, tmp_path, _SCHEMA, ["a", "t", "parts"], publication=tables)
    rig.settings = SyncSettings(progress_s=0.05)
    rig.sink_mode = SinkMode.UPSERT
    rig.rules = ("public.*", "!public.unwanted*")
    with connect(rig.uri) as connection:
        rig.first_schemas = read_schemas(connection, [table.table_id for table in rig.tables])
    yield rig
    drop_slots(rig)


@pytest.mark.sample(0.12)
@pytest.mark.parametrize("is_running", [True, False])
@pytest.mark.parametrize("story", _STORIES)
async def test_a_wanted_table_that_is_not_sent_is_held_while_it_is_there(
    rig: SyncRig, story: str, is_running: bool
) -> None:
    statements, expected = _STORIES[story]
    statements = tuple(statement.replace("{publication}", "mine") for statement in statements)
    async with rig.running():
        rig.execute("INSERT INTO a VALUES (1)")
        await rig.wait_resolved()
        for statement in statements if is_running else ():
            rig.execute(statement)
            await rig.wait_resolved()
        rig.execute("INSERT INTO a VALUES (2)")
        await rig.wait_resolved()
    for statement in () if is_running else statements:
        rig.execute(statement)
    async with rig.running(rig.unit("b")):
        for number in (3, 4, 5):
            rig.execute(f"INSERT INTO a VALUES ({number})")
            await rig.wait_resolved()
    assert _held(rig) == expected


def _held(rig: SyncRig) -> set[str]:
    held: dict[int, str] = {}
    for record in rig.ddl():
        for change in record.changes:
            if change.is_hold and change.table is not None:
                held[change.table_id] = change.table.name
            else:
                held.pop(change.table_id, None)
    return set(held.values())
