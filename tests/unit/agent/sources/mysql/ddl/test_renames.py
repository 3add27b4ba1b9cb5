"""Copies that the log says nothing of, and that take the places of their tables."""

from dataclasses import replace

import pytest

from reactor.ids import Ts
from tests.unit.agent.sources.mysql.ddl.parser.test_parse import table
from tests.unit.agent.sources.mysql.ddl.test_interpreter import ALTER, CREATE, HOLD, RENAME, Rig

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


@pytest.mark.parametrize("is_given_again", [True, False])
def test_a_name_that_was_given_and_given_up_again_before_the_servers_place_was_read(is_given_again: bool) -> None:
    """The server is ahead: it shows the next table of the name, and has renamed that one too a moment later."""
    rig = Rig("t", place=lambda: Ts(135))
    rig.there["d", "t"] = table("t")
    assert [change.kind for change in rig.run("RENAME TABLE t TO a")] == [RENAME]
    rig.there.clear()
    if is_given_again:
        assert [change.kind for change in rig.run("CREATE TABLE t (id INT PRIMARY KEY)")] == [CREATE]
        assert [change.kind for change in rig.run("RENAME TABLE t TO b")] == [RENAME]
    else:
        assert not rig.run("CREATE TABLE e.u (id INT)", "CREATE TABLE e.v (id INT)")
    changes = rig.run("CREATE TABLE e.w (id INT)")
    assert [change.kind for change in changes] == [HOLD] * (not is_given_again)
