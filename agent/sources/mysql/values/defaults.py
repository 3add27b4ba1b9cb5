"""What rows that were there hold in a new column: its default, where that is one value for all of them. Pure.

Values are told in text as SQL spells them, bytes in hex, moments of a ``timestamp`` in UTC; ``fills`` makes values
of them.
"""

from datetime import UTC
from enum import Enum
from typing import Final

from sqlglot import exp

from agent.rows.schema import Column
from agent.sources.mysql.decode import types
from agent.sources.mysql.decode.types import FieldType
from agent.sources.mysql.values import moments
from agent.sources.mysql.values.session import Session


class _Untold(Enum):
    UNTOLD = "untold"


#: it is in no statement
UNTOLD: Final = _Untold.UNTOLD

_GENERATED: Final = (
    exp.AutoIncrementColumnConstraint,
    exp.ComputedColumnConstraint,
    exp.GeneratedAsIdentityColumnConstraint,
)
_NOW: Final = (exp.CurrentTimestamp, exp.Localtimestamp, exp.Localtime)
_ZERO: Final = {
    FieldType.DATE: "0000-00-00",
    FieldType.DATETIME2: "0000-00-00 00:00:00",
    FieldType.TIMESTAMP2: "0000-00-00 00:00:00",
    FieldType.TIME2: "00:00:00",
    FieldType.JSON: "null",
}
_FRACTIONAL: Final = frozenset({FieldType.DATETIME2, FieldType.TIMESTAMP2, FieldType.TIME2})
_NAMED_ZERO: Final = {"uuid": "00000000-0000-0000-0000-000000000000", "inet6": "::", "inet4": "0.0.0.0"}
_BYTES: Final = types.CHARACTER_TYPES - {FieldType.VECTOR}


def of_new_column(definition: exp.ColumnDef, column: Column, session: Session) -> str | _Untold | None:
    """In text as ``fills`` reads it; None is NULL. ``session``: of the statement."""
    kind = definition.args.get("kind")
    default, is_generated = None, isinstance(kind, exp.DataType) and kind.this is exp.DataType.Type.SERIAL
    for constraint in definition.constraints:
        if isinstance(constraint.kind, exp.DefaultColumnConstraint):
            default = constraint.kind.this
        elif isinstance(constraint.kind, _GENERATED):
            is_generated = True
    if is_generated:
        return UNTOLD
    if default is None or isinstance(default, exp.Null):
        return implicit(column) if is_required(definition) else None
    if isinstance(default, _NOW) or default.name.upper() == "NOW":
        return _now(column, session)
    text = _constant(default, column)
    if column.type_id in _FRACTIONAL and moments.is_finer(str(text), column.modifier):
        return UNTOLD
    is_moment = column.type_id == FieldType.TIMESTAMP2 and text is not UNTOLD
    return _in_utc(str(text), session) if is_moment else text


def is_required(definition: exp.ColumnDef) -> bool:
    """NOT NULL, by its own words."""
    kinds = [constraint.kind for constraint in definition.constraints]
    wanted = (exp.NotNullColumnConstraint, exp.PrimaryKeyColumnConstraint)
    return any(isinstance(kind, wanted) and not kind.args.get("allow_null") for kind in kinds)


def implicit(column: Column) -> str | _Untold | None:
    """What a NOT NULL column without a default holds: zero, the empty text, the first member."""
    if column.type_id in _ZERO:
        return _ZERO[FieldType(column.type_id)]
    if column.members:
        return column.members[0] if column.type_id == FieldType.ENUM else ""
    if column.type_id == FieldType.GEOMETRY:
        return UNTOLD
    if column.type_name in _NAMED_ZERO:
        return _NAMED_ZERO[column.type_name]
    if column.type_id in _BYTES:
        is_padded = column.type_id == FieldType.STRING and types.is_binary(column)
        return "00" * column.modifier if is_padded else ""
    return "0"


def _now(column: Column, session: Session) -> str | _Untold:
    now = session.now(column.modifier)
    zone = UTC if column.type_id == FieldType.TIMESTAMP2 else session.zone
    if now is None or zone is None or column.type_id not in (FieldType.TIMESTAMP2, FieldType.DATETIME2):
        return UNTOLD
    return now.astimezone(zone).replace(tzinfo=None).isoformat(sep=" ")


def _in_utc(text: str, session: Session) -> str | _Untold:
    """A text of a ``timestamp`` is a moment of the session's time zone."""
    parts = moments.parse(text)
    moment = moments.moment_of(parts) if parts else None
    if moment is None:
        return text
    if session.zone is None:
        return UNTOLD
    return moment.replace(tzinfo=session.zone).astimezone(UTC).replace(tzinfo=None).isoformat(sep=" ")


def _constant(default: exp.Expr, column: Column) -> str | _Untold:
    negative = isinstance(default, exp.Neg)
    value = default.this if negative or isinstance(default, exp.Paren | exp.Cast) else default
    if isinstance(value, exp.Introducer):
        value = value.expression
    is_named = column.type_name in _NAMED_ZERO
    is_bytes = not is_named and types.is_binary(column) and column.type_id in _BYTES
    if isinstance(value, exp.Boolean):
        return "1" if value.this else "0"
    if isinstance(value, exp.BitString):
        return str(int(str(value.this), 2))
    if isinstance(value, exp.HexString):
        return _of_bytes(str(value.this), column, is_bytes=is_bytes)
    if not isinstance(value, exp.Literal | exp.National):
        return UNTOLD
    text = str(value.this)
    if is_bytes:
        return _padded(text.encode(), column).hex()
    if column.type_id == FieldType.BIT and isinstance(value, exp.Literal) and value.is_string:
        return UNTOLD
    return f"-{text}" if negative else text


def _of_bytes(digits: str, column: Column, *, is_bytes: bool) -> str | _Untold:
    """``X'4142'`` is bytes, a text or a number, as the column is."""
    data = bytes.fromhex(digits)
    if is_bytes:
        return _padded(data, column).hex()
    if column.type_id in _BYTES:
        return data.decode() if data.isascii() else UNTOLD
    return (
        str(int.from_bytes(data))
        if column.type_id in types.NUMERIC_TYPES or column.type_id == FieldType.BIT
        else UNTOLD
    )


def _padded(value: bytes, column: Column) -> bytes:
    """binary(n) is filled up with zeros."""
    return value.ljust(column.modifier, b"\0") if column.type_id == FieldType.STRING else value
