"""changes: how fast ``feed.changes()`` is iterated in Python, and what readers cost that only wait.

The peer reads the same rows from our own changelog with deltalake's reader, in the same run.
"""

import contextlib
import threading
import time
from typing import Any

from deltalake import DeltaTable

from benchmarks.rows.catchup_postgres import FEED, Backlog
from benchmarks.support.bed import Bed, bed
from capture.api.connection import Connection
from capture.python.local import LocalChangefeed
from reactor.errors import WeirError

ROWS = 1_000_000
READERS = 10
SECONDS = 30


def run(rows: int = ROWS, seconds: int = SECONDS) -> dict[str, Any]:
    with bed() as found:
        backlog = Backlog(found, rows)
        backlog.fill()
        backlog.catch_up()
        feed = _feed(found)
        ours_s = min(_iterate(feed, rows) for _ in range(3))
        peer_s = min(_read(found, rows) for _ in range(3))
        idle = _cpu(found, seconds)
        with _waiting(found):
            waiting = _cpu(found, seconds)
    return {
        "what": f"{rows:,} changes of 10 mixed columns, from the change log as Arrow tables",
        "rows_per_second": round(rows / ours_s),
        "deltalake_rows_per_second": round(rows / peer_s),
        "ratio": peer_s / ours_s,
        "idle_percent_of_a_core": idle * 100,
        f"idle_with_{READERS}_waiting_readers_percent_of_a_core": waiting * 100,
        f"{READERS}_waiting_readers_percent_of_a_core": (waiting - idle) * 100,
    }


def _feed(found: Bed) -> LocalChangefeed:
    return LocalChangefeed(Connection(f"http://{found.address}", token=found.token), FEED)


def _iterate(feed: LocalChangefeed, rows: int) -> float:
    started = time.monotonic()
    read = sum(part.num_rows for part in feed.changes("public.change", from_ts="earliest", follow=False))
    assert read == rows, f"{read} of {rows} changes were read"
    return time.monotonic() - started


def _read(found: Bed, rows: int) -> float:
    started = time.monotonic()
    table = DeltaTable(found.lake(FEED) / "public" / "change").to_pyarrow_dataset()
    assert sum(batch.num_rows for batch in table.to_batches()) == rows
    return time.monotonic() - started


def _cpu(found: Bed, seconds: int) -> float:
    """Cores that the capture uses, of Python: its JVM has housekeeping of its own."""
    with found.watched(probe=False) as usage:
        time.sleep(seconds)
    return usage.python_cpu_s / seconds


def _await_subscriptions(feed: LocalChangefeed) -> None:
    """Return when all readers are known to the changefeed."""
    expected, deadline = {f"waits-{number}" for number in range(READERS)}, time.monotonic() + 60
    while missing := expected - {subscription.name for subscription in feed.subscriptions()}:
        assert time.monotonic() < deadline, f"readers have not subscribed: {sorted(missing)}"
        time.sleep(0.05)


@contextlib.contextmanager
def _waiting(found: Bed) -> Any:
    """Readers that wait for changes which do not come."""
    feeds = [_feed(found) for _ in range(READERS)]

    def follow(feed: LocalChangefeed, number: int) -> None:
        with contextlib.suppress(WeirError):  # the bed ends
            for _ in feed.changes("public.change", name=f"waits-{number}"):
                pass

    for number, feed in enumerate(feeds):
        threading.Thread(target=follow, args=(feed, number), daemon=True).start()
    _await_subscriptions(feeds[0])
    yield
    for number, feed in enumerate(feeds):
        feed.close_subscription(f"waits-{number}")
