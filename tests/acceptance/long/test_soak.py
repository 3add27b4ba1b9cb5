"""Soak of five minutes: random schema changes, rows and faults on three servers; both ends are equal at the end."""

import logging
import secrets
from pathlib import Path

import pytest

from tests.soak import story

pytestmark = [
    pytest.mark.acceptance,
    pytest.mark.matrix,
    pytest.mark.spark,
    pytest.mark.timeout(1200),
]

_SECONDS = 300.0
_ROUND_S = 150.0

_log = logging.getLogger(__name__)


def test_five_minutes_of_everything_at_once(tmp_path: Path) -> None:
    seed = secrets.randbelow(1_000_000)
    _log.warning("soak with seed %s", seed)
    outcome = story.run(tmp_path / "soak", seed, seconds=_SECONDS, round_s=_ROUND_S, say=_log.info)
    assert outcome.problems == [], seed
    assert outcome.comparisons >= 2
    assert outcome.tables_compared > 20
