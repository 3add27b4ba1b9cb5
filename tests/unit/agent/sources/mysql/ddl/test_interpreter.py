"""Statements one after the other, and what each comes to for the tables that are replicated."""

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from agent.rows.schema import TableSchema, ZeroDates
from agent.rows.schema_change import KnownTable, known_tables
from agent.sources.mysql.ddl.environment import Server
from agent.sources.mysql.ddl.event import DdlEvent
from agent.sources.mysql.ddl.interpreter import Interpreter
from agent.sources.mysql.ddl.replicated_tables import KnownTables, TableUnknownError
from agent.sources.mysql.decode.charsets import charset_of
from agent.sources.mysql.decode.table_ids import table_id
from agent.sources.mysql.decode.types import FieldType
from reactor.ids import Ts
from reactor.records.tables.schema_change import DdlRecord, SchemaChangeKind, TableChange
from reactor.records.tables.table import TableRecord
from tests.unit.agent.sources.mysql.ddl.parser.test_parse import names, table

ALTER, CREATE, DROP, HOLD, RENAME = (
    SchemaChangeKind.ALTER,
    SchemaChangeKind.CREATE,
    SchemaChangeKind.DROP,
    SchemaChangeKind.HOLD,
    SchemaChangeKind.RENAME,
)


#: of tables, where they are not utf8mb4
_COLLATIONS = {"u": 9}


def definitions(tables: KnownTables) -> dict[tuple[str, str], object]:
    """All that rows are read by, and new columns get: of a held table nothing, until it is copied."""
    return {
        name: (table.record, table.schema, table.schema.collation if table.schema else 0)
        if not table.is_held
        else (table.record.with_(collation=0), table.held)
        for name, table in tables.by_name.items()
    }


def minimal_map(name: str, *, signs: int = 0x40, collation: int = 45, key: int | None = None) -> bytes:
    """The table map of id int, a varchar(20) and b bigint, as MySQL's or MariaDB's MINIMAL declares them; with the
    number of the ``key`` column as FULL does."""
    types = bytes([FieldType.LONG, FieldType.VARCHAR, FieldType.LONGLONG])
    head = b"\5\0\0\0\0\0\1\0\1d\0" + bytes([len(name)]) + name.encode() + b"\0\3" + types
    body = head + b"\2\x50\0\0" + bytes([1, 1, signs, 2, 1, collation])
    return body if key is None else body + b"\4\7\2id\1a\1b" + bytes([8, 1, key])


def known(*tables: str) -> KnownTables:
    found = []
    for name in tables:
        number = table_id("d", name)
        record = TableRecord(
            table_id=number, schema_name="d", name=name, key=("id",), collation=_COLLATIONS.get(name, 45)
        )
        found.append(KnownTable(record, replace(table(name), table_id=number)))
    return KnownTables(found, zero_dates=ZeroDates.NULL, is_mariadb=True)


class Rig:
    """The tables of database ``d``; ``there``: what the server would show. ``facts``: others of ``Server``."""

    def __init__(self, *tables: str, takes: bool = True, ignores_rename: bool = False, **facts: Any) -> None:
        self.there: dict[tuple[str, str], TableSchema] = {}
        self.computed: dict[str, str] = {}
        #: events that filters ignore, with their table
        self.ignored: set[tuple[tuple[str, str], str]] = set()
        self.tables = known(*tables)
        server = Server(
            wants=lambda schema, _: schema == "d",
            takes=lambda record: takes or bool(record.key),
            look=self.there.get,
            ignores_rename=lambda name, statement: ignores_rename and name == ("d", "v") and "RENAME" in statement,
            ignores=lambda name, event: (name, event) in self.ignored,
            zero_dates=ZeroDates.NULL,
            is_mariadb=True,
            computed=lambda name: self.computed,
        )
        server = replace(server, **facts)
        self._server = server
        self._interpreter = Interpreter(self.tables, server)
        self._ts = 100
        self._begun = list(self.tables.by_name.values())
        self._records: list[DdlRecord] = []

    def record(self, statement: str, *, is_failed: bool = False) -> DdlRecord | None:
        self._ts += 10
        event = DdlEvent(Ts(self._ts), "d", statement, end=Ts(self._ts + 9), is_failed=is_failed)
        record = self._interpreter.interpret(event)
        self._records += [record] if record else []
        return record

    def run(self, *statements: str) -> Sequence[TableChange]:
        """What the last one changes."""
        for statement in statements:
            record = self.record(statement)
        return record.changes if record else ()

    def hold(self, name: str, schema: str = "d") -> Sequence[TableChange]:
        self._ts += 1
        record = self._interpreter.hold([(schema, name)], "rows", Ts(self._ts))
        self._records += [record] if record else []
        return record.changes if record else ()

    def again(self) -> KnownTables:
        """What another stream would know, by records as they are stored."""
        ddl = [DdlRecord.decode(record.encode(), key="ddl") for record in self._records]
        begun = [TableRecord.decode(table.record.encode(), key="table") for table in self._begun]
        schemas = {
            table.record.table_id: TableSchema.from_json(table.schema.to_json())
            for table in self._begun
            if table.schema
        }
        tables = known_tables(begun, schemas, ddl, at=Ts(self._ts)).values()
        return KnownTables(tables, zero_dates=ZeroDates.NULL, is_mariadb=True, begin=Ts(self._ts))

    def memory(self, at: int | None = None) -> str:
        return self._interpreter.memory(Ts(self._ts if at is None else at))

    def forget_text(self) -> None:
        """The memory has changed, so its text must be made again."""
        self._interpreter._text = None

    def restart(self) -> None:
        """Another stream continues."""
        self.restart_with(self.again(), self.memory())

    def restart_with(self, tables: KnownTables, memory: str = "") -> None:
        self.tables = tables
        self._interpreter = Interpreter(self.tables, self._server, memory)

    def skip_to(self, ts: Ts) -> None:
        """Statements to come are behind this place."""
        self._ts = ts

    def fill(self, name: str) -> None:
        """Rows of a table that is none of ours."""
        assert not self.tables.is_wanted("d", name)

    def names(self) -> list[str]:
        return sorted(name for _, name in self.tables.by_name)


@pytest.mark.parametrize("restarts", [False, True])
def test_rows_under_a_name_that_was_given_up_are_noticed_by_another_stream_too(restarts: bool) -> None:
    rig = Rig("t")
    rig.there["d", "t"] = table("t")
    rig.run("RENAME TABLE t TO u")
    if restarts:
        rig.restart()
    with pytest.raises(TableUnknownError, match="no statement in the log"):
        rig.tables.is_wanted("d", "t")
    hold, create = rig.hold("t")
    assert (hold.kind, hold.table and hold.table.name) == (HOLD, "u")
    assert (create.kind, create.table and create.table.to_copy) == (CREATE, True)
    assert rig.tables.is_wanted("d", "t")


def test_a_table_whose_rows_do_not_fit_is_held_for_the_reason_found() -> None:
    rig = Rig("t", "u")
    rig.there["d", "t"] = table("t")
    [change] = rig.hold("t")
    assert (change.kind, change.table and change.table.name) == (HOLD, "t")
    assert "rows" in change.reason
    assert not rig.tables.is_wanted("d", "t")
    assert rig.tables.is_wanted("d", "u")


