"""MySQL's and MariaDB's types: the table in docs/types.md is what the code does."""

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from agent.rows.schema import SOURCE_TYPE, Column, TableSchema, ZeroDates
from agent.sinks.delta.table.schema import delta_type
from agent.sources.mysql.decode import charsets, columns, type_names, types
from agent.sources.mysql.decode.types import FieldType, Kind
from agent.sources.mysql.dialect import DIALECT

_DOCUMENT = Path(__file__).parents[6] / "docs" / "types.md"

#: the columns of the document
_COLUMNS = {
    "tinyint": Column("c", FieldType.TINY, 0),
    "tinyint unsigned": Column("c", FieldType.TINY, 0, is_unsigned=True),
    "smallint": Column("c", FieldType.SHORT, 0),
    "smallint unsigned": Column("c", FieldType.SHORT, 0, is_unsigned=True),
    "mediumint": Column("c", FieldType.INT24, 0),
    "mediumint unsigned": Column("c", FieldType.INT24, 0, is_unsigned=True),
    "int": Column("c", FieldType.LONG, 0),
    "int unsigned": Column("c", FieldType.LONG, 0, is_unsigned=True),
    "bigint": Column("c", FieldType.LONGLONG, 0),
    "bigint unsigned": Column("c", FieldType.LONGLONG, 0, is_unsigned=True),
    "float": Column("c", FieldType.FLOAT, 4),
    "double": Column("c", FieldType.DOUBLE, 8),
    "decimal(12,2)": Column("c", FieldType.DECIMAL, 12 << 8 | 2),
    "decimal(65,30)": Column("c", FieldType.DECIMAL, 65 << 8 | 30),
    "bit(1)": Column("c", FieldType.BIT, 1),
    "bit(12)": Column("c", FieldType.BIT, 12),
    "bit(64)": Column("c", FieldType.BIT, 64),
    "year": Column("c", FieldType.YEAR, 0),
    "date": Column("c", FieldType.DATE, 0),
    "time(6)": Column("c", FieldType.TIME2, 6),
    "datetime(6)": Column("c", FieldType.DATETIME2, 6),
    "timestamp(6)": Column("c", FieldType.TIMESTAMP2, 6),
    "char(10)": Column("c", FieldType.STRING, 40, collation=45),
    "varchar(40)": Column("c", FieldType.VARCHAR, 160, collation=45),
    "text": Column("c", FieldType.BLOB, 2, collation=8),
    "binary(16)": Column("c", FieldType.STRING, 16, collation=63),
    "varbinary(40)": Column("c", FieldType.VARCHAR, 40, collation=63),
    "blob": Column("c", FieldType.BLOB, 2, collation=63),
    "enum('a','b')": Column("c", FieldType.ENUM, 1, collation=45, members=("a", "b")),
    "set('a','b')": Column("c", FieldType.SET, 1, collation=45, members=("a", "b")),
    "json": Column("c", FieldType.JSON, 4),
    "geometry": Column("c", FieldType.GEOMETRY, 4),
    "vector": Column("c", FieldType.VECTOR, 4),
    "uuid": Column("c", FieldType.STRING, 16, "uuid", collation=63),
    "inet4": Column("c", FieldType.STRING, 4, "inet4", collation=63),
    "inet6": Column("c", FieldType.STRING, 16, "inet6", collation=63),
}
#: what only the catalog says
_NAMED = {"uuid", "inet4", "inet6"}
_DELTA = {
    "int8": "byte",
    "int16": "short",
    "int32": "integer",
    "int64": "long",
    "bool": "boolean",
    "date32[day]": "date",
    "timestamp[us]": "timestamp_ntz",
    "timestamp[us, tz=UTC]": "timestamp",
}


def _rows() -> dict[str, tuple[str, str]]:
    section = _DOCUMENT.read_text().split("\n## MySQL and MariaDB\n")[1].split("\n### ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")][2:]
    cells = [[cell.strip().strip("`") for cell in line.split("|")] for line in lines]
    return {row[1]: (row[2], row[3]) for row in cells}


