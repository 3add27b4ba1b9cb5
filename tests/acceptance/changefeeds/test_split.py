"""A table in four spans under load: captures fall while it is written, and in the middle of being cut and joined.

The owner that cuts a table falls between the sink and etcd: what the sink has done is done once, whoever asks next.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from reactor.failpoints import VARIABLE, Action, Point
from reactor.records.changefeed import SinkMode
from reactor.views import SpanView
from tests.acceptance.bed import Bed, Process
from tests.acceptance.checks import CHANGELOG, FEEDS, UPSERT, check_changelog, check_upsert, follows

pytestmark = [pytest.mark.acceptance, pytest.mark.spark, pytest.mark.timeout(900)]

TABLE = "public.account"
SESSION_TTL_S = 5
SERVICE_TIMEOUT_S = SESSION_TTL_S + 15
CATCH_UP_TIMEOUT_S = 120.0
START_TIMEOUT_S = 300.0
TRAPS = (Point.REPARTITION_BEFORE_SINK, Point.REPARTITION_AFTER_SINK)


@pytest.fixture(scope="module")
def traps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("traps")


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory, traps: Path) -> Iterator[Bed]:
    environment = {VARIABLE: ";".join(f"{point}={Action.KILL},when:{traps / point}" for point in TRAPS)}
    directory = tmp_path_factory.mktemp("bed")
    with Bed(directory, captures=2, environment=environment, session_ttl_s=SESSION_TTL_S) as bed:
        bed.create_feed(UPSERT, SinkMode.UPSERT)
        bed.create_feed(CHANGELOG, SinkMode.CHANGELOG)
        yield bed


@pytest.mark.minutes(3)
@pytest.mark.matrix
def test_split_and_joined_under_load_while_captures_fall(bed: Bed, traps: Path) -> None:
    with bed.load(rate=50):
        for feed in FEEDS:
            cut(bed, feed, 4)
        for feed in FEEDS:
            bed.wait_for(f"{feed} has four spans", lambda feed=feed: is_cut(bed, feed, 4))  # type: ignore[misc]
        assert len({span.capture for span in spans(bed, UPSERT)}) > 1, "several captures write the table"
        bed.wait_for("both follow", follows(bed), timeout_s=CATCH_UP_TIMEOUT_S)

        victim = bed.by_id(next(span.capture for span in spans(bed, UPSERT)))
        bed.kill(victim)
        bed.wait_for("the service continues", follows(bed), timeout_s=SERVICE_TIMEOUT_S)
        bed.start(victim)
        bed.wait_for(
            "both captures again", lambda: len(bed.captures()) == len(bed.processes), timeout_s=START_TIMEOUT_S
        )

        for feed, point, count in (
            (UPSERT, Point.REPARTITION_AFTER_SINK, 1),
            (CHANGELOG, Point.REPARTITION_BEFORE_SINK, 2),
        ):
            fall_at(bed, traps / point, feed, count)
    bed.wait_for("both have caught up", follows(bed), timeout_s=CATCH_UP_TIMEOUT_S)
    check_upsert(bed)
    check_changelog(bed)
    assert all(table.equal for table in bed.ask(lambda client: client.diff(UPSERT), timeout_s=60.0))


def fall_at(bed: Bed, trap: Path, feed: str, count: int) -> None:
    """The owner falls where the trap is, and another one finishes what it has begun."""
    trap.touch()
    cut(bed, feed, count)
    bed.wait_for(f"the owner falls at {trap.name}", lambda: any(fallen(bed)))
    assert not trap.exists()
    bed.wait_for(f"{feed} has {count} spans", lambda: is_cut(bed, feed, count))
    bed.wait_for("the service continues", follows(bed), timeout_s=CATCH_UP_TIMEOUT_S)
    for process in fallen(bed):
        bed.start(process)
    bed.wait_for("both captures again", lambda: len(bed.captures()) == len(bed.processes), timeout_s=START_TIMEOUT_S)


def fallen(bed: Bed) -> list[Process]:
    return [process for process in bed.processes if process.has_fallen]


def cut(bed: Bed, feed: str, count: int) -> None:
    assert bed.ask(lambda client: client.split(feed, TABLE, count)).wanted == count


def spans(bed: Bed, feed: str) -> tuple[SpanView, ...]:
    tables = bed.ask(lambda client: client.tables(feed))
    return next(table.spans for table in tables if table.table == TABLE)


def is_cut(bed: Bed, feed: str, count: int) -> bool:
    found = spans(bed, feed)
    return len(found) == count and all(span.state == "replicating" for span in found)
