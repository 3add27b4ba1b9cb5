"""Date conversions: converts date and time columns to other types, and other columns to dates, as whole arrays.

For a date that no calendar has, the sink has its text (``zero_dates = string``), NULL, or no row. If it is NULL, it
cannot be distinguished from a NULL of the source: the conversion is only known if the server treats both alike.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime, tzinfo
from decimal import Decimal
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from agent.rows.schema import Column, ZeroDates
from agent.rows.schema_change import Convert
from agent.sources.mysql.decode.types import FieldType
from agent.sources.mysql.retyping import impossible
from agent.sources.mysql.retyping import moments as clocks
from agent.sources.mysql.retyping.numbers import FIRST_YEAR, LAST_YEAR, UnfitError, surely_read, unbroken
from agent.sources.mysql.retyping.terms import RetypeTerms
from agent.sources.mysql.values import moments

_STAMPS: Final = (FieldType.TIMESTAMP2, FieldType.TIMESTAMP)
_END_US: Final = 253_402_300_800 * clocks.MICROS  # the year 10000
_CLOCK: Final = 1_000_000
_PLAIN: Final = re.compile(r"(\d{4})-(\d\d)-(\d\d)(?: (\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?)?$")
_NO_DATE: Final = re.compile(r"[^\W\d_]|$")


@dataclass(frozen=True, slots=True)
class _Read:
    """``values``: moments in the session's local time. ``is_zero``: True for the date ``0000-00-00``."""

    values: pa.Array
    is_zero: npt.NDArray[np.bool_]


def between(before: Column, after: Column, terms: RetypeTerms) -> Convert:
    """Return the conversion between date and time types.

    :raises UnfitError: it depends on something unknown.
    """
    digits, is_rounded = clocks.digits_of(after), _is_rounded(after, terms)
    if clocks.digits_of(before) <= digits:
        is_rounded = False  # no fractional digits are lost
    if is_rounded is None:
        raise UnfitError("whether digits are rounded or truncated, the log does not say")
    if after.type_id == FieldType.TIME2:
        return _into_time(before, after, terms, is_rounded=is_rounded)
    if before.type_id == FieldType.TIME2:
        return _of_the_day(after, terms, is_rounded=is_rounded)
    zone = _zone(terms) if _is_stamp(before) != _is_stamp(after) else None

    def convert(values: pa.Array) -> pa.Array:
        if terms.zero_dates is ZeroDates.STRING and terms.is_mariadb and not (_is_stamp(before) or _is_stamp(after)):
            return _apart(values, possible, after, terms, is_rounded=is_rounded)
        return possible(values)

    def possible(values: pa.Array) -> pa.Array:
        read = _read(values, before, terms, zone if _is_stamp(before) else None)
        cut = clocks.fewer_digits_of_moments(clocks.micros(read.values), digits, is_rounded=is_rounded)
        return _written(cut, read, after, terms, zone if _is_stamp(after) else None)

    return convert


def _is_rounded(after: Column, terms: RetypeTerms) -> bool | None:
    """Return whether fractional digits are rounded; a date of MariaDB loses the whole time of day."""
    return False if terms.is_mariadb and after.type_id == FieldType.DATE else terms.is_rounded


def _apart(values: pa.Array, possible: Convert, after: Column, terms: RetypeTerms, *, is_rounded: bool) -> pa.Array:
    """Convert dates that no calendar has one by one, and all others by ``possible``."""
    odd = impossible.is_impossible(values)
    if not odd.any():
        return possible(values)
    if terms.sql_mode is None:
        raise UnfitError("a date that no calendar has; which ones the server allowed, the log does not say")
    mode, texts = terms.sql_mode, values.filter(pa.array(odd)).to_pylist()
    found = [impossible.converted(text, after, mode, is_rounded=is_rounded) for text in texts]
    others = possible(pc.if_else(pa.array(odd), None, values))
    return pc.replace_with_mask(others, pa.array(odd), pa.array(found, others.type))


