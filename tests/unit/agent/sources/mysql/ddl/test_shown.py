"""Keys and columns that the server shows while the log is behind: rows under them are doubted, by any stream."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from agent.rows.schema import TableSchema
from agent.sources.mysql.ddl.replicated_tables import TableUnknownError
from agent.sources.mysql.decode.types import FieldType
from reactor.ids import Ts
from reactor.records.tables.schema_change import SchemaChangeKind, TableChange
from tests.unit.agent.sources.mysql.ddl.parser.test_parse import names, table
from tests.unit.agent.sources.mysql.ddl.test_interpreter import Rig, minimal_map

CREATE, DROP, HOLD = SchemaChangeKind.CREATE, SchemaChangeKind.DROP, SchemaChangeKind.HOLD

#: far behind all statements, and before them
AHEAD, BEHIND = Ts(10_000), Ts(50)


def keyed(name: str, *key: str) -> TableSchema:
    schema = table(name)
    return replace(schema, columns=tuple(replace(column, is_key=column.name in key) for column in schema.columns))


def rig_of(*key: str, place: Ts = AHEAD, has_primary: bool = False, **options: Any) -> Rig:
    """Table ``t``, which has this key at the server."""
    rig = Rig("t", place=lambda: place, has_primary=lambda name: has_primary, **options)
    rig.there["d", "t"] = keyed("t", *key)
    return rig


def rows(rig: Rig, name: str = "t") -> None:
    rig.tables.describe(minimal_map(name))


def is_held(changes: Sequence[TableChange]) -> bool:
    return [change.kind for change in changes] == [HOLD] and "no primary key, or another" in changes[0].reason


#: what takes the key from the server, the key there, and what makes it in the log
LATE = [
    ("DROP PRIMARY KEY", "id", "ADD PRIMARY KEY (id)"),
    ("DROP PRIMARY KEY", "b", "ADD PRIMARY KEY (b)"),
    ("DROP PRIMARY KEY", "id", "ADD UNIQUE (id)"),
    ("DROP PRIMARY KEY", "b", "ADD PRIMARY KEY (id)"),
    ("DROP INDEX u", "id", "ADD UNIQUE u (id)"),
    ("DROP INDEX u", "b", "ADD UNIQUE u (b)"),
    ("DROP INDEX u", "b", "DROP INDEX w"),
    ("MODIFY id int NULL", "b", "MODIFY b bigint unsigned NOT NULL"),
    ("DROP PRIMARY KEY", "b", "DROP COLUMN a"),
]


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize(("first", "key", "later"), LATE)
def test_rows_under_a_key_of_later_hold_the_table(first: str, key: str, later: str, restarts: bool) -> None:
    rig = rig_of(key)
    rig.run(f"ALTER TABLE t {first}")
    assert rig.tables.by_name["d", "t"].record.key == (key,)
    rows(rig)
    assert not is_held(rig.run("ALTER TABLE t ADD n int"))
    if restarts:
        rig.restart()
    assert is_held(rig.run(f"ALTER TABLE t {later}"))


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize(("first", "key", "later"), LATE)
def test_a_statement_behind_the_place_of_the_key_holds_nothing(
    first: str, key: str, later: str, restarts: bool
) -> None:
    rig = rig_of(key, place=BEHIND)
    rig.run(f"ALTER TABLE t {first}")
    rows(rig)
    if restarts:
        rig.restart()
    assert not is_held(rig.run(f"ALTER TABLE t {later}"))


@pytest.mark.parametrize(("first", "key", "later"), LATE)
def test_without_rows_the_key_is_taken_again(first: str, key: str, later: str) -> None:
    rig = rig_of(key)
    rows(rig)
    rig.run(f"ALTER TABLE t {first}")
    assert not is_held(rig.run(f"ALTER TABLE t {later}"))


def test_an_index_beside_a_primary_key_is_none_of_the_key() -> None:
    rig = rig_of("id", has_primary=True)
    assert rig.record("ALTER TABLE t DROP INDEX u") is None
    rows(rig)
    assert rig.record("ALTER TABLE t ADD UNIQUE u (id)") is None


def test_a_key_that_a_statement_makes_is_doubted_no_more() -> None:
    rig = rig_of("id")
    rig.run("ALTER TABLE t DROP PRIMARY KEY", "ALTER TABLE t ADD PRIMARY KEY (id)")
    rows(rig)
    assert not is_held(rig.run("ALTER TABLE t DROP PRIMARY KEY"))


def test_a_statement_that_cannot_be_read_may_make_the_key() -> None:
    rig = rig_of("b")
    rig.run("ALTER TABLE t DROP PRIMARY KEY")
    rows(rig)
    assert is_held(rig.run("ALTER TABLE t FROBNICATE"))


def test_a_table_like_one_whose_key_is_doubted() -> None:
    rig = rig_of("b")
    rig.run("ALTER TABLE t DROP PRIMARY KEY", "CREATE TABLE v LIKE t")
    rows(rig, "v")
    assert is_held(rig.run("ALTER TABLE v ADD PRIMARY KEY (b)"))


def test_a_table_like_one_that_is_not_replicated_has_the_key_of_the_server_and_is_copied() -> None:
    rig = rig_of("id")
    rig.there["d", "v"] = keyed("v", "b")
    [created] = rig.run("CREATE TABLE v LIKE e.w")
    assert created.table is not None
    assert (created.table.to_copy, created.table.key) == (True, ("b",))
    assert rig.run("ALTER TABLE v ADD PRIMARY KEY (b)") == ()


_V = "CREATE TABLE v (id int, a varchar(20), b bigint unsigned)"


def test_a_table_without_a_key_does_not_get_that_of_later() -> None:
    """Its changes are logged as those of a table without a key until a statement gives it one."""
    rig = rig_of("id")
    rig.there["d", "v"] = keyed("v", "id")
    [created] = rig.run(_V)
    assert created.table is not None
    assert created.table.key == ()
    [made] = rig.run("ALTER TABLE v ADD PRIMARY KEY (id)")
    assert made.table is not None
    assert made.table.key == ("id",)


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("statement", [_V, "RENAME TABLE e.v TO v"])
def test_a_table_that_is_copied_has_what_statements_before_the_copy_made(statement: str, restarts: bool) -> None:
    """The definition that the server showed includes them, and so will the copy."""
    rig = rig_of("id", takes=False)
    rig.there["d", "v"] = replace(keyed("v", "id"), columns=keyed("v", "id").columns[:2])
    [created] = [change for change in rig.run(statement) if change.kind is CREATE]
    assert created.table is not None
    assert (created.table.to_copy, created.table.shown_ts) == (True, AHEAD)
    if restarts:
        rig.restart()
    for late in ("DROP b", "ADD b int DEFAULT 3", "CHANGE a a varchar(20) NOT NULL", "ADD p POINT", "ADD UNIQUE (a)"):
        assert rig.record(f"ALTER TABLE v {late}") is None
    assert "v" in rig.names()
    rig.skip_to(AHEAD)
    [change] = rig.run("ALTER TABLE v ADD c int")
    assert names(TableSchema.from_json(change.after)) == ["id", "a", "c"]


@pytest.mark.parametrize("restarts", [False, True])
def test_rows_before_the_copy_may_have_other_columns(restarts: bool) -> None:
    rig = rig_of("id")
    rig.there["d", "v"] = keyed("v", "b")
    rig.run("RENAME TABLE e.v TO v")
    if restarts:
        rig.restart()
    full = minimal_map("v", key=0)  # it says that the key is ``id``
    assert rig.tables.describe(full).key == ("id",)
    rig.skip_to(AHEAD)
    rig.run("ALTER TABLE v ADD c int", "ALTER TABLE v DROP c")
    with pytest.raises(TableUnknownError, match="its key is"):
        rig.tables.describe(full)


@pytest.mark.parametrize(
    "statements",
    [
        ["RENAME TABLE t TO _t_old, _t_new TO t"],
        [
            "CREATE TABLE _t_new LIKE t",
            "ALTER TABLE _t_new DROP PRIMARY KEY",
            "rows",
            "RENAME TABLE t TO _t_old, _t_new TO t",
        ],
    ],
)
def test_a_copy_that_replaces_its_table_has_the_key_of_the_server(statements: list[str]) -> None:
    rig = rig_of("b")
    for statement in statements:
        if statement == "rows":
            rig.fill("_t_new")
        else:
            rig.run(statement)
    assert rig.tables.by_name["d", "t"].record.shown_ts == AHEAD
    rows(rig)
    assert is_held(rig.run("ALTER TABLE t ADD PRIMARY KEY (b)"))


@pytest.mark.parametrize("is_swapped", [False, True])
def test_a_unique_key_that_the_statement_makes_is_taken_though_the_server_is_ahead(is_swapped: bool) -> None:
    """If later statements exchange the names of two columns, its key is another column here."""
    rig, shown = rig_of("b"), keyed("t", "a" if is_swapped else "b")
    id, a, b = shown.columns
    columns = (id, b, a) if is_swapped else (id, a, b, replace(id, name="c", is_key=False))
    rig.there["d", "t"] = replace(shown, columns=columns)
    [change] = rig.run("ALTER TABLE t DROP PRIMARY KEY, ADD UNIQUE (B), MODIFY b bigint unsigned NOT NULL")
    assert change.table is not None
    assert (change.table.key, change.table.shown_ts) == (() if is_swapped else ("b",), AHEAD)
    rows(rig)
    if not is_swapped:
        assert is_held(rig.run("ALTER TABLE t DROP INDEX b, ADD UNIQUE (b)"))


@pytest.mark.parametrize("has_primary", [False, True])
@pytest.mark.parametrize("is_another", [False, True])
def test_a_key_is_unknown_if_its_index_may_be_gone_and_another_table_has_the_name_by_now(
    has_primary: bool, is_another: bool
) -> None:
    """The server answers for the table that has got the name by a later RENAME."""
    rig = rig_of("id", has_primary=has_primary)
    id, a, b = keyed("t", "id").columns
    other = replace(id, type_id=int(FieldType.SHORT)) if is_another else id
    rig.there["d", "t"] = replace(rig.there["d", "t"], columns=(other, a, b, replace(id, name="c", is_key=False)))
    changes = rig.run("ALTER TABLE t DROP INDEX id, ADD x int")
    assert ([change.kind for change in changes] == [HOLD]) == (has_primary and is_another)


@pytest.mark.parametrize("key", ["UNIQUE u (id)", "PRIMARY KEY (id), UNIQUE u (a)"])
def test_a_key_that_an_index_makes_may_go_with_it_though_the_server_has_a_primary_one_by_now(key: str) -> None:
    rig = rig_of("id", has_primary=True)
    rig.there["d", "n"] = keyed("n", "id")
    columns = "id int NOT NULL, a varchar(20) NOT NULL, b bigint unsigned"
    [change] = rig.run(f"CREATE TABLE n ({columns}, {key})")
    assert change.table is not None
    assert change.table.is_primary is key.startswith("PRIMARY")
    rig.run("ALTER TABLE n DROP INDEX u")
    rows(rig, "n")
    if key.startswith("PRIMARY"):
        assert not rig.run("ALTER TABLE n ADD UNIQUE u (a)")
    else:
        assert is_held(rig.run("ALTER TABLE n ADD PRIMARY KEY (id)"))
