"""Impossible dates: converts dates that no calendar has (``2024-02-31``, ``2024-00-00``) as MariaDB does. Pure.

They are texts, as ``zero_dates = string`` has them. MariaDB checks each against the SQL mode, and puts the zero date in
its place if the mode does not allow it, or if rounding leads to the next minute.
"""

from calendar import monthrange

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from agent.rows.schema import Column
from agent.sources.mysql.decode.types import FieldType
from agent.sources.mysql.retyping.terms import NO_ZERO_IN_DATE

_ALLOW_INVALID_DATES = 1 << 25
_MINUTE_US = 60_000_000
_ZERO = "0000-00-00"


def is_impossible(values: pa.Array) -> npt.NDArray[np.bool_]:
    """Return which texts are impossible dates, or in the year 0, but not the zero date."""
    year, month, day = (_number(values, begin, end) for begin, end in ((0, 4), (5, 7), (8, 10)))
    is_leap = (year % 4 == 0) & ((year % 100 != 0) | (year % 400 == 0))
    days = np.array([0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31])[month] + (is_leap & (month == 2))
    is_odd = (day == 0) | (day > days) | (year == 0)
    is_zero = pc.match_substring_regex(values, r"^0000-00-00( 00:00:00(\.0+)?)?$")
    is_other = pc.and_(values.is_valid(), pc.invert(pc.fill_null(is_zero, False)))
    return np.asarray(is_odd & np.asarray(is_other), np.bool_)


def _number(values: pa.Array, begin: int, end: int) -> npt.NDArray[np.int64]:
    return np.asarray(pc.fill_null(pc.utf8_slice_codeunits(values, begin, end).cast(pa.int64()), 0), np.int64)


def may_become_zero(values: pa.Array, sql_mode: int | None) -> bool:
    """Return whether a server that rewrites these dates may put the zero date for one. ``sql_mode``: None if it is
    unknown."""
    odd = values.filter(pa.array(is_impossible(values))).unique().to_pylist()
    return any(sql_mode is None or not _is_allowed(text.partition(" ")[0], sql_mode) for text in odd)


def converted(text: str, after: Column, sql_mode: int, *, is_rounded: bool) -> str:
    """Return an impossible ``date`` or ``datetime`` as the column ``after``, of one of these types, has it."""
    day, _, clock = text.partition(" ")
    if not _is_allowed(day, sql_mode):
        day, clock = _ZERO, ""
    if after.type_id == FieldType.DATE:
        return day
    micros, unit = _micros(clock), 10 ** (6 - after.modifier)
    kept = micros // unit * unit
    if is_rounded and micros - kept >= unit / 2:
        kept += unit
    if kept // _MINUTE_US > micros // _MINUTE_US:
        day, kept = _ZERO, 0
    return f"{day} {_clock(kept, after.modifier)}"


def _is_allowed(day: str, sql_mode: int) -> bool:
    year, month, number = map(int, day.split("-"))
    if month and number:
        # the calendar of year 4 is that of year 0
        return bool(sql_mode & _ALLOW_INVALID_DATES) or number <= monthrange(year or 4, month)[1]
    return not sql_mode & NO_ZERO_IN_DATE


def _micros(clock: str) -> int:
    if not clock:
        return 0
    whole, _, fraction = clock.partition(".")
    hours, minutes, seconds = map(int, whole.split(":"))
    return (hours * 3600 + minutes * 60 + seconds) * 1_000_000 + int(fraction.ljust(6, "0") or 0)


def _clock(micros: int, digits: int) -> str:
    seconds, fraction = divmod(micros, 1_000_000)
    text = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return f"{text}.{fraction:06}"[: len(text) + 1 + digits] if digits else text