def _into_time(before: Column, after: Column, terms: RetypeTerms, *, is_rounded: bool) -> Convert:
    digits = clocks.digits_of(after)
    is_time = before.type_id == FieldType.TIME2
    zone = _zone(terms) if _is_stamp(before) else None

    def convert(values: pa.Array) -> pa.Array:
        if is_time:
            found = clocks.parse_times(values)
        else:
            _refuse_nulls(values, terms)
            found = clocks.clock_of(_read(values, before, terms, zone).values)
        found = clocks.within(clocks.fewer_digits(found, digits, is_rounded=is_rounded), is_rounded=is_rounded)
        return clocks.print_times(found, digits, values)

    return convert


def _of_the_day(after: Column, terms: RetypeTerms, *, is_rounded: bool) -> Convert:
    """Return the conversion of times, which count from the begin of the statement's day."""
    if terms.second is None:
        raise UnfitError("the server adds the date of the day, which the log does not say")
    zone, digits = _zone(terms), clocks.digits_of(after)
    day = datetime.fromtimestamp(terms.second, zone).date()
    begin_us = (day - date(1970, 1, 1)).days * clocks.DAY_US

    def convert(values: pa.Array) -> pa.Array:
        moments_us = clocks.micros(clocks.array(begin_us + clocks.parse_times(values), values))
        cut = clocks.fewer_digits_of_moments(moments_us, digits, is_rounded=is_rounded)
        read = _Read(clocks.array(moments_us, values), np.zeros(len(values), np.bool_))
        return _written(cut, read, after, terms, zone if _is_stamp(after) else None)

    return convert


def years(before: Column, terms: RetypeTerms) -> Convert:
    """Return the conversion of dates to their years, as MariaDB has it."""
    zone = _zone(terms) if _is_stamp(before) else None

    def convert(values: pa.Array) -> pa.Array:
        _refuse_nulls(values, terms)
        read = _read(values, before, terms, zone)
        if terms.is_rounded is not False and np.mod(clocks.micros(read.values), clocks.MICROS).any():
            raise UnfitError("fractions of a second, which this SQL mode rounds or cuts")
        found = clocks.micros(pc.year(read.values))
        found = np.where(read.is_zero | (found < FIRST_YEAR) | (found > LAST_YEAR), 0, found)
        return clocks.array(found, values, pa.int16())

    return convert


def printed(before: Column, rest: Callable[[pa.Array], pa.Array], terms: RetypeTerms) -> Convert:
    """Return the conversion via text, which ``rest`` converts further."""
    if before.type_id == FieldType.TIME2:
        return rest
    zone = _zone(terms) if _is_stamp(before) else None

    def convert(values: pa.Array) -> pa.Array:
        _refuse_nulls(values, terms)
        if terms.zero_dates is ZeroDates.STRING and zone is None:
            return rest(values)
        read = _read(values, before, terms, zone)
        texts = clocks.print_moments(read.values, before)
        return rest(pc.if_else(pa.array(read.is_zero), values, texts) if read.is_zero.any() else texts)

    return convert


def numbered(before: Column, rest: Callable[[pa.Array], pa.Array], terms: RetypeTerms, *, is_whole: bool) -> Convert:
    """Return the conversion via the number of its digits; ``is_whole``: without fractional seconds."""
    zone = _zone(terms) if _is_stamp(before) else None
    is_rounded = not terms.is_mariadb
    #: in the other mode, servers round some types and truncate others
    is_unsure = is_whole and clocks.digits_of(before) and terms.is_rounded is not is_rounded

    def convert(values: pa.Array) -> pa.Array:
        if before.type_id == FieldType.TIME2:
            lengths = clocks.parse_times(values)
            if is_unsure and (lengths % clocks.MICROS).any():
                raise UnfitError("fractions of a second, which this SQL mode rounds or cuts")
            if is_whole:
                lengths = clocks.fewer_digits(lengths, 0, is_rounded=is_rounded)
            whole, rest_us = clocks.number_of_times(lengths)
            return rest(_numbers(whole, rest_us, values, np.sign(lengths)))
        _refuse_nulls(values, terms)
        read = _read(values, before, terms, zone)
        moment = clocks.micros(read.values)
        if is_unsure and (moment % clocks.MICROS).any():
            raise UnfitError("fractions of a second, which this SQL mode rounds or cuts")
        if is_whole:
            moment = clocks.fewer_digits_of_moments(moment, 0, is_rounded=is_rounded)
            if (moment >= _END_US).any():
                raise UnfitError("a moment after the year 9999")
        whole, rest_us = clocks.number_of_moments(clocks.array(moment, read.values), before)
        whole, rest_us = np.where(read.is_zero, 0, whole), np.where(read.is_zero, 0, rest_us)
        return rest(_numbers(whole, rest_us, values, np.ones(len(whole), np.int64)))

    return convert