def test_rows_under_the_name_of_a_table_that_is_gone_hold_no_other() -> None:
    rig = Rig("t", "u")
    rig.run("DROP TABLE t")
    with pytest.raises(TableUnknownError):
        rig.tables.is_wanted("d", "t")
    assert rig.hold("t") == ()  # the server has no such table any more
    assert not rig.tables.is_wanted("d", "t")


def test_rows_under_an_unwanted_name_that_was_given_up_hold_the_table_that_had_it() -> None:
    rig = Rig("t")
    rig.there["e", "t"] = table("t")
    rig.run("RENAME TABLE t TO e.t", "RENAME TABLE e.t TO e.u")
    [hold] = rig.hold("t", "e")
    assert (hold.kind, hold.table and hold.table.name) == (HOLD, "u")
    assert not rig.tables.is_wanted("e", "t")


def test_rows_under_an_unwanted_first_name_hold_nothing() -> None:
    """A table came from there long ago; another one may have the name since, which is not replicated."""
    rig = Rig("t")
    [first] = rig.tables.by_name.values()
    number = table_id("e", "t")
    rig.tables = KnownTables(
        [replace(first, record=first.record.with_(table_id=number))], zero_dates=ZeroDates.NULL, is_mariadb=True
    )
    rig.restart_with(rig.tables)
    with pytest.raises(TableUnknownError):
        rig.tables.is_wanted("e", "t")
    assert rig.hold("t", "e") == ()
    assert not rig.tables.is_wanted("e", "t")
    assert rig.tables.is_wanted("d", "t")


def test_a_collation_that_the_record_lacks_is_asked() -> None:
    """Records of v0.1.0 have none: texts of new columns have the table's."""
    rig = Rig("t")
    [first] = rig.tables.by_name.values()
    bare = replace(first, record=first.record.with_(collation=0), schema=replace(table("t"), collation=0))
    rig.restart_with(KnownTables([bare], zero_dates=ZeroDates.NULL, is_mariadb=True))
    rig.there["d", "t"] = replace(table("t"), collation=8)
    [change] = rig.run("ALTER TABLE t ADD x varchar(9) DEFAULT 'q'")
    after = {column.name: column for column in TableSchema.from_json(change.after).columns}
    assert charset_of(after["x"].collation) == charset_of(8)


def test_a_name_that_another_table_has_got_is_not_the_one_that_was_given_up() -> None:
    rig = Rig("t")
    rig.run("RENAME TABLE t TO u")
    rig.restart()
    rig.run("CREATE TABLE t (id INT PRIMARY KEY)", "RENAME TABLE t TO e.t", "RENAME TABLE e.t TO t")
    assert rig.tables.is_wanted("d", "t")
    rig.fill("other")


def test_a_column_comes_with_its_default() -> None:
    rig = Rig("t")
    [change] = rig.run("ALTER TABLE t ADD n INT NOT NULL DEFAULT 7, CHANGE a c VARCHAR(20)")
    assert (change.kind, change.added, change.fills, change.renames) == (ALTER, ("n",), {"n": "7"}, {"c": "a"})
    assert names(TableSchema.from_json(change.after)) == ["id", "c", "b", "n"]
    schema = rig.tables.schema_of("d", "t")
    assert schema is not None
    assert schema.table_id == table_id("d", "t")


def test_what_no_row_is_read_by_is_no_change() -> None:
    rig = Rig("t")
    assert rig.record("ALTER TABLE t ADD INDEX i (a)") is None
    assert rig.record("ALTER TABLE u ADD n INT") is None


@pytest.mark.parametrize(
    "definition",
    [
        "MODIFY a VARCHAR(60)",
        "MODIFY a VARCHAR(40) CHARACTER SET latin1",
        "MODIFY b BIGINT UNSIGNED FIRST",
        "DEFAULT CHARACTER SET latin2",
        "CONVERT TO CHARACTER SET latin1",
    ],
)
def test_what_rows_are_read_by_is_recorded_though_no_sink_sees_it(definition: str) -> None:
    """A binlog without full metadata tells neither names nor character sets of columns."""
    rig = Rig("t")
    [change] = rig.run(f"ALTER TABLE t {definition}")
    assert change.kind is ALTER
    assert definitions(rig.again()) == definitions(rig.tables)


_STATEMENTS = (
    "RENAME TABLE t TO swap_, u TO t, swap_ TO u",
    "RENAME TABLE t TO w",
    "RENAME TABLE w TO t",
    "ALTER TABLE t DEFAULT CHARACTER SET latin2",
    "ALTER TABLE u DEFAULT CHARACTER SET cp1251",
    "ALTER TABLE t CONVERT TO CHARACTER SET latin1",
    "ALTER TABLE t ADD COLUMN IF NOT EXISTS x TEXT",
    "ALTER TABLE u ADD COLUMN IF NOT EXISTS x VARCHAR(9) AFTER id",
    "ALTER TABLE t MODIFY x TEXT",
    "ALTER TABLE t MODIFY x INT",
    "ALTER TABLE u MODIFY a VARCHAR(30) FIRST",
    "ALTER TABLE u CHANGE a y CHAR(5) CHARACTER SET utf8mb3",
    "ALTER TABLE t DROP COLUMN IF EXISTS x",
    "CREATE OR REPLACE TABLE t (id INT PRIMARY KEY, a VARCHAR(7)) CHARACTER SET latin2",
    "CREATE TABLE IF NOT EXISTS w LIKE t",
    "DROP TABLE IF EXISTS w",
    "TRUNCATE TABLE u",
    "DROP DATABASE e",
)


@given(st.lists(st.sampled_from([*_STATEMENTS, "rows of t", "rows of w", "rows of _t_new"]), max_size=12))
def test_a_memory_that_is_kept_as_text_is_what_has_been_learnt(steps: list[str]) -> None:
    rig = Rig("t", "u")
    for step in ["CREATE TABLE w (id INT PRIMARY KEY)", "CREATE TABLE _t_new LIKE t", *steps]:
        if not step.startswith("rows of"):
            rig.record(step)
        else:
            name = step.removeprefix("rows of ")
            with contextlib.suppress(TableUnknownError):
                if rig.tables.is_wanted("d", name):
                    rig.tables.describe(minimal_map(name))
        text = rig.memory()
        assert rig.memory() is text
        rig.forget_text()
        assert rig.memory() == text, step


@given(st.lists(st.sampled_from(_STATEMENTS), max_size=12))
def test_a_stream_that_starts_again_knows_the_tables_as_they_were(statements: list[str]) -> None:
    rig = Rig("t", "u")
    for statement in statements:
        rig.record(statement)
        assert definitions(rig.again()) == definitions(rig.tables), statement


def test_created_dropped_and_created_again() -> None:
    rig = Rig()
    [created] = rig.run("CREATE TABLE t (id INT PRIMARY KEY, v INT)")
    assert (created.kind, created.table and created.table.key) == (CREATE, ("id",))
    assert created.table is not None
    assert created.table.start_ts == 109
    assert not rig.run("CREATE TABLE IF NOT EXISTS t (x INT)")
    [dropped] = rig.run("DROP TABLE t")
    assert (dropped.kind, dropped.table_id) == (DROP, created.table_id)
    [again] = rig.run("CREATE TABLE t (id INT PRIMARY KEY)")
    assert again.table_id == created.table_id
    first, second = rig.run("CREATE TABLE u LIKE t", "DROP TABLE t, u")
    assert {first.kind, second.kind} == {DROP}


