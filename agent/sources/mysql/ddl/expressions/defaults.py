"""Column defaults: determines the value of a new column in existing rows, if it is the same for all. Pure.

Values are SQL text, bytes in hex, ``timestamp`` values in UTC; ``fills`` converts them.
"""

from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from typing import Final

import pyarrow as pa
from sqlglot import exp

from agent.errors import DecodeError
from agent.rows.schema import Column, ZeroDates
from agent.rows.schema_change import Refused
from agent.sources.mysql.ddl.expressions import constants, shifts
from agent.sources.mysql.ddl.expressions.functions import Json, NotConstantError, Value, document
from agent.sources.mysql.ddl.expressions.shifts import Shift
from agent.sources.mysql.decode import types
from agent.sources.mysql.decode.types import FieldType
from agent.sources.mysql.retyping import texts as retyping_texts
from agent.sources.mysql.retyping.numbers import UnfitError
from agent.sources.mysql.retyping.retyping import conversion
from agent.sources.mysql.retyping.terms import RetypeTerms
from agent.sources.mysql.values import moments
from agent.sources.mysql.values.implicit import BYTES, NAMED_ZERO, ZERO, implicit_text
from agent.sources.mysql.values.session import Session


class _UnknownFill(Enum):
    UNKNOWN_FILL = "unknown"


#: the statement does not contain it
UNKNOWN_FILL: Final = _UnknownFill.UNKNOWN_FILL

_GENERATED: Final = (
    exp.AutoIncrementColumnConstraint,
    exp.ComputedColumnConstraint,
    exp.GeneratedAsIdentityColumnConstraint,
)
_FRACTIONAL: Final = frozenset({FieldType.DATETIME2, FieldType.TIMESTAMP2, FieldType.TIME2})
_MOMENTS: Final = _FRACTIONAL | {FieldType.DATE}
_MEMBERS: Final = (FieldType.ENUM, FieldType.SET)
_NUMBERS: Final = types.NUMERIC_TYPES | {FieldType.BIT}


def of_new_column(
    definition: exp.ColumnDef, column: Column, session: Session, *, is_mariadb: bool
) -> str | _UnknownFill | None:
    """Return the text that ``fills`` reads; None is NULL. ``session``: of the statement."""
    kind = definition.args.get("kind")
    default, is_generated = None, isinstance(kind, exp.DataType) and kind.this is exp.DataType.Type.SERIAL
    for constraint in definition.constraints:
        if isinstance(constraint.kind, exp.DefaultColumnConstraint):
            default = constraint.kind.this
        elif isinstance(constraint.kind, _GENERATED):
            is_generated = True
    if is_generated:
        return UNKNOWN_FILL
    if default is not None and is_mariadb and session.reads_empty_as_null:
        default = _without_empty(default.unnest())
    if default is None or isinstance(default, exp.Null) or (not is_mariadb and _is_ignored(default, column)):
        return _implicit(column) if is_required(definition) else None
    is_literal = not isinstance(default, exp.Paren)
    while isinstance(default, exp.Paren):
        default = default.this
    if shifts.is_now(default):
        return _now(default, column, session, is_mariadb=is_mariadb)
    if isinstance(default, (exp.CurrentDate, exp.CurrentTime)):
        return _today(default, column, session)
    terms = RetypeTerms(is_mariadb, session.sql_mode, session.time_zone)
    try:
        if shift := shifts.parse(default):
            return _shifted(shift, column, session, terms)
        value = constants.value_of(default, column)
        if value is None:
            return UNKNOWN_FILL if is_required(definition) else None
        if not is_mariadb and column.type_id in _MEMBERS:
            value = _text_of_literal(value) if is_literal else _member_of_number(value, column)
        if isinstance(value, str) and not session.keeps(value, column.collation):
            return UNKNOWN_FILL
        return _stored(value, column, terms)
    except (NotConstantError, UnfitError, DecodeError, ArithmeticError):
        return UNKNOWN_FILL


