"""What rows that were there hold in a new column: its default, where that is one value for all of them. Pure."""

from enum import Enum
from typing import Final

from sqlglot import exp

from agent.schema import Column
from agent.sources.mysql import types
from agent.sources.mysql.types import FieldType


class _Untold(Enum):
    UNTOLD = "untold"


#: it is in no statement
UNTOLD: Final = _Untold.UNTOLD

_GENERATED: Final = (
    exp.AutoIncrementColumnConstraint,
    exp.ComputedColumnConstraint,
    exp.GeneratedAsIdentityColumnConstraint,
)
_ZERO: Final = {
    FieldType.DATE: None,
    FieldType.DATETIME2: None,
    FieldType.TIMESTAMP2: None,
    FieldType.TIME2: "00:00:00",
}


def of_new_column(definition: exp.ColumnDef, column: Column) -> str | _Untold | None:
    """In text as ``fills`` reads it; None is NULL."""
    default, is_generated = None, False
    for constraint in definition.constraints:
        kind = constraint.kind
        if isinstance(kind, exp.DefaultColumnConstraint):
            default = kind.this
        elif isinstance(kind, _GENERATED):
            is_generated = True
    if is_generated:
        return UNTOLD
    if default is None or isinstance(default, exp.Null):
        return _implicit(column) if is_required(definition) else None
    return _constant(default, column)


def is_required(definition: exp.ColumnDef) -> bool:
    """NOT NULL, by its own words."""
    kinds = [constraint.kind for constraint in definition.constraints]
    wanted = (exp.NotNullColumnConstraint, exp.PrimaryKeyColumnConstraint)
    return any(isinstance(kind, wanted) and not kind.args.get("allow_null") for kind in kinds)


def _implicit(column: Column) -> str | _Untold | None:
    """What a NOT NULL column without a default holds: zero, the empty text, the first member."""
    if column.type_id in _ZERO:
        return _ZERO[FieldType(column.type_id)]  # a date of zeros: NULL, unless the changefeed's rule says otherwise
    if column.members:
        return column.members[0] if column.type_id == FieldType.ENUM else ""
    if column.type_id in (FieldType.GEOMETRY, FieldType.JSON) or column.type_name in ("uuid", "inet4", "inet6"):
        return UNTOLD
    is_text = column.type_id in (FieldType.STRING, FieldType.VARCHAR, FieldType.BLOB)
    if is_text:
        is_padded = column.type_id == FieldType.STRING and types.is_binary(column)
        return "00" * column.modifier if is_padded else ""
    return "0"


def _constant(default: exp.Expr, column: Column) -> str | _Untold:
    negative = isinstance(default, exp.Neg)
    value = default.this if negative or isinstance(default, exp.Paren) else default
    is_bytes = types.is_binary(column) and column.type_id in (FieldType.STRING, FieldType.VARCHAR, FieldType.BLOB)
    if isinstance(value, exp.Boolean):
        return "1" if value.this else "0"
    if isinstance(value, exp.BitString):
        return str(int(str(value.this), 2))
    if isinstance(value, exp.HexString):
        return str(value.this) if is_bytes else UNTOLD
    if not isinstance(value, exp.Literal):
        return UNTOLD
    text = str(value.this)
    if is_bytes:
        return _padded(text.encode(), column).hex()
    if column.type_id == FieldType.BIT and value.is_string:
        return UNTOLD
    return f"-{text}" if negative else text


def _padded(value: bytes, column: Column) -> bytes:
    """binary(n) is filled up with zeros."""
    return value.ljust(column.modifier, b"\0") if column.type_id == FieldType.STRING else value
