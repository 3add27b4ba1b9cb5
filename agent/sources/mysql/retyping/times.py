"""TIME conversions: converts texts and numbers to times, as whole arrays. Pure."""

from decimal import Decimal
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from agent.rows.schema import Column
from agent.rows.schema_change import Convert
from agent.sources.mysql.retyping import moments as clocks
from agent.sources.mysql.retyping.numbers import Number, UnfitError, surely_read
from agent.sources.mysql.retyping.terms import RetypeTerms

_UNKNOWN_DIGITS: Final = "whether digits are rounded or truncated, the log does not say"
#: 838:59:59 as a number
_LONGEST: Final = 8_385_959


def from_texts(after: Column, terms: RetypeTerms) -> Convert:
    """Return the conversion of texts in the format of a TIME column."""

    def convert(values: pa.Array) -> pa.Array:
        is_plain = pc.match_substring_regex(values, r"^-?\d{2,3}:[0-5]\d:[0-5]\d(\.\d{1,6})?$")
        if pc.all(is_plain).as_py() is False:
            raise UnfitError("a text that is not written as hours:minutes:seconds")
        if terms.is_rounded is None:
            raise UnfitError(_UNKNOWN_DIGITS)
        found = clocks.within(clocks.parse_times(values), is_rounded=True)
        found = clocks.fewer_digits(found, after.modifier, is_rounded=terms.is_rounded)
        return clocks.print_times(clocks.within(found, is_rounded=True), after.modifier, values)

    return convert


def from_numbers(before: Column, after: Column, terms: RetypeTerms) -> Convert:
    """Return the conversion of numbers that are written as hhmmss; those of a decimal may have a fraction."""

    def convert(values: pa.Array) -> pa.Array:
        lengths = [0 if number is None else _micros_of_number(number) for number in surely_read(before, values)]
        found = np.array(lengths, np.int64)
        if terms.is_rounded is None and np.mod(found, clocks.MICROS).any():
            raise UnfitError(_UNKNOWN_DIGITS)
        found = clocks.fewer_digits(found, after.modifier, is_rounded=bool(terms.is_rounded))
        return clocks.print_times(clocks.within(found, is_rounded=True), after.modifier, values)

    return convert


def _micros_of_number(number: Number | str) -> int:
    exact = Decimal(number)
    size = abs(exact)
    whole = int(size)
    fraction = (size - whole) * clocks.MICROS
    hours, minutes, seconds = whole // 10_000, whole // 100 % 100, whole % 100
    if whole > _LONGEST or minutes > 59 or seconds > 59:
        raise UnfitError("a number that is not written as hhmmss")
    if fraction != int(fraction) or (fraction and isinstance(number, float)):
        raise UnfitError("a number with such a fraction")
    length = ((hours * 60 + minutes) * 60 + seconds) * clocks.MICROS + int(fraction)
    return -length if exact < 0 else length
