"""Transaction ids: full numbers, from the 32 bits that a row's ``xmin`` shows. Pure.

A row keeps the number of the transaction that wrote it also when it is frozen, so the number may be of a round that is
over. What cannot be of the last two thousand million transactions is older than anything that is compared with it.
"""

from typing import Final

_ROUND: Final = 1 << 32
_COMPARABLE: Final = _ROUND // 2
#: below it are PostgreSQL's own: bootstrap, frozen
_FIRST_NORMAL: Final = 3
#: of a row that is older than all that matter
ANCIENT: Final = 0
#: later than every transaction
NEVER: Final = 1 << 64


def full(xmin: int, ahead: int) -> int:
    """The full number of ``xmin``. ``ahead``: the first number that was not given yet when the row was seen."""
    assert 0 <= xmin < _ROUND
    age = (ahead - xmin) % _ROUND
    if xmin < _FIRST_NORMAL or age >= _COMPARABLE or age > ahead:
        return ANCIENT
    return ahead - age


def is_comparable(xid: int, ahead: int) -> bool:
    """The server finds from 32 bits what is older than it."""
    return ahead - xid < _COMPARABLE


def older_sql(xid: int, comparison: str = ">") -> str:
    """SQL condition of rows that an older transaction wrote; with ``>=``, that one or an older.

    ``age`` counts from the next number that the server will give, which other sessions move between two statements. So
    both ages are taken in one.
    """
    number = max(xid % _ROUND, _FIRST_NORMAL)
    return f"pg_catalog.age(xmin) {comparison} pg_catalog.age('{number}'::pg_catalog.xid)"


def short(xid: int) -> int:
    """Return it as the server shows it."""
    return xid % _ROUND


def near(xid: int, ahead: int) -> int:
    """The full number of ``xid``, 32 bits of one that is still to be seen, or was not long ago."""
    distance = (xid - ahead) % _ROUND
    return ahead + (distance - _ROUND if distance >= _COMPARABLE else distance)


def is_older(xid: int, other: int) -> bool:
    """Return whether the one began before the other, both in 32 bits."""
    return (other - xid) % _ROUND - 1 < _COMPARABLE and xid != other


def parse_snapshot(text: str) -> tuple[int, int, frozenset[int]]:
    """A ``pg_snapshot``'s bounds, and what is under way: below the first all have ended, from the second on none."""
    horizon, ahead, running = text.split(":")
    return int(horizon), int(ahead), frozenset(map(int, running.split(","))) if running else frozenset()
