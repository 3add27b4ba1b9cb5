"""Retyping: converts existing values when their column's type changes, like the server does.

``conversion`` returns for every pair of columns: None, if the values stay or a sink's own cast gives the same result; a
function (``Exact``); or ``Refused`` if the log does not determine the result, which holds the table. A function may
also refuse single values (``DecodeError``). Refused is what depends on the session that made the change (its time zone,
date style, digits of floats), and every pair that the server converts only with an expression.
"""

from collections.abc import Callable, Mapping
from enum import Enum, auto
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from agent.rows.schema import Column, TableSchema
from agent.rows.schema_change import Conversion, Exact, Kept, Refused, WrittenConversion
from agent.sources.postgres.decode import types
from agent.sources.postgres.decode.types import numeric_precision
from agent.sources.postgres.retyping import json
from agent.sources.postgres.retyping import moments as moments
from agent.sources.postgres.retyping import numbers as numbers
from agent.sources.postgres.retyping import texts as texts

Convert = Callable[[pa.Array, Column], pa.Array]


class Family(Enum):
    """Types that convert alike."""

    WHOLE = auto()
    NUMERIC = auto()
    FLOAT = auto()
    BOOL = auto()
    TEXT = auto()
    DATE = auto()
    TIMESTAMP = auto()
    TIMESTAMPTZ = auto()
    TIME = auto()
    INTERVAL = auto()
    JSON = auto()
    JSONB = auto()
    INET = auto()
    #: lists of integers, and of texts, with the same text form
    WHOLES = auto()
    TEXTS = auto()
    #: types whose text form is that of a text column, whatever the session's settings
    PLAIN = auto()
    OTHER = auto()


_FAMILIES: Final = {
    **dict.fromkeys((20, 21, 23), Family.WHOLE),
    types.NUMERIC_OID: Family.NUMERIC,
    **dict.fromkeys((700, 701), Family.FLOAT),
    16: Family.BOOL,
    **dict.fromkeys((25, 1043, texts.BPCHAR, texts.NAME), Family.TEXT),
    1082: Family.DATE,
    1114: Family.TIMESTAMP,
    1184: Family.TIMESTAMPTZ,
    1083: Family.TIME,
    1186: Family.INTERVAL,
    114: Family.JSON,
    3802: Family.JSONB,
    **dict.fromkeys((650, 869), Family.INET),
    **dict.fromkeys((1005, 1007, 1016), Family.WHOLES),
    **dict.fromkeys((1009, 1015), Family.TEXTS),
    # uuid, enums, macaddr, macaddr8, bit, varbit, oid, xid, tid, pg_lsn, int4range, int8range, numrange, tsvector
    **dict.fromkeys(
        (2950, types.ENUM_OID, 829, 774, 1560, 1562, 26, 28, 27, 3220, 3904, 3926, 3906, 3614), Family.PLAIN
    ),
}
#: types whose modifier is a maximum length or precision: varbit, timetz
_ROOM: Final = frozenset((1562, 1266))
#: text, varchar
_ALIKE: Final = frozenset((25, 1043))
_ZONE: Final = "what its values are depends on the time zone of the session that changed it"
_STYLE: Final = "how its values are written depends on the settings of the session that changed it"


def conversions(
    before: TableSchema, after: TableSchema, origins: Mapping[str, str], context: Mapping[str, str]
) -> dict[str, WrittenConversion]:
    """See ``agent.sources.registry.conversions``."""
    old = {column.name: column for column in before.columns}
    new = {column.name: column for column in after.columns}
    pairs = {name: (old[origin], new[name]) for name, origin in origins.items() if origin in old}
    return {name: conversion(*pair) or (Kept() if _is_rewritten(*pair) else None) for name, pair in pairs.items()}


def _is_rewritten(before: Column, after: Column) -> bool:
    """Return whether the server rewrites the values: it may only keep them if both types are texts."""
    types_of = {before.type_id, after.type_id}
    return len(types_of) > 1 and not types_of <= _ALIKE


def conversion(before: Column, after: Column) -> Conversion:
    if before.type_id == after.type_id:
        return _of_one_type(before, after)
    old, new = (_FAMILIES.get(column.type_id, Family.OTHER) for column in (before, after))
    if new is Family.TEXT:
        return _to_text(before, after, old)
    if (old, new) in _STAYS:
        return None if after.modifier < 0 else _unknown(before, after)
    if found := _FUNCTIONS.get((old, new)):
        return _unknown(before, after) if new is Family.INTERVAL and after.modifier >= 0 else _exact(found, after)
    if Family.TIMESTAMPTZ in (old, new) and {old, new} & {Family.DATE, Family.TIMESTAMP, Family.TIME}:
        return Refused(_ZONE)
    return None if old is new is Family.WHOLE else _unknown(before, after)


