"""Schema changes in a real PostgreSQL's stream: found once, at the right Ts, with the columns matched."""

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from agent.rows.schema import TableSchema
from agent.rows.schema_change import KnownTable
from agent.settings import SyncSettings
from agent.sources.common import schema_diff
from agent.sources.postgres.server.catalog import read_schemas
from agent.sources.postgres.server.connection import connect
from agent.sources.postgres.server.terms import GENERATED_VERSION
from agent.sources.postgres.stream import catalog_lookup
from agent.sources.postgres.stream.catalog_lookup import look_up
from capture.embedded import EmbeddedPostgres
from reactor.records.tables.schema_change import SchemaChangeKind, TableChange
from tests.integration.agent.sources.postgres.sync_rig import SyncRig, drop_slots, make_rig

pytestmark = pytest.mark.sample(0.12)  # cases of a few causes each, on a real server

_SCHEMA = """
CREATE TABLE a (id int PRIMARY KEY, v text, big text);
CREATE TABLE b (x int, y int, n numeric(12,2), PRIMARY KEY (x, y));
"""


@pytest.fixture
def rig(postgres: EmbeddedPostgres, tmp_path: Path) -> Iterator[SyncRig]:
    rig = make_rig(postgres, tmp_path, _SCHEMA, ["a", "b"])
    with connect(rig.uri) as connection:
        rig.first_schemas = read_schemas(connection, [table.table_id for table in rig.tables])
    yield rig
    drop_slots(rig)


async def changes_of(rig: SyncRig, *statements: str) -> list[TableChange]:
    """Each statement is a transaction; found in one go."""
    for statement in statements:
        rig.execute(statement)
    async with rig.running():
        await rig.wait_resolved()
    return [change for record in rig.ddl() for change in record.changes]


def columns(change: TableChange) -> list[str]:
    return [column.name for column in TableSchema.from_json(change.after).columns]


async def test_what_no_sink_sees_is_no_change(rig: SyncRig) -> None:
    assert await changes_of(rig, "INSERT INTO a VALUES (1); INSERT INTO b VALUES (1, 1)") == []
    found = await changes_of(
        rig,
        "ALTER TABLE b ALTER n SET DEFAULT 3; INSERT INTO b VALUES (2, 2)",
        "CREATE INDEX ON a (v); INSERT INTO a VALUES (2)",
        "ALTER TABLE a ALTER v TYPE varchar; INSERT INTO a VALUES (3)",
    )
    assert found == []


async def test_a_new_column_comes_with_what_old_rows_hold(rig: SyncRig) -> None:
    [change] = await changes_of(
        rig,
        "INSERT INTO a VALUES (1)",
        "ALTER TABLE a ADD n int NOT NULL DEFAULT 7, ADD t text, ADD s text DEFAULT 'it''s'; INSERT INTO a VALUES (2)",
    )
    assert (change.kind, change.added, change.renames) == (SchemaChangeKind.ALTER, ("n", "t", "s"), {})
    assert change.fills == {"n": "7", "s": "it's"}


async def test_defaults_of_a_table_that_was_written_again_read_as_rows_do(rig: SyncRig) -> None:
    """Another type has it written again: then the defaults themselves are all that tells."""
    [change] = await changes_of(
        rig,
        "INSERT INTO a VALUES (1)",
        "ALTER TABLE a ADD yes bool NOT NULL DEFAULT true, ADD host inet NOT NULL DEFAULT '10.0.0.1', "
        "ADD c char(4) NOT NULL DEFAULT 'ab', ADD n numeric(40,2) NOT NULL DEFAULT 3.5, "
        "ADD list int[] NOT NULL DEFAULT '{1,2}', ALTER id TYPE bigint; "
        "INSERT INTO a VALUES (2)",
    )
    assert change.fills == {"yes": "t", "host": "10.0.0.1", "c": "ab  ", "n": "3.50", "list": "{1,2}"}


async def test_a_default_that_may_or_may_not_be_in_the_rows_is_known_to_be_unknown_fills_reason(rig: SyncRig) -> None:
    rig.execute(
        "ALTER TABLE a ADD n int DEFAULT 7, ADD r float DEFAULT random(), ADD t text, "
        "ADD twice int GENERATED ALWAYS AS (id * 2) STORED"
    )
    with connect(rig.uri) as connection:
        found = look_up(connection, rig.tables[0].table_id)
    assert not found.fills
    assert found.guesses.keys() - {"id"} == {"n", "r", "twice"}


