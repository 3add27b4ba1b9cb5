"""Partitioned tables on a real server: by root or by leaf, and what comes and goes with their partitions."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.settings import SyncSettings
from agent.sources.postgres.server.catalog import read_schemas
from agent.sources.postgres.server.connection import Connection, connect
from capture.embedded import EmbeddedPostgres
from reactor.records.tables.held import PARTITION_ROWS
from reactor.records.tables.schema_change import SchemaChangeKind, TableChange
from tests.integration.agent.sources.postgres.sync_rig import SyncRig, drop_slots, make_rig, wait_until

pytestmark = pytest.mark.sample(0.1)

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


_BECOME_PARTITION = "ALTER TABLE r ATTACH PARTITION a FOR VALUES FROM (40) TO (50)"
_CEASE = "ALTER TABLE r DETACH PARTITION a"
_GUESTS = {
    "insert": "INSERT INTO r VALUES (45, 'q')",
    "update": "UPDATE r SET v = 'q' WHERE id = 41",
    "delete": "DELETE FROM r WHERE id = 41",
    "truncate and insert": "TRUNCATE a; INSERT INTO r VALUES (45, 'q')",
    "truncate": "TRUNCATE a",
    "truncate of the root": "TRUNCATE r",
}


@pytest.mark.sample(0.25)
@pytest.mark.parametrize("is_whole", [True, False], ids=["in one transaction", "in several"])
@pytest.mark.parametrize("change", _GUESTS)
async def test_a_table_that_is_a_partition_for_a_while_is_copied(by_root: SyncRig, change: str, is_whole: bool) -> None:
    """Its rows of that time were sent as those of the root."""
    steps = (_BECOME_PARTITION, *_GUESTS[change].split("; "), _CEASE)
    async with by_root.running():
        by_root.execute("INSERT INTO a VALUES (41, 'y')")
        await by_root.wait_resolved()
        for statement in [f"BEGIN; {'; '.join(steps)}; COMMIT"] if is_whole else steps:
            by_root.execute(statement)
        by_root.execute("INSERT INTO a VALUES (46, 'z')")
        await by_root.wait_resolved()
    held = {change.table.name: change.code for change in changes(by_root) if change.table}
    assert held["a"] == PARTITION_ROWS


@pytest.mark.sample(1.0)
async def test_a_partition_without_rows_for_a_while_flows(by_root: SyncRig) -> None:
    async with by_root.running():
        by_root.execute("INSERT INTO a VALUES (41, 'y')")
        await by_root.wait_resolved()
        by_root.execute(f"BEGIN; {_BECOME_PARTITION}; INSERT INTO r VALUES (1, 'a'); {_CEASE}; COMMIT")
        by_root.execute("INSERT INTO a VALUES (46, 'z')")
        await by_root.wait_resolved()
    assert changes(by_root) == []


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


async def follow(rig: SyncRig, statements: str) -> None:
    """Execute them behind rows that the stream has read, and let it read on."""
    async with rig.running():
        rig.execute(_ROWS[0])
        await rig.wait_resolved()
        rig.execute(statements)
        rig.execute("INSERT INTO a VALUES (1)")
        await rig.wait_resolved()


@pytest.mark.sample(0.1)
@pytest.mark.parametrize("loss", _LOSSES)
async def test_by_root_rows_that_come_or_go_with_a_partition_hold_the_root(by_root: SyncRig, loss: str) -> None:
    """They are in no stream."""
    by_root.rules = ("public.r", "public.a")
    await follow(by_root, _LOSSES[loss])
    assert named(by_root) == [("r", SchemaChangeKind.HOLD)]
    assert [change.code for change in changes(by_root)] == [PARTITION_ROWS], "which has it copied"


async def test_by_root_the_copy_can_be_left_to_an_operator(by_root: SyncRig) -> None:
    by_root.source = {"partition_rows": "hold"}
    async with by_root.running():
        by_root.execute("INSERT INTO r VALUES (1, 'a')")
        await by_root.wait_resolved()
        by_root.execute("DROP TABLE r0; INSERT INTO r VALUES (98, 'y')")
        await by_root.wait_resolved()
    assert [(change.kind, change.code) for change in changes(by_root)] == [(SchemaChangeKind.HOLD, "")]
    assert "it is copied again by itself" not in changes(by_root)[0].reason


@pytest.mark.parametrize("loss", _LOSSES)
async def test_by_root_rows_that_go_may_stay_in_the_sink(by_root: SyncRig, loss: str) -> None:
    """Those that come with a partition are in no stream all the same."""
    by_root.ignored = ("drop table partition", "truncate table partition")
    by_root.rules = ("public.r", "public.a")
    await follow(by_root, _LOSSES[loss])
    assert len(changes(by_root)) == ("attach" in loss)


@pytest.mark.parametrize(
    ("ignored", "loss", "held"),
    [
        ("drop table partition", "TRUNCATE r20", 1),
        ("truncate table partition", "DROP TABLE r1", 1),
        (
            "drop table partition",
            "CREATE TABLE r21 PARTITION OF r2 FOR VALUES FROM (30) TO (40); "
            "INSERT INTO r VALUES (31, 'x'); DROP TABLE r21",
            0,
        ),
        (
            "truncate table partition",
            "CREATE TABLE r21 PARTITION OF r2 FOR VALUES FROM (30) TO (40); "
            "INSERT INTO r VALUES (31, 'x'); TRUNCATE r21",
            0,
        ),
        (
            "truncate table partition",
            "BEGIN; CREATE TABLE r21 PARTITION OF r2 FOR VALUES FROM (30) TO (40); "
            "INSERT INTO r VALUES (31, 'x'); TRUNCATE r21; COMMIT",
            0,
        ),
    ],
)
async def test_by_root_each_kind_of_end_is_ignored_by_its_name(
    by_root: SyncRig, ignored: str, loss: str, held: int
) -> None:
    by_root.ignored = (ignored,)
    await follow(by_root, loss)
    assert len(changes(by_root)) == held


_EMPTY = {
    "detach": "ALTER TABLE r DETACH PARTITION r0; INSERT INTO r0 VALUES (5, 'x')",
    "drop": "DROP TABLE r1",
    "drop with its parent": "DROP TABLE r2",
    "truncate": "TRUNCATE r20",
    "detach and attach": "ALTER TABLE r DETACH PARTITION r0; "
    "ALTER TABLE r ATTACH PARTITION r0 FOR VALUES FROM (0) TO (10)",
    "all": "DROP TABLE r1; TRUNCATE r0; ALTER TABLE r DETACH PARTITION r2",
}


@pytest.mark.parametrize("change", _EMPTY)
@pytest.mark.parametrize("later", ["", "INSERT INTO r VALUES (98, 'y')"])
async def test_by_root_partitions_that_never_had_rows_come_and_go(by_root: SyncRig, change: str, later: str) -> None:
    by_root.rules = ("public.r", "public.a")
    async with by_root.running():
        by_root.execute("INSERT INTO r VALUES (99, 'x'); INSERT INTO a VALUES (1)")
        await by_root.wait_resolved()
        by_root.execute(f"{_EMPTY[change]}; {later}")
        by_root.execute("INSERT INTO a VALUES (2)")
        await by_root.wait_resolved()
        await by_root.wait_resolved()
    assert changes(by_root) == []


@pytest.mark.parametrize("loss", ["detach", "drop", "truncate", "detach and attach"])
async def test_by_root_a_partition_that_was_filled_since_the_last_reading_is_lost_with_its_rows(
    by_root: SyncRig, loss: str
) -> None:
    by_root.rules = ("public.r", "public.a")
    async with by_root.running():
        by_root.execute("INSERT INTO a VALUES (1)")
        await by_root.wait_resolved()
        by_root.execute("INSERT INTO r VALUES (1, 'a'), (11, 'b'), (21, 'c')")
        by_root.execute(_LOSSES[loss])
        by_root.execute("INSERT INTO a VALUES (2)")
        await by_root.wait_resolved()
    assert named(by_root) == [("r", SchemaChangeKind.HOLD)]


async def test_by_root_what_takes_no_rows_along_holds_nothing(by_root: SyncRig) -> None:
    by_root.rules = ("public.r*", "public.a")
    async with by_root.running():
        by_root.execute(_ROWS[0])
        await by_root.wait_resolved()
        for statement in (
            "VACUUM FULL r0",
            "ALTER TABLE r ADD w int",
            "CREATE INDEX ON r (v)",
            "CREATE TABLE x (id int NOT NULL, v text, w int)",
            "INSERT INTO x VALUES (31, 'early')",
            "TRUNCATE x",
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


async def test_by_root_a_table_that_becomes_a_partition_leaves_and_its_root_is_held(by_root: SyncRig) -> None:
    """Its rows are sent as the root's from then on; those that were there are in no stream of that."""
    async with by_root.running():
        by_root.execute("INSERT INTO a VALUES (31, 'a')")
        await by_root.wait_resolved()
        by_root.execute("ALTER TABLE r2 ATTACH PARTITION a FOR VALUES FROM (30) TO (40)")
        by_root.execute("INSERT INTO r VALUES (32, 'b')")
        await by_root.wait_resolved()
        await by_root.wait_resolved()
    assert sorted(named(by_root)) == [("", SchemaChangeKind.DROP), ("r", SchemaChangeKind.HOLD)]


