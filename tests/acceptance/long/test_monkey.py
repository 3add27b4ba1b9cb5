"""Five minutes of random commands to tables and changefeeds, while rows, schema changes and kills go on."""

import logging
import secrets
from pathlib import Path

import pytest

from tests.soak import monkey

pytestmark = [pytest.mark.acceptance, pytest.mark.matrix, pytest.mark.spark, pytest.mark.timeout(1800)]

_SECONDS = 300.0
_ROUND_S = 150.0

_log = logging.getLogger(__name__)


def test_whatever_an_operator_asks_of_tables_both_ends_are_equal_when_it_is_undone(tmp_path: Path) -> None:
    seed = secrets.randbelow(1_000_000)
    _log.warning("commands with seed %s", seed)
    outcome = monkey.run(tmp_path / "monkey", seed, seconds=_SECONDS, round_s=_ROUND_S, say=_log.info)
    assert outcome.problems == [], seed
    assert outcome.comparisons >= 2
    assert outcome.tables_compared > 10
