"""Tables that were made under a database's earlier collation than the server shows, in a log that the server is ahead
of."""

import pytest

from reactor.ids import Ts
from tests.unit.agent.sources.mysql.ddl.test_interpreter import HOLD, Rig, minimal_map

_MADE = "CREATE TABLE n (id INT PRIMARY KEY, a TEXT)"
_CHANGED = "ALTER DATABASE d CHARACTER SET cp1251"


def _held(*statements: str, ahead: int = 1000, restarts: bool = False) -> list[str]:
    """Names of the tables that are held in the end; the server is ``ahead`` of the log, where it shows cp1251."""
    rig = Rig("t", collations=lambda: {"d": 14}, place=lambda: Ts(100 + ahead))
    for statement in statements:
        rig.run(statement)
        if restarts:
            rig.restart()
    return sorted(name for (_, name), table in rig.tables.by_name.items() if table.is_held)


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize(
    ("statements", "held"),
    [
        ((_MADE, _CHANGED), ["n"]),
        ((_MADE, "CREATE TABLE m LIKE n", "ALTER TABLE n RENAME o", _CHANGED), ["m", "o"]),
        (("ALTER TABLE t CHARACTER SET DEFAULT, ADD x TEXT", _CHANGED), ["t"]),
        (("ALTER TABLE t ADD x TEXT", _CHANGED), []),
        ((f"{_MADE} CHARACTER SET latin1", _CHANGED), []),
        ((_MADE, "ALTER DATABASE other CHARACTER SET cp1251"), []),
        ((_MADE, "ALTER DATABASE d COMMENT 'x'", "ALTER DATABASE d COLLATE uca1400_ai_ci"), []),
        ((_CHANGED, _MADE, "ALTER DATABASE d CHARACTER SET latin1"), []),
    ],
)
def test_a_table_is_held_whose_database_had_another_default(
    statements: tuple[str, ...], held: list[str], restarts: bool
) -> None:
    assert _held(*statements, restarts=restarts) == held


@pytest.mark.parametrize(("ahead", "held"), [(9, []), (10, []), (20, ["n"])])
def test_what_the_server_shows_is_doubted_up_to_where_it_was_asked(ahead: int, held: list[str]) -> None:
    """The first statement is ten behind the begin, the second twenty."""
    assert _held(_MADE, _CHANGED, ahead=ahead) == held


def test_a_log_that_says_the_character_sets_of_its_rows_is_believed() -> None:
    rig = Rig(collations=lambda: {"d": 45}, place=lambda: Ts(1000))
    rig.run("CREATE TABLE n (id INT PRIMARY KEY, a VARCHAR(20), b BIGINT UNSIGNED)")
    rig.tables.describe(minimal_map("n"))
    assert rig.run(_CHANGED) == ()
    rig.run("CREATE TABLE o (id INT PRIMARY KEY, a VARCHAR(20))")
    assert HOLD not in [change.kind for change in rig.run("ALTER DATABASE d CHARACTER SET latin1")]