@pytest.mark.sample(1.0)
async def test_a_table_that_becomes_a_partition_of_a_root_that_joins_leaves(
    postgres: EmbeddedPostgres, tmp_path: Path
) -> None:
    """It was held for good: the root's rows are copied when that joins, and its own with them."""
    rig = make(postgres, tmp_path, ["a"], "FOR ALL TABLES WITH (publish_via_partition_root)")
    async with rig.running():
        rig.execute("INSERT INTO a VALUES (31, 'a')")
        await rig.wait_resolved()
    rig.execute("ALTER TABLE r2 ATTACH PARTITION a FOR VALUES FROM (30) TO (40)")
    rig.joining = frozenset({("public", "r")})
    async with rig.running(rig.unit("b")):
        await wait_until(lambda: len(named(rig)) == 2)
        await rig.wait_resolved()
    assert sorted(named(rig)) == [("", SchemaChangeKind.DROP), ("r", SchemaChangeKind.CREATE)]
    drop_slots(rig)


_TREE = (
    "CREATE TABLE x (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)",
    "CREATE TABLE x0 PARTITION OF x DEFAULT",
)
_TREE_ROWS = "INSERT INTO x VALUES (31, 'x')"
_TREE_ATTACHED = "ALTER TABLE r2 ATTACH PARTITION x FOR VALUES FROM (30) TO (40)"


