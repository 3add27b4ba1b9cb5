"""Second pass, types of fixed width in their binary form: one kernel per type, each the loop of ``agent.kernels.fixed``
over what checks and reads a value.

Dates and timestamps that Arrow has no value for: ``infinity`` and ``-infinity`` become the last and the first moment
of the years 1 to 9999, which sort where the originals do and which every reader can show.
"""

from typing import Any, Final

from numba import types

from agent.kernels.fixed import bit_loop, calendar_loop, loop
from agent.kernels.jit import inlined
from agent.sources.postgres.decode.wire import read_i16, read_i32, read_i64, value_length

#: PostgreSQL counts from 2000-01-01
EPOCH_DAYS: Final = 10_957
EPOCH_US: Final = 946_684_800_000_000
DATE_MIN: Final = -719_162  # 0001-01-01
DATE_MAX: Final = 2_932_896  # 9999-12-31
TIMESTAMP_MIN_US: Final = DATE_MIN * 86_400_000_000
TIMESTAMP_MAX_US: Final = (DATE_MAX + 1) * 86_400_000_000 - 1
#: Arrow's time of day ends before 24:00:00, which PostgreSQL has
TIME_MAX_US: Final = 86_400_000_000 - 1

_I32_MIN, _I32_MAX = -(2**31), 2**31 - 1
_I64_MIN, _I64_MAX = -(2**63), 2**63 - 1


@inlined
def _has_1(data: Any, at: int) -> bool:
    return bool(value_length(data, at) == 1)


@inlined
def _has_2(data: Any, at: int) -> bool:
    return bool(value_length(data, at) == 2)


@inlined
def _has_4(data: Any, at: int) -> bool:
    return bool(value_length(data, at) == 4)


@inlined
def _has_8(data: Any, at: int) -> bool:
    return bool(value_length(data, at) == 8)


@inlined
def _bool(data: Any, at: int) -> bool:
    return bool(data[at] != 0)


@inlined
def _int2(data: Any, at: int) -> Any:
    return read_i16(data, at)


@inlined
def _int4(data: Any, at: int) -> Any:
    return read_i32(data, at)


@inlined
def _int8(data: Any, at: int) -> Any:
    return read_i64(data, at)


@inlined
def _date(data: Any, at: int) -> Any:
    days = read_i32(data, at)
    if days == _I32_MAX:
        return DATE_MAX
    return DATE_MIN if days == _I32_MIN else days + EPOCH_DAYS


@inlined
def _time(data: Any, at: int, _: int) -> tuple[int, int]:
    micros = read_i64(data, at)
    is_time = value_length(data, at) == 8 and micros >= 0 and micros <= TIME_MAX_US + 1
    return min(micros, TIME_MAX_US), 1 if is_time else 0


@inlined
def _timestamp(data: Any, at: int) -> Any:
    """Return microseconds; a timestamp past Arrow's last one (year 294247) counts as infinity."""
    micros = read_i64(data, at)
    if micros > _I64_MAX - EPOCH_US:
        return TIMESTAMP_MAX_US
    return TIMESTAMP_MIN_US if micros == _I64_MIN else micros + EPOCH_US


decode_bool = bit_loop(_bool, _has_1)
decode_int2 = loop(_int2, types.int16, _has_2)
#: int4, and float4 seen as its bits
decode_int4 = loop(_int4, types.int32, _has_4)
#: int8, and float8 seen as its bits
decode_int8 = loop(_int8, types.int64, _has_8)
decode_date = loop(_date, types.int32, _has_4)
decode_time = calendar_loop(_time, types.int64)
#: with and without time zone
decode_timestamp = loop(_timestamp, types.int64, _has_8)
