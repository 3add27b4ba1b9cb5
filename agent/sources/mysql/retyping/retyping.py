"""Retyping: converts existing values when a statement changes their column's type, like the server.

``conversion`` returns, for every pair of columns: None if values stay the same, a function (``Exact``), or ``Refused``
if only the server knows the result, so that the table is held. A function may refuse single values in the same way
(``DecodeError``). Most conversions work on whole arrays, rare ones on the distinct values of an array.

A strict server refuses a statement that would lose data, so the remaining values convert as on any server: one function
is correct for both modes.
"""

from collections.abc import Mapping
from decimal import Decimal
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from agent.errors import RESYNC, DecodeError
from agent.rows.schema import Column, TableSchema, ZeroDates
from agent.rows.schema_change import Conversion, Convert, Exact, Refused
from agent.sources.mysql.decode import types
from agent.sources.mysql.decode.types import FieldType, Kind
from agent.sources.mysql.retyping import dates, impossible, times
from agent.sources.mysql.retyping import numbers as retyping_numbers
from agent.sources.mysql.retyping import texts as retyping_texts
from agent.sources.mysql.retyping import values as retyping_values
from agent.sources.mysql.retyping.families import CALENDAR, NUMBERS, TEMPORAL, Family, family_of, is_same
from agent.sources.mysql.retyping.numbers import UnfitError
from agent.sources.mysql.retyping.terms import RetypeTerms
from agent.sources.mysql.retyping.values import Scalar
from agent.sources.mysql.values import fills
from agent.sources.mysql.values.implicit import implicit_text

_NOT_KNOWN: Final = "Weir does not know what the server makes of {} as {} ({})"


def conversions(
    before: TableSchema, after: TableSchema, origins: Mapping[str, str], context: Mapping[str, str]
) -> dict[str, Conversion]:
    """See ``agent.sources.registry.conversions``; empty if the record has no context because an older version wrote
    it."""
    terms = RetypeTerms.from_context(context, after.zero_dates)
    if terms is None:
        return {}
    old = {column.name: column for column in before.columns}
    new = {column.name: column for column in after.columns}
    return {name: conversion(old[origin], new[name], terms) for name, origin in origins.items() if origin in old}


def conversion(before: Column, after: Column, terms: RetypeTerms) -> Conversion:
    """Return the conversion. ``terms``: of the statement that changed the type."""
    found = _conversion(before, after, terms)
    if found is None and terms.zeroes_dates and terms.zero_dates is ZeroDates.STRING and _is_calendar(after):
        found = Exact(_without_zeroed(after, terms))
    if after.name in terms.numbered and not isinstance(found, Refused):
        return _numbered(after, found.convert if isinstance(found, Exact) else None, terms)
    # instead of NULL, a timestamp gets the time of the statement in any mode
    has_fill = not terms.is_strict or after.type_id == FieldType.TIMESTAMP2
    if isinstance(found, Refused) or not (after.name in terms.required and has_fill):
        return found
    # InnoDB of MariaDB, where it does not copy the table, puts the default that the column had before
    has_default = terms.is_mariadb and before.type_id == after.type_id
    return _without_nulls(after, found.convert if isinstance(found, Exact) else None, terms, has_default=has_default)


def _conversion(before: Column, after: Column, terms: RetypeTerms) -> Conversion:
    old, new = family_of(before), family_of(after)
    if is_same(before, after):
        return None
    try:
        if terms.pads_chars and old is Family.TEXT and FieldType.STRING == before.type_id != after.type_id:
            raise UnfitError("the SQL mode has PAD_CHAR_TO_FULL_LENGTH")
        array = _by_array(before, after, (old, new), terms)
        if array is not None:
            return Exact(_named(array, before, after))
        scalar = retyping_values.by_value(before, after, (old, new), terms)
    except UnfitError as error:
        return Refused(_NOT_KNOWN.format(before.type_name, after.type_name, error))
    return Exact(_named(lambda values: _mapped(values, scalar, _arrow(after, terms)), before, after))


def _arrow(column: Column, terms: RetypeTerms) -> pa.DataType:
    return types.arrow_type(column, zero_dates=terms.zero_dates)


def _named(convert: Convert, before: Column, after: Column) -> Convert:
    """Add columns and types to errors of ``convert``."""

    def named(values: pa.Array) -> pa.Array:
        try:
            return convert(values)
        except (UnfitError, pa.ArrowInvalid) as error:
            reason = str(error).splitlines()[0][:160]
            raise DecodeError(
                f"column {after.name} has become {after.type_name} and was {before.type_name}, and what the server "
                f"makes of a value is not known ({reason}); {RESYNC}"
            ) from error

    return named


def _mapped(values: pa.Array, scalar: Scalar, arrow: pa.DataType) -> pa.Array:
    """Convert each distinct value once."""
    encoded = values.dictionary_encode()
    found = [scalar(value) for value in encoded.dictionary.to_pylist()]
    if pa.types.is_string(arrow):  # decimals that exceed decimal128
        found = [f"{item:f}" if isinstance(item, Decimal) else item for item in found]
    if pa.types.is_boolean(arrow):
        found = [None if item is None else bool(item) for item in found]
    return pa.array(found, arrow).take(encoded.indices)


def _is_calendar(column: Column) -> bool:
    """Return whether the column may have dates that no calendar has; a ``timestamp`` has at most the zero date."""
    return family_of(column) in CALENDAR and column.type_id not in (FieldType.TIMESTAMP2, FieldType.TIMESTAMP)