def test_the_servers_definition_counts_where_it_is_what_the_statement_leaves() -> None:
    rig = Rig()
    exact = replace(table("t"), columns=table("t").columns[:1])
    rig.there["d", "t"] = exact
    [created] = rig.run("CREATE TABLE t (id INT PRIMARY KEY)")
    assert TableSchema.from_json(created.after).columns == exact.columns
    rig.there["d", "u"] = table("u")  # it has got more columns since
    [created] = rig.run("CREATE TABLE u (id INT PRIMARY KEY)")
    assert names(TableSchema.from_json(created.after)) == ["id"]


def test_names_go_round_and_ids_stay() -> None:
    rig = Rig("t", "u")
    first, second = rig.run("RENAME TABLE t TO x, u TO t, x TO u")
    assert {first.kind, second.kind} == {RENAME}
    found = {change.table_id: change.table.name for change in (first, second) if change.table}
    assert found == {table_id("d", "t"): "u", table_id("d", "u"): "t"}


def test_a_new_table_of_an_old_name_has_another_id() -> None:
    rig = Rig("t")
    [renamed] = rig.run("ALTER TABLE t RENAME TO u")
    [created] = rig.run("CREATE TABLE t (id INT PRIMARY KEY)")
    assert renamed.table_id == table_id("d", "t") != created.table_id
    assert created.table is not None
    assert created.table.table_id == created.table_id


def test_a_database_goes_with_its_tables_and_no_others() -> None:
    rig = Rig("t", "u")
    [dropped] = rig.run("RENAME TABLE t TO e.t", "DROP DATABASE e")
    assert (dropped.kind, dropped.table_id) == (DROP, table_id("d", "t"))
    assert rig.names() == ["u"]


def test_a_database_goes_with_its_copies() -> None:
    """A table of the same name in the next database of the name waits for none of them."""
    rig = Rig("t", "u")
    rig.run("RENAME TABLE t TO e.t", "CREATE TABLE e._t_new LIKE e.t", "DROP DATABASE e")
    [dropped] = rig.run("RENAME TABLE u TO e.t", "DROP TABLE e.t")
    assert (dropped.kind, dropped.table_id) == (DROP, table_id("d", "u"))


def test_a_table_that_nobody_has_is_renamed_to_no_other() -> None:
    rig = Rig("t")
    assert rig.run("RENAME TABLE IF EXISTS nothing TO t") == ()
    assert rig.tables.is_wanted("d", "t")
    rig.there["d", "v"] = table("v")
    [created] = rig.run("RENAME TABLE IF EXISTS e.other TO v")
    assert (created.kind, created.table and created.table.to_copy) == (CREATE, True)


def test_a_name_outside_that_was_given_up_is_another_tables_once_it_is_created() -> None:
    rig = Rig("t")
    rig.run("RENAME TABLE t TO e.t", "RENAME TABLE e.t TO e.u", "CREATE TABLE e.t (id INT PRIMARY KEY)")
    assert not rig.tables.is_wanted("e", "t")


def test_a_table_like_one_that_is_gone_again_is_left_out() -> None:
    rig = Rig("t")
    assert rig.run("CREATE TABLE n LIKE e.unknown") == ()
    assert rig.names() == ["t"]


@pytest.mark.parametrize("logs", [True, False])
def test_a_new_table_with_cascades_is_followed_where_they_are_logged(logs: bool) -> None:
    rig = Rig("t", logs_cascades=logs)
    [change] = rig.run(
        "CREATE TABLE n (id INT PRIMARY KEY, r INT, FOREIGN KEY (r) REFERENCES t (id) ON DELETE CASCADE)"
    )
    assert change.kind is (CREATE if logs else HOLD)


def test_a_table_that_is_written_again_may_lose_its_odd_dates() -> None:
    """A lax server makes zero dates of those that no calendar has; where dates are texts, the older rows change."""
    rig = Rig(zero_dates=ZeroDates.STRING, is_mariadb=False)
    [change] = rig.run("CREATE TABLE z (id INT PRIMARY KEY, c DATE)", "ALTER TABLE z FORCE")
    assert (change.kind, change.before == change.after) == (ALTER, True)
    assert rig.run("ALTER TABLE z FORCE, ALGORITHM=INPLACE") == ()


def test_a_database_that_is_created_again_has_no_collation_of_before() -> None:
    rig = Rig("t", collation_of=lambda _: 8)
    rig.there["d", "t"] = table("t")
    rig.run("CREATE DATABASE d CHARACTER SET latin2", "DROP DATABASE d", "CREATE DATABASE d")
    [created] = rig.run("CREATE TABLE n (id INT PRIMARY KEY, v VARCHAR(9))")
    [_, column] = TableSchema.from_json(created.after).columns
    assert charset_of(column.collation) == charset_of(8)


def test_a_foreign_table_that_takes_a_replicated_ones_name_is_another_one() -> None:
    """That one was dropped, and the log does not say so."""
    rig = Rig("t")
    rig.there["d", "t"] = table("t")
    dropped, created = rig.run("RENAME TABLE e.other TO t")
    assert (dropped.kind, dropped.table_id) == (DROP, table_id("d", "t"))
    assert (created.kind, created.table and created.table.to_copy) == (CREATE, True)
    assert created.table_id != dropped.table_id


@pytest.mark.parametrize("name", ["e.unwanted", "_t_old", "_t_new"])
def test_a_foreign_table_that_gets_an_unwanted_name_or_that_of_a_copy_is_none_of_ours(name: str) -> None:
    rig = Rig("t")
    rig.there.update({("d", one): table(one) for one in ("_t_old", "_t_new")})
    rig.there["e", "unwanted"] = table("unwanted")
    assert rig.run(f"RENAME TABLE e.other TO {name}") == ()
    assert rig.names() == ["t"]


def test_a_copy_that_gets_another_copys_name_takes_its_columns_along() -> None:
    rig = Rig("t")
    rig.run("CREATE TABLE _t_new LIKE t", "ALTER TABLE _t_new ADD z INT DEFAULT 7", "INSERT INTO _t_new SELECT 1")
    rig.fill("_t_new")
    rig.run("RENAME TABLE _t_new TO _t_gho")
    rig.fill("_t_gho")
    [change] = rig.run("RENAME TABLE t TO _t_del, _t_gho TO t")
    assert (change.kind, change.table_id, change.added, change.fills) == (ALTER, table_id("d", "t"), ("z",), {"z": "7"})


def test_a_held_new_table_that_leaves_the_filter_is_gone() -> None:
    rig = Rig("t", takes=False)
    [held] = rig.run("CREATE TABLE n (id INT)")
    assert held.kind is HOLD
    [gone] = rig.run("RENAME TABLE n TO e.n")
    assert (gone.kind, gone.table_id) == (DROP, held.table_id)
    assert rig.names() == ["t"]