def test_a_default_that_its_column_cannot_hold_any_more_is_in_no_row(rig: SyncRig) -> None:
    """ALTER TYPE keeps a default as an expression, and looks at rows only."""
    rig.execute("CREATE TABLE odd (id int PRIMARY KEY, x real NOT NULL DEFAULT '1e+10', ok int NOT NULL DEFAULT 5)")
    rig.execute("ALTER TABLE odd ALTER id TYPE bigint, ALTER x TYPE numeric(10,2)")
    with connect(rig.uri) as connection:
        found = look_up(connection, int(str(connection.query("SELECT 'odd'::regclass::oid::int8")[0][0])))
    assert (found.guesses["ok"].value, found.guesses["x"].value) == ("5", None)


def test_the_catalog_is_read_when_the_change_can_be_seen(rig: SyncRig) -> None:
    """The stream has a commit before other sessions see it: the default of a new column was lost."""
    table_id = rig.tables[0].table_id
    with connect(rig.uri) as writer, connect(rig.uri) as reader, ThreadPoolExecutor(1) as pool:
        writer.query("BEGIN")
        writer.query("ALTER TABLE a ADD n int DEFAULT 7")
        found = pool.submit(look_up, reader, table_id)
        while not writer.query("SELECT 1 FROM pg_locks WHERE NOT granted") and not found.done():
            pass
        writer.query("COMMIT")
        assert found.result().fills == {"n": "7"}


def test_a_table_that_somebody_else_keeps_locked_is_looked_at_all_the_same(
    rig: SyncRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog_lookup, "_LOCK_MS", 20)
    with connect(rig.uri) as writer, connect(rig.uri) as reader:
        writer.query("BEGIN")
        writer.query("LOCK TABLE a IN ACCESS EXCLUSIVE MODE")
        assert set(look_up(reader, rig.tables[0].table_id).places) == {"id", "v", "big"}


async def test_renamed_dropped_retyped(rig: SyncRig) -> None:
    [change] = await changes_of(
        rig,
        "INSERT INTO a VALUES (1)",
        "ALTER TABLE a RENAME v TO w; ALTER TABLE a DROP big; ALTER TABLE a ALTER id TYPE bigint;"
        "INSERT INTO a VALUES (2)",
    )
    assert (change.renames, change.added, columns(change)) == ({"w": "v"}, (), ["id", "w"])


async def test_names_that_change_places_and_names_that_come_back(rig: SyncRig) -> None:
    [swap] = await changes_of(
        rig,
        "ALTER TABLE a RENAME v TO x; ALTER TABLE a RENAME big TO v; ALTER TABLE a RENAME x TO big;"
        "INSERT INTO a VALUES (1)",
    )
    assert (swap.renames, swap.added) == ({"v": "big", "big": "v"}, ())
    _, again = await changes_of(rig, "ALTER TABLE a DROP v; ALTER TABLE a ADD v int; INSERT INTO a VALUES (2)")
    assert (again.renames, again.added) == ({}, ("v",))


async def test_a_name_that_is_another_columns_by_now_tells_nothing_of_the_one_before(rig: SyncRig) -> None:
    """The catalog is that of today: its default is of the second n, which has another type."""
    first, second = await changes_of(
        rig,
        "ALTER TABLE a ADD n int; INSERT INTO a VALUES (1, 'v', 'b', 5)",
        "ALTER TABLE a DROP n; ALTER TABLE a ADD n text DEFAULT 'none'; INSERT INTO a VALUES (2)",
    )
    assert (first.added, first.fills) == (("n",), {})
    assert (second.added, second.renames, second.fills) == (("n",), {}, {"n": "none"})


async def test_a_new_column_that_has_another_name_by_now_keeps_its_default(rig: SyncRig) -> None:
    """The table was rewritten, so the default is verified by the rows, under the name that the column has by now."""
    rig.execute("INSERT INTO a VALUES (1, 'v', 'b')")
    added, renamed = await changes_of(
        rig,
        "ALTER TABLE a ALTER id TYPE bigint, ADD n int DEFAULT 7; INSERT INTO a VALUES (2)",
        "ALTER TABLE a RENAME v TO w; ALTER TABLE a RENAME n TO v; INSERT INTO a VALUES (3)",
    )
    assert (added.added, added.fills) == (("n",), {"n": "7"})
    assert renamed.renames == {"w": "v", "v": "n"}


@pytest.mark.parametrize(
    ("first", "kind"), [("INSERT INTO a VALUES (1)", SchemaChangeKind.HOLD), ("SELECT", SchemaChangeKind.ALTER)]
)
async def test_a_new_column_that_has_another_type_by_now_has_unknown_values(
    rig: SyncRig, first: str, kind: SchemaChangeKind
) -> None:
    found = await changes_of(
        rig,
        first,
        "ALTER TABLE a ADD n int DEFAULT 7; INSERT INTO a VALUES (2, 'v', 'b', NULL); DELETE FROM a WHERE id = 2",
        "ALTER TABLE a ALTER n TYPE text USING 'x' || n",
        "INSERT INTO a VALUES (3)",
    )
    assert found[0].kind is kind


