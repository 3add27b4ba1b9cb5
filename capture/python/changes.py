"""Changes: a table's changes as Arrow tables, read from the change log, for notebooks and programs."""

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from threading import Event, Lock
from types import TracebackType
from typing import Self, TypeVar

import pyarrow as pa

from agent.feeds import changes
from agent.feeds.changes import LogSlice
from agent.rows.batches import SegmentRef
from agent.rows.schema import TableSchema
from capture.api.client import Client
from capture.api.connection import Connection, may_pass
from capture.api.inputs import model_of
from capture.api.subscriptions import (
    EXPIRES_DEFAULT_S,
    AdvanceAsked,
    LogAsked,
    LogPart,
    OpenedSubscription,
    SubscriptionAsked,
)
from reactor.errors import WeirError
from reactor.ids import Ts

T = TypeVar("T")

_WAIT_S = 10.0
_PART_BYTES = 64 << 20
#: how often a position is reported at most: with changes, and without any, which only lets the log be removed
_ADVANCE_S, _IDLE_ADVANCE_S = 1.0, 30.0
#: how long a request is repeated while no capture can answer: the first one of a reader, and later ones, since a
#: capture may take minutes to start on a busy machine
_RETRY_S, _OUTAGE_S = 60.0, 900.0


class Subscription:
    """One reader's position in the log of one table. ``at_ts``: where it continues, if the caller knows. ``over``: no
    request is repeated once it is set, and ``batches`` ends."""

    def __init__(
        self,
        connection: Connection,
        changefeed: str,
        table: str,
        *,
        name: str | None = None,
        from_ts: int | str = "latest",
        at_ts: int | None = None,
        expires: float = EXPIRES_DEFAULT_S,
        over: Event | None = None,
    ) -> None:
        self._connection = connection
        self._over = over or Event()
        self.changefeed = changefeed
        self._is_named = name is not None
        asked = model_of(
            SubscriptionAsked,
            name=name or f"reader-{uuid.uuid4().hex[:12]}",
            table=table,
            begin=from_ts,
            at_ts=at_ts,
            expires_seconds=expires,
        )
        self._patience_s = _RETRY_S
        self._opened: OpenedSubscription = self._call(lambda client: client.open_subscription(changefeed, asked))
        self._patience_s = _OUTAGE_S
        self.ts = self._opened.ts
        self._reported_at = time.monotonic()

    @property
    def name(self) -> str:
        return self._opened.name

    @property
    def table(self) -> str:
        return self._opened.table

    def schema(self) -> pa.Schema:
        """Return the columns of a change, as the source has them now."""
        return changes.schema_of(TableSchema.from_json(self._opened.columns))

    def part(
        self, after_ts: int, to_ts: int | None = None, *, max_bytes: int | None = None, wait: float = 0.0
    ) -> LogPart:
        """Return the files with the changes behind ``after_ts``.

        :raises WeirError: changes are missing there, or another reader has taken the name.
        """
        asked = LogAsked(
            session=self._opened.session, after_ts=after_ts, to_ts=to_ts, max_bytes=max_bytes, wait_seconds=wait
        )
        return self._call(lambda client: client.read_log(self.changefeed, self.name, asked))

    def advance(self, ts: int) -> None:
        """Report that the reader has every change up to ``ts``: they need not be kept for it."""
        asked = AdvanceAsked(session=self._opened.session, ts=ts)
        self._call(lambda client: client.advance(self.changefeed, self.name, asked))
        self.ts, self._reported_at = ts, time.monotonic()

    def close(self) -> None:
        """Forget a position without a name of its own."""
        if not self._is_named:
            self._call(lambda client: client.close_subscription(self.changefeed, self.name))

    def batches(self, *, follow: bool, end_ts: int | None = None) -> Iterator[pa.Table]:
        """Yield all changes from the position on. What was yielded is reported as read when the next part is asked
        for."""
        ts, has_news = self.ts, False
        while not self._over.is_set() and (end_ts is None or ts < end_ts):
            wait_s = _ADVANCE_S if has_news else _WAIT_S
            part = self.part(ts, end_ts, max_bytes=_PART_BYTES, wait=wait_s if follow else 0.0)
            if part.segments:
                has_news = True
                yield from changes.read(slice_of(part))
            if not follow and end_ts is None and part.to_ts >= part.newest_ts:
                end_ts = part.to_ts
            ts = part.to_ts
            advance_s = _ADVANCE_S if has_news else _IDLE_ADVANCE_S
            if time.monotonic() - self._reported_at > advance_s or (end_ts is not None and ts >= end_ts):
                self.advance(ts)
                has_news = False

    def _call(self, request: Callable[[Client], T]) -> T:
        """Repeat a request while the cluster has nobody who can answer."""
        deadline = time.monotonic() + self._patience_s
        while True:
            try:
                return self._connection.call(request)
            except WeirError as error:
                if not may_pass(error) or time.monotonic() > deadline or self._over.is_set():
                    raise
            self._over.wait(0.2)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()


class Reading:
    """Changes that threads read, one after the other. ``open`` is called by the first."""

    def __init__(self, open: Callable[[Event], Subscription], *, follow: bool) -> None:
        self._over = Event()
        self._lock = Lock()
        self._tables = self._read(open, follow)

    def _read(self, open: Callable[[Event], Subscription], follow: bool) -> Iterator[pa.Table]:
        with open(self._over) as subscription:
            yield from subscription.batches(follow=follow)

    def next(self) -> pa.Table | None:
        """Wait for the next changes; None if there are none any more."""
        with self._lock:
            rows = next(self._tables, None)
        if self._over.is_set():
            self.close()
            return None
        return rows

    def end(self) -> bool:
        """End it; return whether ``close`` remains to be called. Otherwise the thread that reads just now does so, when
        the server has answered it."""
        self._over.set()
        if is_idle := self._lock.acquire(blocking=False):
            self._lock.release()
        return is_idle

    def close(self) -> None:
        """Forget a position without a name, which expires otherwise."""
        with self._lock, suppress(WeirError):
            self._tables.close()  # type: ignore[attr-defined]


def slice_of(part: LogPart) -> LogSlice:
    """Return what ``agent.feeds.changes`` reads."""
    return LogSlice(part.table, part.filter, segments_of(part), Ts(part.from_ts), Ts(part.to_ts))


def segments_of(part: LogPart) -> tuple[SegmentRef, ...]:
    table = frozenset([part.table.table_id])
    return tuple(
        SegmentRef(
            item.path,
            item.seq,
            item.epoch,
            Ts(item.first_ts),
            Ts(item.last_ts),
            Ts(item.resolved_ts),
            item.bytes,
            table,
        )
        for item in part.segments
    )