def test_a_table_of_ours_continues_outside() -> None:
    rig = Rig("t")
    [change] = rig.run("RENAME TABLE t TO e.t")
    assert change.table is not None
    assert change.table.schema_name == "e"


@pytest.mark.parametrize("statement", ["RENAME TABLE e.other TO d.v", "ALTER TABLE e.other RENAME v, ADD x INT"])
def test_a_table_that_is_renamed_into_the_filter_is_to_be_copied(statement: str) -> None:
    rig = Rig("t")
    rig.there["d", "v"] = table("v")
    [created] = rig.run(statement)
    assert (created.kind, created.table and created.table.name, created.table and created.table.to_copy) == (
        CREATE,
        "v",
        True,
    )
    assert created.after
    [added] = rig.run("ALTER TABLE d.v ADD n INT")
    [renamed] = rig.run("RENAME TABLE d.v TO d.w")
    assert (added.kind, renamed.table_id, renamed.table and renamed.table.name) == (ALTER, created.table_id, "w")
    assert sorted(rig.names()) == ["t", "w"]
    [gone] = rig.run("DROP TABLE d.w")
    assert (gone.kind, gone.table_id) == (DROP, created.table_id)
    assert rig.names() == ["t"]


def test_a_table_that_is_renamed_into_the_filter_may_be_left_out() -> None:
    rig = Rig("t", ignores_rename=True)
    rig.there["d", "v"] = table("v")
    assert not rig.run("RENAME TABLE e.other TO d.v")
    assert rig.names() == ["t"]


@pytest.mark.parametrize(
    ("event", "statement"),
    [
        ("drop table partition", "ALTER TABLE t DROP PARTITION p, q"),
        ("truncate table partition", "alter table t truncate partition all"),
    ],
)
def test_rows_that_go_with_a_partition_may_stay(event: str, statement: str) -> None:
    rig = Rig("t", "u")
    rig.ignored = {(("d", "t"), event)}
    assert not rig.run(statement)
    assert [change.kind for change in rig.run("ALTER TABLE t EXCHANGE PARTITION p WITH TABLE u")] == [HOLD, HOLD]

    rig = Rig("t")
    rig.ignored = {(("d", "u"), event), (("d", "t"), "rename table")}
    assert [change.kind for change in rig.run(statement)] == [HOLD]


def test_a_copy_that_takes_its_tables_place_in_two_statements() -> None:
    rig = Rig("t")
    assert not rig.run("CREATE TABLE `_t_gho` LIKE t", "ALTER TABLE _t_gho ADD n INT DEFAULT 3")
    rig.fill("_t_gho")
    assert not rig.run("RENAME TABLE t TO _t_del")
    [change] = rig.run("RENAME TABLE _t_gho TO t")
    assert (change.kind, change.table_id, change.fills) == (ALTER, table_id("d", "t"), {"n": "3"})
    assert not rig.run("DROP TABLE _t_del")
    assert rig.names() == ["t"]


def test_a_table_that_is_dropped_for_its_copy() -> None:
    rig = Rig("t")
    assert not rig.run("CREATE TABLE `_t_new` LIKE t", "ALTER TABLE _t_new DROP b")
    rig.fill("_t_new")
    assert not rig.run("DROP TABLE IF EXISTS t")
    [change] = rig.run("RENAME TABLE _t_new TO t")
    assert (change.kind, change.table_id) == (ALTER, table_id("d", "t"))
    assert names(TableSchema.from_json(change.after)) == ["id", "a"]


def test_a_copy_that_never_comes() -> None:
    rig = Rig("t", "u")
    assert not rig.run("CREATE TABLE _t_gho LIKE t", "RENAME TABLE t TO _t_del", "RENAME TABLE _t_del TO t")
    assert not rig.run("DROP TABLE t")
    [gone] = rig.run("DROP TABLE _t_gho")
    assert (gone.kind, gone.table_id) == (DROP, table_id("d", "t"))
    assert not rig.run("CREATE TABLE _u_new LIKE u", "DROP TABLE u")
    gone, created = rig.run("CREATE TABLE u (id INT PRIMARY KEY)")
    assert (gone.kind, created.kind, gone.table_id == created.table_id) == (DROP, CREATE, False)


def test_the_second_statement_for_one_who_comes_late() -> None:
    """The stream was opened again after the copy was made."""
    rig = Rig("t")
    [moved] = rig.run("RENAME TABLE t TO _t_del")
    rig.there["d", "t"] = replace(table("t"), columns=table("t").columns[:2])
    [change] = rig.run("RENAME TABLE _t_gho TO t")
    assert (moved.kind, change.kind, change.table_id) == (RENAME, ALTER, table_id("d", "t"))


def test_an_empty_table_is_no_copy() -> None:
    """A table of events is put away, and an empty one takes its place."""
    rig = Rig("t")
    assert not rig.run("CREATE TABLE _t_new LIKE t")
    gone, created = rig.run("RENAME TABLE t TO _t_old, _t_new TO t")
    assert (gone.kind, created.kind, gone.table_id == created.table_id) == (DROP, CREATE, False)


@pytest.mark.parametrize(
    "definition",
    [
        "ADD n INT AUTO_INCREMENT UNIQUE",
        "ADD n DATETIME DEFAULT CURRENT_TIMESTAMP",
        "ADD UNIQUE (a) USING HASH",
        "ADD UNIQUE (b)",
        "DROP PRIMARY KEY, ADD PRIMARY KEY (b)",
        "CHANGE b id2 BIGINT UNSIGNED NOT NULL, DROP PRIMARY KEY, ADD PRIMARY KEY (id2)",
    ],
)
def test_a_copy_whose_rows_may_be_others(definition: str) -> None:
    rig = Rig("t")
    assert not rig.run("CREATE TABLE _t_gho LIKE t", f"ALTER TABLE _t_gho {definition}")
    rig.fill("_t_gho")
    [held] = rig.run("RENAME TABLE t TO _t_del, _t_gho TO t")
    assert held.kind == HOLD


@pytest.mark.parametrize(
    "definition",
    [
        "DROP PRIMARY KEY, ADD PRIMARY KEY (id, b)",
        "ADD UNIQUE (b, ID)",
        "CHANGE id n INT, ADD UNIQUE (n, b)",
        "ADD KEY (b)",
    ],
)
def test_a_copy_with_a_unique_key_that_includes_the_key_has_all_rows(definition: str) -> None:
    rig = Rig("t")
    assert not rig.run("CREATE TABLE _t_gho LIKE t", f"ALTER TABLE _t_gho {definition}")
    rig.fill("_t_gho")
    assert HOLD not in [change.kind for change in rig.run("RENAME TABLE t TO _t_del, _t_gho TO t")]


@pytest.mark.parametrize(
    ("definition", "is_held"),
    [
        ("MODIFY a VARCHAR(3)", True),
        ("MODIFY a VARCHAR(100) COLLATE utf8mb4_unicode_ci", True),
        ("CONVERT TO CHARACTER SET latin1", True),
        ("CHANGE a c VARCHAR(3)", False),
        ("CHANGE b A2 INT, MODIFY a VARCHAR(100)", False),
        ("CHANGE b n DATE", True),
    ],
)
def test_a_copy_whose_unique_key_may_refuse_rows_that_have_become_alike(definition: str, *, is_held: bool) -> None:
    rig = Rig("t", uniques=lambda name: frozenset({"id", "a", "n"}))
    rig.run("CREATE TABLE _t_gho LIKE t", f"ALTER TABLE _t_gho {definition}")
    rig.fill("_t_gho")
    changes = rig.run("RENAME TABLE t TO _t_del, _t_gho TO t")
    assert (HOLD in [change.kind for change in changes]) is is_held