async def test_names_that_change_places_are_known_when_one_is_gone_since(rig: SyncRig) -> None:
    swap, again = await changes_of(
        rig,
        "ALTER TABLE a RENAME v TO x; ALTER TABLE a RENAME big TO v; ALTER TABLE a RENAME x TO big;"
        "INSERT INTO a VALUES (1)",
        "ALTER TABLE a DROP v; ALTER TABLE a ADD v int DEFAULT 3; INSERT INTO a VALUES (2)",
    )
    assert (swap.renames, swap.added) == ({"v": "big", "big": "v"}, ())
    assert (again.renames, again.added, again.fills) == ({}, ("v",), {"v": "3"})


async def test_the_change_is_at_its_transactions_ts_with_rows_on_both_sides(rig: SyncRig) -> None:
    rig.execute("BEGIN; INSERT INTO a VALUES (1); ALTER TABLE a ADD n int; INSERT INTO a VALUES (2); COMMIT")
    async with rig.running():
        await rig.wait_resolved()
    [record] = rig.ddl()
    assert {commit_ts for _, commit_ts, _, _ in rig.logged()} == {record.ts}
    assert rig.head().resolved_ts >= record.ts


async def test_a_transaction_that_changes_twice_makes_one_change(rig: SyncRig) -> None:
    [change] = await changes_of(
        rig,
        "BEGIN; ALTER TABLE a ADD n int; INSERT INTO a VALUES (1); ALTER TABLE a RENAME n TO m; "
        "ALTER TABLE a RENAME v TO w; INSERT INTO a VALUES (2); COMMIT",
    )
    assert (change.renames, change.added, columns(change)) == ({"w": "v"}, ("m",), ["id", "w", "big", "m"])


async def test_what_is_rolled_back_is_nothing(rig: SyncRig) -> None:
    assert await changes_of(rig, "BEGIN; ALTER TABLE a ADD n int; INSERT INTO a VALUES (1); ROLLBACK") == []


@pytest.mark.parametrize(
    ("default", "kind", "fills"), [("5", "alter", {"n": "5"}), ("(random() * 9)::int + 1", "hold", {})]
)
async def test_a_declaration_that_is_sent_again_takes_nothing_back(
    rig: SyncRig, default: str, kind: str, fills: dict[str, str]
) -> None:
    """An index in the same transaction has the server declare the table again."""
    rig.execute("INSERT INTO a VALUES (1)")
    [change] = await changes_of(
        rig,
        f"BEGIN; ALTER TABLE a ADD n int DEFAULT {default}; INSERT INTO a VALUES (2); CREATE INDEX ON a (n); "
        "INSERT INTO a VALUES (3); COMMIT",
    )
    assert (change.kind.value, change.fills) == (kind, fills)


async def test_tables_that_swap_names_do_it_in_one_record(rig: SyncRig) -> None:
    rig.execute("INSERT INTO a VALUES (1); INSERT INTO b VALUES (1, 1)")
    swap = "ALTER TABLE a RENAME TO x; ALTER TABLE b RENAME TO a; ALTER TABLE x RENAME TO b"
    changes = await changes_of(rig, f"BEGIN; {swap}; COMMIT; INSERT INTO a VALUES (2, 2)", "INSERT INTO b VALUES (3)")
    assert [(change.kind.value, change.table.name if change.table else "") for change in changes] == [
        ("rename", "a"),
        ("rename", "b"),
    ]
    assert len(rig.ddl()) == 1


async def test_schemas_that_swap_names_move_their_tables_in_one_record(rig: SyncRig) -> None:
    rig.execute("CREATE SCHEMA s; ALTER TABLE b SET SCHEMA s; ALTER TABLE s.b RENAME TO a")
    rig.execute("INSERT INTO a VALUES (1); INSERT INTO s.a VALUES (1, 1)")
    swap = "ALTER SCHEMA public RENAME TO t; ALTER SCHEMA s RENAME TO public; ALTER SCHEMA t RENAME TO s"
    await changes_of(rig, swap, "INSERT INTO s.a VALUES (2)", "INSERT INTO public.a VALUES (3, 3)")
    async with rig.running():
        await rig.wait_resolved()
        await rig.wait_resolved()
    changes = await changes_of(rig)  # before version 16 no row shows it, but the next reading of the catalog
    moved = [f"{change.table.schema_name}.{change.table.name}" for change in changes if change.table]
    assert moved == ["s.a", "s.a", "public.a"]
    assert [len(record.changes) for record in rig.ddl()] == [1, 2]


