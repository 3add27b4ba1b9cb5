"""The proof of the publications on a real server: no change is passed over that the stream was not sent."""

from collections.abc import Iterator
from pathlib import Path
from random import Random

import anyio
import pytest

from agent.errors import PositionLostError
from agent.settings import SyncSettings
from agent.sources.postgres.server.catalog import read_schemas
from agent.sources.postgres.server.connection import connect
from capture.embedded import EmbeddedPostgres
from reactor.records.changefeed import SinkMode
from reactor.records.tables.schema_change import SchemaChangeKind, TableChange
from tests.integration.agent.sources.postgres.sync_rig import SyncRig, drop_slots, make_rig, wait_until
from tests.patience import patient

pytestmark = pytest.mark.sample(0.2)  # cases of a few causes each, on a real server

_SCHEMA = """
CREATE TABLE a (id int PRIMARY KEY, v text);
CREATE TABLE b (id int PRIMARY KEY, v text);
CREATE TABLE c (id int NOT NULL, k int NOT NULL, v text);
ALTER TABLE c REPLICA IDENTITY FULL;
CREATE UNIQUE INDEX c_key ON c (id);
"""


@pytest.fixture
def rig(postgres: EmbeddedPostgres, tmp_path: Path) -> Iterator[SyncRig]:
    rig = make_rig(postgres, tmp_path, _SCHEMA, ["a", "b", "c"])
    rig.settings = SyncSettings(progress_s=0.05)
    with connect(rig.uri) as connection:
        rig.first_schemas = read_schemas(connection, [table.table_id for table in rig.tables])
    yield rig
    drop_slots(rig)


def holds(rig: SyncRig) -> dict[str, TableChange]:
    return {change.table.name: change for record in rig.ddl() for change in record.holds if change.table}


@pytest.mark.sample(1.0)
async def test_a_dropped_table_goes_though_nothing_else_is_written(rig: SyncRig) -> None:
    """An idle server writes to its log four times a minute at most."""
    async with rig.running():
        rig.execute("INSERT INTO a VALUES (1)")
        await rig.wait_resolved()
        with anyio.fail_after(patient(8.0)):
            for number, table in enumerate("abc", 1):
                rig.execute(f"DROP TABLE {table}")
                await wait_until(lambda number=number: len(rig.ddl()) == number)  # type: ignore[misc]
    assert [change.kind for record in rig.ddl() for change in record.changes] == [SchemaChangeKind.DROP] * 3


@pytest.mark.sample(1.0)
async def test_a_table_joins_though_nothing_is_written(postgres: EmbeddedPostgres, tmp_path: Path) -> None:
    rig = make_rig(postgres, tmp_path, _SCHEMA, ["a"], publication="FOR ALL TABLES")
    rig.settings = SyncSettings(progress_s=0.05)
    async with rig.running():
        rig.execute("INSERT INTO a VALUES (1)")
        await rig.wait_resolved()
    rig.joining = frozenset({("public", "b")})
    async with rig.running(rig.unit("b")):
        with anyio.fail_after(patient(8.0)):
            await wait_until(lambda: bool(rig.ddl()))
    [joined] = [change for record in rig.ddl() for change in record.changes]
    assert (joined.kind, joined.table and joined.table.name) == (SchemaChangeKind.CREATE, "b")
    drop_slots(rig)


@pytest.mark.sample(1.0)
async def test_a_table_that_took_the_name_of_one_that_was_to_join_is_new(
    postgres: EmbeddedPostgres, tmp_path: Path
) -> None:
    """It was waited for without end: nothing publishes it."""
    rig = make_rig(postgres, tmp_path, _SCHEMA, ["a"], publication="FOR TABLE a, c")
    rig.settings = SyncSettings(progress_s=0.05)
    rig.rules = ("public.*",)
    rig.execute("INSERT INTO b VALUES (1)")
    rig.joining = frozenset({("public", "b"), ("public", "gone")})
    async with rig.running():
        rig.execute("INSERT INTO a VALUES (1)")
        with anyio.fail_after(patient(8.0)):
            await wait_until(lambda: bool(holds(rig)))
    assert [record.never_joined for record in rig.ddl() if record.never_joined] == [
        (("public", "b"), ("public", "gone"))
    ]
    assert holds(rig).keys() == {"b"}
    assert "public.b is in no publication of the changefeed" in holds(rig)["b"].reason
    drop_slots(rig)