def test_the_server_is_not_asked_for_the_unique_keys_of_a_copy_whose_values_stay() -> None:
    rig = Rig("t", uniques=lambda name: pytest.fail("asked"))
    rig.run(
        "CREATE TABLE _t_gho LIKE t",
        "ALTER TABLE _t_gho MODIFY id BIGINT, MODIFY a VARCHAR(50), ADD n INT, DROP COLUMN b",
    )
    rig.fill("_t_gho")
    assert HOLD not in [change.kind for change in rig.run("RENAME TABLE t TO _t_del, _t_gho TO t")]


def test_gh_ost() -> None:
    rig = Rig("t")
    assert not rig.run(
        "CREATE TABLE `_t_ghc` (id BIGINT PRIMARY KEY, hint VARCHAR(64))",
        "CREATE TABLE `_t_gho` LIKE t",
        "ALTER TABLE `_t_gho` ADD COLUMN n INT NOT NULL DEFAULT 3, CHANGE a c VARCHAR(20)",
        "ALTER TABLE `_t_gho` RENAME COLUMN n TO m, DROP b",
    )
    rig.fill("_t_gho")
    [change] = rig.run("RENAME TABLE `d`.`t` TO `d`.`_t_del`, `d`.`_t_gho` TO `d`.`t`")
    assert (change.kind, change.table_id) == (ALTER, table_id("d", "t"))
    assert (change.renames, change.added, change.fills) == ({"c": "a"}, ("m",), {"m": "3"})
    assert names(TableSchema.from_json(change.after)) == ["id", "c", "m"]
    assert not rig.run("DROP TABLE IF EXISTS `_t_del`, `_t_ghc`")
    assert rig.names() == ["t"]


def test_a_copy_that_is_altered_in_words_that_cannot_be_read() -> None:
    rig = Rig("t")
    assert not rig.run("CREATE TABLE `_t_gho` LIKE t")
    changed = replace(table("_t_gho"), columns=table().columns[:2])
    rig.there["d", "_t_gho"] = rig.there["d", "t"] = changed
    assert not rig.run("ALTER TABLE `_t_gho` FANCY WORDS, CHANGE b bb POINT")
    rig.fill("_t_gho")
    [change] = rig.run("RENAME TABLE t TO `_t_del`, `_t_gho` TO t")
    assert names(TableSchema.from_json(change.after)) == ["id", "a"]


def test_pt_osc_for_one_who_comes_late() -> None:
    """The copy was made before we looked: its definition is the server's, columns are known by name."""
    rig = Rig("t")
    rig.there["d", "t"] = replace(table("t"), columns=table("t").columns[:2])
    [change] = rig.run("RENAME TABLE d.t TO d._t_old, d._t_new TO d.t")
    assert names(TableSchema.from_json(change.after)) == ["id", "a"]
    assert not rig.run("DROP TABLE IF EXISTS `_t_old`")


@pytest.mark.parametrize(
    ("copy", "old"), [("_t_gho", "_t_20240102030405_del"), ("_t_new", "__t_old"), ("___t_new", "____t_old")]
)
def test_names_of_copies_and_remnants_where_others_are_taken(copy: str, old: str) -> None:
    rig = Rig("t")
    assert not rig.run(f"CREATE TABLE {copy} LIKE t", f"ALTER TABLE {copy} ADD n INT DEFAULT 3")
    rig.fill(copy)
    [change] = rig.run(f"RENAME TABLE t TO {old}, {copy} TO t")
    assert (change.kind, change.fills) == (ALTER, {"n": "3"})
    assert not rig.run(f"DROP TABLE {old}")
    assert rig.names() == ["t"]


def test_a_table_that_only_looks_like_a_remnant() -> None:
    rig = Rig("t")
    [change] = rig.run("RENAME TABLE t TO _t_old")
    assert (change.kind, change.table and change.table.name) == (RENAME, "_t_old")


def test_what_cannot_be_read_is_looked_at() -> None:
    rig = Rig("t")
    rig.there["d", "t"] = replace(table("t"), columns=table("t").columns[:1])
    [change] = rig.run("ALTER TABLE t FANCY WORDS")
    assert names(TableSchema.from_json(change.after)) == ["id"]
    assert not rig.run("ALTER TABLE t MORE FANCY WORDS")
    rig.there.clear()
    [held] = rig.run("ALTER TABLE t STILL FANCY")
    assert held.kind == HOLD
    assert held.reason.startswith("d.t: a statement cannot be read that may change it: ALTER TABLE t STILL FANCY; ")
    assert not rig.run("ALTER TABLE t ADD n INT")
    [gone] = rig.run("DROP TABLE t")
    [created] = rig.run("CREATE TABLE t (id INT PRIMARY KEY)")
    assert (gone.kind, created.kind, gone.table_id == created.table_id) == (DROP, CREATE, False)


def test_what_the_server_shows_may_leave_values_open() -> None:
    rig = Rig("t")
    rig.there["d", "t"] = replace(table("t"), columns=(*table("t").columns, replace(table("t").columns[1], name="n")))
    [held] = rig.run("ALTER TABLE t FANCY WORDS")
    assert held.kind == HOLD


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("ALTER TABLE t DROP PARTITION p", "a partition was dropped"),
        ("ALTER TABLE t TRUNCATE PARTITION ALL", "a partition was emptied"),
        ("alter table t exchange partition p with table u", "exchanged"),
        ("ALTER TABLE u EXCHANGE PARTITION p WITH TABLE d.t WITHOUT VALIDATION", "exchanged"),
        ("ALTER TABLE t CONVERT PARTITION p TO TABLE e.v", "a table of its own"),
        ("ALTER TABLE t CONVERT TABLE e.v TO PARTITION p VALUES LESS THAN (3)", "became a partition"),
        ("ALTER TABLE t DISCARD TABLESPACE", "discarded"),
        ("ALTER TABLE t IMPORT TABLESPACE", "imported"),
        ("ALTER TABLE t DISCARD PARTITION p TABLESPACE", "discarded"),
        ("ALTER TABLE t ADD SYSTEM VERSIONING", "SYSTEM VERSIONING"),
        ("ALTER TABLE t ENGINE=BLACKHOLE", "its engine is BLACKHOLE"),
        ("ALTER IGNORE TABLE t ADD UNIQUE (a)", "ALTER IGNORE"),
        ("ALTER IGNORE TABLE t ADD CHECK (b > 5)", "ALTER IGNORE"),
        ("ALTER IGNORE TABLE t MODIFY a JSON", "ALTER IGNORE"),
        ("ALTER IGNORE TABLE t PARTITION BY HASH (id)", "ALTER IGNORE"),
        ("ALTER IGNORE TABLE t COMMENT 'x'", ""),
        ("ALTER TABLE t RENAME TO t", ""),
        ("ALTER TABLE t ADD UNIQUE u (a) USING HASH", "hidden column"),
        ("ALTER TABLE t MODIFY a TEXT, ADD UNIQUE u (b, A)", "hidden column"),
        ("ALTER TABLE t ADD FOREIGN KEY (b) REFERENCES u (id) ON DELETE CASCADE", "foreign key"),
        ("ALTER TABLE t ADD CONSTRAINT x FOREIGN KEY f (b) REFERENCES u (id) ON UPDATE SET NULL", "foreign key"),
        ("ALTER TABLE t ADD n INT AUTO_INCREMENT UNIQUE", "the new column n"),
        ("!!! t", ""),
    ],
)
def test_what_the_log_does_not_tell_holds_the_table(statement: str, reason: str) -> None:
    rig = Rig("t")
    changes = rig.run(statement)
    assert [(change.kind, change.table_id) for change in changes] == ([(HOLD, table_id("d", "t"))] if reason else [])
    assert all(reason in change.reason for change in changes)