async def test_another_key_and_another_name(rig: SyncRig) -> None:
    first, second = await changes_of(
        rig,
        "ALTER TABLE a DROP CONSTRAINT a_pkey; ALTER TABLE a ADD PRIMARY KEY (v); INSERT INTO a VALUES (1, 'v')",
        "ALTER TABLE a RENAME TO z; INSERT INTO z VALUES (2, 'w')",
    )
    assert (first.table and first.table.key) == ("v",)
    assert second.kind is SchemaChangeKind.RENAME
    assert (second.table and second.table.name) == "z"


async def test_a_new_table_in_the_publication(rig: SyncRig) -> None:
    rig.rules = ("public.n*",)
    publish = f"ALTER PUBLICATION {rig.names.publication} ADD TABLE"
    found = await changes_of(
        rig,
        f"BEGIN; CREATE TABLE n1 (id int PRIMARY KEY, v text); {publish} n1; INSERT INTO n1 VALUES (1); COMMIT",
        f"BEGIN; CREATE TABLE other (id int PRIMARY KEY); {publish} other; INSERT INTO other VALUES (1); COMMIT",
        f"BEGIN; CREATE TABLE n2 (id int); ALTER TABLE n2 REPLICA IDENTITY FULL; {publish} n2; "
        "INSERT INTO n2 VALUES (1); COMMIT",
        "ALTER TABLE n1 RENAME v TO w; INSERT INTO n1 VALUES (2)",
    )
    created, altered = (change for change in found if not change.is_hold)
    assert [change.kind for change in (created, altered)] == [SchemaChangeKind.CREATE, SchemaChangeKind.ALTER]
    [held] = (change for change in found if change.is_hold)
    assert held.reason.startswith("table public.n2 has no key to upsert by, so it is not taken in; give it one")
    assert created.table is not None
    assert (created.table.name, created.table.key) == ("n1", ("id",))
    assert created.table.start_ts == rig.ddl()[0].ts - 1
    assert altered.renames == {"w": "v"}
    assert {table for table, *_ in rig.logged()} == {created.table_id}


async def test_a_new_table_without_a_key_is_held_also_when_it_gets_one_behind_its_first_rows(
    postgres: EmbeddedPostgres, tmp_path: Path
) -> None:
    """A stream that began after the first row took the table in, without that row."""
    rig = make_rig(postgres, tmp_path, _SCHEMA + "CREATE TABLE old (id int);", ["a", "b"], publication="FOR ALL TABLES")
    rig.rules = ("public.*",)
    async with rig.running():
        rig.execute("CREATE TABLE n (id int, v text)")
        rig.execute("INSERT INTO n VALUES (1); INSERT INTO old VALUES (1)")
        await rig.wait_resolved()
    async with rig.running(rig.unit("b")):
        rig.execute("ALTER TABLE n ADD PRIMARY KEY (id)")
        rig.execute("INSERT INTO n VALUES (2); INSERT INTO old VALUES (2)")
        await rig.wait_resolved()
    [held] = [change for record in rig.ddl() for change in record.changes]
    assert held.is_hold
    assert held.reason.startswith("table public.n has no key to upsert by, so it is not taken in; give it one")
    drop_slots(rig)


async def test_a_unit_that_comes_later_finds_nothing_twice(rig: SyncRig) -> None:
    """Neither what is in the log already nor, from there, the same change again."""
    rig.rules = ("public.n*",)
    async with rig.running():
        rig.execute("INSERT INTO a VALUES (1)")
        rig.execute("ALTER TABLE a RENAME v TO w; INSERT INTO a VALUES (2)")
        rig.execute(
            f"BEGIN; CREATE TABLE n1 (id int PRIMARY KEY); ALTER PUBLICATION {rig.names.publication} ADD TABLE n1; "
            "INSERT INTO n1 VALUES (1); COMMIT"
        )
        await rig.wait_resolved()
        before = rig.ddl()
        await rig.kill_walsender()
        rig.execute("INSERT INTO a VALUES (3); INSERT INTO n1 VALUES (2)")
        await rig.wait_resolved()
    assert len(before) == 2
    async with rig.running(rig.unit("b")):
        rig.execute("INSERT INTO a VALUES (4); INSERT INTO n1 VALUES (3)")
        await rig.wait_resolved()
        assert rig.ddl() == before
        rig.execute("ALTER TABLE a RENAME w TO v; INSERT INTO a VALUES (5)")
        await rig.wait_resolved()
    assert rig.ddl()[-1].changes[0].renames == {"v": "w"}
    assert len(rig.logged()) == 8


async def test_a_key_that_changes_before_anybody_looks_counts_from_its_own_time(rig: SyncRig) -> None:
    """The catalog has the newest key only; each change comes with the one that its rows are sent under."""
    found = await changes_of(
        rig,
        "ALTER TABLE a ADD n int; INSERT INTO a VALUES (1, 'v')",
        "ALTER TABLE a DROP CONSTRAINT a_pkey; ALTER TABLE a ADD PRIMARY KEY (v); INSERT INTO a VALUES (1, 'w')",
    )
    assert [change.table and change.table.key for change in found] == [("id",), ("v",)]


