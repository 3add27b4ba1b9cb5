"""Soak of five minutes: random schema changes, rows and faults on some servers; both ends are equal at the end."""

import logging
import secrets
from pathlib import Path

import pytest

from tests.mysql_package import why_not
from tests.soak import story
from tests.soak.sinks import USUAL_SINKS

pytestmark = [
    pytest.mark.minutes(16),
    pytest.mark.in_turn("sources"),
    pytest.mark.acceptance,
    pytest.mark.matrix,
    pytest.mark.spark,
    pytest.mark.timeout(1200),
]

_SECONDS = 300.0
_ROUND_S = 150.0

_log = logging.getLogger(__name__)


@pytest.mark.parametrize(
    ("sources", "sinks"),
    [
        (story.USUAL, USUAL_SINKS),
        (story.OTHERS, USUAL_SINKS),
        (("postgres",), ("mapped", "change-feed", "history", "iceberg-soft")),
    ],
    ids=["usual", "others", "sinks"],
)
def test_five_minutes_of_everything_at_once(sources: tuple[str, ...], sinks: tuple[str, ...], tmp_path: Path) -> None:
    if "mysql-full" in sources and (reason := why_not()):
        pytest.skip(reason)
    seed = secrets.randbelow(1_000_000)
    _log.warning("soak with seed %s of %s", seed, sources)
    outcome = story.run(
        tmp_path / "soak",
        seed,
        seconds=_SECONDS,
        round_s=_ROUND_S,
        say=_log.info,
        sources=sources,
        sinks=sinks,
        with_readers=True,
    )
    assert outcome.problems == [], seed
    assert outcome.comparisons >= 2
    assert outcome.tables_compared > 20