@pytest.mark.parametrize(
    ("statements", "is_held"),
    [
        ((*_TREE, _TREE_ROWS, _TREE_ATTACHED), True),
        (("; ".join(["BEGIN", *_TREE, _TREE_ROWS, _TREE_ATTACHED, "COMMIT"]),), True),
        ((*_TREE, _TREE_ATTACHED, "INSERT INTO r VALUES (32, 'b')"), False),
        (("; ".join(["BEGIN", *_TREE, _TREE_ATTACHED, "INSERT INTO r VALUES (32, 'b')", "COMMIT"]),), False),
        ((*_TREE, f"BEGIN; {_TREE_ATTACHED}; INSERT INTO r VALUES (32, 'b'); COMMIT"), False),
        ((*_TREE, f"BEGIN; {_TREE_ROWS}; {_TREE_ATTACHED}; INSERT INTO r VALUES (32, 'b'); COMMIT"), True),
    ],
)
async def test_by_root_a_partitioned_table_that_is_attached_with_rows_holds_the_root(
    by_root: SyncRig, statements: tuple[str, ...], is_held: bool
) -> None:
    """Its partitions were partitions before."""
    async with by_root.running():
        by_root.execute("INSERT INTO r VALUES (1, 'r')")
        await by_root.wait_resolved()
        for statement in statements:
            by_root.execute(statement)
        await by_root.wait_resolved()
        await by_root.wait_resolved()
    assert (("r", SchemaChangeKind.HOLD) in named(by_root)) == is_held


@pytest.mark.parametrize(
    ("statements", "held"),
    [
        ("CREATE TABLE n (id int PRIMARY KEY, v text) PARTITION BY RANGE (id); "
         "ALTER TABLE n ATTACH PARTITION a FOR VALUES FROM (0) TO (10)", "n"),
        ("ALTER TABLE r DETACH PARTITION r0", "r0"),
    ],
)  # fmt: skip
async def test_a_table_that_has_got_its_rows_without_a_word_is_held_before_its_next_row(
    postgres: EmbeddedPostgres, tmp_path: Path, statements: str, held: str
) -> None:
    rig = make(postgres, tmp_path, ["r", "a"], "FOR ALL TABLES WITH (publish_via_partition_root = true)")
    async with rig.running():
        rig.execute("INSERT INTO a VALUES (1, 'a'); INSERT INTO r VALUES (1, 'r')")
        await rig.wait_resolved()
        for statement in statements.split("; "):
            rig.execute(statement)
            await rig.wait_resolved()
        await rig.wait_resolved()
    assert (held, SchemaChangeKind.HOLD) in named(rig)
    drop_slots(rig)


_SPLIT = (
    "CREATE TABLE {0} (id int PRIMARY KEY, v text) PARTITION BY RANGE (id); CREATE TABLE {0}0 PARTITION OF {0} DEFAULT"
)
_CAME_AND_WENT = (
    "CREATE TABLE n1 PARTITION OF n FOR VALUES FROM (0) TO (9); INSERT INTO n VALUES (1, 'x'); DROP TABLE n1"
)


