"""New tables on a real server: rows that the stream does not have, or had under another name."""

from pathlib import Path

import pytest

from agent.sources.postgres.server.connection import connect
from capture.embedded import EmbeddedPostgres
from reactor.records.tables.schema_change import SchemaChangeKind
from tests.integration.agent.sources.postgres.repack import REPACK
from tests.integration.agent.sources.postgres.sync_rig import drop_slots, make_rig

pytestmark = pytest.mark.sample(0.25)  # cases of a few causes each, on a real server

_SCHEMA = "CREATE TABLE a (id int PRIMARY KEY, v text);"


_EARLIER_ROWS = {
    "it was UNLOGGED": (
        "CREATE UNLOGGED TABLE n (id int PRIMARY KEY)",
        "INSERT INTO n VALUES (1)",
        "ALTER TABLE n SET LOGGED",
        "CREATE INDEX ON n ((id + 1))",
    ),
    "it was UNLOGGED, and rewritten by another program": (
        REPACK,
        "CREATE UNLOGGED TABLE n (id int PRIMARY KEY)",
        "INSERT INTO n VALUES (1)",
        "ALTER TABLE n SET LOGGED",
        "CALL repack('n')",
    ),
    "its name was another": (
        "CREATE TABLE other (id int PRIMARY KEY)",
        "INSERT INTO other VALUES (1)",
        "ALTER TABLE other RENAME TO n",
    ),
    "its schema was another": (
        "CREATE SCHEMA elsewhere; CREATE TABLE elsewhere.n (id int PRIMARY KEY)",
        "INSERT INTO elsewhere.n VALUES (1)",
        "ALTER TABLE elsewhere.n SET SCHEMA public",
    ),
}


@pytest.mark.sample(0.05)
@pytest.mark.parametrize("pause", ["none", "the stream begins again"])
@pytest.mark.parametrize("case", _EARLIER_ROWS)
async def test_a_new_table_whose_first_rows_were_passed_over_is_held(
    postgres: EmbeddedPostgres, tmp_path: Path, case: str, pause: str
) -> None:
    rig = make_rig(postgres, tmp_path, _SCHEMA, ["a"], publication="FOR ALL TABLES")
    rig.rules = ("public.n*",)
    async with rig.running():
        for statement in _EARLIER_ROWS[case]:
            rig.execute(statement)
            if pause != "none":
                await rig.wait_resolved()
        if pause != "the stream begins again":
            rig.execute("INSERT INTO n VALUES (2)")
        await rig.wait_resolved()
    if pause == "the stream begins again":
        async with rig.running(rig.unit("b")):
            rig.execute("INSERT INTO n VALUES (2)")
            await rig.wait_resolved()
    assert [change.kind for record in rig.ddl() for change in record.changes] == [SchemaChangeKind.HOLD]
    drop_slots(rig)


async def test_a_table_of_a_schema_that_was_published_before_is_taken_in(
    postgres: EmbeddedPostgres, tmp_path: Path
) -> None:
    published = "FOR TABLE a, TABLES IN SCHEMA s"
    rig = make_rig(postgres, tmp_path, f"{_SCHEMA} CREATE SCHEMA s;", ["a"], publication=published)
    rig.rules = ("*.*",)
    async with rig.running():
        rig.execute("INSERT INTO a VALUES (1)")
        await rig.wait_resolved()
        rig.execute("CREATE TABLE s.n (id int PRIMARY KEY)")
        rig.execute("INSERT INTO s.n VALUES (1)")
        await rig.wait_resolved()
    assert [change.kind for record in rig.ddl() for change in record.changes] == [SchemaChangeKind.CREATE]
    drop_slots(rig)


