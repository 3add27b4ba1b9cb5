"""Two operators' random commands, with schema changes, rows and kills; both ends are equal at the end."""

import logging
from pathlib import Path

import pytest

from tests.soak import monkey

pytestmark = [
    pytest.mark.minutes(8),
    pytest.mark.in_turn("seed"),
    pytest.mark.acceptance,
    pytest.mark.matrix,
    pytest.mark.spark,
    pytest.mark.timeout(1200),
]

_SECONDS = 90.0

_log = logging.getLogger(__name__)


@pytest.mark.parametrize("seed", [3, 9])
def test_commands_at_random(seed: int, tmp_path: Path) -> None:
    outcome = monkey.run(tmp_path / "monkey", seed, seconds=_SECONDS, round_s=_SECONDS, say=_log.info)
    assert outcome.problems == []
    assert outcome.comparisons == 1
    assert outcome.tables_compared > 10