_COMPUTED = [
    "ADD new int GENERATED ALWAYS AS (id * 2) STORED",
    "ADD new float DEFAULT random()",
    "ADD new bigserial",
    "ADD new int DEFAULT 7, ALTER id TYPE bigint, ALTER new SET DEFAULT 8",
    "ADD new int NOT NULL DEFAULT 7, ALTER id TYPE bigint; ALTER TABLE {table} ALTER new SET DEFAULT 8",
    "ADD new positive; ALTER DOMAIN positive SET DEFAULT 8",
]


@pytest.mark.parametrize("addition", _COMPUTED)
async def test_what_a_new_column_has_computed_for_rows_that_were_there_holds_the_table(
    rig: SyncRig, addition: str
) -> None:
    """It was NULL, with a line in the log. A table without rows has nothing to lose."""
    with connect(rig.uri) as connection:
        if "STORED" in addition and connection.server_version < GENERATED_VERSION:
            pytest.skip("generated columns are in no stream before PostgreSQL 18")
    found = await changes_of(
        rig,
        "INSERT INTO a VALUES (1)",
        "CREATE DOMAIN positive AS int DEFAULT 7 CHECK (value > 0)",
        "ALTER TABLE a " + addition.format(table="a"),
        "ALTER TABLE b " + re.sub(r"\bid\b", "x", addition.format(table="b")),
        "INSERT INTO a (id) VALUES (2)",
        "INSERT INTO b (x, y) VALUES (2, 2)",
    )
    assert [(change.kind, change.table and change.table.name) for change in found] == [
        (SchemaChangeKind.HOLD, "a"),
        (SchemaChangeKind.ALTER, "b"),
    ]
    assert "new column new" in found[0].reason


@pytest.mark.parametrize("key", ["new bigserial PRIMARY KEY", "new int GENERATED ALWAYS AS IDENTITY PRIMARY KEY"])
@pytest.mark.parametrize("later", ["DELETE FROM a WHERE id = 1", "UPDATE a SET v = 'x'"])
async def test_a_new_key_that_was_computed_holds_the_table_also_where_no_older_row_is_left(
    rig: SyncRig, key: str, later: str
) -> None:
    """Later events name rows by a value that the sink's rows do not have: they stayed, beside the new ones."""
    found = await changes_of(
        rig, "INSERT INTO a VALUES (1)", f"ALTER TABLE a DROP CONSTRAINT a_pkey; ALTER TABLE a ADD {key}", later
    )
    assert [change.kind for change in found] == [SchemaChangeKind.HOLD]
    assert "new column new" in found[0].reason


_EMPTY = {
    "never had a row": ["{add}"],
    "emptied by DELETE": ["INSERT INTO a VALUES (1)", "DELETE FROM a", "{add}"],
    "emptied by TRUNCATE": ["INSERT INTO a VALUES (1)", "TRUNCATE a", "{add}"],
    "emptied by its own transaction": ["INSERT INTO a VALUES (1)", "DELETE FROM a; {add}"],
    "and rows of the same transaction": ["{add}; INSERT INTO a VALUES (1)"],
    "and another column": ["ALTER TABLE a ADD n bigserial", "{add}", "ALTER TABLE a ADD m int"],
}
_NOT_EMPTY = {
    "emptied by DELETE behind it": ["INSERT INTO a VALUES (1)", "{add}", "DELETE FROM a"],
    "emptied by a transaction with other rows": [
        "INSERT INTO a VALUES (1)",
        "DELETE FROM a; {add}; INSERT INTO a VALUES (3)",
    ],
    "vacuumed": ["INSERT INTO a VALUES (1)", "{add}", "DELETE FROM a", "VACUUM a"],
    "its index is made again": ["INSERT INTO a VALUES (1)", "{add}", "DELETE FROM a", "REINDEX TABLE a"],
    "emptied before the key is made again": [
        "INSERT INTO a VALUES (1)",
        "{add}",
        "DELETE FROM a",
        "ALTER TABLE a DROP CONSTRAINT a_pkey, ADD PRIMARY KEY (new); ALTER TABLE a ALTER new SET STATISTICS 10",
    ],
    "an index of no row": [
        "INSERT INTO a VALUES (1)",
        "{add}; CREATE INDEX ON a (new) WHERE id = 7",
        "DELETE FROM a",
    ],
}