async def test_a_table_is_held_if_its_transaction_began_before_its_schema_was_published(
    postgres: EmbeddedPostgres, tmp_path: Path
) -> None:
    """Its first row was not sent; the row that publishes it was seen before the table was."""
    rig = make_rig(postgres, tmp_path, f"{_SCHEMA} CREATE SCHEMA s;", ["a"], publication="FOR TABLE a")
    rig.rules = ("*.*",)
    async with rig.running():
        await rig.wait_resolved()
        with connect(rig.uri) as writer:
            writer.query("BEGIN; CREATE TABLE s.n (id int PRIMARY KEY)")
            writer.query("SAVEPOINT s; INSERT INTO s.n VALUES (1); RELEASE s")
            rig.execute("ALTER PUBLICATION mine ADD TABLES IN SCHEMA s")
            for number in range(2):  # the catalog is read twice with it
                rig.execute(f"ALTER TABLE a ADD c{number} int; INSERT INTO a VALUES ({number})")
                await rig.wait_resolved()
            writer.query("COMMIT")
        rig.execute("INSERT INTO s.n VALUES (2)")
        await rig.wait_resolved()
    kinds = {change.table.name: change.kind for record in rig.ddl() for change in record.changes if change.table}
    assert kinds == {"a": SchemaChangeKind.ALTER, "n": SchemaChangeKind.HOLD}
    drop_slots(rig)


_WHOLE = {
    "rewritten for a type": (
        "CREATE TABLE n (id int PRIMARY KEY, v text)",
        "INSERT INTO n VALUES (1)",
        "ALTER TABLE n ALTER v TYPE varchar(9)",
    ),
    "emptied and filled": (
        "CREATE TABLE n (id int PRIMARY KEY)",
        "BEGIN; TRUNCATE n; INSERT INTO n VALUES (1); COMMIT",
    ),
    "emptied, then filled and granted": (
        "CREATE TABLE n (id int PRIMARY KEY)",
        "TRUNCATE n",
        "BEGIN; INSERT INTO n VALUES (1); GRANT SELECT ON n TO PUBLIC; COMMIT",
    ),
    "written again as it was": ("CREATE TABLE n (id int PRIMARY KEY)", "INSERT INTO n VALUES (1)", "VACUUM FULL n"),
    "with a type that got another label": (
        "CREATE TYPE e AS ENUM ('x', 'y'); CREATE TABLE n (id int PRIMARY KEY, v e)",
        "INSERT INTO n VALUES (1, 'x')",
        "ALTER TYPE e ADD VALUE 'w' BEFORE 'x'",
    ),
    "rewritten for a type and a column": (
        "CREATE TABLE n (id int PRIMARY KEY, v int)",
        "INSERT INTO n VALUES (1, 1)",
        "ALTER TABLE n ALTER v TYPE text, ADD w int DEFAULT 5",
    ),
    "attached behind its rows": (
        "CREATE TABLE r (id int PRIMARY KEY) PARTITION BY RANGE (id); CREATE TABLE n (id int PRIMARY KEY); "
        "INSERT INTO n VALUES (1); ALTER TABLE r ATTACH PARTITION n FOR VALUES FROM (0) TO (9)",
    ),
    "renamed without rows": ("CREATE TABLE other (id int PRIMARY KEY)", "ALTER TABLE other RENAME TO n"),
}


@pytest.mark.parametrize("case", _WHOLE)
async def test_a_new_table_with_all_its_rows_is_taken_in(postgres: EmbeddedPostgres, tmp_path: Path, case: str) -> None:
    rig = make_rig(postgres, tmp_path, _SCHEMA, ["a"], publication="FOR ALL TABLES")
    rig.rules = ("public.n*",)
    async with rig.running():
        for statement in (*_WHOLE[case], "INSERT INTO n VALUES (2)"):
            rig.execute(statement)
        await rig.wait_resolved()
    assert SchemaChangeKind.HOLD not in [change.kind for record in rig.ddl() for change in record.changes]
    assert len(rig.ddl()) >= 1
    drop_slots(rig)


async def test_a_table_without_columns_is_held_where_the_sink_has_none(
    postgres: EmbeddedPostgres, tmp_path: Path
) -> None:
    rig = make_rig(postgres, tmp_path, _SCHEMA, ["a"], publication="FOR ALL TABLES")
    rig.rules = ("public.*",)
    async with rig.running():
        rig.execute("CREATE TABLE n (); INSERT INTO n DEFAULT VALUES")
        rig.execute("INSERT INTO a VALUES (1)")
        await rig.wait_resolved()
    [change] = [change for record in rig.ddl() for change in record.changes]
    assert change.is_hold
    assert "has no columns" in change.reason
    drop_slots(rig)