@pytest.mark.parametrize(
    ("statements", "held"),
    [
        (("ALTER TABLE r DETACH PARTITION r2",), "r2"),
        (("ALTER TABLE r DETACH PARTITION r2", "INSERT INTO r2 VALUES (22, 'x')"), "r2"),
        # a held table gets another name, and none of its rows is sent again
        ((_SPLIT.format("n"), "INSERT INTO n VALUES (99, 'x')", _CAME_AND_WENT, "", "ALTER TABLE n RENAME TO m"), "m"),
    ],
)
@pytest.mark.parametrize("is_late", [False, True])
async def test_a_partitioned_table_is_held_as_long_as_its_rows_are_in_no_stream(
    postgres: EmbeddedPostgres, tmp_path: Path, statements: tuple[str, ...], held: str, is_late: bool
) -> None:
    rig = make(postgres, tmp_path, ["r", "a"], "FOR ALL TABLES WITH (publish_via_partition_root = true)")
    async with rig.running():
        rig.execute("INSERT INTO r VALUES (21, 'c')")
        await rig.wait_resolved()
        if not is_late:
            for statement in statements:
                rig.execute(statement or "SELECT")
                await rig.wait_resolved()
    if is_late:
        rig.execute("; ".join(filter(None, statements)))
    async with rig.running():
        for _ in range(4):
            await rig.wait_resolved()
    flowing = {change.table_id: change for change in changes(rig) if change.table is None or change.table.name == held}
    assert [change.kind for change in flowing.values() if change.table] == [SchemaChangeKind.HOLD]
    drop_slots(rig)


@pytest.mark.parametrize("via_root", [True, False])
async def test_a_new_partitioned_table_that_is_filled_behind_its_partitions_is_not_held(
    postgres: EmbeddedPostgres, tmp_path: Path, via_root: bool
) -> None:
    tables = ["r", "a"] if via_root else [*_LEAVES, "a"]
    rig = make(postgres, tmp_path, tables, f"FOR ALL TABLES WITH (publish_via_partition_root = {via_root})")
    async with rig.running():
        for statement in (
            "CREATE TABLE n (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)",
            "CREATE TABLE n0 PARTITION OF n FOR VALUES FROM (0) TO (10)",
            "CREATE TABLE n1 (id int PRIMARY KEY, v text)",
            "ALTER TABLE n ATTACH PARTITION n1 FOR VALUES FROM (10) TO (20)",
            "INSERT INTO n VALUES (1, 'a'), (11, 'b')",
        ):
            rig.execute(statement)
        await rig.wait_resolved()
        await rig.wait_resolved()
    kinds = {kind for _, kind in named(rig)}
    assert kinds == {SchemaChangeKind.CREATE}
    drop_slots(rig)


@pytest.mark.parametrize("via_root", [True, False])
async def test_a_table_that_becomes_a_partition_of_its_successor(
    postgres: EmbeddedPostgres, tmp_path: Path, via_root: bool
) -> None:
    tables = ["r", "a"] if via_root else [*_LEAVES, "a"]
    rig = make(postgres, tmp_path, tables, f"FOR ALL TABLES WITH (publish_via_partition_root = {via_root})")
    async with rig.running():
        rig.execute("INSERT INTO a VALUES (1, 'a')")
        await rig.wait_resolved()
        rig.execute(
            "BEGIN; ALTER TABLE a RENAME TO a_old; CREATE TABLE a (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);"
            "ALTER TABLE a ATTACH PARTITION a_old FOR VALUES FROM (0) TO (10); COMMIT"
        )
        rig.execute("INSERT INTO a VALUES (2, 'b')")
        await rig.wait_resolved()
        await rig.wait_resolved()
    of_root = [("a", SchemaChangeKind.HOLD), ("a_old", SchemaChangeKind.RENAME), ("", SchemaChangeKind.DROP)]
    assert sorted(named(rig)) == sorted(of_root if via_root else [("a_old", SchemaChangeKind.RENAME)])
    drop_slots(rig)


@pytest.mark.parametrize("later", ["INSERT INTO n0 VALUES (2)", "INSERT INTO a VALUES (2)"])
async def test_a_new_partition_without_a_key_is_held_when_it_is_detached(
    postgres: EmbeddedPostgres, tmp_path: Path, later: str
) -> None:
    """Rows of it were sent under its root's name, so it is not new to the stream; but nobody has left it out."""
    rig = make(postgres, tmp_path, ["r", "a"], "FOR ALL TABLES WITH (publish_via_partition_root = true)")
    for statement in (
        "CREATE TABLE n (id int) PARTITION BY RANGE (id)",
        "CREATE TABLE n0 PARTITION OF n FOR VALUES FROM (0) TO (10)",
        "INSERT INTO n VALUES (1)",
        "ALTER TABLE n DETACH PARTITION n0",
        later,
    ):
        rig.execute(statement)
    async with rig.running():
        await rig.wait_resolved()
        await rig.wait_resolved()
    assert ("n0", SchemaChangeKind.HOLD) in named(rig)
    drop_slots(rig)