def _numbers(whole: Any, rest_us: Any, like: pa.Array, sign: Any) -> pa.Array:
    if not rest_us.any():
        return clocks.array(whole * sign, like, pa.int64())
    valid = like.is_valid().to_pylist()
    exact = [
        int(s) * (Decimal(int(w)) + Decimal(int(m)).scaleb(-6)) if is_valid else None
        for w, m, s, is_valid in zip(whole, rest_us, sign, valid, strict=True)
    ]
    return pa.array(exact, pa.decimal128(26, 6))


def from_numbers(before: Column, after: Column, terms: RetypeTerms) -> Convert:
    """Return the conversion of numbers without a fraction that are written like dates; 0 becomes the zero date."""
    zone = _zone(terms) if _is_stamp(after) else None

    def convert(values: pa.Array) -> pa.Array:
        numbers = surely_read(before, values)
        found = [None if number is None else _moment_of_number(unbroken(number)) for number in numbers]
        return _from_moments(found, values, after, terms, zone)

    return convert


def from_texts(after: Column, terms: RetypeTerms) -> Convert:
    """Return the conversion of texts in the usual date format, or that begin with a letter."""
    zone = _zone(terms) if _is_stamp(after) else None
    is_rounded = _is_rounded(after, terms)

    def convert(values: pa.Array) -> pa.Array:
        found = [None if text is None else _moment_of_text(text) for text in values.to_pylist()]
        if is_rounded is None and any(moment is not None and moment.microsecond for moment in found):
            raise UnfitError("whether digits are rounded or truncated, the log does not say")
        return _from_moments(found, values, after, terms, zone)

    return convert


def _from_moments(
    found: list[datetime | None], like: pa.Array, after: Column, terms: RetypeTerms, zone: tzinfo | None
) -> pa.Array:
    """Return an array of moments; None is the zero date."""
    read = pa.array(found, clocks.MOMENT)
    is_zero = np.asarray(pc.and_(read.is_null(), like.is_valid()))
    micros = clocks.fewer_digits_of_moments(
        clocks.micros(read), clocks.digits_of(after), is_rounded=bool(_is_rounded(after, terms))
    )
    return _written(micros, _Read(read, is_zero), after, terms, zone)


