"""Example counts of property tests that are cheaper than others, and look for rarer things."""

from hypothesis import settings

#: the profile of ``make matrix`` has more, that of ``make test`` fewer (tests/conftest.py)
_DAILY = 100


def many(count: int) -> int:
    """Return ``count`` where ``make matrix`` runs properties, and a quarter of it elsewhere."""
    return count if settings().max_examples > _DAILY else count // 4