def _without_zeroed(after: Column, terms: RetypeTerms) -> Convert:
    """Handle a column of dates that the statement leaves alone: whether the server copied the table, the log does not
    say."""

    def checked(values: pa.Array) -> pa.Array:
        if impossible.may_become_zero(values, terms.sql_mode):
            raise DecodeError(
                f"column {after.name} has dates that no calendar has; if the server copied the table for a statement, "
                f"it has put 0000-00-00 for them; {RESYNC}"
            )
        return values

    return checked


def _numbered(after: Column, convert: Convert | None, terms: RetypeTerms) -> Conversion:
    """Handle a column that gets AUTO_INCREMENT: the server numbers its rows with NULL or 0."""

    def checked(values: pa.Array) -> pa.Array:
        found = values if convert is None else convert(values)
        has_zero = terms.numbers_zeros and pc.any(pc.equal(found, pa.scalar(0).cast(found.type))).as_py()
        if found.null_count or has_zero:
            raise DecodeError(
                f"column {after.name} has become AUTO_INCREMENT, and which numbers the server put for NULL or 0 is not "
                f"known; {RESYNC}"
            )
        return found

    return Exact(checked)


def _without_nulls(after: Column, convert: Convert | None, terms: RetypeTerms, *, has_default: bool) -> Conversion:
    """Handle a column that becomes NOT NULL: a non-strict server replaces NULL by the type's zero, or (``has_default``)
    by a default that is not known."""
    schema = TableSchema(0, "", "", (after,), zero_dates=terms.zero_dates)
    text = "" if after.type_id == FieldType.ENUM else implicit_text(after)
    is_zero = not has_default and after.type_id not in (FieldType.TIMESTAMP2, FieldType.JSON)
    is_known = isinstance(text, str) and is_zero

    def filled(values: pa.Array) -> pa.Array:
        found = values if convert is None else convert(values)
        if not values.null_count:
            return found
        if not is_known:
            raise DecodeError(
                f"column {after.name} has become NOT NULL, and what the server put for NULL is not known; {RESYNC}"
            )
        value = fills.fill_value(schema, after.name, str(text))
        return pc.if_else(values.is_valid(), found, value)

    return Exact(filled)


def _by_array(before: Column, after: Column, families: tuple[Family, Family], terms: RetypeTerms) -> Convert | None:
    """Return the conversion of whole arrays; None if values are converted one by one.

    :raises UnfitError: there is no conversion.
    """
    old, new = families
    arrow = _arrow(after, terms)
    if Family.OPAQUE in families:
        return None
    if old in TEMPORAL and new in TEMPORAL:
        return dates.between(before, after, terms)
    if old in TEMPORAL:
        if new in (Family.TEXT, Family.BYTES, Family.MEMBERS):
            rest = retyping_values.from_text(before, after, new)
            return dates.printed(before, lambda texts: _mapped(texts, rest, arrow), terms)
        if new is Family.YEAR and terms.is_mariadb:
            if old is Family.TIME:
                raise UnfitError("times are converted to years for MySQL only")
            return dates.years(before, terms)
        store = retyping_values.number_store(before, after, new)
        return dates.numbered(
            before,
            lambda numbers: _mapped(numbers, store, arrow),
            terms,
            is_whole=new in (Family.WHOLE, Family.BIT, Family.YEAR),
        )
    if new in TEMPORAL:
        return _into_dates(before, after, old, terms)
    if old is Family.WHOLE and new is Family.WHOLE:
        (low, high), (new_low, new_high) = retyping_numbers.bounds(before), retyping_numbers.bounds(after)
        return (lambda values: values.cast(arrow)) if new_low <= low and high <= new_high else None
    is_double = after.type_id == FieldType.DOUBLE and not after.is_unsigned
    if old is Family.REAL and is_double and retyping_numbers.printed_places(after) is None:
        return lambda values: values.cast(arrow)
    if old is Family.TEXT and new is Family.TEXT:
        return _texts(before, after)
    return None


def _into_dates(before: Column, after: Column, old: Family, terms: RetypeTerms) -> Convert | None:
    """Return the conversion of texts, members, bytes and numbers to dates and times; None if there is none."""
    is_time = after.type_id == FieldType.TIME2
    if old in NUMBERS:
        return (times.from_numbers if is_time else dates.from_numbers)(before, after, terms)
    from_texts = (times.from_texts if is_time else dates.from_texts)(after, terms)
    if old in (Family.TEXT, Family.MEMBERS):
        return from_texts
    if old is Family.BYTES and types.kind_of(before) is not Kind.COMPRESSED:
        return lambda values: from_texts(_latin(values))
    return None


def _latin(values: pa.Array) -> pa.Array:
    """Read bytes as text: dates and times are ASCII."""
    return pa.array([None if value is None else value.decode("latin-1") for value in values.to_pylist()], pa.string())


def _texts(before: Column, after: Column) -> Convert:
    """Keep short plain texts, and convert the others."""
    store, limit = retyping_texts.text(after), retyping_texts.length_max(after)
    is_char = after.type_id == FieldType.STRING
    size = (
        pc.utf8_length
        if retyping_texts.is_short(after)
        else (lambda texts: pc.multiply(pc.binary_length(texts), retyping_texts.width(after)))
    )

    def convert(values: pa.Array) -> pa.Array:
        is_plain = pc.less_equal(size(values), limit)
        if not retyping_texts.is_complete(after):
            is_plain = pc.and_(is_plain, pc.string_is_ascii(values))
        if is_char:
            is_plain = pc.and_(is_plain, pc.invert(pc.ends_with(values, " ")))
        if pc.all(is_plain).as_py() is not False:
            return values
        return pc.if_else(
            is_plain,
            values,
            _mapped(
                pc.if_else(is_plain, None, values), lambda value: value if value is None else store(value), values.type
            ),
        )

    return convert