_NEW = (
    "CREATE TABLE n (id int PRIMARY KEY) PARTITION BY RANGE (id)",
    "CREATE TABLE n0 PARTITION OF n FOR VALUES FROM (0) TO (10)",
    "CREATE TABLE n1 PARTITION OF n FOR VALUES FROM (10) TO (20)",
    "INSERT INTO n VALUES (1), (11)",
)
_EARLY_LOSSES = {
    "emptied": (*_NEW, "TRUNCATE n0"),
    "emptied behind the whole table": (*_NEW, "TRUNCATE n", "INSERT INTO n VALUES (2), (12)", "TRUNCATE n1"),
    "attached with rows": (
        *_NEW,
        "CREATE TABLE n2 (id int PRIMARY KEY)",
        "INSERT INTO n2 VALUES (21)",
        "ALTER TABLE n ATTACH PARTITION n2 FOR VALUES FROM (20) TO (30)",
    ),
    "a new one of r, emptied": (
        "CREATE TABLE r21 PARTITION OF r2 FOR VALUES FROM (30) TO (40)",
        "INSERT INTO r VALUES (31, 'x')",
        "TRUNCATE r21",
    ),
    "detached": (*_NEW, "ALTER TABLE n DETACH PARTITION n0", "INSERT INTO n0 VALUES (2)"),
}
#: more than a segment: the catalog is read when the stream is here
_SEGMENTS = tuple(f"INSERT INTO a VALUES ({number}, repeat('x', 20000))" for number in range(8))


@pytest.mark.sample(0.1)
@pytest.mark.parametrize("first", [(), _SEGMENTS], ids=["at-once", "after-others"])
@pytest.mark.parametrize("loss", _EARLY_LOSSES)
async def test_partitions_that_lose_rows_before_the_catalog_is_read_with_them_hold_the_table(
    postgres: EmbeddedPostgres, tmp_path: Path, loss: str, first: tuple[str, ...]
) -> None:
    """Nobody reads meanwhile; or the catalog is read when all is over, and the stream has yet to come to it."""
    rig = make(postgres, tmp_path, ["r", "a"], "FOR ALL TABLES WITH (publish_via_partition_root = true)")
    rig.settings = SyncSettings(progress_s=0.05, segment_bytes=1 << 16)
    for statement in (*first, *_EARLY_LOSSES[loss]):
        rig.execute(statement)
    async with rig.running():
        await rig.wait_resolved()
    lost = {"a new one of r, emptied": "r", "detached": "n0"}.get(loss, "n")
    assert (lost, SchemaChangeKind.HOLD) in named(rig)
    drop_slots(rig)


async def test_a_partition_that_was_emptied_before_its_table_had_rows_holds_nothing(
    postgres: EmbeddedPostgres, tmp_path: Path
) -> None:
    rig = make(postgres, tmp_path, ["r", "a"], "FOR ALL TABLES WITH (publish_via_partition_root = true)")
    async with rig.running():
        for statement in (*_NEW[:3], "TRUNCATE n0"):
            rig.execute(statement)
        await rig.wait_resolved()
        await rig.wait_resolved()
        rig.execute(_NEW[3])
        await rig.wait_resolved()
    assert [kind for _, kind in named(rig)] == [SchemaChangeKind.CREATE]
    drop_slots(rig)


async def test_a_new_partitioned_table_that_was_emptied_as_a_whole_is_not_held(
    postgres: EmbeddedPostgres, tmp_path: Path
) -> None:
    rig = make(postgres, tmp_path, ["r", "a"], "FOR ALL TABLES WITH (publish_via_partition_root = true)")
    for statement in (*_NEW, "TRUNCATE n", "INSERT INTO n VALUES (3)", "CREATE TABLE o (id int PRIMARY KEY, v int)"):
        rig.execute(statement)
    for statement in ("INSERT INTO o VALUES (1)", "ALTER TABLE o ADD w int", "INSERT INTO o VALUES (2)"):
        rig.execute(statement)
    async with rig.running():
        await rig.wait_resolved()
    assert not [name for name, kind in named(rig) if kind is SchemaChangeKind.HOLD]
    drop_slots(rig)


