"""Type names: a column's type as people write it (``varchar(40)``, ``int unsigned``), made of what a table map says.

Both ways to a schema (the log and the catalog) name types here, so that they name them alike.
"""

from collections.abc import Mapping
from typing import Final

from agent.rows.schema import Column
from agent.sources.mysql.decode import charsets, types
from agent.sources.mysql.decode.types import FieldType

_PLAIN: Final[Mapping[int, str]] = {
    FieldType.TINY: "tinyint",
    FieldType.SHORT: "smallint",
    FieldType.INT24: "mediumint",
    FieldType.LONG: "int",
    FieldType.LONGLONG: "bigint",
    FieldType.FLOAT: "float",
    FieldType.DOUBLE: "double",
    FieldType.YEAR: "year",
    FieldType.DATE: "date",
    FieldType.TIME: "time",
    FieldType.DATETIME: "datetime",
    FieldType.TIMESTAMP: "timestamp",
    FieldType.JSON: "json",
    FieldType.GEOMETRY: "geometry",
    FieldType.VECTOR: "vector",
}
_FRACTIONAL: Final[Mapping[int, str]] = {
    FieldType.TIME2: "time",
    FieldType.DATETIME2: "datetime",
    FieldType.TIMESTAMP2: "timestamp",
}
_REALS: Final = (FieldType.FLOAT, FieldType.DOUBLE)
#: digits of a whole number that is filled up with zeros, where nothing is said
_WIDTHS: Final[Mapping[int, int]] = {
    FieldType.TINY: 3,
    FieldType.SHORT: 5,
    FieldType.INT24: 8,
    FieldType.LONG: 10,
    FieldType.LONGLONG: 20,
}
#: by the bytes of a value's length
_BLOBS, _TEXTS = ("tinyblob", "blob", "mediumblob", "longblob"), ("tinytext", "text", "mediumtext", "longtext")


def name_of(column: Column, display: str = "", *, is_zerofill: bool = False) -> str:
    """``column.type_name`` is not looked at. ``display``: the width or the digits that a number is printed with, in
    parentheses; nothing in the log says these."""
    if name := _PLAIN.get(column.type_id):
        return _number(name, column, display, is_zerofill=is_zerofill)
    if name := _FRACTIONAL.get(column.type_id):
        return f"{name}({column.modifier})" if column.modifier else name
    match column.type_id:
        case FieldType.DECIMAL:
            precision, scale = types.decimal_bounds(column.modifier)
            return _number(f"decimal({precision},{scale})", column, "", is_zerofill=is_zerofill)
        case FieldType.BIT:
            return f"bit({column.modifier})"
        case FieldType.ENUM | FieldType.SET:
            return _with_members("enum" if column.type_id == FieldType.ENUM else "set", column.members)
        case FieldType.BLOB | FieldType.BLOB_COMPRESSED:
            return (_BLOBS if types.is_binary(column) else _TEXTS)[column.modifier - 1] + _compressed(column)
        case FieldType.STRING:
            return _with_length("binary" if types.is_binary(column) else "char", column, column.modifier)
        case FieldType.VARCHAR:
            return _with_length("varbinary" if types.is_binary(column) else "varchar", column, column.modifier)
        case FieldType.VARCHAR_COMPRESSED:
            # One more byte says how a value is compressed.
            name = "varbinary" if types.is_binary(column) else "varchar"
            return _with_length(name, column, column.modifier - 1) + _compressed(column)
        case _:
            return f"type {column.type_id}"


def _number(name: str, column: Column, display: str, *, is_zerofill: bool) -> str:
    if column.type_id in _REALS:
        name += display if "," in display else ""
    elif is_zerofill and column.type_id in _WIDTHS:
        name += display or f"({_WIDTHS[column.type_id]})"
    return name + (" unsigned" if column.is_unsigned else "") + (" zerofill" if is_zerofill else "")


def _compressed(column: Column) -> str:
    return " compressed" if types.kind_of(column) is types.Kind.COMPRESSED else ""


def _with_length(name: str, column: Column, longest_bytes: int) -> str:
    return f"{name}({longest_bytes // charsets.bytes_per_character(charsets.charset_of(column.collation))})"


def _with_members(name: str, members: tuple[str, ...]) -> str:
    return name + "(" + ",".join("'" + member.replace("'", "''") + "'" for member in members) + ")"
