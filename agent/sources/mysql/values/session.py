"""Session values: the session of a statement as logged in the binlog (time, time zone, SQL mode). Pure.

When a column is added, existing rows get the value of its default in that session: the statement's time for
``CURRENT_TIMESTAMP``, a time in its time zone for a text. The server only logs what is relevant to the statement.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Final
from zoneinfo import ZoneInfo

from agent.sources.mysql.decode import charsets

_OPTIONS, _SQL_MODE, _CATALOG, _CHARSET, _TIME_ZONE, _CATALOG_ALONE, _INVOKER, _DATABASES = 0, 1, 2, 4, 5, 6, 11, 12
_EXPLICIT_TIMESTAMPS = 16
#: of MySQL and of MariaDB
_MICROSECONDS, _HIGH_RESOLUTION = 13, 128
#: sizes of the fixed-length fields, in bytes
_WIDTHS: Final = {
    **{_OPTIONS: 4, _SQL_MODE: 8, 3: 4, _CHARSET: 6, 7: 2, 8: 2, 9: 8, 10: 4, _MICROSECONDS: 3},
    **{_EXPLICIT_TIMESTAMPS: 1, 17: 8, 18: 2, 19: 1, 20: 1, _HIGH_RESOLUTION: 3, 129: 8},
}
_TOO_MANY = 254
#: in the options: ``explicit_defaults_for_timestamp`` of MariaDB
_EXPLICIT_BIT: Final = 1 << 24
_PIPES_AS_CONCAT, _ANSI_QUOTES, _NO_BACKSLASH_ESCAPES = 1 << 1, 1 << 2, 1 << 20
#: MariaDB's; MySQL has given the bit to another mode
_EMPTY_STRING_IS_NULL: Final = 1 << 32
#: names of the server's own time zone
SYSTEM: Final = "SYSTEM"


@dataclass(frozen=True, slots=True)
class Session:
    """``charset``: collation number of the statement's text, ``connection``: of the texts in it,
    ``server``: of new databases. ``time_zone``: its
    name, empty if unknown. ``micros``: microseconds of the statement's start, None if unknown. ``second``: the start as
    Unix time. ``explicit_timestamps``: a ``timestamp`` has no default of its own, None if the log does not say;
    ``has_explicit_bit``: the same as MariaDB logs it, if it does."""

    sql_mode: int = 0
    charset: int = 0
    time_zone: str = ""
    micros: int | None = None
    second: int | None = None
    connection: int = 0
    server: int = 0
    explicit_timestamps: bool | None = None
    has_explicit_bit: bool = False

    @property
    def has_quoted_names(self) -> bool:
        return bool(self.sql_mode & _ANSI_QUOTES)

    @property
    def pipes_texts(self) -> bool:
        """Return whether ``||`` puts texts together; else it is OR."""
        return bool(self.sql_mode & _PIPES_AS_CONCAT)

    def keeps(self, text: str, collation: int) -> bool:
        """Return whether a column of this collation stores a text as the statement has it: servers convert it to the
        connection's character set before, and take over its bytes where that is binary."""
        if not self.connection:
            return True
        between, own = charsets.charset_of(self.connection), charsets.charset_of(collation)
        if between == charsets.BINARY:
            return own in charsets.VARIABLE_UTF8 or (text.isascii() and own not in charsets.WIDE)
        if own == charsets.BINARY:
            return between in charsets.UTF8 or (text.isascii() and between not in charsets.WIDE)
        return charsets.has(between, text)

    @property
    def reads_empty_as_null(self) -> bool:
        """Return whether MariaDB reads an empty text as NULL."""
        return bool(self.sql_mode & _EMPTY_STRING_IS_NULL)

    @property
    def has_plain_backslashes(self) -> bool:
        return bool(self.sql_mode & _NO_BACKSLASH_ESCAPES)

    def now(self, digits: int) -> datetime | None:
        """Return CURRENT_TIMESTAMP with this number of fractional digits, in UTC; None if the binlog lacks it."""
        if self.second is None or (digits and self.micros is None):
            return None
        unit = 10 ** (6 - digits)
        return datetime.fromtimestamp(self.second, UTC) + timedelta(microseconds=(self.micros or 0) // unit * unit)

    @property
    def zone(self) -> tzinfo | None:
        """Return the time zone; None if it is unknown."""
        name = self.time_zone
        if name[:1] in ("+", "-"):
            hours, minutes = (int(part) for part in name[1:].split(":"))
            length = timedelta(hours=hours, minutes=minutes)
            return timezone(-length if name[0] == "-" else length)
        try:
            return ZoneInfo(name) if "/" in name or name == "UTC" else None
        except (KeyError, ValueError, OSError):
            return None


#: a session without logged values
UNKNOWN: Final = Session()


def parse_session(status: bytes) -> Session:
    """Parse status variables up to the first unknown field."""
    found: dict[int, bytes] = {}
    at = 0
    while at < len(status) and (end := _end(status, at)) is not None:
        found[status[at]] = status[at + 1 : end]
        at = end
    explicit = found.get(_EXPLICIT_TIMESTAMPS)
    micros = found.get(_MICROSECONDS, found.get(_HIGH_RESOLUTION))
    return Session(
        sql_mode=int.from_bytes(found.get(_SQL_MODE, b""), "little"),
        charset=int.from_bytes(found.get(_CHARSET, b"")[:2], "little"),
        time_zone=found.get(_TIME_ZONE, b"")[1:].decode(errors="replace"),
        micros=None if micros is None else int.from_bytes(micros, "little"),
        connection=int.from_bytes(found.get(_CHARSET, b"")[2:4], "little"),
        server=int.from_bytes(found.get(_CHARSET, b"")[4:6], "little"),
        explicit_timestamps=None if explicit is None else explicit != b"\0",
        has_explicit_bit=bool(int.from_bytes(found.get(_OPTIONS, b""), "little") & _EXPLICIT_BIT),
    )


def _end(status: bytes, at: int) -> int | None:
    """Return the end of the field at ``at``."""
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
