"""Second pass, text form of dates and times, which a stream in text mode sends (see ``types.is_known``).

The session's settings fix the spelling: DateStyle ISO, time zone UTC, extra_float_digits 3. The kernels of
``agent.kernels.text`` parse numbers. Special values become the same as in the binary form.
"""

from typing import Any

from numba import types

from agent.kernels.civil import days_from_civil
from agent.kernels.fixed import calendar_loop
from agent.kernels.jit import DATA, PAIR, inlined, kernel
from agent.sources.postgres.decode.kernels_fixed import (
    DATE_MAX,
    DATE_MIN,
    TIME_MAX_US,
    TIMESTAMP_MAX_US,
    TIMESTAMP_MIN_US,
)
from agent.sources.postgres.decode.wire import value_length

_DAY_US = 86_400_000_000
_MINUS, _PLUS, _POINT, _COLON, _SPACE = ord("-"), ord("+"), ord("."), ord(":"), ord(" ")
_B, _I = ord("B"), ord("i")
#: Arrow's last microsecond, as a day and a time of day: past it counts as infinity
_LAST_DAY, _LAST_DAY_US = divmod(2**63 - 1, _DAY_US)


@kernel(PAIR(DATA, types.int64, types.int64))
def _number(data: Any, at: int, end: int) -> tuple[int, int]:
    """Return the value of the digits at ``at``, and the offset behind them; the offset is -1 if there are none."""
    total, start = 0, at
    while at < end and 48 <= data[at] <= 57 and at - start < 9:
        total = total * 10 + (data[at] - 48)
        at += 1
    return total, at if at > start else -1


@kernel(PAIR(DATA, types.int64, types.int64, types.int64))
def _date(data: Any, at: int, end: int, is_bc: int) -> tuple[int, int]:
    """Parse ``YYYY-MM-DD``; return days, and the offset behind them (-1 if malformed)."""
    year, at = _number(data, at, end)
    if at < 0 or at >= end or data[at] != _MINUS:
        return 0, -1
    month, at = _number(data, at + 1, end)
    if at < 0 or at >= end or data[at] != _MINUS or month < 1 or month > 12:
        return 0, -1
    day, at = _number(data, at + 1, end)
    if day < 1 or day > 31:
        return 0, -1
    return days_from_civil(1 - year if is_bc else year, month, day), at


@kernel(PAIR(DATA, types.int64, types.int64))
def _time(data: Any, at: int, end: int) -> tuple[int, int]:
    """Parse ``HH:MM:SS[.ffffff]``; return microseconds, and the offset behind them (-1 if malformed)."""
    hours, at = _number(data, at, end)
    if at < 0 or at >= end or data[at] != _COLON or hours > 24:
        return 0, -1
    minutes, at = _number(data, at + 1, end)
    if at < 0 or at >= end or data[at] != _COLON or minutes > 59:
        return 0, -1
    seconds, at = _number(data, at + 1, end)
    if at < 0 or seconds > 60:
        return 0, -1
    micros = 0
    if at < end and data[at] == _POINT:
        start = at + 1
        micros, at = _number(data, start, end)
        if at < 0 or at - start > 6:
            return 0, -1
        for _ in range(6 - (at - start)):
            micros *= 10
    return ((hours * 60 + minutes) * 60 + seconds) * 1_000_000 + micros, at


@kernel(PAIR(DATA, types.int64, types.int64))
def _zone(data: Any, at: int, end: int) -> tuple[int, int]:
    """Parse ``+HH[:MM[:SS]]`` or nothing; return microseconds east of UTC, and the offset behind them."""
    if at >= end or (data[at] != _PLUS and data[at] != _MINUS):
        return 0, at
    sign = 1 if data[at] == _PLUS else -1
    total, unit = 0, 3600
    while unit > 0 and at < end and data[at] != _SPACE:
        part, at = _number(data, at + 1, end)
        if at < 0:
            return 0, -1
        total += part * unit
        unit //= 60
    return sign * total * 1_000_000, at


@kernel(types.boolean(DATA, types.int64, types.int64))
def _is_bc(data: Any, at: int, end: int) -> bool:
    return bool(end - at > 3 and data[end - 3] == _SPACE and data[end - 2] == _B)


@inlined
def _any_date(data: Any, at: int, _: int) -> tuple[int, int]:
    end = at + value_length(data, at)
    if end - at > 1 and data[at] == _I:
        return DATE_MAX, 1
    if end - at > 1 and data[at] == _MINUS and data[at + 1] == _I:
        return DATE_MIN, 1
    is_bc = _is_bc(data, at, end)
    days, behind = _date(data, at, end, is_bc)
    return days, 1 if behind == end - (3 if is_bc else 0) else 0


@inlined
def _any_time(data: Any, at: int, _: int) -> tuple[int, int]:
    end = at + value_length(data, at)
    micros, behind = _time(data, at, end)
    return min(micros, TIME_MAX_US), 1 if behind == end and micros <= TIME_MAX_US + 1 else 0


@inlined
def _any_timestamp(data: Any, at: int, _: int) -> tuple[int, int]:
    end = at + value_length(data, at)
    if end - at > 1 and data[at] == _I:
        return TIMESTAMP_MAX_US, 1
    if end - at > 1 and data[at] == _MINUS and data[at + 1] == _I:
        return TIMESTAMP_MIN_US, 1
    is_bc = _is_bc(data, at, end)
    days, behind = _date(data, at, end, is_bc)
    if behind < 0 or behind >= end or data[behind] != _SPACE:
        return 0, 0
    micros, behind = _time(data, behind + 1, end)
    if behind < 0:
        return 0, 0
    east, behind = _zone(data, behind, end)
    micros -= east
    is_past = days > _LAST_DAY or (days == _LAST_DAY and micros > _LAST_DAY_US)
    is_read = behind == end - (3 if is_bc else 0)
    return TIMESTAMP_MAX_US if is_past else days * _DAY_US + micros, 1 if is_read else 0


parse_dates = calendar_loop(_any_date, types.int32)
parse_times = calendar_loop(_any_time, types.int64)
#: with and without time zone
parse_timestamps = calendar_loop(_any_timestamp, types.int64)
