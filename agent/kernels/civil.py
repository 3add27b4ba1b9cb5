"""Days of the proleptic Gregorian calendar, for the decoding kernels of every source."""

from numba import types

from agent.kernels.jit import kernel


@kernel(types.int64(types.int64, types.int64, types.int64))
def days_from_civil(year: int, month: int, day: int) -> int:
    """Days since 1970-01-01; year 0 is 1 BC."""
    if month <= 2:
        year -= 1
    era = year // 400
    year_of_era = year - era * 400
    day_of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    return era * 146_097 + year_of_era * 365 + year_of_era // 4 - year_of_era // 100 + day_of_year - 719_468
