"""Moves on an object store: what is left of a table's log wherever a removal broke off."""

from collections.abc import Collection
from itertools import chain, combinations

import pytest

from agent.sinks.delta.alter import moving

_LAST = 5


def commit(version: int) -> str:
    return f"_delta_log/{version:020}.json"


def checkpoint(version: int) -> str:
    return f"_delta_log/{version:020}.checkpoint.parquet"


def readable(names: Collection[str]) -> int | None:
    """Return the version that a reader finds, which stops at a gap; None if there is none."""
    found = [version for version in range(_LAST + 1) if checkpoint(version) in names]
    if not found and commit(0) not in names:
        return None
    version = max(found, default=0)
    while commit(version + 1) in names:
        version += 1
    return version


@pytest.mark.parametrize(("first", "checkpoints"), [(0, ()), (0, (2,)), (0, (1, 3)), (2, (2,)), (2, (1, 3))])
def test_no_earlier_version_is_left(first: int, checkpoints: tuple[int, ...]) -> None:
    """Objects of one group are removed in any order. ``first``: the oldest commit that upkeep has kept."""
    names = [
        *map(commit, range(first, _LAST + 1)),
        *map(checkpoint, checkpoints),
        "_delta_log/_last_checkpoint",
        "a",
        "b",
    ]
    groups = moving._removals(names)
    assert sorted(chain(*groups)) == sorted(names)
    assert readable(names) == _LAST
    left = set(names)
    for group in groups:
        for removed in chain.from_iterable(combinations(group, count) for count in range(len(group) + 1)):
            assert readable(left.difference(removed)) in (None, _LAST), removed
        left.difference_update(group)