#: each loses changes of b, and is over when anybody looks
_LOSSES = [
    "ALTER PUBLICATION {p} DROP TABLE b; INSERT INTO b VALUES (2); ALTER PUBLICATION {p} ADD TABLE b",
    "ALTER PUBLICATION {p} SET TABLE a, c; INSERT INTO b VALUES (2); ALTER PUBLICATION {p} SET TABLE a, b, c",
    "ALTER PUBLICATION {p} SET TABLE a, b WHERE (id < 2), c; INSERT INTO b VALUES (2); "
    "ALTER PUBLICATION {p} SET TABLE a, b, c",
    "ALTER PUBLICATION {p} SET TABLE a, b (id), c; INSERT INTO b VALUES (2); ALTER PUBLICATION {p} SET TABLE a, b, c",
    "ALTER PUBLICATION {p} DROP TABLE b; ALTER TABLE b SET UNLOGGED; INSERT INTO b VALUES (2)",
    "BEGIN; SAVEPOINT s; ALTER PUBLICATION {p} DROP TABLE b; RELEASE s; COMMIT; INSERT INTO b VALUES (2); "
    "BEGIN; SAVEPOINT s; ALTER PUBLICATION {p} ADD TABLE b; RELEASE s; COMMIT",
    "ALTER PUBLICATION {p} SET TABLE a, b WHERE (id < 2), c",
    "ALTER PUBLICATION {p} DROP TABLE b",
]


@pytest.mark.parametrize(
    ("loss", "is_running"), [(loss, False) for loss in _LOSSES] + [(_LOSSES[0], True), (_LOSSES[-1], True)]
)
async def test_a_table_that_its_publication_loses_is_held_from_the_last_proof_on(
    rig: SyncRig, loss: str, is_running: bool
) -> None:
    """However short that is, and whether somebody reads meanwhile."""
    async with rig.running():
        rig.execute("INSERT INTO a VALUES (1); INSERT INTO b VALUES (1)")
        at = await rig.wait_resolved()
        if is_running:
            for statement in loss.format(p=rig.names.publication).split("; "):
                rig.execute(statement)
            await rig.wait_resolved()
    if not is_running:
        rig.execute(loss.format(p=rig.names.publication))
    async with rig.running(rig.unit("b")):
        rig.execute("INSERT INTO a VALUES (3)")
        await rig.wait_resolved()
    held = holds(rig)
    assert held.keys() == {"b"}
    assert "public.b" in held["b"].reason
    [record] = rig.ddl()
    assert record.ts > at.resolved_ts
    async with rig.running(rig.unit("c")):  # nobody finds it twice
        rig.execute("INSERT INTO a VALUES (4)")
        await rig.wait_resolved()
    assert rig.ddl() == [record]