@pytest.mark.parametrize("key", ["bigserial", "uuid DEFAULT gen_random_uuid()"])
@pytest.mark.parametrize("case", [*_EMPTY, *_NOT_EMPTY])
async def test_a_new_key_that_was_computed_is_followed_where_the_table_was_empty(
    rig: SyncRig, case: str, key: str
) -> None:
    """There is no row of which it is not known. It was held."""
    add = f"ALTER TABLE a DROP CONSTRAINT a_pkey, ADD new {key} PRIMARY KEY"
    statements = [one.format(add=add) for one in (_EMPTY | _NOT_EMPTY)[case]]
    found = await changes_of(rig, *statements, "INSERT INTO a VALUES (2)")
    if case in _EMPTY:
        assert [change.kind for change in found] == [SchemaChangeKind.ALTER]
        assert found[0].table is not None
        assert found[0].table.key == ("new",)
    else:
        assert [change.kind for change in found] == [SchemaChangeKind.HOLD]
        assert "new column new" in found[0].reason


_KNOWN = {
    "a default of a column that may be NULL": "ALTER TABLE a ADD new int DEFAULT 7, ALTER id TYPE bigint",
    "of a domain with constraints": "ALTER TABLE a ADD new positive",
    "of a domain that is NOT NULL": "ALTER TABLE a ADD new required",
    "with rows of the same transaction": "ALTER TABLE a ADD new int NOT NULL DEFAULT 7, ALTER id TYPE bigint; "
    "INSERT INTO a (id, new) VALUES (3, 9); UPDATE a SET new = 10 WHERE id = 3",
}


@pytest.mark.parametrize("case", _KNOWN)
async def test_one_default_for_all_rows_is_known_also_where_the_table_is_written_again(rig: SyncRig, case: str) -> None:
    """A domain's default is in no row of ``pg_attrdef``; rows were NULL without a word."""
    [change] = await changes_of(
        rig,
        "CREATE DOMAIN positive AS int DEFAULT 7 CHECK (value > 0); CREATE DOMAIN required AS int NOT NULL DEFAULT 7",
        "INSERT INTO a VALUES (1), (2)",
        _KNOWN[case],
        "INSERT INTO a (id, new) VALUES (4, 8)",
    )
    assert (change.kind, change.fills) == (SchemaChangeKind.ALTER, {"new": "7"})


@pytest.mark.parametrize("is_all", [True, False])
async def test_a_table_that_is_dropped_and_created_again_takes_its_place(
    postgres: EmbeddedPostgres, tmp_path: Path, is_all: bool
) -> None:
    rig = make_rig(postgres, tmp_path, _SCHEMA, ["a", "b"], publication="FOR ALL TABLES" if is_all else "")
    rig.rules = ("public.*",)
    publish = "" if is_all else f"ALTER PUBLICATION {rig.names.publication} ADD TABLE a; "
    again = f"CREATE TABLE a (k int PRIMARY KEY); {publish}INSERT INTO a VALUES (1)"
    async with rig.running():
        rig.execute("INSERT INTO a VALUES (1)")
        rig.execute(f"BEGIN; INSERT INTO a VALUES (2); DROP TABLE a; {again}; COMMIT")
        await rig.wait_resolved()
        rig.execute(f"BEGIN; ALTER TABLE a RENAME TO old; {again}; COMMIT")
        rig.execute("INSERT INTO old VALUES (2)")
        await rig.wait_resolved()
        rig.execute("DROP TABLE old")
        await rig.wait_resolved()
        await rig.wait_resolved()
    found = [[(change.kind, change.table and change.table.name) for change in record.changes] for record in rig.ddl()]
    assert found == [
        [(SchemaChangeKind.DROP, None), (SchemaChangeKind.CREATE, "a")],
        [(SchemaChangeKind.RENAME, "old"), (SchemaChangeKind.CREATE, "a")],
        [(SchemaChangeKind.DROP, None)],
    ]
    drop_slots(rig)


async def test_a_table_that_is_created_again_and_not_published_is_held(rig: SyncRig) -> None:
    rig.rules = ("public.*",)
    async with rig.running():
        rig.execute("INSERT INTO a VALUES (1)")
        await rig.wait_resolved()
        rig.execute("DROP TABLE a; CREATE TABLE a (id int PRIMARY KEY); INSERT INTO a VALUES (1)")
        await rig.wait_resolved()
        await rig.wait_resolved()
    [record] = rig.ddl()
    dropped, held = record.changes
    assert (dropped.kind, dropped.table_id) == (SchemaChangeKind.DROP, rig.tables[0].table_id)
    assert (held.kind, held.table and held.table.name) == (SchemaChangeKind.HOLD, "a")
    assert held.table_id != dropped.table_id
    assert "table public.a is in no publication of the changefeed" in held.reason


