"""JSON numbers: formats numbers, dates and times of binary JSON like MySQL."""

import struct
from typing import Final

from agent.sources.mysql.decode.types import DIGIT_BYTES, decimal_width

#: doubles with up to this many digits before the point are written out, larger ones with an exponent
_DIGITS_WRITTEN_OUT: Final = 15
_GROUP_DIGITS = 9
_MICROS_BITS = 24


def double_text(value: float) -> str:
    """Return the shortest digits that read back as ``value``; always with a point or an exponent."""
    if value == 0:
        return "-0.0" if str(value)[0] == "-" else "0.0"
    sign = "-" if value < 0 else ""
    mantissa, _, exponent = f"{abs(value)!r}".partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    leading = len(whole + fraction) - len(digits)
    point = len(whole) - leading + int(exponent or 0)
    digits = digits.rstrip("0")
    return sign + _placed(digits, point)


def _placed(digits: str, point: int) -> str:
    """Return ``digits`` with the decimal point after the first ``point`` of them."""
    is_short = point <= _DIGITS_WRITTEN_OUT or len(digits) > point
    if is_short and point > -_DIGITS_WRITTEN_OUT:
        if point <= 0:
            return f"0.{'0' * -point}{digits}"
        return f"{digits[:point].ljust(point, '0')}.{digits[point:] or '0'}"
    head = f"{digits[0]}.{digits[1:]}" if len(digits) > 1 else digits
    return f"{head}e{point - 1}"


def decimal_text(value: bytes) -> str:
    """Format a decimal: precision, scale, and groups of digits as in a row."""
    precision, scale, groups = value[0], value[1], value[2:]
    if len(groups) != decimal_width(precision, scale):
        raise ValueError("a decimal of the wrong length")
    is_negative = not groups[0] & 0x80
    number = bytes([groups[0] ^ 0x80]) + groups[1:]
    if is_negative:
        number = bytes(byte ^ 0xFF for byte in number)
    digits, at = "", 0
    for size in _groups(precision, scale):
        width = DIGIT_BYTES[size]
        digits += f"{int.from_bytes(number[at : at + width]):0{size}d}"
        at += width
    whole = digits[: precision - scale].lstrip("0") or "0"
    return ("-" if is_negative else "") + whole + (f".{digits[precision - scale :]}" if scale else "")


def _groups(precision: int, scale: int) -> list[int]:
    whole, rest = divmod(precision - scale, _GROUP_DIGITS)
    fraction, fraction_rest = divmod(scale, _GROUP_DIGITS)
    sizes = [rest, *[_GROUP_DIGITS] * (whole + fraction), fraction_rest]
    return [size for size in sizes if size]


def datetime_text(value: bytes, *, is_date: bool) -> str:
    packed, micros = _packed(value)
    days, clock = packed >> 17, packed & 0x1FFFF
    date = f"{(days >> 5) // 13:04d}-{(days >> 5) % 13:02d}-{days & 31:02d}"
    return date if is_date else f"{date} {clock >> 12:02d}:{clock >> 6 & 63:02d}:{clock & 63:02d}.{micros:06d}"


def time_text(value: bytes) -> str:
    (whole,) = struct.unpack("<q", value)
    size = abs(whole)
    clock, micros = size >> _MICROS_BITS, size & (1 << _MICROS_BITS) - 1
    sign = "-" if whole < 0 else ""
    return f"{sign}{clock >> 12 & 1023:02d}:{clock >> 6 & 63:02d}:{clock & 63:02d}.{micros:06d}"


def _packed(value: bytes) -> tuple[int, int]:
    (whole,) = struct.unpack("<q", value)
    return whole >> _MICROS_BITS, whole & (1 << _MICROS_BITS) - 1
