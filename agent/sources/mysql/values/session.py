"""Session values: what the binlog says of a statement's session (time, time zone, SQL mode). Pure.

Rows that existed when a column is added hold what its default was to that session: the moment of the statement for
``CURRENT_TIMESTAMP``, a moment of its time zone for a text. The server notes only what mattered to the statement.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Final
from zoneinfo import ZoneInfo

_SQL_MODE, _CATALOG, _CHARSET, _TIME_ZONE, _CATALOG_ALONE, _INVOKER, _DATABASES = 1, 2, 4, 5, 6, 11, 12
#: MySQL's and MariaDB's
_MICROSECONDS, _HIGH_RESOLUTION = 13, 128
#: bytes of the fields that have always as many
_WIDTHS: Final = {
    **{0: 4, _SQL_MODE: 8, 3: 4, _CHARSET: 6, 7: 2, 8: 2, 9: 8, 10: 4, _MICROSECONDS: 3},
    **{16: 1, 17: 8, 18: 2, 19: 1, 20: 1, _HIGH_RESOLUTION: 3, 129: 8},
}
_TOO_MANY = 254
_ANSI_QUOTES, _NO_BACKSLASH_ESCAPES = 1 << 2, 1 << 20
#: the server's own, whichever that is
SYSTEM: Final = "SYSTEM"


@dataclass(frozen=True, slots=True)
class Session:
    """``charset``: of the statement's text, a collation's number. ``time_zone``: its name, empty where nobody says.
    ``micros``: of the second in which the statement began, None where nobody says. ``second``: that one, Unix."""

    sql_mode: int = 0
    charset: int = 0
    time_zone: str = ""
    micros: int | None = None
    second: int | None = None

    @property
    def has_quoted_names(self) -> bool:
        return bool(self.sql_mode & _ANSI_QUOTES)

    @property
    def has_plain_backslashes(self) -> bool:
        return bool(self.sql_mode & _NO_BACKSLASH_ESCAPES)

    def now(self, digits: int) -> datetime | None:
        """CURRENT_TIMESTAMP with so many digits behind the second, in UTC; None where the binlog does not say it."""
        if self.second is None or (digits and self.micros is None):
            return None
        unit = 10 ** (6 - digits)
        return datetime.fromtimestamp(self.second, UTC) + timedelta(microseconds=(self.micros or 0) // unit * unit)

    @property
    def zone(self) -> tzinfo | None:
        """None where nobody says which that is."""
        name = self.time_zone
        if name[:1] in ("+", "-"):
            hours, minutes = (int(part) for part in name[1:].split(":"))
            length = timedelta(hours=hours, minutes=minutes)
            return timezone(-length if name[0] == "-" else length)
        try:
            return ZoneInfo(name) if "/" in name or name == "UTC" else None
        except (KeyError, ValueError, OSError):
            return None


#: nobody has said
UNKNOWN: Final = Session()


def parse_session(status: bytes) -> Session:
    """Up to the first unknown field."""
    found: dict[int, bytes] = {}
    at = 0
    while at < len(status) and (end := _end(status, at)) is not None:
        found[status[at]] = status[at + 1 : end]
        at = end
    micros = found.get(_MICROSECONDS, found.get(_HIGH_RESOLUTION))
    return Session(
        sql_mode=int.from_bytes(found.get(_SQL_MODE, b""), "little"),
        charset=int.from_bytes(found.get(_CHARSET, b"")[:2], "little"),
        time_zone=found.get(_TIME_ZONE, b"")[1:].decode(errors="replace"),
        micros=None if micros is None else int.from_bytes(micros, "little"),
    )


def _end(status: bytes, at: int) -> int | None:
    """Behind the field at ``at``."""
    kind = status[at]
    if kind in _WIDTHS:
        return at + 1 + _WIDTHS[kind]
    if kind in (_TIME_ZONE, _CATALOG_ALONE, _CATALOG):
        return at + 2 + status[at + 1] + (kind == _CATALOG)
    if kind == _INVOKER:
        host = at + 2 + status[at + 1]
        return host + 1 + status[host]
    if kind == _DATABASES:
        count, end = status[at + 1], at + 2
        for _ in range(0 if count == _TOO_MANY else count):
            end = status.index(0, end) + 1
        return end
    return None