@pytest.mark.parametrize(
    ("statements", "kinds"),
    [
        (("CREATE TABLE n (id int PRIMARY KEY)", "{publish}", "", "INSERT INTO n VALUES (1)"), ["create"]),
        (("CREATE TABLE n (id int PRIMARY KEY)", "INSERT INTO n VALUES (1)", "{publish}", ""), ["hold"]),
        (("BEGIN; CREATE TABLE n (id int PRIMARY KEY); INSERT INTO n VALUES (1); {publish}; COMMIT",), ["hold"]),
        (
            (
                "BEGIN; CREATE TABLE n (id int PRIMARY KEY); INSERT INTO n VALUES (1); {publish}; "
                "INSERT INTO n VALUES (2); COMMIT",
            ),
            ["hold"],
        ),
        (("BEGIN; CREATE TABLE n (id int PRIMARY KEY); {publish}; INSERT INTO n VALUES (1); COMMIT",), ["create"]),
    ],
)
async def test_a_new_table_is_taken_in_only_with_all_its_rows(
    rig: SyncRig, statements: tuple[str, ...], kinds: list[str]
) -> None:
    """An empty statement: time passes."""
    rig.rules = ("public.*",)
    rig.settings = SyncSettings(progress_s=0.05)
    async with rig.running():
        for statement in statements:
            if statement:
                rig.execute(statement.format(publish=f"ALTER PUBLICATION {rig.names.publication} ADD TABLE n"))
            else:
                for _ in range(3):
                    await rig.wait_resolved()
        for _ in range(3):
            await rig.wait_resolved()
    assert [change.kind.value for record in rig.ddl() for change in record.changes] == kinds


