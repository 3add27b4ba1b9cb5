"""Readers of changes: a loop over them can be left at any moment, also while a thread waits for a change."""

import threading
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self

import anyio
import pyarrow as pa
import pytest

from capture.api.connection import Connection
from capture.api.subscriptions import LogAsked, LogPart, OpenedSubscription, SegmentView
from capture.python.changes import Reading, Subscription
from capture.python.cluster import Changefeed
from capture.python.local import LocalChangefeed
from reactor.errors import OwnerNotFoundError, WeirError
from reactor.records.changefeed import FilterConfig
from reactor.records.tables.table import TableRecord
from tests.patience import HANG_S

ROWS = pa.table({"id": [1]})


class Quiet:
    """A subscription that gives ``first``, and then waits for changes which do not come, by requests without result."""

    def __init__(self, over: threading.Event, first: int) -> None:
        self.closed = 0
        self.waits, self.answers, self.ends = threading.Event(), threading.Event(), threading.Event()
        self._over = over
        self._first = first

    def batches(self, *, follow: bool) -> Iterator[pa.Table]:
        yield from [ROWS] * self._first
        self.waits.set()
        while follow and not self._over.is_set():
            self.answers.wait(60)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.closed += 1
        self.ends.set()


def quiet_feed(monkeypatch: pytest.MonkeyPatch, first: int = 1) -> tuple[Changefeed, list[Quiet]]:
    opened: list[Quiet] = []

    def subscription(_: LocalChangefeed, table: str, *, over: threading.Event, **asked: Any) -> Quiet:
        opened.append(Quiet(over, first))
        return opened[-1]

    monkeypatch.setattr(LocalChangefeed, "subscription", subscription)
    return Changefeed(LocalChangefeed(Connection("http://h:1"), "shop")), opened


async def test_a_loop_that_waits_for_changes_is_cancelled_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    feed, opened = quiet_feed(monkeypatch)
    found: list[pa.Table] = []

    async def follow() -> None:
        async for rows in feed.changes("public.t"):
            found.append(rows)  # noqa: PERF401 - what came before it is cancelled counts

    with anyio.fail_after(HANG_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(follow)
            while not (opened and opened[0].waits.is_set()):  # noqa: ASYNC110 - of a thread
                await anyio.sleep(0.01)
            tasks.cancel_scope.cancel()
    assert found == [ROWS]
    assert opened[0].closed == 0, "the server has not answered"
    opened[0].answers.set()
    assert await anyio.to_thread.run_sync(opened[0].ends.wait, 10)
    assert opened[0].closed == 1


async def test_a_loop_that_is_left_has_closed_its_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    feed, opened = quiet_feed(monkeypatch, first=3)
    changes = feed.changes("public.t")
    async for _ in changes:
        break
    await changes.aclose()  # type: ignore[attr-defined]
    assert opened[0].closed == 1
    async for _ in feed.changes("public.t", follow=False):
        pass
    assert opened[1].closed == 1


def test_whoever_ends_a_reading_while_it_is_answered_leaves_it_closed() -> None:
    """Whichever of the two threads is faster."""
    for _ in range(200):
        opened: list[Quiet] = []

        def open_one(over: threading.Event, opened: list[Quiet] = opened) -> Subscription:
            opened.append(Quiet(over, 0))
            return opened[-1]  # type: ignore[return-value]

        reading = Reading(open_one, follow=True)
        reader = threading.Thread(target=reading.next)
        reader.start()
        while not opened:
            pass
        opened[0].waits.wait(HANG_S)
        threading.Thread(target=opened[0].answers.set).start()
        if reading.end():
            reading.close()
        reader.join()
        assert opened[0].closed == 1


def test_no_request_is_repeated_for_a_reader_that_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    over, asked = threading.Event(), list[int]()

    def call(*_: Any) -> Any:
        asked.append(1)
        over.set()
        raise OwnerNotFoundError("no owner is elected")

    monkeypatch.setattr(Connection, "call", call)
    with pytest.raises(WeirError, match="no owner"):
        Subscription(Connection("http://h:1"), "shop", "public.t", over=over)
    assert asked == [1]


def test_a_reader_without_changes_hardly_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it has read is reported within a second or two; after that, a report only lets the log be removed."""
    now, over, story = [0.0], threading.Event(), list[tuple[str, float]]()
    table = TableRecord(table_id=7, schema_name="public", name="t", key=("id",))

    class Server:
        """Has a change in its first answer."""

        def open_subscription(self, *_: Any) -> OpenedSubscription:
            return OpenedSubscription(name="r", table="public.t", ts=1, session="s", columns="[]")

        def read_log(self, changefeed: str, name: str, asked: LogAsked) -> LogPart:
            is_first = not story
            story.append(("read", now[0]))
            now[0] += 0.0 if is_first else asked.wait_seconds
            over.set() if now[0] > 60 else None
            segment = SegmentView(path="p", seq=1, epoch=1, first_ts=2, last_ts=2, resolved_ts=2)
            return LogPart(
                table=table,
                filter=FilterConfig(),
                from_ts=asked.after_ts,
                to_ts=asked.after_ts + 1,
                newest_ts=99,
                segments=(segment,) if is_first else (),
            )

        def advance(self, *_: Any) -> None:
            story.append(("report", now[0]))

    monkeypatch.setattr(Connection, "call", lambda _, request: request(Server()))
    monkeypatch.setattr("capture.python.changes.time.monotonic", lambda: now[0])
    monkeypatch.setattr("capture.python.changes.changes.read", lambda _: iter([ROWS]))
    subscription = Subscription(Connection("http://h:1"), "shop", "public.t", name="r", over=over)
    assert list(subscription.batches(follow=True)) == [ROWS]
    reports = [at for what, at in story if what == "report"]
    assert reports[0] <= 2.0
    assert len(reports) <= 3
    assert len(story) - len(reports) <= 12
