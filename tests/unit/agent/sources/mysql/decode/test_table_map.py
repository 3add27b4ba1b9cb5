"""Table maps that are built by hand: MySQL's own, all kinds of optional metadata, and damaged ones."""

import contextlib
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.errors import DecodeError
from agent.rows.schema import Column
from agent.sources.mysql.decode.table_ids import table_id
from agent.sources.mysql.decode.table_map import TableMap, parse_table_map
from agent.sources.mysql.decode.types import FieldType
from agent.sources.mysql.dialect import DIALECT
from tests.example_counts import many


def _counted(data: bytes) -> bytes:
    assert len(data) < 251
    return bytes([len(data)]) + data


def _names(*names: str) -> bytes:
    return b"\4" + _counted(b"".join(_counted(name.encode()) for name in names))


def _field(number: int, *values: int) -> bytes:
    return bytes([number]) + _counted(bytes(values))


def _map(columns: Sequence[tuple[int, bytes]], *optional: bytes, name: str = "t") -> bytes:
    types, metadata = bytes(number for number, _ in columns), b"".join(data for _, data in columns)
    head = (0x0102030405).to_bytes(6, "little") + b"\1\0" + b"\4shop\0" + _counted(name.encode()) + b"\0"
    nullable = bytes((len(columns) + 7) // 8)
    return head + _counted(types) + _counted(metadata) + nullable + b"".join(optional)


def _parse(columns: Sequence[tuple[int, bytes]], *optional: bytes, is_mariadb: bool = False) -> TableMap:
    return parse_table_map(_map(columns, *optional), is_mariadb=is_mariadb)


_INT = (FieldType.LONG, b"")
_VARCHAR = (FieldType.VARCHAR, (160).to_bytes(2, "little"))
_TEXT = (FieldType.BLOB, b"\2")
_ENUM = (FieldType.STRING, bytes([FieldType.ENUM, 1]))
_SET = (FieldType.STRING, bytes([FieldType.SET, 2]))
_GEOMETRY = (FieldType.GEOMETRY, b"\4")


def test_the_table_and_what_full_metadata_says_of_it() -> None:
    found = _parse(
        [_INT, _VARCHAR, _ENUM, _SET, _TEXT],
        _field(1, 0x80),
        _field(2, 45, 1, 63),
        _names("id", "name", "mood", "flags", "data"),
        b"\5" + _counted(b"\2\1a\1b"),
        b"\6" + _counted(b"\3\3sad\2ok\1\xe4"),
        _field(8, 0),
        _field(11, 8, 45),
        _field(12, 0x80),
    )
    assert found.map_id == 0x0102030405
    assert found.schema.table_id == table_id("shop", "t")
    assert found.schema.dialect == DIALECT
    assert found.schema.qualified_name == "shop.t"
    assert found.schema.columns == (
        Column("id", FieldType.LONG, 0, "int unsigned", is_key=True, is_unsigned=True),
        Column("name", FieldType.VARCHAR, 160, "varchar(40)", collation=45),
        Column("mood", FieldType.ENUM, 1, "enum('sad','ok','ä')", collation=8, members=("sad", "ok", "ä")),
        Column("flags", FieldType.SET, 2, "set('a','b')", collation=45, members=("a", "b")),
        Column("data", FieldType.BLOB, 2, "blob", collation=63),
    )
    assert (found.has_names, found.has_members) == (True, True)


def test_members_that_mariadb_left_in_another_character_set_name_the_cure() -> None:
    """``CONVERT TO CHARACTER SET utf8mb4`` of a latin1 enum can leave the bytes of its members as they were."""
    with pytest.raises(
        DecodeError, match=r"members 61, e9 .* no text of its character set utf8mb4; ALTER TABLE … MODIFY"
    ):
        _parse([_INT, _ENUM], _names("id", "mood"), b"\6" + _counted(b"\2\1a\1\xe9"), _field(11, 45), is_mariadb=True)


def test_minimal_metadata_has_no_names_members_and_keys() -> None:
    found = _parse([_INT, _VARCHAR, _ENUM], _field(1, 0), _field(3, 45))
    assert [column.name for column in found.schema.columns] == ["@1", "@2", "@3"]
    assert found.schema.columns[1].collation == 45
    assert (found.has_names, found.has_members, found.schema.key) == (False, False, ())


def test_without_any_metadata_types_alone_are_known() -> None:
    found = _parse([_INT, _VARCHAR])
    assert (found.has_names, found.has_members) == (False, True)


def test_a_year_has_a_sign_bit_that_means_nothing() -> None:
    found = _parse([_INT, (FieldType.YEAR, b""), _INT, (FieldType.BIT, b"\4\1"), _INT], _field(1, 0b0110_0000))
    assert [column.is_unsigned for column in found.schema.columns] == [False, False, True, False, False]


def test_signs_of_more_than_eight_columns() -> None:
    found = _parse([_INT] * 10, _field(1, 0x01, 0x40))
    assert [i for i, column in enumerate(found.schema.columns) if column.is_unsigned] == [7, 9]


def test_geometry_has_a_collation_in_mariadb_only() -> None:
    columns = [_GEOMETRY, _VARCHAR]
    mariadb = _parse(columns, _field(2, 63, 1, 8), is_mariadb=True)
    mysql = _parse(columns, _field(2, 8))
    assert [column.collation for column in mariadb.schema.columns] == [0, 8]
    assert [column.collation for column in mysql.schema.columns] == [0, 8]


def test_collations_above_250_take_more_bytes() -> None:
    found = _parse([_VARCHAR], bytes([2]) + _counted(b"\xfc" + (255).to_bytes(2, "little")))
    assert found.schema.columns[0].collation == 255
    assert found.schema.columns[0].type_name == "varchar(40)"


def test_keys_with_prefixes_count_with_their_whole_columns() -> None:
    found = _parse([_VARCHAR, _INT, _TEXT], _field(9, 2, 10, 1, 0))
    assert found.schema.key == ("@2", "@3")


@pytest.mark.parametrize("length", [1, 255, 256, 511, 765, 1020])
def test_long_chars_hide_bits_of_their_length_in_their_type(length: int) -> None:
    hidden = bytes([FieldType.STRING ^ (length & 0x300) >> 4, length & 0xFF])
    found = _parse([(FieldType.STRING, hidden)], _field(2, 45))
    assert (found.schema.columns[0].type_id, found.schema.columns[0].modifier) == (FieldType.STRING, length)


_METADATA = {
    "float": (FieldType.FLOAT, b"\4", 4, "float"),
    "double": (FieldType.DOUBLE, b"\x08", 8, "double"),
    "decimal": (FieldType.DECIMAL, b"\x0c\2", 12 << 8 | 2, "decimal(12,2)"),
    "bit": (FieldType.BIT, b"\4\1", 12, "bit(12)"),
    "datetime": (FieldType.DATETIME2, b"\6", 6, "datetime(6)"),
    "timestamp": (FieldType.TIMESTAMP2, b"\0", 0, "timestamp"),
    "json": (FieldType.JSON, b"\4", 4, "json"),
    "vector": (FieldType.VECTOR, b"\4", 4, "vector"),
    "time of old": (FieldType.TIME, b"", 0, "time"),
}


@pytest.mark.parametrize(("number", "metadata", "modifier", "name"), _METADATA.values(), ids=_METADATA.keys())
def test_modifiers_and_names(number: int, metadata: bytes, modifier: int, name: str) -> None:
    column = _parse([(number, metadata)]).schema.columns[0]
    assert (column.type_id, column.modifier, column.type_name) == (number, modifier, name)


def test_old_spellings_of_types_are_replaced() -> None:
    found = _parse([(FieldType.VAR_STRING, b"\x0a\0"), (FieldType.NEWDATE, b"")])
    assert [column.type_id for column in found.schema.columns] == [FieldType.VARCHAR, FieldType.DATE]


def test_optional_fields_of_later_servers_are_passed_over() -> None:
    found = _parse([_INT], _field(1, 0), _field(77, 1, 2, 3), _names("id"))
    assert found.schema.columns[0].name == "id"


_WHOLE = _map([_INT, _VARCHAR, _ENUM], _field(1, 0), _field(2, 45), _names("a", "b", "c"), _field(8, 0))


@settings(max_examples=many(300), deadline=None)
@given(
    st.integers(0, len(_WHOLE)), st.lists(st.tuples(st.integers(0, len(_WHOLE) - 1), st.integers(0, 255)), max_size=4)
)
def test_damage_is_refused_or_read_but_nothing_else(end: int, changed: list[tuple[int, int]]) -> None:
    damaged = bytearray(_WHOLE)
    for at, byte in changed:
        damaged[at] = byte
    with contextlib.suppress(DecodeError):
        parse_table_map(bytes(damaged[:end]), is_mariadb=False)