def _of_one_type(before: Column, after: Column) -> Conversion:
    if before.modifier == after.modifier:
        return None
    family = _FAMILIES.get(before.type_id, Family.OTHER)
    if before.type_id == types.ENUM_OID:  # the modifier identifies the enum, if it was recorded
        return None if -1 in (before.modifier, after.modifier) else _unknown(before, after)
    if family is Family.TEXT:
        return _text_to_text(before, after)
    if family is Family.NUMERIC:
        return _numeric_to_numeric(before, after)
    if family in (Family.TIMESTAMP, Family.TIMESTAMPTZ, Family.TIME):
        is_kept = moments.digits_of(after) >= moments.digits_of(before)
        function = moments.time_to_time if family is Family.TIME else moments.timestamp_to_timestamp
        return None if is_kept else _exact(function, after)
    is_wider = before.type_id in _ROOM and 0 <= before.modifier <= after.modifier
    return None if after.modifier < 0 or is_wider else _unknown(before, after)


def _to_text(before: Column, after: Column, old: Family) -> Conversion:
    if old is Family.TEXT:
        return _text_to_text(before, after)
    if old is Family.BOOL:
        names = ("t", "f") if after.type_id == texts.NAME else ("true", "false")
        return _exact(lambda values, to: texts.fitted(pc.if_else(values, *names), to), after)
    if old is Family.INET and after.type_id == texts.NAME:
        return None
    if (written := _WRITTEN.get(old)) is None:
        return Refused(_ZONE if old is Family.TIMESTAMPTZ else _STYLE)
    if (
        old in (Family.JSON, Family.JSONB, Family.PLAIN)
        and texts.length_of(after) is None
        and after.type_id != texts.NAME
    ):
        return None
    return _exact(lambda values, to: texts.fitted(written(values), to), after)


def _text_to_text(before: Column, after: Column) -> Conversion:
    if before.type_id == texts.BPCHAR and after.type_id != texts.BPCHAR:
        return _exact(lambda values, to: texts.fitted(texts.without_blanks(values), to), after)
    length, room = texts.length_of(before), texts.length_of(after)
    is_kept = room is None or (after.type_id != texts.BPCHAR and length is not None and length <= room)
    is_cut = after.type_id == texts.NAME and before.type_id != texts.NAME
    return None if is_kept and not is_cut else _exact(texts.fitted, after)


def _numeric_to_numeric(before: Column, after: Column) -> Conversion:
    old, new = numeric_precision(before.modifier), numeric_precision(after.modifier)
    was_text, is_text = (pa.types.is_string(types.arrow_type(column)) for column in (before, after))
    is_kept = old is not None and new is not None and (old[1] == new[1] if is_text else old[1] <= new[1])
    if was_text and is_text and new is None:
        return None
    return None if is_kept and was_text == is_text else _exact(numbers.numeric_to_numeric, after)


def _exact(function: Convert, after: Column) -> Exact:
    return Exact(lambda values: function(values, after))


def _unknown(before: Column, after: Column) -> Refused:
    names = [column.type_name or str(column.type_id) for column in (before, after)]
    return Refused(f"Weir does not know what the server makes of {names[0]} as {names[1]}")


def _with_mask(values: pa.Array) -> pa.Array:
    """Format addresses like the cast to text, which adds the netmask to hosts too."""
    is_whole = pc.match_substring(values, "/")
    mask = pc.if_else(pc.match_substring(values, ":"), "/128", "/32")
    return pc.if_else(is_whole, values, pc.binary_join_element_wise(values, mask, ""))


#: pairs of types with the same text form
_STAYS: Final = {
    (Family.JSONB, Family.JSON),
    (Family.WHOLES, Family.WHOLES),
    (Family.WHOLES, Family.TEXTS),
    (Family.TEXTS, Family.TEXTS),
}
_FUNCTIONS: Final[dict[tuple[Family, Family], Convert]] = {
    (Family.WHOLE, Family.NUMERIC): numbers.whole_to_numeric,
    (Family.WHOLE, Family.FLOAT): numbers.whole_to_float,
    (Family.NUMERIC, Family.WHOLE): numbers.numeric_to_whole,
    (Family.NUMERIC, Family.FLOAT): numbers.numeric_to_float,
    (Family.FLOAT, Family.WHOLE): numbers.float_to_whole,
    (Family.FLOAT, Family.FLOAT): numbers.float_to_float,
    (Family.FLOAT, Family.NUMERIC): numbers.float_to_numeric,
    (Family.DATE, Family.TIMESTAMP): moments.date_to_timestamp,
    (Family.TIMESTAMP, Family.DATE): moments.timestamp_to_date,
    (Family.TIMESTAMP, Family.TIME): moments.timestamp_to_time,
    (Family.TIME, Family.INTERVAL): lambda values, _: moments.time_text(values),
    (Family.JSON, Family.JSONB): lambda values, _: json.as_jsonb(values),
}
#: conversions to text by a cast
_WRITTEN: Final[dict[Family, Callable[[pa.Array], pa.Array]]] = {
    Family.WHOLE: lambda values: values.cast(pa.string()),
    Family.NUMERIC: numbers.numeric_text,
    Family.TIME: moments.time_text,
    Family.INET: _with_mask,
    Family.JSON: lambda values: values,
    Family.JSONB: lambda values: values,
    Family.PLAIN: lambda values: values,
}