@pytest.mark.parametrize(
    "loss",
    [
        ("ALTER PUBLICATION mine DROP TABLES IN SCHEMA s", "INSERT INTO s.b VALUES (2)",
         "ALTER PUBLICATION mine ADD TABLES IN SCHEMA s"),
        ("ALTER TABLE s.b SET SCHEMA public", "INSERT INTO b VALUES (2)", "ALTER TABLE b SET SCHEMA s"),
    ],
    ids=["schema", "table"],
)  # fmt: skip
async def test_a_table_of_a_published_schema_is_held_where_that_was_gone_for_a_moment(
    postgres: EmbeddedPostgres, tmp_path: Path, loss: tuple[str, ...]
) -> None:
    tables = "CREATE SCHEMA s; CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE s.b (id int PRIMARY KEY)"
    rig = make_rig(postgres, tmp_path, tables, ["a", "s.b"], publication="FOR TABLE a, TABLES IN SCHEMA s")
    rig.settings = SyncSettings(progress_s=0.05)
    async with rig.running():
        rig.execute("INSERT INTO s.b VALUES (1)")
        for number in range(10, 13):  # until nothing in the catalog is new
            rig.execute(f"INSERT INTO a VALUES ({number})")
            at = await rig.wait_resolved()
        rig.execute("; ".join(loss))  # one transaction, so that nobody sees it in between
        rig.execute("INSERT INTO a VALUES (2)")
        await rig.wait_resolved()
    found = [(record.ts, change.table_id) for record in rig.ddl() for change in record.holds]
    assert {table for _, table in found} == {rig.tables[1].table_id}
    assert found[0][0] > at.resolved_ts
    assert [event[0] for event in rig.logged() if event[1] < found[0][0]].count(rig.tables[1].table_id) == 1
    drop_slots(rig)


@pytest.mark.parametrize(
    ("loss", "is_running"),
    [
        (loss, is_running)
        for is_running in (True, False)
        for loss in (
            "DROP PUBLICATION {p}; INSERT INTO a VALUES (2); CREATE PUBLICATION {p} FOR TABLE a, b, c",
            "ALTER PUBLICATION {p} SET (publish = 'insert'); "
            "ALTER PUBLICATION {p} SET (publish = 'insert, update, delete, truncate')",
            "DROP PUBLICATION {p}",
        )[: 1 if is_running else 3]
    ],
)
async def test_a_publication_that_is_another_one_is_a_lost_position(rig: SyncRig, loss: str, is_running: bool) -> None:
    async with rig.running():
        rig.execute("INSERT INTO a VALUES (1)")
        at = await rig.wait_resolved()
    unit = rig.unit("b")
    if not is_running:
        rig.execute(loss.format(p=rig.names.publication))
        with pytest.raises(PositionLostError, match=r"publication .* `weir changefeed resume --resync`"):
            await unit.run()
        return
    async with rig.ending(unit) as failures:
        await rig.wait_head(lambda head: head.epoch > at.epoch)
        rig.execute(loss.format(p=rig.names.publication))
        rig.execute("INSERT INTO a VALUES (3)")
    assert isinstance(failures[0], PositionLostError)
    assert rig.ddl() == []


@pytest.mark.parametrize(
    "identity",
    [
        "ALTER TABLE d ADD PRIMARY KEY (id)",
        "CREATE UNIQUE INDEX d_key ON d (id); ALTER TABLE d ADD PRIMARY KEY USING INDEX d_key",
        "ALTER TABLE d REPLICA IDENTITY FULL",
        "CREATE UNIQUE INDEX d_key ON d (id); ALTER TABLE d REPLICA IDENTITY USING INDEX d_key",
    ],
)
@pytest.mark.parametrize("is_running", [True, False])
async def test_a_table_that_can_be_updated_at_last_is_held(
    postgres: EmbeddedPostgres, tmp_path: Path, identity: str, is_running: bool
) -> None:
    """Its publication sends inserts only, as the server would have refused its updates otherwise."""
    rig = make_rig(postgres, tmp_path, f"{_SCHEMA}; CREATE TABLE d (id int NOT NULL, v text)", ["a", "d"])
    rig.settings = SyncSettings(progress_s=0.05)
    rig.sink_mode = SinkMode.CHANGELOG
    async with rig.running():
        rig.execute("INSERT INTO a VALUES (1); INSERT INTO d VALUES (1)")
        await rig.wait_resolved()
        assert holds(rig) == {}
        if is_running:
            rig.execute(identity)
            rig.execute("UPDATE d SET v = 'x'")
            await rig.wait_resolved()
    if not is_running:
        rig.execute(identity)
    async with rig.running(rig.unit("b")):
        rig.execute("UPDATE d SET v = 'y'")
        await rig.wait_resolved()
    held = holds(rig)
    assert held.keys() == {"d"}
    assert "only its inserts are sent" in held["d"].reason
    drop_slots(rig)