_MADE = "CREATE TABLE n (id int PRIMARY KEY, v text)"
_ROWS = "INSERT INTO n VALUES (1, 'a'), (2, 'b')"
_USING = "ALTER TABLE n ALTER v TYPE text USING upper(v)"
#: each leaves rows that are in no stream as they are now
_REWRITTEN = {
    "in its transaction": (f"BEGIN; {_MADE}; {_ROWS}; {_USING}; COMMIT",),
    "in its transaction, with another index": (f"BEGIN; {_MADE}; {_ROWS}; {_USING}; CREATE INDEX ON n (v); COMMIT",),
    "in its transaction, as another type": (
        f"BEGIN; {_MADE}; INSERT INTO n VALUES (1, '7'); ALTER TABLE n ALTER v TYPE int USING v::int + 1; COMMIT",
    ),
    "behind a savepoint": (f"BEGIN; SAVEPOINT s; {_MADE}; {_ROWS}; RELEASE s; SAVEPOINT t; {_USING}; COMMIT",),
    "before it was read": (_MADE, _ROWS, _USING),
    "with a column that explains it": (_MADE, _ROWS, f"{_USING}, ALTER id TYPE bigint"),
    "before it was granted": (_MADE, _ROWS, _USING, "GRANT SELECT ON n TO PUBLIC"),
    "UNLOGGED in its transaction": (
        "BEGIN; CREATE UNLOGGED TABLE n (id int PRIMARY KEY, v text); INSERT INTO n VALUES (1); "
        "ALTER TABLE n SET LOGGED; COMMIT",
    ),
    "UNLOGGED in a savepoint": (
        "BEGIN; SAVEPOINT s; CREATE UNLOGGED TABLE n (id int PRIMARY KEY, v text); INSERT INTO n VALUES (1); "
        "ALTER TABLE n SET LOGGED; RELEASE s; INSERT INTO n VALUES (3); COMMIT",
    ),
    "UNLOGGED without an index": (
        "BEGIN; CREATE UNLOGGED TABLE n (id int NOT NULL, v text); INSERT INTO n VALUES (1); "
        "ALTER TABLE n SET LOGGED; COMMIT; ALTER TABLE n REPLICA IDENTITY FULL",
        "ALTER TABLE n ADD PRIMARY KEY (id)",
    ),
    "UNLOGGED with another column": (
        "CREATE UNLOGGED TABLE n (id int PRIMARY KEY, v text)",
        "INSERT INTO n VALUES (1)",
        "ALTER TABLE n SET LOGGED, ADD w int",
    ),
    "an enum's label was renamed": (
        "CREATE TYPE e AS ENUM ('x', 'y'); CREATE TABLE n (id int PRIMARY KEY, v e)",
        "INSERT INTO n VALUES (1, 'x')",
        "ALTER TYPE e RENAME VALUE 'x' TO 'z'",
    ),
    "a type was given a part": (
        "CREATE TYPE c AS (a int); CREATE TABLE n (id int PRIMARY KEY, v c[])",
        "INSERT INTO n VALUES (1, '{(1)}')",
        "ALTER TYPE c ADD ATTRIBUTE b int",
    ),
    "it was given a part of a later type": (
        "CREATE TABLE n (id int PRIMARY KEY)",
        "CREATE TYPE c AS (a int); ALTER TABLE n ADD v c",
        "INSERT INTO n VALUES (1, '(1)')",
        "ALTER TYPE c ADD ATTRIBUTE b int",
    ),
    "computed in its transaction": (f"BEGIN; {_MADE}; {_ROWS}; ALTER TABLE n ADD u float DEFAULT random(); COMMIT",),
    "filled by the default of a domain": (
        _MADE,
        _ROWS,
        "CREATE DOMAIN filled AS text DEFAULT 'x' CHECK (value <> ''); ALTER TABLE n ADD u filled",
        "ALTER DOMAIN filled DROP DEFAULT",
    ),
    "filled by a default that only the rows have": (
        _MADE,
        _ROWS,
        "ALTER TABLE n ADD u int DEFAULT 5; ALTER TABLE n ALTER u DROP DEFAULT",
        "VACUUM FULL n",
    ),
    "computed, with rows behind it": (
        f"BEGIN; {_MADE}; {_ROWS}; ALTER TABLE n ADD u float DEFAULT random(); INSERT INTO n VALUES (3); COMMIT",
    ),
}


