"""PostgreSQL types: the table in docs/types.md is what the code does."""

from pathlib import Path

import pytest

from agent.rows.schema import SOURCE_TYPE, Column, TableSchema
from agent.sources.postgres.decode import types

_DOCUMENT = Path(__file__).parents[6] / "docs" / "types.md"


def _modifier(precision: int, scale: int) -> int:
    return (precision << 16 | scale & 0x7FF) + 4


#: oid and modifier of the names in the document
_OIDS = {
    "`boolean`": (16, -1),
    "`smallint`": (21, -1),
    "`integer`": (23, -1),
    "`bigint`": (20, -1),
    "`real`": (700, -1),
    "`double precision`": (701, -1),
    "`numeric(12,2)`": (1700, _modifier(12, 2)),
    "`numeric(3,5)`": (1700, _modifier(3, 5)),
    "`numeric(50,5)`": (1700, _modifier(50, 5)),
    "`numeric(5,-3)`": (1700, _modifier(5, -3)),
    "`numeric`": (1700, -1),
    "`text`": (25, -1),
    "`varchar(40)`": (1043, 44),
    "`char(9)`": (1042, 13),
    "`name`": (19, -1),
    "`bytea`": (17, -1),
    "`date`": (1082, -1),
    "`time`": (1083, -1),
    "`timestamp`": (1114, -1),
    "`timestamptz`": (1184, -1),
    "`uuid`": (2950, -1),
    "`json`": (114, -1),
    "`jsonb`": (3802, -1),
    "an enum": (types.ENUM_OID, -1),
    "`timetz`": (1266, -1),
    "`interval`": (1186, -1),
    "`integer[]`": (1007, -1),
    "any other type": (600, -1),
}


def _rows() -> dict[str, str]:
    section = _DOCUMENT.read_text().split("\n## PostgreSQL\n")[1].split("\n##")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")][2:]
    cells = [[cell.strip() for cell in line.split("|")] for line in lines]
    return {row[1]: row[2].strip("`") for row in cells}


@pytest.mark.parametrize(("name", "arrow"), _rows().items())
def test_the_document_names_the_arrow_type_that_a_column_becomes(name: str, arrow: str) -> None:
    oid, modifier = _OIDS[name]
    assert str(types.arrow_type(Column("c", oid, modifier))) == arrow


def test_the_document_covers_every_known_type() -> None:
    assert {_OIDS[name][0] for name in _rows()} >= types.KNOWN_OIDS


def test_fields_are_nullable_and_carry_the_source_type() -> None:
    schema = TableSchema(1, "s", "t", (Column("a", 23, -1, "integer", True), Column("b", 9999, -1)))
    arrow = types.arrow_schema(schema)
    assert all(field.nullable for field in arrow)
    assert [field.metadata[SOURCE_TYPE] for field in arrow] == [b"integer", b"9999"]


def test_domains_become_their_base_type_and_enums_a_type_of_their_own() -> None:
    rows = [("20001", "e", "0", "-1"), ("20002", "d", "1700", "786438"), ("20003", "d", "20002", "-1")]
    user_types = types.read_user_types([*rows, (20004, "d", 20001, -1)])
    resolved = {oid: types.resolve_column(Column("c", oid, -1), user_types) for oid in (20001, 20002, 20003, 20004, 25)}
    assert [column.type_id for column in resolved.values()] == [types.ENUM_OID, 1700, 1700, types.ENUM_OID, 25]
    assert types.numeric_precision(resolved[20003].modifier) == (12, 2)
    assert all(types.is_known(column) for column in resolved.values())


def test_a_type_of_nobody_is_not_known() -> None:
    assert not types.is_known(Column("c", 20009, -1))
