"""Retyping terms: the server, SQL mode, time zone and NOT NULL columns of a statement that changed column types.

They are stored in the record of the change (``reactor.records.tables.schema_change.TableChange.context``); records of
older versions have none.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import tzinfo
from typing import Final, Self

from agent.rows.schema import ZeroDates
from agent.sources.mysql.values.session import Session

STRICT: Final = 1 << 21 | 1 << 22
#: with this SQL mode MySQL truncates instead of rounding; with the other one MariaDB rounds instead of truncating
_TRUNCATES, _ROUNDS = 1 << 32, 1 << 34
_PADS_CHARS: Final = 1 << 31
_KEEPS_ZEROS: Final = 1 << 19
NO_ZERO_IN_DATE: Final = 1 << 23
_NO_ZERO_DATE: Final = 1 << 24
_MARIADB, _MYSQL = "mariadb", "mysql"


@dataclass(frozen=True, slots=True)
class RetypeTerms:
    """``sql_mode``: None if unknown, as for a copy that a tool has filled. ``required``, ``numbered``: columns
    that the statement declares NOT NULL, or AUTO_INCREMENT. ``copies``: the server may have rewritten every row,
    also values of columns that the statement does not name. ``second``: when the statement began, as Unix time."""

    is_mariadb: bool
    sql_mode: int | None = None
    time_zone: str = ""
    required: frozenset[str] = frozenset()
    zero_dates: ZeroDates = ZeroDates.NULL
    numbered: frozenset[str] = frozenset()
    copies: bool = False
    second: int | None = None

    @property
    def is_strict(self) -> bool:
        return self.sql_mode is not None and bool(self.sql_mode & STRICT)

    @property
    def zeroes_dates(self) -> bool:
        """Whether impossible dates may have become ``0000-00-00`` in rows that the server rewrote. A strict server
        refuses such a statement; MariaDB looks at them only in two modes."""
        if not self.copies or self.sql_mode is None:
            return self.copies
        if self.is_strict:
            return False
        return not self.is_mariadb or bool(self.sql_mode & (NO_ZERO_IN_DATE | _NO_ZERO_DATE))

    @property
    def numbers_zeros(self) -> bool:
        """Whether a 0 in a column with AUTO_INCREMENT becomes a number."""
        return self.sql_mode is None or not self.sql_mode & _KEEPS_ZEROS

    @property
    def is_rounded(self) -> bool | None:
        """Whether excess fractional digits of seconds are rounded; None if unknown."""
        if self.sql_mode is None:
            return None
        return bool(self.sql_mode & _ROUNDS) if self.is_mariadb else not self.sql_mode & _TRUNCATES

    @property
    def pads_chars(self) -> bool:
        """Whether a ``char`` is read with its trailing spaces."""
        return self.sql_mode is not None and bool(self.sql_mode & _PADS_CHARS)

    @property
    def zone(self) -> tzinfo | None:
        return Session(time_zone=self.time_zone).zone

    def to_context(self) -> dict[str, str]:
        fields = {"server": _MARIADB if self.is_mariadb else _MYSQL, "time_zone": self.time_zone}
        if self.sql_mode is not None:
            fields["sql_mode"] = str(self.sql_mode)
        if self.required:
            fields["required"] = "\n".join(sorted(self.required))
        if self.numbered:
            fields["numbered"] = "\n".join(sorted(self.numbered))
        if self.copies:
            fields["copies"] = "1"
        if self.second is not None:
            fields["second"] = str(self.second)
        return fields

    @classmethod
    def from_context(cls, fields: Mapping[str, str], zero_dates: ZeroDates) -> Self | None:
        """Return the terms; None if the record has none."""
        if "server" not in fields:
            return None
        required, numbered = (fields.get(name, "") for name in ("required", "numbered"))
        return cls(
            fields["server"] == _MARIADB,
            int(fields["sql_mode"]) if "sql_mode" in fields else None,
            fields.get("time_zone", ""),
            frozenset(required.split("\n")) if required else frozenset(),
            zero_dates,
            frozenset(numbered.split("\n")) if numbered else frozenset(),
            "copies" in fields,
            int(fields["second"]) if "second" in fields else None,
        )
