"""Tables that begin and end: what one statement's record says of them."""

from collections import deque
from dataclasses import replace

import pytest

from agent.rows.schema import TableSchema
from agent.sources.mysql.ddl.parser.cursor import Name
from reactor.ids import Ts
from reactor.records.tables.schema_change import SchemaChangeKind
from tests.unit.agent.sources.mysql.ddl.parser.test_parse import table
from tests.unit.agent.sources.mysql.ddl.test_interpreter import CREATE, Rig

V = ("d", "v")
SHORT = replace(table("v"), columns=table("v").columns[:2])


class Busy:
    """A server that runs statements while it is queried: the definition and the place that it has at each query."""

    def __init__(self, *moments: tuple[TableSchema, int]) -> None:
        self._moments = deque(moments)

    def look(self, name: Name) -> TableSchema | None:
        return self._next()[0] if name == V else None

    def place(self) -> Ts:
        return Ts(self._next()[1])

    def _next(self) -> tuple[TableSchema, int]:
        return self._moments.popleft() if len(self._moments) > 1 else self._moments[0]


@pytest.mark.parametrize("queries", range(8))
def test_a_new_table_with_the_definition_of_a_later_statement_is_copied(queries: int) -> None:
    """The later statement comes after this many queries."""
    busy = Busy(*[(SHORT, 119)] * queries, (table("v"), 150))
    rig = Rig("t", look=busy.look, place=busy.place)
    [change] = rig.run("CREATE TABLE v LIKE e.unknown")
    assert change.kind is CREATE
    assert change.table is not None
    found = change.table.to_copy, change.table.shown_ts, columns(rig)
    if found[0]:
        assert found[1:] == (150, ["id", "a", "b"])
    else:
        assert found[2] == ["id", "a"]


def keyed(schema: TableSchema) -> TableSchema:
    return replace(schema, columns=tuple(replace(column, is_key=column.name == "id") for column in schema.columns))


BASE = "CREATE TABLE v (id int, a varchar(20))"
MORE = "ALTER TABLE v ADD PRIMARY KEY (id)", "ALTER TABLE v ADD b bigint unsigned", "ALTER TABLE v DROP COLUMN b"


@pytest.mark.parametrize("queries", range(8))
@pytest.mark.parametrize("meets", [False, True])
def test_a_statement_that_runs_while_a_definition_is_read_is_applied_once(meets: bool, queries: int) -> None:
    """What was in the definition, and behind the place that was read before it, was added a second time: as what no
    statement says, or as a column that a DROP left in its place."""
    busy = Busy(*[(keyed(SHORT), 129)] * queries, (keyed(table("v")), 139))
    rig = Rig("t", takes=meets, look=busy.look, place=busy.place)
    [change] = rig.run("RENAME TABLE e.w TO v" if meets else BASE)
    assert change.table is not None
    assert (change.table.to_copy, change.table.key) == (True, ("id",))
    for statement, names in zip(MORE, (None, ["id", "a", "b"], ["id", "a"]), strict=True):
        assert all(change.kind is not SchemaChangeKind.HOLD for change in rig.run(statement))
        assert names is None or columns(rig) == names


def columns(rig: Rig) -> list[str]:
    schema = rig.tables.by_name[V].schema
    assert schema is not None
    return [column.name for column in schema.columns]


def test_a_table_that_is_altered_all_the_time_is_copied_all_the_same() -> None:
    definitions = (keyed(table("v") if number // 2 % 2 else SHORT) for number in range(100))
    busy = Busy(*zip(definitions, range(100, 200), strict=True))
    rig = Rig("t", look=busy.look, place=busy.place)
    [change] = rig.run("RENAME TABLE e.w TO v")
    assert change.table is not None
    assert change.table.to_copy