def _delta_name(arrow: pa.DataType) -> str:
    stored = delta_type(arrow)
    if pa.types.is_decimal(stored):
        return f"decimal({stored.precision},{stored.scale})"
    return _DELTA.get(str(stored), str(stored))


@pytest.mark.parametrize(("name", "expected"), _rows().items())
def test_the_document_names_the_types_that_a_column_becomes(name: str, expected: tuple[str, str]) -> None:
    arrow = types.arrow_type(_COLUMNS[name])
    assert (str(arrow), _delta_name(arrow)) == expected


def test_the_document_covers_every_kind() -> None:
    # The old layouts of dates and the ways to store text are no types of their own.
    others = {Kind.TIME_OLD, Kind.DATETIME_OLD, Kind.TIMESTAMP_OLD, Kind.TEXT_CODEC, Kind.COMPRESSED}
    assert {types.kind_of(_COLUMNS[name]) for name in _rows()} == set(Kind) - others


@pytest.mark.parametrize("name", _COLUMNS)
def test_types_are_named_as_people_write_them(name: str) -> None:
    if name not in _NAMED:
        assert type_names.name_of(_COLUMNS[name]) == name


@pytest.mark.parametrize("kind", [*Kind])
def test_every_kind_has_a_builder(kind: Kind) -> None:
    assert kind in columns._MAKERS


def test_under_the_rule_string_calendar_types_are_text_and_no_others() -> None:
    found = {name: types.arrow_type(column, zero_dates=ZeroDates.STRING) for name, column in _COLUMNS.items()}
    changed = {name for name, column in _COLUMNS.items() if types.arrow_type(column) != found[name]}
    assert changed == {"date", "datetime(6)", "timestamp(6)"}
    assert {found[name] for name in changed} == {pa.string()}


def test_fields_are_nullable_and_carry_the_source_type() -> None:
    named = [replace(column, type_name=name) for name, column in _COLUMNS.items()]
    schema = TableSchema(1, "s", "t", tuple(named), dialect=DIALECT, zero_dates=ZeroDates.STRING)
    arrow = types.arrow_schema(schema)
    assert all(field.nullable for field in arrow)
    assert [field.metadata[SOURCE_TYPE].decode() for field in arrow] == list(_COLUMNS)
    assert arrow.field(18).type == pa.string()
    assert TableSchema.from_json(schema.to_json()) == schema


_WIDTHS = {
    "bigint": 8,
    "bit(12)": 2,
    "decimal(12,2)": 6,
    "decimal(65,30)": 30,
    "time(6)": 6,
    "datetime(6)": 8,
    "timestamp(6)": 7,
    "char(10)": -1,
    "text": -2,
    "json": -4,
    "set('a','b')": 1,
}


@pytest.mark.parametrize(("name", "width"), _WIDTHS.items())
def test_widths_in_a_row(name: str, width: int) -> None:
    assert types.wire_width(_COLUMNS[name]) == width


def test_values_of_more_than_255_bytes_have_a_length_of_two() -> None:
    assert types.wire_width(Column("c", FieldType.VARCHAR, 255)) == -1
    assert types.wire_width(Column("c", FieldType.VARCHAR, 256)) == -2


def test_a_type_that_no_row_event_has_is_refused() -> None:
    with pytest.raises(ValueError, match="type 20 is not one that Weir reads; leave the table out"):
        types.kind_of(Column("c", 20, 0))


def test_collations_of_both_servers() -> None:
    known = {8: "latin1", 255: "utf8mb4", 1069: "utf8mb4", 2304: "utf8mb4", 640: "ucs2", 63: "binary", 9999: ""}
    assert {number: charsets.charset_of(number) for number in known} == known
    assert [charsets.bytes_per_character(name) for name in ("latin1", "utf8mb3", "utf32")] == [1, 3, 4]