@pytest.mark.sample(1.0)
async def test_a_partitioned_table_has_an_identity_if_it_and_its_partitions_have_one(
    postgres: EmbeddedPostgres, tmp_path: Path
) -> None:
    """The next partition has none of its own, and the server would refuse its updates."""
    schema = (
        f"{_SCHEMA}; CREATE TABLE p (id int NOT NULL, v text) PARTITION BY RANGE (id); CREATE TABLE p1 (id int "
        "PRIMARY KEY, v text); ALTER TABLE p ATTACH PARTITION p1 FOR VALUES FROM (0) TO (10)"
    )
    rig = make_rig(postgres, tmp_path, schema, ["a", "p"])
    rig.settings = SyncSettings(progress_s=0.05)
    rig.sink_mode = SinkMode.CHANGELOG
    async with rig.running():
        rig.execute("INSERT INTO a VALUES (1); INSERT INTO p VALUES (1)")
        await rig.wait_resolved()
        rig.execute("CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (10) TO (20)")
        rig.execute("INSERT INTO p VALUES (11); UPDATE p SET v = 'x'")
        await rig.wait_resolved()
        assert holds(rig) == {}
        rig.execute("ALTER TABLE p2 ADD PRIMARY KEY (id); UPDATE p SET v = 'y'")
        await rig.wait_resolved()
        assert holds(rig) == {}
        rig.execute("ALTER TABLE p1 DROP CONSTRAINT p1_pkey; ALTER TABLE p2 DROP CONSTRAINT p2_pkey")
        rig.execute("ALTER TABLE p ADD PRIMARY KEY (id)")
        await rig.wait_resolved()
    assert holds(rig).keys() == {"p"}
    assert "only its inserts are sent" in holds(rig)["p"].reason
    drop_slots(rig)


async def test_what_concerns_others_or_nobody_holds_nobody(rig: SyncRig) -> None:
    p = rig.names.publication
    async with rig.running():
        rig.execute("INSERT INTO a VALUES (1); INSERT INTO b VALUES (1)")
        await rig.wait_resolved()
        for statement in (
            "CREATE TABLE n (id int PRIMARY KEY)",
            f"ALTER PUBLICATION {p} ADD TABLE n",
            f"ALTER PUBLICATION {p} SET TABLE a, b, c",
            "VACUUM FULL pg_publication_rel",
            "VACUUM FREEZE pg_publication",
            "VACUUM FULL b",
            "ALTER TABLE b ADD w int",
            "CREATE INDEX ON b (v)",
            "ANALYZE b",
            "TRUNCATE b",
            "REINDEX TABLE c",
            f"COMMENT ON PUBLICATION {p} IS 'x'",
            "ALTER TABLE c ADD w int",
        ):
            rig.execute(statement)
        rig.execute("INSERT INTO b VALUES (2)")
        await rig.wait_resolved()
    assert holds(rig) == {}


@pytest.mark.parametrize(
    "loss",
    [
        "DROP INDEX c_key; INSERT INTO c VALUES (1, 2), (1, 3); DELETE FROM c WHERE k > 1; "
        "CREATE UNIQUE INDEX c_key ON c (id)",
        "DROP INDEX c_key",
        "ALTER TABLE c ALTER id DROP NOT NULL; ALTER TABLE c ALTER id SET NOT NULL",
    ],
)
async def test_a_key_that_is_not_in_the_stream_is_missed_when_it_goes(rig: SyncRig, loss: str) -> None:
    """Where whole rows are sent the stream does not say what the key is."""
    async with rig.running():
        rig.execute("INSERT INTO c VALUES (1, 1)")
        await rig.wait_resolved()
        rig.execute(loss)
        await rig.wait_resolved()
    held = holds(rig)
    assert held.keys() == {"c"}
    assert "key (id)" in held["c"].reason


