"""Later changes: the numbers of what is done to a table at a Ts that it has reached, as repairs and copies do."""

from typing import Final

#: above all numbers of changes within a transaction, and how many there are for one millisecond
_FIRST: Final = 1 << 62
_BITS: Final = 18


def later_seq(time_ms: int) -> int:
    """Return the first ``Changes.seq`` of what is done now: behind the transaction of its Ts, and what was done before.
    ``time_ms``: Unix milliseconds."""
    return _FIRST + (time_ms << _BITS)