_X = "CREATE TABLE x (id int NOT NULL, v text)"
_ATTACH = "ALTER TABLE r2 ATTACH PARTITION x FOR VALUES FROM (30) TO (40)"
_ROW = "INSERT INTO r VALUES (31, 'x')"
_ALTERED = "ALTER TABLE x ADD w int; ALTER TABLE x DROP w; ALTER TABLE x ALTER v SET DEFAULT 'v'"
#: statements, and whether x had rows when it was attached
_ATTACHED = {
    "then filled": ((_X, _ATTACH, "INSERT INTO r VALUES (31, 'x'), (32, 'y')"), False),
    "and filled": ((_X, f"BEGIN; {_ATTACH}; {_ROW}; COMMIT"), False),
    "and filled, then written": ((_X, f"BEGIN; {_ATTACH}; {_ROW}; COMMIT", "INSERT INTO r VALUES (32, 'x')"), False),
    "created and filled": ((f"BEGIN; {_X}; {_ATTACH}; {_ROW}; COMMIT",), False),
    "filled by its transaction": ((_X, f"BEGIN; INSERT INTO x VALUES (32, 'x'); {_ATTACH}; {_ROW}; COMMIT"), True),
    "filled by its transaction, behind other commands": (
        (_X, f"BEGIN; {_ALTERED}; INSERT INTO x VALUES (32, 'x'); {_ATTACH}; {_ROW}; COMMIT"),
        True,
    ),
    "filled by its transaction, in a savepoint": (
        (_X, f"BEGIN; INSERT INTO x VALUES (32, 'x'); SAVEPOINT s; {_ATTACH}; RELEASE s; {_ROW}; COMMIT"),
        True,
    ),
    "filled": ((_X, "INSERT INTO x VALUES (32, 'x')", _ATTACH, _ROW), True),
}


@pytest.mark.sample(0.1)
@pytest.mark.parametrize("case", _ATTACHED)
async def test_by_root_a_partition_that_is_filled_at_once_holds_nothing(by_root: SyncRig, case: str) -> None:
    """Unless it had rows before."""
    statements, had_rows = _ATTACHED[case]
    for statement in statements:
        by_root.execute(statement)
    async with by_root.running():
        await by_root.wait_resolved()
    assert [kind for _, kind in named(by_root)] == ([SchemaChangeKind.HOLD] if had_rows else [])


_R21 = "CREATE TABLE r21 PARTITION OF r2 FOR VALUES FROM (30) TO (40)"
_R21_ROW = "INSERT INTO r VALUES (31, 'x')"
#: of partitions that the catalog shows neither before nor behind, and of TRUNCATE that leaves no other file
_UNSEEN = {
    "came and was dropped": (_R21, _R21_ROW, "DROP TABLE r21"),
    "came and was detached": (_R21, _R21_ROW, "ALTER TABLE r2 DETACH PARTITION r21"),
    "in one transaction": (f"BEGIN; {_R21}; {_R21_ROW}; DROP TABLE r21; COMMIT",),
    "with the table between": (
        "CREATE TABLE r3 PARTITION OF r FOR VALUES FROM (40) TO (50) PARTITION BY RANGE (id)",
        "CREATE TABLE r30 PARTITION OF r3 DEFAULT",
        "INSERT INTO r VALUES (41, 'x')",
        "DROP TABLE r3",
    ),
    "a default partition": (
        "CREATE TABLE r2_rest PARTITION OF r2 DEFAULT",
        _R21_ROW,
        "DROP TABLE r2_rest",
    ),
    "rows that were moved": (_R21, "UPDATE r SET id = 31 WHERE id = 1", "DROP TABLE r21"),
    "attached with rows that were changed": (
        "CREATE TABLE x (id int PRIMARY KEY, v text); INSERT INTO x VALUES (35, 'x')",
        "ALTER TABLE r2 ATTACH PARTITION x FOR VALUES FROM (30) TO (40)",
        "UPDATE r SET v = 'y' WHERE id = 35",
        "ALTER TABLE r2 DETACH PARTITION x",
    ),
    "emptied where it was made": (f"BEGIN; {_R21}; {_R21_ROW}; TRUNCATE r21; COMMIT",),
    "emptied where it was attached": (
        "CREATE TABLE x (id int PRIMARY KEY, v text)",
        f"BEGIN; ALTER TABLE r2 ATTACH PARTITION x FOR VALUES FROM (30) TO (40); {_R21_ROW}; TRUNCATE x; COMMIT",
    ),
    "emptied where it was made, and filled": (
        f"BEGIN; {_R21}; {_R21_ROW}; TRUNCATE r21; INSERT INTO r VALUES (32, 'y'); COMMIT",
    ),
    "emptied behind the whole table": ("BEGIN; TRUNCATE r; INSERT INTO r VALUES (2, 'y'); TRUNCATE r0; COMMIT",),
    "emptied behind the whole table, and filled": (
        "BEGIN; TRUNCATE r; INSERT INTO r VALUES (2, 'y'); TRUNCATE r0; INSERT INTO r VALUES (3, 'z'); COMMIT",
    ),
    "all emptied by name behind the whole table": (
        "TRUNCATE r",
        "INSERT INTO r VALUES (2, 'y')",
        "TRUNCATE r0, r1, r20, rest",
    ),
}


