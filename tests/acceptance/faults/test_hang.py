"""A sink that never answers: its changefeed says so and tries again, and the other one on the same capture continues.

A Delta table hangs whoever opens it while the file that is looked at first is a pipe that nobody writes to: delta-rs
the hint at the last checkpoint, whoever follows the log of the table its next commit.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from reactor.records.changefeed import FeedState, SinkMode
from tests.acceptance.bed import Bed
from tests.acceptance.checks import CHANGELOG, UPSERT, check_changelog, check_upsert, follows

pytestmark = [pytest.mark.acceptance, pytest.mark.spark, pytest.mark.timeout(200)]

#: more than any flush takes that does not hang, on a busy machine too
FLUSH_TIMEOUT_S = 10
#: a flush of its own, at most
PROMPT_S = 5.0


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    with Bed(tmp_path_factory.mktemp("bed"), captures=1, spark_master="local[2]") as bed:
        config = {"flush_timeout_seconds": FLUSH_TIMEOUT_S}
        bed.create_feed(UPSERT, SinkMode.UPSERT, config=config)
        bed.create_feed(CHANGELOG, SinkMode.CHANGELOG, config=config)
        yield bed


@contextmanager
def hung(table: Path) -> Iterator[None]:
    """Whoever opens ``table`` waits until the block ends."""
    log = table / "_delta_log"
    (log / "_last_checkpoint").unlink(missing_ok=True)
    os.mkfifo(log / "_last_checkpoint")
    pipes = [_pipe_for_next_commit(log), log / "_last_checkpoint"]
    try:
        yield
    finally:
        for pipe in pipes:
            away = pipe.rename(log / "pipe")
            with suppress(OSError):  # nobody waits any more
                os.close(os.open(away, os.O_WRONLY | os.O_NONBLOCK))
            away.unlink()


def _pipe_for_next_commit(log: Path) -> Path:
    """Commits continue until it is there."""
    while True:
        pipe = log / f"{1 + max(int(commit.stem) for commit in log.glob('*.json')):020}.json"
        with suppress(FileExistsError):
            os.mkfifo(pipe)
            return pipe


@pytest.mark.matrix
def test_a_sink_that_never_answers_delays_no_other(bed: Bed) -> None:
    with bed.load():
        bed.wait_for("both follow", follows(bed))
        with hung(bed.lake(UPSERT) / "public" / "account"):
            done = bed.transactions()  # without any the checkpoint is where the source is
            bed.wait_for("the load writes", lambda: bed.transactions() > done)
            held_at = bed.last_ts()
            for _ in range(3):
                goes_on(bed, CHANGELOG)
            bed.wait_for("the warning names what hangs", lambda: reports_hang(bed), timeout_s=30)
            goes_on(bed, CHANGELOG)
            assert not bed.covers(UPSERT, held_at)
            # on a busy machine a flush of its own may have taken longer than the deadline, and is tried again
            bed.wait_for("no other warns", lambda: bed.query(CHANGELOG).state is FeedState.NORMAL, timeout_s=PROMPT_S)
        bed.wait_for("it continues by itself", follows(bed), timeout_s=60)
    bed.wait_for("both have caught up", follows(bed))
    check_upsert(bed)
    check_changelog(bed)
    bed.wait_for("all is well again", lambda: bed.query(UPSERT).state is FeedState.NORMAL, timeout_s=30)


@pytest.mark.matrix
def test_a_changefeed_that_hangs_can_be_paused_and_resumed(bed: Bed) -> None:
    with hung(bed.lake(UPSERT) / "public" / "account"):
        bed.execute("UPDATE account SET balance = balance + 1")
        bed.ask(lambda client: client.pause(UPSERT))
        assert bed.query(UPSERT).state is FeedState.STOPPED
    bed.ask(lambda client: client.resume(UPSERT))
    bed.wait_for("both have caught up", follows(bed), timeout_s=60)
    check_upsert(bed)


@pytest.mark.matrix
def test_a_capture_whose_sink_hangs_leaves_when_asked_to(bed: Bed) -> None:
    """When a changefeed starts, it is the capture itself that asks: a thread of its own hangs."""
    [process] = bed.processes
    bed.ask(lambda client: client.pause(CHANGELOG))
    with hung(bed.lake(CHANGELOG) / "public" / "account"):
        bed.ask(lambda client: client.resume(CHANGELOG))
        bed.wait_for("the sink is asked", lambda: "prepare" in span_states(bed, CHANGELOG))
        bed.execute("UPDATE account SET balance = balance + 1")
        goes_on(bed, UPSERT)
        assert "prepare" in span_states(bed, CHANGELOG)
        assert bed.terminate(process, timeout_s=20) == 0


def reports_hang(bed: Bed) -> bool:
    view = bed.query(UPSERT)
    warning = view.warning
    return (
        view.state is FeedState.WARNING
        and warning is not None
        and warning.code == "JobTimeout"
        and "upsert: public.account" in warning.message
    )


def goes_on(bed: Bed, feed: str) -> None:
    ts = bed.last_ts()
    bed.wait_for("the other continues", lambda: bed.covers(feed, ts), timeout_s=PROMPT_S)


def span_states(bed: Bed, feed: str) -> set[str]:
    return {span.state for table in bed.ask(lambda client: client.tables(feed)) for span in table.spans}
