"""Type names: formats a column's type as in SQL (``varchar(40)``, ``int unsigned``), from a table map's description.

Schemas of the log and of the catalog both get their type names here, so that they are equal.
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
}
_FRACTIONAL: Final[Mapping[int, str]] = {
    FieldType.TIME2: "time",
    FieldType.DATETIME2: "datetime",
    FieldType.TIMESTAMP2: "timestamp",
}
_REALS: Final = (FieldType.FLOAT, FieldType.DOUBLE)
#: default display widths of integers with ZEROFILL
_WIDTHS: Final[Mapping[int, int]] = {
    FieldType.TINY: 3,
    FieldType.SHORT: 5,
    FieldType.INT24: 8,
    FieldType.LONG: 10,
    FieldType.LONGLONG: 20,
}
#: names by the number of length bytes
_BLOBS, _TEXTS = ("tinyblob", "blob", "mediumblob", "longblob"), ("tinytext", "text", "mediumtext", "longtext")


def name_of(column: Column, display: str = "", *, is_zerofill: bool = False) -> str:
    """Return the name; ``column.type_name`` is ignored. ``display``: display width or digits of a number, or
    length of a vector, in parentheses, which the log lacks."""
    if column.type_id == FieldType.VECTOR:
        return f"vector{display}"
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
            # one more byte has the compression of a value
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