@pytest.mark.sample(0.1)
@pytest.mark.parametrize("loss", _UNSEEN)
async def test_by_root_what_comes_and_goes_between_two_readings_holds_the_root(by_root: SyncRig, loss: str) -> None:
    by_root.rules = ("public.r", "public.a")
    async with by_root.running():
        by_root.execute(_ROWS[0])
        await by_root.wait_resolved()
    for statement in _UNSEEN[loss]:
        by_root.execute(statement)
    async with by_root.running():
        by_root.execute("INSERT INTO a VALUES (1)")
        await by_root.wait_resolved()
    assert named(by_root) == [("r", SchemaChangeKind.HOLD)]


_WHOLE = {
    "made and filled at once": (f"BEGIN; {_R21}; {_R21_ROW}; INSERT INTO r VALUES (32, 'y'); COMMIT",),
    "emptied and filled as a whole": (
        "BEGIN; TRUNCATE r; INSERT INTO r VALUES (2, 'y'); INSERT INTO r VALUES (3, 'z'), (11, 'z'); COMMIT",
    ),
    "made, filled, and emptied as a whole": (f"BEGIN; {_R21}; {_R21_ROW}; TRUNCATE r; {_R21_ROW}; COMMIT",),
    "emptied with others, then filled": (
        "TRUNCATE r, a, b",
        "INSERT INTO r VALUES (2, 'y')",
        "INSERT INTO b VALUES (1)",
    ),
    "came and went without a row": (_R21, "DROP TABLE r21"),
    "filled and emptied, row by row": (_R21, _R21_ROW, "DELETE FROM r WHERE id = 31"),
}


@pytest.mark.sample(0.1)
@pytest.mark.parametrize("case", _WHOLE)
async def test_by_root_what_the_stream_has_between_two_readings_holds_nothing(
    postgres: EmbeddedPostgres, tmp_path: Path, case: str
) -> None:
    rig = make(postgres, tmp_path, ["r", "a"], "FOR ALL TABLES WITH (publish_via_partition_root = true)")
    rig.rules = ("public.r", "public.a")
    rig.execute("CREATE TABLE b (id int PRIMARY KEY)")
    async with rig.running():
        rig.execute(_ROWS[0])
        await rig.wait_resolved()
    for statement in _WHOLE[case]:
        rig.execute(statement)
    async with rig.running():
        await rig.wait_resolved()
    assert changes(rig) == []
    drop_slots(rig)