def _moment_of_number(number: int) -> datetime | None:
    """Parse YYMMDD or YYYYMMDD, optionally followed by hhmmss."""
    size = len(str(number))
    if number == 0:
        return None
    if number < 0 or size not in (6, 8, 12, 14):
        raise UnfitError("a number that is not written as YYMMDD or YYYYMMDD, with or without hhmmss")
    day, clock = divmod(number, _CLOCK) if size > 8 else (number, 0)
    year = day // 10_000
    year = moments.year_of(year) if size in (6, 12) else year
    return _sure((year, day // 100 % 100, day % 100, clock // 10_000, clock // 100 % 100, clock % 100, 0))


def _sure(parts: moments.Moment) -> datetime | None:
    found = moments.moment_of(parts)
    if found is None:
        raise UnfitError("a date that no calendar has")
    return found


def _moment_of_text(text: str) -> datetime | None:
    if found := _PLAIN.match(text):
        *parts, fraction = found.groups()
        numbers = [int(part or 0) for part in parts]
        if not any(numbers):
            return None
        moment = moments.moment_of((*numbers, int((fraction or "").ljust(6, "0"))))  # type: ignore[arg-type] # seven
        if moment is not None:
            return moment
    elif _NO_DATE.match(text):
        return None
    raise UnfitError("a text that is not written as year-month-day")


def _zone(terms: RetypeTerms) -> tzinfo:
    zone = terms.zone
    if zone is None:
        named = f"time zone {terms.time_zone}" if terms.time_zone else "time zone of the statement"
        raise UnfitError(f"the {named} is not known")
    return zone


def _is_stamp(column: Column) -> bool:
    return column.type_id in _STAMPS


def _refuse_nulls(values: pa.Array, terms: RetypeTerms) -> None:
    if terms.zero_dates is ZeroDates.NULL and values.null_count:
        raise UnfitError("a NULL, which may be a date that no calendar has: see zero-dates")


def _read(values: pa.Array, before: Column, terms: RetypeTerms, zone: tzinfo | None) -> _Read:
    """Read a column's values; ``zone``: the session's, if the conversion depends on local time."""
    is_zero = np.zeros(len(values), np.bool_)
    if terms.zero_dates is ZeroDates.STRING:
        zeros = pc.fill_null(pc.starts_with(values, "0000-00-00"), False)
        is_zero = np.asarray(zeros)
        values = pc.if_else(zeros, None, values)
    if _is_stamp(before):
        moment = _utc(values if pa.types.is_timestamp(values.type) else values.cast(clocks.MOMENT))
        return _Read(moment.cast(clocks.MOMENT) if zone is None else clocks.local(moment, zone), is_zero)
    return _Read(values.cast(clocks.MOMENT), is_zero)


def _utc(values: pa.Array) -> pa.Array:
    return values.cast(pa.int64()).cast(pa.timestamp("us", "UTC"))


def _written(micros: Any, read: _Read, after: Column, terms: RetypeTerms, zone: tzinfo | None) -> pa.Array:
    """Write moments to a column; ``zone``: the session's, if the conversion depends on local time."""
    is_late = (micros >= _END_US) & np.asarray(read.values.is_valid())
    if terms.is_mariadb and is_late.any():
        raise UnfitError("a moment after the year 9999")
    is_zero = read.is_zero | is_late
    moment = clocks.array(np.where(is_zero, 0, micros), read.values)
    moment = pc.if_else(pa.array(is_zero), None, moment)
    if _is_stamp(after):
        moment = clocks.in_utc(moment, zone) if zone is not None else _utc(moment)
        held = clocks.is_stamp(clocks.micros(moment)) | ~np.asarray(moment.is_valid())
        if terms.is_mariadb and clocks.is_beyond_stamps(clocks.micros(moment)):
            raise UnfitError("a moment that only newer servers have a timestamp for")
        is_zero |= ~held
        moment = pc.if_else(pa.array(held), moment, None)
    elif after.type_id == FieldType.DATE:
        moment = moment.cast(pa.date32(), safe=False)
    return _with_zeros(moment, is_zero, after, terms)


def _with_zeros(moment: pa.Array, is_zero: Any, after: Column, terms: RetypeTerms) -> pa.Array:
    if terms.zero_dates is ZeroDates.STRICT and is_zero.any():
        raise UnfitError("the server has made it a date that no calendar has")
    if terms.zero_dates is not ZeroDates.STRING:
        return moment
    naive = moment.cast(pa.int64()).cast(clocks.MOMENT) if _is_stamp(after) else moment.cast(clocks.MOMENT)
    zero = "0000-00-00"
    if after.type_id != FieldType.DATE:
        digits = clocks.digits_of(after)
        zero += " 00:00:00" + ("." + "0" * digits if digits else "")
    return pc.if_else(pa.array(is_zero), zero, clocks.print_moments(naive, after))
