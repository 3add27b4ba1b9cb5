"""Sets of positions, as numpy's own functions have them."""

import numpy as np
import pytest

from agent.sinks.iceberg.table.deletes import positions
from agent.sinks.iceberg.table.deletes.positions import Positions


def _some(random: np.random.Generator, count: int) -> Positions:
    return np.unique(random.integers(0, 200, count))


@pytest.mark.parametrize("seed", range(20))
def test_sets_are_those_of_numpy(seed: int) -> None:
    random = np.random.default_rng(seed)
    some, others = _some(random, seed * 7), _some(random, 90 - seed)
    for left, right in ((some, others), (others, some), (some, some)):
        assert positions.union(left, right).tolist() == np.union1d(left, right).tolist()
        assert positions.without(left, right).tolist() == np.setdiff1d(left, right).tolist()
        assert positions.among(left, right).tolist() == np.isin(left, right).tolist()


def test_what_others_wrote_out_of_order_rises() -> None:
    assert positions.rising([np.array([5, 1, 5, 3])]).tolist() == [1, 3, 5]
    assert positions.rising([np.array([1, 3]), np.array([2, 3])]).tolist() == [1, 2, 3]
    assert positions.rising([positions.NONE]).tolist() == []