async def test_by_root_a_partition_is_judged_once_the_catalog_shows_its_transaction(by_root: SyncRig) -> None:
    """Where a standby has to confirm, a commit is sent long before others see it."""
    async with by_root.running():
        by_root.execute(_ROWS[0])
        await by_root.wait_resolved()
        with connect(by_root.uri) as other:
            other.query("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
            other.query("SELECT pg_reload_conf()")
            waiting: list[threading.Thread] = []
            try:
                # the server heeds a setting a moment after it was given
                await wait_until(
                    lambda: _waits(by_root, other, waiting, "SELECT pg_logical_emit_message(true, '', '')")
                )
                assert _waits(by_root, other, waiting, f"{_R21}; {_R21_ROW}")
                await by_root.wait_resolved()
                assert by_root.logged()[-1][0] == by_root.tables[0].table_id, "its rows are in the log"
            finally:
                other.query("ALTER SYSTEM RESET synchronous_standby_names")
                other.query("SELECT pg_reload_conf()")
                for thread in waiting:
                    thread.join()
        await by_root.wait_resolved()
        assert changes(by_root) == []
        by_root.execute("DROP TABLE r21")
        await by_root.wait_resolved()
    assert named(by_root) == [("r", SchemaChangeKind.HOLD)]


_NAMES = {
    "renamed": ("ALTER TABLE r RENAME TO renamed",),
    "renamed, then its rows come": ("ALTER TABLE r RENAME TO renamed", "INSERT INTO renamed VALUES (22, 'x')"),
    "moved to another schema": ("CREATE SCHEMA renamed", "ALTER TABLE r SET SCHEMA renamed"),
    "its schema renamed": ("ALTER SCHEMA public RENAME TO renamed",),
}


@pytest.mark.parametrize("case", _NAMES)
async def test_a_held_table_has_its_name_at_the_source_though_the_stream_declares_it_no_more(
    by_root: SyncRig, case: str
) -> None:
    """The server does not declare a root again for a row of a leaf that it has declared."""
    async with by_root.running():
        by_root.execute(_ROWS[0])
        by_root.execute("DROP TABLE r0")
        await by_root.wait_resolved()
        for statement in _NAMES[case]:
            by_root.execute(statement)
        await by_root.wait_resolved()
    of_table = [change for change in changes(by_root) if change.table_id == by_root.tables[0].table_id]
    assert [change.is_hold for change in of_table] == [True, True]
    (schema_before, name_before), (schema, name) = [
        (change.table.schema_name, change.table.name) for change in of_table if change.table
    ]
    assert (schema_before, name_before) == ("public", "r")
    assert "renamed" in (schema, name)


def _waits(rig: SyncRig, other: Connection, waiting: list[threading.Thread], sql: str) -> bool:
    """Whether the statement's commit waits for a standby."""
    count = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
    before = other.query(count)
    waiting.append(threading.Thread(target=rig.execute, args=(f"SET synchronous_commit = on; {sql}",)))
    waiting[-1].start()
    while waiting[-1].is_alive():
        if other.query(count) != before:
            return True
    return False


_RETYPE = "ALTER TABLE r ALTER v TYPE varchar(9)"
_RETYPED = "INSERT INTO r VALUES (3, 'z')"
#: statements between two readings, and whether the stream has all that they did
_RETYPES = {
    "alone": ((_RETYPE, _RETYPED), True),
    "then written in its transaction": ((f"BEGIN; {_RETYPE}; {_RETYPED}; COMMIT",), True),
    "two columns": (("ALTER TABLE r ALTER v TYPE varchar(9), ALTER w TYPE bigint", _RETYPED), True),
    "emptied before": (("TRUNCATE r0", _RETYPE, _RETYPED), False),
    "emptied before, and filled": (("TRUNCATE r0", "INSERT INTO r VALUES (4, 'w')", _RETYPE, _RETYPED), False),
    "emptied and filled in its transaction": (
        (f"BEGIN; TRUNCATE r0; INSERT INTO r VALUES (4, 'w'); {_RETYPE}; {_RETYPED}; COMMIT",),
        False,
    ),
    "emptied behind": ((_RETYPE, "TRUNCATE r0"), False),
    "emptied behind, and filled": ((_RETYPE, "TRUNCATE r0", _RETYPED), False),
    "emptied behind in its transaction, and filled": ((f"BEGIN; {_RETYPE}; TRUNCATE r0; {_RETYPED}; COMMIT",), False),
    "emptied between two": (
        (_RETYPE, "TRUNCATE r0", "INSERT INTO r VALUES (4, 'w')", "ALTER TABLE r ALTER w TYPE bigint", _RETYPED),
        False,
    ),
    "an empty one filled and emptied before": (
        ("INSERT INTO r VALUES (25, 'w')", "TRUNCATE r20", _RETYPE, _RETYPED),
        False,
    ),
    "with other values": (("ALTER TABLE r ALTER v TYPE text USING upper(v)", _RETYPED), False),
    "with a column that was filled": (
        (
            "ALTER TABLE r ADD x int DEFAULT 5; ALTER TABLE r ALTER x DROP DEFAULT",
            _RETYPE,
            _RETYPED,
        ),
        False,
    ),
}


@pytest.mark.sample(0.1)
@pytest.mark.parametrize("case", _RETYPES)
async def test_by_root_partitions_rewritten_for_another_type_alone_hold_nothing(by_root: SyncRig, case: str) -> None:
    """r20 and rest have no rows; of r0 and r1 the stream has rows."""
    statements, is_whole = _RETYPES[case]
    async with by_root.running():
        by_root.execute("ALTER TABLE r ADD w int; INSERT INTO r VALUES (1, 'a'), (11, 'b')")
        await by_root.wait_resolved()
    for statement in statements:
        by_root.execute(statement)
    async with by_root.running():
        await by_root.wait_resolved()
    kinds = [kind for _, kind in named(by_root)]
    assert SchemaChangeKind.HOLD in kinds if not is_whole else kinds == [SchemaChangeKind.ALTER] * 2


async def test_by_root_partitions_that_are_written_all_the_time_get_another_type(by_root: SyncRig) -> None:
    async with by_root.running():
        for statement in (_ROWS[0], _RETYPE, _RETYPED, "ALTER TABLE r ALTER v TYPE text", "UPDATE r SET v = 'y'"):
            by_root.execute(statement)
            await by_root.wait_resolved()
        # what was written since the last reading, under a declaration of before
        for statement in ("UPDATE r SET v = v", _RETYPE, "UPDATE r SET v = v WHERE id = 1"):
            by_root.execute(statement)
        await by_root.wait_resolved()
    # text in the place of varchar changes nothing at a sink
    assert [(change.kind, change.reason) for change in changes(by_root)] == [(SchemaChangeKind.ALTER, "")] * 2
