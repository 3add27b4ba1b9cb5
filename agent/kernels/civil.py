"""Civil dates: days of the proleptic Gregorian calendar, for the decoding kernels of every source."""

import numpy as np
from numba import types

from agent.kernels.jit import kernel

_MONTH_DAYS = np.array([0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31], np.int64)


@kernel(types.boolean(types.int64, types.int64, types.int64))
def date_exists(year: int, month: int, day: int) -> bool:
    if month < 1 or month > 12 or day < 1:
        return False
    if day <= _MONTH_DAYS[month]:
        return True
    is_leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    return month == 2 and day == 29 and is_leap


@kernel(types.int64(types.int64, types.int64, types.int64))
def days_from_civil(year: int, month: int, day: int) -> int:
    """Return days since 1970-01-01; year 0 is 1 BC."""
    if month <= 2:
        year -= 1
    era = year // 400
    year_of_era = year - era * 400
    day_of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    return era * 146_097 + year_of_era * 365 + year_of_era // 4 - year_of_era // 100 + day_of_year - 719_468