async def test_the_proof_is_of_after_the_position(rig: SyncRig) -> None:
    """What a table loses while it is read is held from before the loss on, and all rows of before are in the log."""
    async with rig.running():
        for round_ in range(20):
            rig.execute(f"INSERT INTO b VALUES ({round_})")
        rig.execute(f"ALTER PUBLICATION {rig.names.publication} DROP TABLE b")
        for round_ in range(20, 30):
            rig.execute(f"INSERT INTO b VALUES ({round_})")
        await rig.wait_resolved()
    [record] = rig.ddl()
    assert [change.kind for change in record.changes] == [SchemaChangeKind.HOLD]
    logged = [ts for table, ts, *_ in rig.logged() if table == rig.tables[1].table_id]
    assert len(logged) == 20


@pytest.mark.parametrize("seed", [1, 2])
async def test_whatever_is_done_to_a_publication_every_row_is_in_the_log_or_its_table_is_held(
    rig: SyncRig, seed: int
) -> None:
    """A random history; a table that nothing was done to is never held, and holds begin before what is lost."""
    random = Random(seed)
    p, names = rig.names.publication, ["a", "b"]
    published, filtered = {"a", "b"}, set[str]()
    touched, lost, sent = set[str](), set[str](), dict.fromkeys(names, 0)
    for round_ in range(4):
        async with rig.running(rig.unit(f"unit{round_}")):
            for step in range(12):
                name = random.choice(names[: 1 + round_ % 2])
                action = random.choice(["insert", "insert", "insert", "drop", "add", "filter", "other", "wait"])
                if action == "insert":
                    rig.execute(f"INSERT INTO {name} VALUES ({1000 + 100 * round_ + step})")
                    is_sent = name in published and name not in filtered
                    sent[name] += is_sent
                    lost |= set() if is_sent else {name}
                elif action == "drop" and name in published:
                    rig.execute(f"ALTER PUBLICATION {p} DROP TABLE {name}")
                    published.remove(name)
                    filtered.discard(name)
                    touched.add(name)
                elif action == "add" and name not in published:
                    where = random.choice(["", " WHERE (id < 5)"])
                    rig.execute(f"ALTER PUBLICATION {p} ADD TABLE {name}{where}")
                    published.add(name)
                    filtered |= {name} if where else set()
                elif action == "other":
                    rig.execute(f"CREATE TABLE o{round_}_{step} (id int PRIMARY KEY)")
                    rig.execute(f"ALTER PUBLICATION {p} ADD TABLE o{round_}_{step}")
                elif action == "wait":
                    await rig.wait_resolved()
            if round_ % 2:
                await rig.wait_resolved()
    async with rig.running(rig.unit("last")):
        await rig.wait_resolved()
    held = set(holds(rig))
    assert lost <= held <= touched
    ids = {record.name: record.table_id for record in rig.tables}
    for name in names:
        logged = [ts for table, ts, *_ in rig.logged() if table == ids[name]]
        assert len(logged) == sent[name]


async def test_the_proof_is_attached_to_the_head_and_written_when_it_changes(rig: SyncRig) -> None:
    """However many moves of the head rely on it; another table's changes are none."""
    rig.execute("CREATE TABLE other (id int)")
    async with rig.running():
        first = await rig.wait_resolved()
        for number in range(3):
            rig.execute(f"INSERT INTO a VALUES ({number}); ALTER TABLE other ADD c{number} int")
            moved = await rig.wait_resolved()
        rig.execute("ALTER TABLE b ADD w int")
        altered = await rig.wait_resolved()
    assert first.attachment == moved.attachment != ""
    assert altered.attachment not in ("", moved.attachment)
    assert altered.position == ""
    assert len(altered.encode()) < 500