@pytest.mark.parametrize(
    ("statement", "is_copied"),
    [
        ("ALTER TABLE t DROP PARTITION p", True),
        ("ALTER TABLE t TRUNCATE PARTITION ALL", True),
        ("ALTER TABLE t EXCHANGE PARTITION p WITH TABLE x", True),
        ("ALTER TABLE x EXCHANGE PARTITION p WITH TABLE t", True),
        ("ALTER TABLE t CONVERT PARTITION p TO TABLE e.v", True),
        ("ALTER TABLE t CONVERT TABLE e.v TO PARTITION p VALUES LESS THAN (3)", True),
        ("ALTER TABLE t DISCARD TABLESPACE", False),
        ("ALTER TABLE t ADD SYSTEM VERSIONING", False),
    ],
)
def test_a_table_is_copied_by_itself_whose_partitions_went_with_rows(statement: str, is_copied: bool) -> None:
    [change] = Rig("t").run(statement)
    assert (change.code, "is copied again by itself" in change.reason) == (
        ("PartitionRows", True) if is_copied else ("", False)
    )
    [held] = Rig("t", copies_partitions=False).run(statement)
    assert (held.code, "is copied again by itself" in held.reason) == ("", False)


@pytest.mark.parametrize(
    ("statement", "is_held"),
    [
        ("ALTER IGNORE TABLE t MODIFY a VARCHAR(2)", True),
        ("ALTER IGNORE TABLE t FORCE", True),
        ("ALTER IGNORE TABLE t ADD n INT, ALGORITHM=INSTANT", False),
        ("ALTER TABLE t MODIFY a VARCHAR(2)", False),
    ],
)
def test_constraints_of_before_may_refuse_rows_too(statement: str, is_held: bool) -> None:
    rig = Rig("t", has_checks=lambda name: name == ("d", "t"))
    assert (HOLD in [change.kind for change in rig.run(statement)]) == is_held


def test_an_empty_table_has_no_rows_that_could_be_missed() -> None:
    rig = Rig()
    [_] = rig.run("CREATE TABLE t (id INT, a INT)")
    [change] = rig.run("ALTER TABLE t ADD n INT AUTO_INCREMENT PRIMARY KEY")
    assert change.kind == ALTER
    assert not rig.run("ALTER TABLE t DROP PARTITION p")


def test_a_table_in_the_place_of_one_that_goes() -> None:
    rig = Rig("t", "u")
    for statement in ("CREATE OR REPLACE TABLE t (id INT PRIMARY KEY)", "create or replace table t like u"):
        gone, created = rig.run(statement)
        assert (gone.kind, created.kind, gone.table_id == created.table_id) == (DROP, CREATE, False)
    gone, held = rig.run("CREATE OR REPLACE TABLE t (id INT PRIMARY KEY) AS SELECT 1 AS id")
    assert (gone.kind, held.kind) == (DROP, HOLD)
    assert not rig.run("CREATE OR REPLACE VIEW t AS SELECT 1", "CREATE OR REPLACE TEMPORARY TABLE t (id INT)")


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TABLE u AS SELECT * FROM t",
        "CREATE TABLE u (id INT) IGNORE (SELECT * FROM t)",
        "CREATE TABLE u (id INT PRIMARY KEY) ENGINE=MERGE UNION=(t)",
    ],
)
def test_a_table_with_rows_that_no_event_tells(statement: str) -> None:
    rig = Rig("t")
    rig.there["d", "u"] = table("u")
    [held] = rig.run(statement)
    assert (held.kind, held.table and held.table.name) == (HOLD, "u")
    [gone] = rig.run("DROP TABLE u")
    assert gone.kind == DROP


@pytest.mark.parametrize("statement", ["DROP DATABASE d", "CREATE OR REPLACE DATABASE d CHARACTER SET latin1"])
def test_a_database_goes_with_its_tables(statement: str) -> None:
    rig = Rig("t", "u")
    changes = rig.run(statement)
    assert [change.kind for change in changes] == [DROP, DROP]
    assert rig.names() == []


@pytest.mark.parametrize("statement", ["CREATE TABLE v (id INT)", "RENAME TABLE e.other TO d.v"])
@pytest.mark.parametrize("stops", [False, True])
def test_a_new_table_without_a_key_is_held_and_copied_when_it_gets_one(statement: str, stops: bool) -> None:
    rig = Rig("t", takes=False)
    rig.there["d", "v"] = replace(table("v"), columns=table("v").columns[1:])
    [held] = rig.run(statement)
    assert held.is_hold
    assert "give it a primary key" in held.reason
    assert not rig.run("ALTER TABLE v ADD n INT", "ALTER TABLE t ADD n INT")[1:]
    if stops:
        rig.restart()
    assert [change.kind for change in rig.run("RENAME TABLE v TO u, u TO v")] in ([], [HOLD])
    rig.there["d", "v"] = table("v")
    changes = rig.run("ALTER TABLE v ADD PRIMARY KEY (id)")
    assert [change.kind for change in changes] == [DROP, CREATE]
    assert changes[1].table is not None
    assert (changes[1].table.key, changes[1].table.to_copy) == (("id",), True)
    assert changes[1].table_id != held.table_id


def test_another_key() -> None:
    rig = Rig("t")
    [change] = rig.run("ALTER TABLE t DROP PRIMARY KEY, ADD PRIMARY KEY (b)")
    assert change.table is not None
    assert change.table.key == ("b",)


#: what the server says of generated columns
_B_OF_A = {"b": "length(`A`) + 1"}


@pytest.mark.parametrize(
    "parts",
    [
        "MODIFY b bigint unsigned AS (length(a)) STORED",
        "CHANGE b b bigint unsigned GENERATED ALWAYS AS (length(a)) VIRTUAL",
        "MODIFY a varchar(3)",
        "CHANGE a c varchar(20) CHARACTER SET latin1",
        "CONVERT TO CHARACTER SET ucs2",
        "MODIFY a varchar(20) NOT NULL",
    ],
)
def test_generated_columns_that_are_computed_anew_hold_the_table(parts: str) -> None:
    """Only the server knows their new values."""
    rig = Rig("t")
    rig.computed = _B_OF_A
    [change] = rig.run(f"ALTER TABLE t {parts}")
    assert change.kind is HOLD
    assert "generated column b again" in change.reason