def _without_empty(default: exp.Expr) -> exp.Expr:
    """Return the default with NULL in place of empty texts; an expression around one is unknown."""
    is_empty = any(text.is_string and not text.name for text in default.find_all(exp.Literal))
    is_alone = isinstance(default, exp.Literal)
    return default if not is_empty else exp.Null() if is_alone else exp.Anonymous(this="unknown")


def _is_ignored(default: exp.Expr, column: Column) -> bool:
    """Return whether MySQL drops the default with a warning: the empty literal of a TEXT or BLOB, without strict mode.

    In strict mode, and for other literals, the statement fails; expressions in parentheses are kept.
    """
    return column.type_id == FieldType.BLOB and isinstance(default, exp.Literal) and default.name == ""


def is_required(definition: exp.ColumnDef) -> bool:
    """Return whether the column is explicitly NOT NULL."""
    kinds = [constraint.kind for constraint in definition.constraints]
    wanted = (exp.NotNullColumnConstraint, exp.PrimaryKeyColumnConstraint)
    return any(isinstance(kind, wanted) and not kind.args.get("allow_null") for kind in kinds)


def _implicit(column: Column) -> str | _UnknownFill:
    text = implicit_text(column)
    return UNKNOWN_FILL if text is None else text


def _now(default: exp.Expr, column: Column, session: Session, *, is_mariadb: bool) -> str | _UnknownFill:
    """Return the time of the statement; in a date or a time its part. Without a number MariaDB gives a column as many
    digits as it has, MySQL none."""
    if column.type_id not in (FieldType.TIMESTAMP2, FieldType.DATETIME2):
        return _today(default, column, session)
    asked = _digits(default)
    digits = asked if asked is not None else column.modifier if is_mariadb else 0
    now = session.now(digits)
    if now is None or (now != session.now(min(digits, column.modifier))):
        return UNKNOWN_FILL  # it is rounded or not, depending on the server and the SQL mode
    zone = UTC if column.type_id == FieldType.TIMESTAMP2 else session.zone
    if zone is None:
        return UNKNOWN_FILL
    return now.astimezone(zone).replace(tzinfo=None).isoformat(sep=" ")


def _today(default: exp.Expr, column: Column, session: Session) -> str | _UnknownFill:
    """Return the day of the statement, or its time of the day."""
    is_day, is_time = isinstance(default, exp.CurrentDate), isinstance(default, exp.CurrentTime)
    local = _local(default, session)
    if local is None:
        return UNKNOWN_FILL
    if column.type_id == FieldType.TIME2 and not is_day and (_digits(default) or 0) <= column.modifier:
        return local.time().isoformat()
    if (column.type_id == FieldType.DATE and not is_time) or (column.type_id == FieldType.DATETIME2 and is_day):
        return local.date().isoformat()
    return UNKNOWN_FILL


def _shifted(shift: Shift, column: Column, session: Session, terms: RetypeTerms) -> str | _UnknownFill:
    """Return a moment some time before or after the statement's, or its day."""
    local = _local(shift.base, session)
    if local is None or column.type_id not in _MOMENTS:
        return UNKNOWN_FILL
    is_day = isinstance(shift.base, exp.CurrentDate)
    return _stored(shift.of(local.date() if is_day else local), column, terms)


def _local(default: exp.Expr, session: Session) -> datetime | None:
    """Return the statement's time in its time zone, with the digits that are asked for; None if it is unknown."""
    now = session.now(_digits(default) or 0)
    return None if now is None or session.zone is None else now.astimezone(session.zone).replace(tzinfo=None)


def _digits(default: exp.Expr) -> int | None:
    """Return the number of digits behind the second that a function is asked for."""
    asked = default.expressions[0] if default.expressions else default.this
    return int(asked.name) if isinstance(asked, exp.Literal) else None


