"""Copies that the log says nothing of, and that take the places of their tables."""

from dataclasses import replace

import pytest

from reactor.ids import Ts
from tests.unit.agent.sources.mysql.ddl.parser.test_parse import table
from tests.unit.agent.sources.mysql.ddl.test_interpreter import ALTER, HOLD, RENAME, Rig

#: the end of the first statement
END = 119


@pytest.mark.parametrize(
    ("columns", "place", "kinds"),
    [(2, END, [ALTER]), (2, END + 1, [HOLD]), (3, END + 1, [ALTER])],
)
def test_the_server_tells_the_columns_of_a_copy_if_it_is_not_ahead(columns: int, place: int, kinds: list[str]) -> None:
    """A later statement may have dropped the column: rows that come before it still have it."""
    rig = Rig("t", place=lambda: Ts(place))
    rig.there["d", "t"] = replace(table("t"), columns=table("t").columns[:columns])
    changes = rig.run("RENAME TABLE t TO _t_old, _t_new TO t")
    assert [change.kind for change in changes] == kinds
    assert rig.names() == ["t"]


def test_a_table_goes_on_under_its_new_name() -> None:
    rig = Rig("t")
    [change] = rig.run("RENAME TABLE t TO v")
    assert (change.kind, rig.names()) == (RENAME, ["v"])


def test_another_table_takes_the_name_beside_a_copy_that_is_left_over() -> None:
    """Not the copy, which failed and was never dropped."""
    rig = Rig("t", "u")
    number = {name: found.record.table_id for (_, name), found in rig.tables.by_name.items()}
    rig.run("CREATE TABLE _t_new LIKE t")
    changes = rig.run("RENAME TABLE t TO _t_old, u TO t")
    assert {(change.kind, change.table_id) for change in changes} == {(RENAME, number["t"]), (RENAME, number["u"])}
    now = {name: found.record.table_id for (_, name), found in rig.tables.by_name.items()}
    assert now == {"_t_old": number["t"], "t": number["u"]}