@pytest.mark.parametrize(
    "parts", ["MODIFY a varchar(90)", "MODIFY id bigint", "ADD n int DEFAULT 5", "CHANGE a c varchar(20)", "DROP id"]
)
def test_generated_columns_that_keep_their_values_hold_nothing(parts: str) -> None:
    rig = Rig("t")
    rig.computed = _B_OF_A
    assert [change.kind for change in rig.run(f"ALTER TABLE t {parts}")] == [ALTER]


def test_a_copy_with_a_generated_column_that_is_computed_anew_holds_its_table() -> None:
    rig = Rig("t")
    rig.computed = _B_OF_A
    rig.record("CREATE TABLE _t_gho LIKE t")
    rig.record("ALTER TABLE _t_gho MODIFY a varchar(3)")
    rig.fill("_t_gho")
    [change] = rig.run("RENAME TABLE t TO _t_del, _t_gho TO t")
    assert change.kind is HOLD


@pytest.mark.parametrize(("images", "held"), [("FULL", set()), ("NOBLOB", {"w"}), ("MINIMAL", {"t", "w"})])
def test_a_virtual_column_that_updates_do_not_log_holds_its_table(images: str, held: set[str]) -> None:
    rig = Rig("t", images=images)
    rig.run("ALTER TABLE t ADD v INT AS (a) VIRTUAL", "CREATE TABLE w (id INT PRIMARY KEY, x TEXT AS (id))")
    rig.run("CREATE TABLE s (id INT PRIMARY KEY, x TEXT AS (id) STORED)")
    reasons = {name: table.held for (_, name), table in rig.tables.by_name.items()}
    assert {name for name, reason in reasons.items() if f"binlog_row_image = {images}" in reason} == held


@pytest.mark.parametrize("statement", ["RENAME TABLE IF EXISTS v TO t", "ALTER TABLE IF EXISTS v RENAME TO t"])
def test_what_was_not_there_takes_no_name(statement: str) -> None:
    rig = Rig("t")
    assert rig.record(statement) is None
    assert rig.names() == ["t"]


def test_new_texts_have_the_character_set_that_the_database_had_then() -> None:
    rig = Rig()
    rig.record("ALTER DATABASE d CHARACTER SET latin1")
    rig.record("CREATE TABLE v (id int PRIMARY KEY, x text)")
    rig.record("ALTER DATABASE DEFAULT COLLATE = ucs2_bin")
    rig.record("CREATE DATABASE IF NOT EXISTS d CHARACTER SET latin1")
    rig.record("CREATE TABLE w (id int PRIMARY KEY, x text)")
    rig.record("CREATE TABLE x (id int PRIMARY KEY, x text) CHARACTER SET greek COLLATE DEFAULT")
    schemas = [rig.tables.by_name["d", name].schema for name in "vwx"]
    rig.record("CREATE OR REPLACE DATABASE d CHARSET cp1251 COMMENT 'x'")
    rig.record("CREATE TABLE u (id int PRIMARY KEY, x text)")
    schemas.append(rig.tables.by_name["d", "u"].schema)
    found = [charset_of(schema.columns[1].collation) for schema in schemas if schema]
    assert found == ["latin1", "ucs2", "greek", "cp1251"]


@pytest.mark.parametrize(("signs", "collation", "is_known"), [(0x40, 45, True), (0, 45, False), (0x40, 8, False)])
def test_a_binlog_without_names_is_believed_in_what_it_has(signs: int, collation: int, is_known: bool) -> None:
    """A table with another sign or character set is not the one that we know, though its types are the same."""
    tables = known("t")
    expected: Any = contextlib.nullcontext() if is_known else pytest.raises(TableUnknownError, match="in the log")
    with expected:
        tables.describe(minimal_map("t", signs=signs, collation=collation))


def test_a_name_that_a_table_of_no_interest_has_got_is_not_the_one_that_was_given_up() -> None:
    rig = Rig("t")
    rig.run("RENAME TABLE t TO u", "RENAME TABLE e.gone TO t")
    assert not rig.tables.is_wanted("d", "t")


def test_a_rename_to_a_name_that_another_table_has_holds_both() -> None:
    rig = Rig("t", "u")
    changes = rig.run("RENAME TABLE t TO u")
    assert [(change.kind, change.table and change.table.name) for change in changes] == [(HOLD, "t"), (HOLD, "u")]
    assert all("d.t was renamed to d.u" in change.reason for change in changes)
    assert rig.names() == ["t", "u"]


def test_a_name_is_free_for_another_table_in_the_statement_that_gives_it_up() -> None:
    rig = Rig("t", "u")
    first, second = rig.tables.by_name.values()
    assert [change.kind for change in rig.run("RENAME TABLE t TO _t_old, u TO t")] == [RENAME, RENAME]
    assert {name[1]: table.record.table_id for name, table in rig.tables.by_name.items()} == {
        "_t_old": first.record.table_id,
        "t": second.record.table_id,
    }


def test_another_table_takes_the_name_that_waits_for_a_copy() -> None:
    """What was left for the copy is gone then."""
    rig = Rig("t", "u")
    changes = rig.run("CREATE TABLE _t_new LIKE t", "DROP TABLE t", "RENAME TABLE u TO t")
    assert sorted((change.kind, change.table_id) for change in changes) == sorted(
        [(DROP, table_id("d", "t")), (RENAME, table_id("d", "u"))]
    )
    assert rig.names() == ["t"]


def test_a_held_table_stays_held_under_a_name_of_no_interest() -> None:
    rig = Rig("t")
    rig.there["d", "t"] = table("t")
    rig.hold("t")
    rig.run("RENAME TABLE t TO e.t")
    assert rig.tables.by_name["e", "t"].is_held


@pytest.mark.parametrize("restarts", [False, True])
def test_a_statement_that_holds_and_renames_a_table_leaves_its_name_to_others(restarts: bool) -> None:
    rig = Rig("t")
    [hold] = rig.run("ALTER TABLE t ADD z INT AS (b + 1) STORED, RENAME TO u")
    assert (hold.kind, hold.table and hold.table.name) == (HOLD, "u")
    if restarts:
        rig.restart()
    [create] = rig.run("CREATE TABLE t (id INT PRIMARY KEY)")
    assert (create.kind, create.table and create.table.name) == (CREATE, "t")
    assert create.table_id != hold.table_id


def test_a_replacement_that_failed_leaves_no_table() -> None:
    rig = Rig("t")
    record = rig.record("CREATE OR REPLACE TABLE t (id INT PRIMARY KEY, a ENUM('x') DEFAULT 7)", is_failed=True)
    assert record is not None
    [drop] = record.changes
    assert (drop.kind, rig.names()) == (DROP, [])
    [create] = rig.run("CREATE TABLE t (id INT PRIMARY KEY)")
    assert (create.kind, create.table and create.table.key) == (CREATE, ("id",))


