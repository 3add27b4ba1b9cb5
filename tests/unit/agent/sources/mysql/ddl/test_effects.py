"""Tables that begin and end: what one statement's record says of them."""

from dataclasses import replace

from reactor.ids import Ts
from tests.unit.agent.sources.mysql.ddl.parser.test_parse import table
from tests.unit.agent.sources.mysql.ddl.test_interpreter import CREATE, Rig


def test_a_table_whose_definition_came_from_the_server_after_a_later_statement_is_copied() -> None:
    """The log went on between two questions: the columns may be those of then."""
    places = iter([Ts(100), Ts(119), Ts(150), Ts(150), Ts(150)])
    rig = Rig("t", place=lambda: next(places))
    rig.there["d", "v"] = replace(table("v"), columns=table("v").columns[:2])
    [change] = rig.run("CREATE TABLE v LIKE e.unknown")
    assert change.kind is CREATE
    assert change.table is not None
    assert (change.table.to_copy, change.table.shown_ts) == (True, 119)
