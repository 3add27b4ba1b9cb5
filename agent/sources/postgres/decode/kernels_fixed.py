"""Second pass, types of fixed width in their binary form: one kernel per type, from positions to an Arrow value buffer.

Each returns -1, or the first row whose bytes are not of the type. NULL rows keep whatever the buffer held (zero).
``fill_validity`` makes the bitmap afterwards, because a value kernel may turn a row NULL (see ``kernels_numeric``).

Dates and timestamps that Arrow has no value for: ``infinity`` and ``-infinity`` become the last and the first moment
of the years 1 to 9999, which sort where the originals do and which every reader can show.
"""

from typing import Any, Final

from numba import types

from agent.kernels.jit import DATA, kernel
from agent.sources.postgres.decode.wire import POSITIONS, read_i16, read_i32, read_i64, value_length

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


@kernel(types.int64(POSITIONS, types.uint8[::1]))
def fill_validity(positions: Any, bitmap: Any) -> int:
    """Set the bit of every row that has a value; returns how many are NULL. The bitmap comes filled with zeros."""
    rows = positions.size
    nulls = 0
    for byte in range(bitmap.size):
        bits = 0
        for bit in range(min(8, rows - byte * 8)):
            if positions[byte * 8 + bit] >= 0:
                bits |= 1 << bit
            else:
                nulls += 1
        bitmap[byte] = bits
    return nulls


@kernel(types.int64(DATA, POSITIONS, types.uint8[::1]))
def decode_bool(data: Any, positions: Any, bitmap: Any) -> int:
    for row in range(positions.size):
        at = positions[row]
        if at >= 0:
            if value_length(data, at) != 1:
                return row
            if data[at] != 0:
                bitmap[row >> 3] |= 1 << (row & 7)
    return -1


@kernel(types.int64(DATA, POSITIONS, types.int16[::1]))
def decode_int2(data: Any, positions: Any, values: Any) -> int:
    for row in range(positions.size):
        at = positions[row]
        if at >= 0:
            if value_length(data, at) != 2:
                return row
            values[row] = read_i16(data, at)
    return -1


@kernel(types.int64(DATA, POSITIONS, types.int32[::1]))
def decode_int4(data: Any, positions: Any, values: Any) -> int:
    """int4, and float4 seen as its bits."""
    for row in range(positions.size):
        at = positions[row]
        if at >= 0:
            if value_length(data, at) != 4:
                return row
            values[row] = read_i32(data, at)
    return -1


@kernel(types.int64(DATA, POSITIONS, types.int64[::1]))
def decode_int8(data: Any, positions: Any, values: Any) -> int:
    """int8, and float8 seen as its bits."""
    for row in range(positions.size):
        at = positions[row]
        if at >= 0:
            if value_length(data, at) != 8:
                return row
            values[row] = read_i64(data, at)
    return -1


@kernel(types.int64(DATA, POSITIONS, types.int32[::1]))
def decode_date(data: Any, positions: Any, values: Any) -> int:
    for row in range(positions.size):
        at = positions[row]
        if at >= 0:
            if value_length(data, at) != 4:
                return row
            days = read_i32(data, at)
            if days == _I32_MAX:
                values[row] = DATE_MAX
            elif days == _I32_MIN:
                values[row] = DATE_MIN
            else:
                values[row] = days + EPOCH_DAYS
    return -1


@kernel(types.int64(DATA, POSITIONS, types.int64[::1]))
def decode_time(data: Any, positions: Any, values: Any) -> int:
    for row in range(positions.size):
        at = positions[row]
        if at >= 0:
            if value_length(data, at) != 8:
                return row
            micros = read_i64(data, at)
            if micros < 0 or micros > TIME_MAX_US + 1:
                return row
            values[row] = min(micros, TIME_MAX_US)
    return -1


@kernel(types.int64(DATA, POSITIONS, types.int64[::1]))
def decode_timestamp(data: Any, positions: Any, values: Any) -> int:
    """timestamp and timestamptz. What lies past Arrow's last microsecond (year 294247) counts as infinity."""
    for row in range(positions.size):
        at = positions[row]
        if at >= 0:
            if value_length(data, at) != 8:
                return row
            micros = read_i64(data, at)
            if micros > _I64_MAX - EPOCH_US:
                values[row] = TIMESTAMP_MAX_US
            elif micros == _I64_MIN:
                values[row] = TIMESTAMP_MIN_US
            else:
                values[row] = micros + EPOCH_US
    return -1