@pytest.mark.parametrize("case", _REWRITTEN)
async def test_a_new_table_that_was_rewritten_with_rows_is_held(
    postgres: EmbeddedPostgres, tmp_path: Path, case: str
) -> None:
    rig = make_rig(postgres, tmp_path, _SCHEMA, ["a"], publication="FOR ALL TABLES")
    rig.rules = ("public.n*",)
    for statement in (*_REWRITTEN[case], "INSERT INTO n (id) VALUES (9)"):
        rig.execute(statement)
    async with rig.running():
        await rig.wait_resolved()
    assert [change.kind for record in rig.ddl() for change in record.changes] == [SchemaChangeKind.HOLD]
    drop_slots(rig)


async def test_rows_that_a_new_table_got_before_a_column_have_its_default(
    postgres: EmbeddedPostgres, tmp_path: Path
) -> None:
    rig = make_rig(postgres, tmp_path, _SCHEMA, ["a"], publication="FOR ALL TABLES")
    rig.rules = ("public.n*",)
    async with rig.running():
        rig.execute(
            f"BEGIN; {_MADE}; {_ROWS}; ALTER TABLE n ADD w int DEFAULT 5; INSERT INTO n VALUES (3, 'c', 7); "
            "ALTER TABLE n DROP v, ADD v text DEFAULT 'new'; ALTER TABLE n RENAME w TO x; "
            "INSERT INTO n VALUES (4, 8); COMMIT"
        )
        await rig.wait_resolved()
    [change] = [change for record in rig.ddl() for change in record.changes]
    assert (change.kind, change.fills) == (SchemaChangeKind.CREATE, {"x": "5", "v": "new"})
    drop_slots(rig)


@pytest.mark.parametrize("is_read_between", [True, False])
async def test_a_table_that_becomes_a_partition_of_its_successor_holds_it(
    postgres: EmbeddedPostgres, tmp_path: Path, is_read_between: bool
) -> None:
    """Its rows are in the stream under its own name; also where the catalog is read before the successor is named."""
    rig = make_rig(postgres, tmp_path, _SCHEMA, ["a"], publication="FOR ALL TABLES WITH (publish_via_partition_root)")
    rig.rules = ("public.*",)
    async with rig.running():
        rig.execute("INSERT INTO a VALUES (1)")
        await rig.wait_resolved()
        rig.execute(
            "BEGIN; ALTER TABLE a RENAME TO a_old; CREATE TABLE a (LIKE a_old INCLUDING ALL) PARTITION BY RANGE (id); "
            "ALTER TABLE a ATTACH PARTITION a_old FOR VALUES FROM (0) TO (10); COMMIT"
        )
        if is_read_between:
            await rig.wait_resolved()
        rig.execute("INSERT INTO a VALUES (2)")
        await rig.wait_resolved()
        await rig.wait_resolved()
    changes = [change for record in rig.ddl() for change in record.changes]
    [old], [new] = (
        {change.table_id for change in changes if change.kind is kind}
        for kind in (SchemaChangeKind.DROP, SchemaChangeKind.HOLD)
    )
    assert old == rig.tables[0].table_id != new, "the old table leaves, its successor is held"
    assert SchemaChangeKind.CREATE not in [change.kind for change in changes]
    drop_slots(rig)


async def test_a_new_table_whose_name_is_not_utf_8_is_passed_over_alone(
    postgres: EmbeddedPostgres, tmp_path: Path
) -> None:
    """The server refused to send the name, to whatever read the catalog, and so the changefeed ended."""
    rig = make_rig(postgres, tmp_path, _SCHEMA, ["a"], encoding="SQL_ASCII")
    rig.rules = ("*.*",)
    rig.execute(r"""DO $do$ BEGIN EXECUTE E'CREATE TABLE "caf\xe9" (id int PRIMARY KEY)'; END $do$""")
    rig.execute(r"""DO $do$ BEGIN EXECUTE E'INSERT INTO "caf\xe9" VALUES (1)'; END $do$""")
    rig.execute("INSERT INTO a VALUES (1)")
    async with rig.running():
        await rig.wait_resolved()
    assert [event[0] for event in rig.logged()] == [rig.tables[0].table_id]
    assert rig.ddl() == []
    drop_slots(rig)