def _text_of_literal(value: Value) -> Value:
    """Return a literal as MySQL looks for it among the members of an ``enum`` or ``set``: as text. MariaDB takes a
    number for that of a member.

    :raises NotConstantError: the text depends on how the number is written.
    """
    if isinstance(value, (str, bytes)):
        return value
    if not isinstance(value, int):
        raise NotConstantError
    return str(int(value))


def _member_of_number(value: Value, column: Column) -> Value:
    """Return the members that an expression's number stands for in MySQL; a text as it is.

    :raises NotConstantError: no whole number.
    """
    if isinstance(value, (str, bytes)):
        return value
    if value is None or value != int(value):
        raise NotConstantError
    return retyping_texts.member_of_number(column)(int(value))


def _stored(value: Value, column: Column, terms: RetypeTerms) -> str | _UnknownFill:
    """Return a constant as the column stores it."""
    if isinstance(value, bytes) and column.type_id in _NUMBERS:
        value = constants.number_of_bytes(value)
    if column.type_id in _MOMENTS:
        return _moment(value, column, terms)
    if column.type_name in NAMED_ZERO:
        return value if isinstance(value, str) else UNKNOWN_FILL
    if column.type_id == FieldType.JSON:
        return document(value)
    if column.type_id in (FieldType.GEOMETRY, FieldType.VECTOR):
        return UNKNOWN_FILL
    if isinstance(value, Json) and column.type_id not in types.CHARACTER_TYPES:
        return UNKNOWN_FILL
    if column.type_id == FieldType.BIT and isinstance(value, str):
        value = constants.number_of_bytes(value.encode())
    if column.type_id == FieldType.ENUM and isinstance(value, int):
        return retyping_texts.member_of_number(column)(value)
    if isinstance(value, bytes) and column.type_id in BYTES and not types.is_binary(column):
        return retyping_texts.text(column)(retyping_texts.decoded(value, column))
    return _converted(value, column, terms)


def _converted(value: Value, column: Column, terms: RetypeTerms) -> str | _UnknownFill:
    """Return a constant as converted from a column of its own type."""
    source = constants.source_of(value)
    found = conversion(source, column, replace(terms, zero_dates=ZeroDates.STRING))
    if isinstance(found, Refused):
        return UNKNOWN_FILL
    arrow = types.arrow_type(source)
    values = pa.array([f"{value:f}" if arrow == pa.string() and isinstance(value, Decimal) else value], arrow)
    [stored] = (found.convert(values) if found else values).to_pylist()
    match stored:
        case bytes():
            return stored.hex()
        case bool():
            return str(int(stored))
        case Decimal():
            return f"{stored:f}"
    return str(stored)


def _moment(value: Value, column: Column, terms: RetypeTerms) -> str | _UnknownFill:
    """Return a date or time; numbers other than 0 are parsed like texts."""
    if value == 0 and column.type_id != FieldType.TIME2:
        return ZERO[FieldType(column.type_id)]
    if isinstance(value, (bytes, float)):
        return UNKNOWN_FILL
    text = f"{value:f}" if isinstance(value, Decimal) else str(value)
    if (moments.parse_time if column.type_id == FieldType.TIME2 else moments.parse)(text) is None:
        return UNKNOWN_FILL
    if column.type_id in (*_FRACTIONAL, FieldType.DATE) and moments.is_finer(text, column.modifier):
        return _converted(text, column, terms)
    return _in_utc(text, terms) if column.type_id == FieldType.TIMESTAMP2 else text


def _in_utc(text: str, terms: RetypeTerms) -> str | _UnknownFill:
    """Convert the text of a ``timestamp`` from the session's time zone to UTC."""
    parts = moments.parse(text)
    moment = moments.moment_of(parts) if parts else None
    if moment is None:
        return text
    if terms.zone is None:
        return UNKNOWN_FILL
    one, other = (moment.replace(tzinfo=terms.zone, fold=fold).astimezone(UTC) for fold in (0, 1))
    if one != other:  # clocks have shown it twice, or never
        return UNKNOWN_FILL
    return one.replace(tzinfo=None).isoformat(sep=" ")