@pytest.mark.parametrize(("place", "is_copied"), [(119, False), (500, True)])
def test_a_new_table_whose_definition_may_be_of_later_statements_is_copied(place: int, is_copied: bool) -> None:
    rig = Rig("t", place=lambda: Ts(place))
    rig.there["d", "n"] = table("n")
    [create] = rig.run("CREATE TABLE n LIKE e.unknown")
    assert (create.kind, create.table and create.table.to_copy) == (CREATE, is_copied)
    changes = rig.run("ALTER TABLE n RENAME COLUMN a TO z, RENAME COLUMN b TO a")
    assert bool(changes) is not is_copied


@pytest.mark.parametrize("key", ["ADD PRIMARY KEY (id, z)", "ADD CONSTRAINT PRIMARY KEY (Z, id)"])
@pytest.mark.parametrize(("definition", "fill"), [("int", "0"), ("int DEFAULT 7", "7"), ("varchar(9)", "")])
def test_a_new_column_of_the_primary_key_has_no_nulls(key: str, definition: str, fill: str) -> None:
    for parts in (f"ADD z {definition}, {key}", f"{key}, ADD z {definition}"):
        rig = Rig("t")
        [change] = rig.run(f"ALTER TABLE t DROP PRIMARY KEY, {parts}")
        assert (change.added, change.fills) == (("z",), {"z": fill})


def test_a_copy_takes_the_place_of_a_table_that_an_earlier_statement_put_away() -> None:
    rig = Rig("t")
    rig.run("RENAME TABLE t TO _t_old")
    rig.there["d", "t"] = table("t")
    [change] = rig.run("RENAME TABLE _t_new TO t")
    assert TableSchema.from_json(change.before).name == "_t_old"
    assert change.table is not None
    assert (change.table_id, change.table.name) == (table_id("d", "t"), "t")


def test_a_held_table_stays_held_when_its_copy_replaces_it() -> None:
    """What it lacks of the log is in no copy that the log describes."""
    rig = Rig("t")
    rig.there["d", "t"] = table("t")
    rig.hold("t")
    rig.run("RENAME TABLE t TO _t_old, _t_new TO t")
    assert rig.tables.by_name["d", "t"].is_held


def test_a_table_keeps_its_definition_if_its_copy_is_gone_again() -> None:
    rig = Rig("t")
    rig.run("RENAME TABLE t TO _t_old")
    assert [change.kind for change in rig.run("RENAME TABLE _t_new TO t")] == [RENAME]
    assert rig.tables.schema_of("d", "t") is not None


@pytest.mark.parametrize("logs_cascades", [False, True])
def test_a_foreign_key_whose_changes_are_logged_holds_nothing(logs_cascades: bool) -> None:
    rig = Rig("t", "u", logs_cascades=logs_cascades)
    changes = rig.run("ALTER TABLE t ADD FOREIGN KEY (b) REFERENCES u (id) ON DELETE CASCADE")
    assert [change.kind for change in changes] == [HOLD] * (not logs_cascades)


def test_a_table_without_rows_is_held_for_what_its_log_will_have() -> None:
    rig = Rig("t")
    rig.run("CREATE TABLE v (id INT PRIMARY KEY)")
    [change] = rig.run("ALTER TABLE v ADD SYSTEM VERSIONING")
    assert change.kind is HOLD


def test_a_copy_is_doubted_for_a_statement_that_cannot_be_read() -> None:
    """The server shows that a column is another one, and not what became of its values."""
    rig = Rig("t")
    other = table("_t_new")
    changed = replace(other, columns=(*other.columns[:2], replace(other.columns[2], type_id=int(FieldType.LONG))))
    rig.run("CREATE TABLE _t_new LIKE t")
    rig.fill("_t_new")
    rig.there["d", "_t_new"] = changed
    rig.run("ALTER TABLE _t_new FROBNICATE")
    rig.there["d", "t"] = replace(changed, name="t")
    changes = rig.run("RENAME TABLE t TO _t_old, _t_new TO t")
    assert [change.kind for change in changes] == [HOLD]
    assert "cannot be read" in changes[0].reason


@pytest.mark.parametrize(("words", "kinds"), [("", [HOLD]), ("IF NOT EXISTS ", [])])
def test_a_table_is_held_if_another_of_its_name_is_created(words: str, kinds: list[SchemaChangeKind]) -> None:
    rig = Rig("t", "u")
    rig.tables.describe(minimal_map("t"))
    changes = rig.run(f"CREATE TABLE {words}t (id INT PRIMARY KEY)")
    assert [change.kind for change in changes] == kinds


def test_a_table_that_was_found_before_the_log_has_its_creation_is_that_one() -> None:
    """The changefeed began at a place from before."""
    assert not Rig("t").run("CREATE TABLE t (id INT PRIMARY KEY)")


@pytest.mark.parametrize(
    ("parts", "kinds"),
    [
        ("DISCARD TABLESPACE", []),
        ("IMPORT TABLESPACE", [HOLD]),
        ("IMPORT PARTITION p TABLESPACE", [HOLD]),
        ("ENGINE = FEDERATED", [HOLD]),
        ("DROP PARTITION p", []),
    ],
)
def test_a_table_without_rows_is_held_if_rows_come_to_it_without_events(
    parts: str, kinds: list[SchemaChangeKind]
) -> None:
    """A table is created and discarded, its file is put there, and imported."""
    changes = Rig("t").run("CREATE TABLE v (id INT PRIMARY KEY)", f"ALTER TABLE v {parts}")
    assert [change.kind for change in changes] == kinds


@pytest.mark.parametrize(("engine", "kind"), [("FEDERATED CONNECTION = 'x'", HOLD), ("BLACKHOLE", CREATE)])
def test_a_new_table_whose_engine_has_rows_from_elsewhere_is_held(engine: str, kind: SchemaChangeKind) -> None:
    [change] = Rig("t").run(f"CREATE TABLE v (id INT PRIMARY KEY) ENGINE = {engine}")
    assert change.kind is kind


_VIRTUAL = "CREATE TABLE v (id INT PRIMARY KEY, at TIMESTAMP NULL, n INT, version INT, w VARCHAR(99) AS ({}) {})"


@pytest.mark.parametrize(
    ("expression", "stored", "is_held"),
    [
        ("rand()", "VIRTUAL", True),
        ("RAND()", "", True),
        ("concat(n, CURRENT_USER)", "", True),
        ("date(at)", "VIRTUAL", True),
        ("from_unixtime(n)", "VIRTUAL", True),
        ("@@time_zone", "", True),
        ("date(at)", "STORED", False),
        ("version + 1", "VIRTUAL", False),
        ("concat('rand()', n)", "VIRTUAL", False),
    ],
)
@pytest.mark.parametrize("selects", [True, False])
def test_virtual_columns_that_are_others_for_each_reader_hold_their_table(
    expression: str, stored: str, is_held: bool, selects: bool
) -> None:
    rig = Rig(selects=lambda name, column: selects or column != "w")
    [created] = rig.run(_VIRTUAL.format(expression, stored))
    assert created.kind is (HOLD if is_held and selects else CREATE)
    rig = Rig(selects=lambda name, column: selects or column != "w")
    rig.run("CREATE TABLE v (id INT PRIMARY KEY, at TIMESTAMP NULL, n INT, version INT)")
    [altered] = rig.run(f"ALTER TABLE v ADD w VARCHAR(99) AS ({expression}) {stored}")
    assert altered.kind is (HOLD if is_held and selects else ALTER)
