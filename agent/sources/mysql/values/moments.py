"""Date literals: parses dates and times in SQL like the server. Pure."""

import re
from datetime import datetime, timedelta
from typing import Final

#: year, month, day, hour, minute, second, microsecond
Moment = tuple[int, int, int, int, int, int, int]

_PARTS: Final = re.compile(
    r"(\d{1,4})[^\w\s](\d{1,2})[^\w\s](\d{1,2})"
    r"(?:(?:T|\s+)(\d{1,2})(?:[^\w\s](\d{1,2})(?:[^\w\s](\d{1,2})(?:\.(\d*))?)?)?)?$"
)
_DIGITS: Final = re.compile(r"(\d{4}|\d{2})(\d{2})(\d{2})(?:(\d{2})(\d{2})(\d{2})(?:\.(\d*))?)?$")
_TIME: Final = re.compile(r"(-?)(?:(\d+)\s+)?(\d+):(\d{1,2})(?::(\d{1,2}))?(?:\.(\d*))?$")
_TIME_DIGITS: Final = re.compile(r"(-?)()(\d{0,3}?)(\d{0,2}?)(\d{1,2})(?:\.(\d*))?$")


def parse(text: str) -> Moment | None:
    """Parse a date with or without time, including dates that no calendar has."""
    found = _PARTS.match(text.strip()) or _DIGITS.match(text.strip())
    if found is None:
        return None
    year, *rest = (int(part or 0) for part in found.groups()[:6])
    if len(found[1]) <= 2:
        year = year_of(year) if year or any(rest) else 0
    return (year, *rest, _micros(found[7]))  # type: ignore[return-value] # five more


def moment_of(parts: Moment) -> datetime | None:
    """Return the datetime; None for a date that no calendar has."""
    try:
        return datetime(*parts)
    except ValueError:
        return None


def year_of(number: int) -> int:
    """Expand a two-digit year to 1970 … 2069."""
    return number + (2000 if number < 70 else 1900) if number < 100 else number


def parse_time(text: str) -> timedelta | None:
    """Parse a TIME value, which is a duration; None if it is none."""
    found = _TIME.match(text.strip()) or _TIME_DIGITS.match(text.strip())
    if found is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups()[1:5])
    if minutes > 59 or seconds > 59:
        return None
    length = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds, microseconds=_micros(found[6]))
    return -length if found[1] else length


def is_finer(text: str, digits: int) -> bool:
    """Return whether there are more fractional digits than ``digits``; MySQL rounds them, MariaDB truncates them."""
    return len(text.rpartition(".")[2].rstrip("0")) > digits if "." in text else False


def _micros(digits: str | None) -> int:
    return int((digits or "").ljust(6, "0")[:6])
