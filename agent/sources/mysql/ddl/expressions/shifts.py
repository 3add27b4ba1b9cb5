"""Shifted moments: defaults such as ``CURRENT_DATE + INTERVAL 1 MONTH``. Pure."""

import calendar
import re
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Final, Self

from sqlglot import exp

from agent.sources.mysql.ddl.expressions.functions import NotConstantError

_NOW: Final = (exp.CurrentTimestamp, exp.Localtimestamp, exp.Localtime)
_MONTHS: Final = {"MONTH": 1, "QUARTER": 3, "YEAR": 12}
_SECONDS: Final = {"SECOND": 1, "MINUTE": 60, "HOUR": 3600, "DAY": 86_400, "WEEK": 604_800}
_WHOLE: Final = re.compile(r"-?\d{1,6}")
_DAY_S: Final = 86_400


@dataclass(frozen=True, slots=True)
class Shift:
    """A moment, ``months`` and ``seconds`` after that of ``base``."""

    base: exp.Expr
    months: int = 0
    seconds: int = 0
    #: whether a date becomes a date and time
    has_time: bool = False

    @classmethod
    def by(cls, base: exp.Expr, count: int, unit: str) -> Self:
        if unit in _MONTHS:
            return cls(base, months=count * _MONTHS[unit])
        return cls(base, seconds=count * _SECONDS[unit], has_time=_SECONDS[unit] < _DAY_S)

    def of(self, moment: datetime | date) -> str:
        """Return the text of the result.

        :raises NotConstantError: it is outside the calendar.
        """
        if self.has_time and not isinstance(moment, datetime):
            moment = datetime(moment.year, moment.month, moment.day)
        year, month = divmod(moment.year * 12 + moment.month - 1 + self.months, 12)
        if not 1 <= year <= 9999:
            raise NotConstantError
        day = min(moment.day, calendar.monthrange(year, month + 1)[1])
        try:
            found = moment.replace(year=year, month=month + 1, day=day) + timedelta(seconds=self.seconds)
        except OverflowError:
            raise NotConstantError from None
        return found.isoformat(sep=" ") if isinstance(found, datetime) else found.isoformat()


def is_now(node: exp.Expr) -> bool:
    """Return whether a node is the statement's time, by any of its names."""
    return isinstance(node, _NOW) or (isinstance(node, exp.Anonymous) and node.name.upper() == "NOW")


def parse(node: exp.Expr) -> Shift | None:
    """Return the shift that an expression is; None if it is another one."""
    match node:
        case exp.Add(expression=exp.Interval() as interval) | exp.Sub(expression=exp.Interval() as interval):
            base, count, unit = node.this, interval.this, interval.args.get("unit")
        case exp.DateAdd() | exp.DateSub():
            base, count, unit = node.this, node.expression, node.args.get("unit")
        case _:
            return None
    is_moment = isinstance(base, exp.CurrentDate) or is_now(base)
    name = unit.name.upper() if unit is not None else ""
    written = count.name if isinstance(count, exp.Literal) else ""
    if not is_moment or name not in {**_MONTHS, **_SECONDS} or not _WHOLE.fullmatch(written):
        return None
    sign = -1 if isinstance(node, exp.Sub | exp.DateSub) else 1
    return Shift.by(base, sign * int(written), name)
