"""Tables that begin and end: what one statement's record says of them."""

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

import pytest

from agent.rows.schema import Column, TableSchema
from agent.sources.mysql.ddl.parser.cursor import Name
from reactor.ids import Ts
from reactor.records.tables.schema_change import SchemaChangeKind
from tests.unit.agent.sources.mysql.ddl.parser.test_parse import table
from tests.unit.agent.sources.mysql.ddl.test_interpreter import CREATE, Rig

V = ("d", "v")
SHORT = replace(table("v"), columns=table("v").columns[:2])


class Busy:
    """A server that runs statements while it is queried: the definitions and places that it shows in turn."""

    def __init__(self, definitions: Sequence[TableSchema | None], places: Sequence[int]) -> None:
        self._definitions, self._places = deque(definitions), deque(places)

    def look(self, name: Name) -> TableSchema | None:
        if name != V:
            return None
        return self._definitions.popleft() if len(self._definitions) > 1 else self._definitions[0]

    def place(self) -> Ts:
        return Ts(self._places.popleft() if len(self._places) > 1 else self._places[0])


def test_a_table_whose_definition_came_from_the_server_after_a_later_statement_is_copied() -> None:
    """The log went on between two questions: the columns are those of then."""
    busy = Busy([SHORT, table("v")], [100, 119, 150])
    rig = Rig("t", look=busy.look, place=busy.place)
    [change] = rig.run("CREATE TABLE v LIKE e.unknown")
    assert change.kind is CREATE
    assert change.table is not None
    assert (change.table.to_copy, change.table.shown_ts) == (True, 150)


def test_a_table_whose_definition_came_from_the_server_before_a_later_statement_is_empty() -> None:
    busy = Busy([SHORT], [100, 119, 150])
    rig = Rig("t", look=busy.look, place=busy.place)
    [change] = rig.run("CREATE TABLE v LIKE e.unknown")
    assert change.table is not None
    assert not change.table.to_copy


def keyed(schema: TableSchema) -> TableSchema:
    return replace(schema, columns=tuple(replace(column, is_key=column.name == "id") for column in schema.columns))


BASE = "CREATE TABLE v (id int, a varchar(20))"
MORE = "ALTER TABLE v ADD PRIMARY KEY (id)", "ALTER TABLE v ADD b bigint unsigned"


@pytest.mark.parametrize("meets", [False, True])
def test_a_statement_between_two_readings_of_a_definition_is_applied_once(meets: bool) -> None:
    """What was in the definition, and behind the place that was read before it, was added a second time: as what no
    statement says, or as a column that a DROP left in its place."""
    busy = Busy([keyed(SHORT), keyed(table("v"))], [100, 139, 139, 149])
    rig = Rig("t", takes=meets, look=busy.look, place=busy.place)
    [change] = rig.run("RENAME TABLE e.w TO v" if meets else BASE)
    assert change.table is not None
    assert (change.table.to_copy, change.table.key) == (True, ("id",))
    for statement in MORE:
        assert rig.run(statement) == ()
    names = [column.name for column in table("v").columns]
    assert [column.name for column in known_columns(rig)] == names
    [dropped] = rig.run("ALTER TABLE v DROP COLUMN b")
    assert dropped.kind is not SchemaChangeKind.HOLD
    assert [column.name for column in known_columns(rig)] == names[:2]


def known_columns(rig: Rig) -> tuple[Column, ...]:
    schema = rig.tables.by_name[V].schema
    assert schema is not None
    return schema.columns


def test_a_table_that_is_altered_all_the_time_is_copied_all_the_same() -> None:
    busy = Busy([keyed(table("v") if number % 2 else SHORT) for number in range(100)], range(100, 300))
    rig = Rig("t", look=busy.look, place=busy.place)
    [change] = rig.run("RENAME TABLE e.w TO v")
    assert change.table is not None
    assert change.table.to_copy
