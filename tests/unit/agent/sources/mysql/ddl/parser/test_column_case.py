"""Names of columns in statements: the server takes any case for the column, which keeps its own spelling."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from agent.rows.schema import TableSchema
from agent.sources.mysql.ddl.parser.edits import Altered, Created
from agent.sources.mysql.ddl.parser.parse import parse_ddl

_CREATE = "CREATE TABLE t (id int NOT NULL, part varchar(5) NOT NULL, c0 int, PRIMARY KEY ({id}, {part}))"
#: {names} are references; others are what columns are called from then on
_ALTERATIONS = (
    "DROP COLUMN {c0}",
    "ADD x int AFTER {id}, DROP PRIMARY KEY, ADD PRIMARY KEY ({part})",
    "DROP PRIMARY KEY, ADD PRIMARY KEY ({id}, {x}), ADD x int NOT NULL",
    "CHANGE {id} no bigint NOT NULL FIRST, RENAME COLUMN {c0} TO c1",
    "ADD COLUMN IF NOT EXISTS {c0} text, ADD UNIQUE ({c0})",
    "MODIFY part int NOT NULL AFTER {c0}",
    "CHANGE {id} {id} bigint NOT NULL",
)


class _Cases(dict[str, str]):
    """Spells each name again, as ``flips`` say."""

    def __init__(self, flips: Sequence[bool]) -> None:
        super().__init__()
        self._flips = list(flips)

    def __missing__(self, name: str) -> str:
        return name.upper() if self._flips.pop() else name


def _created(flips: Sequence[bool]) -> TableSchema:
    [edit] = parse_ddl(_CREATE.format_map(_Cases(flips)), "d", {}, is_mariadb=True)
    assert isinstance(edit, Created)
    assert edit.schema is not None
    return edit.schema


@given(st.sampled_from(_ALTERATIONS[:-1]), st.lists(st.booleans(), min_size=12, max_size=12))
def test_references_go_by_any_case(alteration: str, flips: list[bool]) -> None:
    plain = [False] * len(flips)
    schema = _created(flips)
    assert schema == _created(plain)
    known = {("d", "t"): schema}
    one, other = (
        parse_ddl(f"ALTER TABLE t {alteration.format_map(_Cases(case))}", "d", known, is_mariadb=True)
        for case in (flips, plain)
    )
    assert one == other
    assert one or "IF NOT EXISTS" in alteration


@given(st.lists(st.booleans(), min_size=4, max_size=4))
def test_another_case_is_another_name(flips: list[bool]) -> None:
    schema = _created([False] * 4)
    [edit] = parse_ddl(
        f"ALTER TABLE t {_ALTERATIONS[-1].format_map(_Cases(flips))}", "d", {("d", "t"): schema}, is_mariadb=True
    )
    assert isinstance(edit, Altered)
    new = "ID" if flips[-2] else "id"
    assert edit.schema.key == (new, "part")
    assert edit.renames == ({"ID": "id"} if new == "ID" else {})