@pytest.mark.parametrize("error", [KeyError("v"), OverflowError("too large"), RecursionError(), AssertionError()])
async def test_an_unforeseen_error_in_the_change_of_one_table_holds_it_alone(
    rig: SyncRig, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    compare = schema_diff.compare

    def failing(before: KnownTable, after: KnownTable, columns: schema_diff.Columns) -> TableChange | None:
        if after.record.name == "a":
            raise error
        return compare(before, after, columns)

    monkeypatch.setattr(schema_diff, "compare", failing)
    held, changed = await changes_of(
        rig,
        "ALTER TABLE a ADD w int; INSERT INTO a VALUES (1)",
        "ALTER TABLE b ADD w int; INSERT INTO b VALUES (1, 1)",
    )
    assert held.kind is SchemaChangeKind.HOLD
    assert f"public.a cannot be interpreted ({type(error).__name__}" in held.reason
    assert (changed.kind, columns(changed)) == (SchemaChangeKind.ALTER, ["x", "y", "n", "w"])


_EXCHANGED_BACK = {
    "it has another name by now": ("ALTER TABLE a RENAME TO a_new; ALTER TABLE a_old RENAME TO a", "a_new"),
    "it is gone by now": ("DROP TABLE a; ALTER TABLE a_old RENAME TO a", ""),
}


@pytest.mark.parametrize("case", _EXCHANGED_BACK)
async def test_a_new_table_that_had_anothers_name_for_a_time_does_not_get_its_place(
    postgres: EmbeddedPostgres, tmp_path: Path, case: str
) -> None:
    """Read late, both were "a": the new one was created where the other one's rows are."""
    rig = make_rig(postgres, tmp_path, _SCHEMA, ["a"], publication="FOR ALL TABLES")
    rig.rules = ("public.*",)
    back, name = _EXCHANGED_BACK[case]
    with connect(rig.uri) as connection:
        rig.first_schemas = read_schemas(connection, [rig.tables[0].table_id])
    found = await changes_of(
        rig,
        "INSERT INTO a VALUES (1)",
        "BEGIN; ALTER TABLE a RENAME TO a_old; CREATE TABLE a (id int PRIMARY KEY); INSERT INTO a VALUES (2); COMMIT",
        f"BEGIN; {back}; COMMIT",
        "INSERT INTO a VALUES (3)",
    )
    of_new = [change for change in found if change.table_id != rig.tables[0].table_id]
    assert [change.table and change.table.name for change in of_new] == [name] * bool(name)
    assert all(change.table and change.table.name == "a" for change in found if change not in of_new)
    drop_slots(rig)


async def test_a_table_that_gives_its_name_away_keeps_the_default_of_its_new_column(rig: SyncRig) -> None:
    """In one transaction: that another table took the name left NULL in the older rows."""
    found = await changes_of(
        rig,
        "INSERT INTO a VALUES (1)",
        "BEGIN; ALTER TABLE a ADD n int DEFAULT 7; INSERT INTO a VALUES (2); ALTER TABLE a RENAME TO a_old; "
        "ALTER TABLE b RENAME TO a; INSERT INTO a VALUES (1, 1); COMMIT",
    )
    [change] = [change for change in found if change.table_id == rig.tables[0].table_id]
    assert (change.table and change.table.name, change.added, change.fills) == ("a_old", ("n",), {"n": "7"})


async def test_a_computed_column_that_becomes_the_key_later_holds_the_table(rig: SyncRig) -> None:
    """Its rows were gone when they were asked: their deletion names them by values that the sink does not have."""
    found = await changes_of(
        rig,
        "INSERT INTO a VALUES (1, 'v'), (2, 'w')",
        "ALTER TABLE a ADD new bigserial",
        "UPDATE a SET v = 'x' WHERE id = 1",
        "ALTER TABLE a DROP CONSTRAINT a_pkey, ADD PRIMARY KEY (new)",
        "DELETE FROM a",
    )
    assert found[0].is_hold
    assert "new column new" in found[0].reason


async def test_a_partitioned_table_keeps_no_sign_that_it_was_empty(postgres: EmbeddedPostgres, tmp_path: Path) -> None:
    """Its own index never has an entry."""
    sql = "CREATE TABLE p (id int PRIMARY KEY, v text) PARTITION BY LIST (id); CREATE TABLE p1 PARTITION OF p DEFAULT"
    rig = make_rig(postgres, tmp_path, sql, ["p"])
    with connect(rig.uri) as connection:
        rig.first_schemas = read_schemas(connection, [rig.tables[0].table_id])
    found = await changes_of(
        rig,
        "INSERT INTO p VALUES (1, 'v')",
        "ALTER TABLE p DROP CONSTRAINT p_pkey, ADD new bigserial, ADD PRIMARY KEY (id, new)",
        "DELETE FROM p",
    )
    assert [change.kind for change in found] == [SchemaChangeKind.HOLD]
    assert "new column new" in found[0].reason
    drop_slots(rig)


_UNSEEN = {
    "and another change is quiet": ["ALTER TABLE a DROP v, ADD v text"],
    "and another change has rows": ["ALTER TABLE a ADD z int", "INSERT INTO a VALUES (3)"],
    "and a column before it": ["ALTER TABLE a DROP v", "INSERT INTO a VALUES (3)"],
    "and a key": [
        "ALTER TABLE a DROP CONSTRAINT a_pkey, ADD PRIMARY KEY (big)",
        "INSERT INTO a (id, big) VALUES (3, '')",
    ],
}


@pytest.mark.parametrize("case", _UNSEEN)
async def test_rows_of_a_column_that_was_added_again_unseen_are_not_lost_by_a_later_change(
    rig: SyncRig, case: str
) -> None:
    """The stream declares the same columns. The next change took them for new ones, and what they had got for lost."""
    again = ["INSERT INTO a VALUES (1, 'v', 'w')", "ALTER TABLE a DROP big, ADD big text", "UPDATE a SET big = 'x'"]
    for statement in [*again, *_UNSEEN[case]]:
        rig.execute(statement)
    async with rig.running():
        await rig.wait_resolved()
        await rig.wait_resolved()  # where a quiet change is
    found = [change for record in rig.ddl() for change in record.changes]
    assert found[0].is_hold
    assert "column big" in found[0].reason


@pytest.mark.parametrize("again", ["DROP v, ADD v text, ADD z int", "DROP big, DROP v, ADD z int, ADD v text"])
async def test_a_column_that_was_added_again_where_the_stream_shows_it_is_followed(rig: SyncRig, again: str) -> None:
    found = await changes_of(rig, "INSERT INTO a VALUES (1, 'v', 'w')", f"ALTER TABLE a {again}", "UPDATE a SET z = 1")
    assert [(change.kind, set(change.added)) for change in found] == [(SchemaChangeKind.ALTER, {"v", "z"})]


@pytest.mark.parametrize("publication", ["", "FOR TABLE a WHERE (id > 0), b"])
async def test_a_table_that_another_session_locks_holds_up_no_other(
    postgres: EmbeddedPostgres, tmp_path: Path, publication: str
) -> None:
    """The server locks a table to show its defaults, and the stream was opened again and again until it was free."""
    schema = "CREATE TABLE a (id int PRIMARY KEY, g int GENERATED ALWAYS AS (id + 1) STORED); CREATE TABLE b (id int)"
    rig = make_rig(postgres, tmp_path, schema, ["a", "b"], publication=publication)
    rig.execute("ALTER TABLE a ADD v text NOT NULL DEFAULT 'x'; INSERT INTO a VALUES (1)")
    with connect(rig.uri) as connection:
        connection.query("BEGIN; LOCK TABLE a")
        rig.execute("INSERT INTO b VALUES (1)")
        async with rig.running():
            await rig.wait_resolved(timeout_s=30)
        connection.query("ROLLBACK")
    assert {event[0] for event in rig.logged()} == {table.table_id for table in rig.tables}
    drop_slots(rig)
