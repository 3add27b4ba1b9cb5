"""The table of docs/conversions.md: for each pair of MySQL's types, what becomes of old values.

python -m tests.architecture.render_conversions     writes it
"""

from pathlib import Path
from typing import Final

from agent.rows.schema import Column
from agent.rows.schema_change import Refused
from agent.sources.mysql.decode import type_names
from agent.sources.mysql.decode.types import FieldType
from agent.sources.mysql.retyping.retyping import conversion
from agent.sources.mysql.retyping.terms import RetypeTerms

PAGE: Final = Path(__file__).parents[2] / "docs" / "conversions.md"
BEGIN, END = "<!-- table: tests/architecture/render_conversions.py -->", "<!-- end of the table -->"
_TEXT, _BYTES, _LATIN1 = 45, 63, 8


def _column(type_id: FieldType, modifier: int = 0, name: str = "", **more: object) -> Column:
    column = Column("c", int(type_id), modifier, **more)  # type: ignore[arg-type] # of its fields
    return Column("c", int(type_id), modifier, name or type_names.name_of(column), **more)  # type: ignore[arg-type]


COLUMNS: Final = (
    _column(FieldType.LONG),
    _column(FieldType.LONGLONG, is_unsigned=True),
    _column(FieldType.DECIMAL, 10 << 8 | 2),
    _column(FieldType.FLOAT, 4),
    _column(FieldType.DOUBLE, 8),
    _column(FieldType.DOUBLE, 8, "double(10,3)"),
    _column(FieldType.BIT, 8),
    _column(FieldType.YEAR),
    _column(FieldType.DATE),
    _column(FieldType.TIME2, 3),
    _column(FieldType.DATETIME2, 6),
    _column(FieldType.TIMESTAMP2),
    _column(FieldType.STRING, 40, collation=_TEXT),
    _column(FieldType.VARCHAR, 160, collation=_TEXT),
    _column(FieldType.VARCHAR, 40, "varchar(40) in latin1", collation=_LATIN1),
    _column(FieldType.BLOB, 2, collation=_TEXT),
    _column(FieldType.STRING, 16, collation=_BYTES),
    _column(FieldType.VARCHAR, 40, collation=_BYTES),
    _column(FieldType.BLOB, 2, collation=_BYTES),
    _column(FieldType.ENUM, 1, collation=_TEXT, members=("a", "b")),
    _column(FieldType.SET, 1, collation=_TEXT, members=("a", "b")),
    _column(FieldType.JSON, 4),
    _column(FieldType.GEOMETRY, 4),
    _column(FieldType.STRING, 16, "uuid", collation=_BYTES),
)
_TERMS: Final = {is_mariadb: RetypeTerms(is_mariadb, 0, "+00:00", second=0) for is_mariadb in (True, False)}


def _cell(before: Column, after: Column) -> str:
    found = [conversion(before, after, terms) for terms in _TERMS.values()]
    marks = ["–" if isinstance(one, Refused) else "=" if one is None else "✓" for one in found]
    return marks[0] if len(set(marks)) == 1 else "/".join(marks)


def table() -> str:
    """As it stands in the page."""
    numbers = range(1, len(COLUMNS) + 1)
    lines = ["| from \\ to | " + " | ".join(map(str, numbers)) + " |", "|---|" + "---|" * len(COLUMNS)]
    for number, before in zip(numbers, COLUMNS, strict=True):
        cells = " | ".join(_cell(before, after) for after in COLUMNS)
        lines.append(f"| {number} `{before.type_name}` | {cells} |")
    return "\n".join(lines)


def written(page: str) -> str:
    """The page with the table of today."""
    head, _, rest = page.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}\n\n{table()}\n\n{END}{tail}"


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
