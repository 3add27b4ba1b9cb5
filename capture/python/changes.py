"""Changes: a table's changes as Arrow tables, read from the change log, for notebooks and programs."""

import time
import uuid
from collections.abc import Callable, Iterator
from http import HTTPStatus
from types import TracebackType
from typing import Self, TypeVar

import pyarrow as pa

from agent.feeds import changes
from agent.feeds.changes import LogSlice
from agent.rows.batches import SegmentRef
from agent.rows.schema import TableSchema
from capture.api.client import Client, RemoteError
from capture.api.connection import Connection
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

_WAIT_S = 5.0
_PART_BYTES = 64 << 20
#: how often a position is reported at most, and how long a request is repeated while no server can answer
_ADVANCE_S, _RETRY_S = 1.0, 60.0


class Subscription:
    """One reader's position in the log of one table. ``at_ts``: where it continues, if the caller knows."""

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
    ) -> None:
        self._connection = connection
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
        self._opened: OpenedSubscription = self._call(lambda client: client.open_subscription(changefeed, asked))
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
        ts = self.ts
        while end_ts is None or ts < end_ts:
            part = self.part(ts, end_ts, max_bytes=_PART_BYTES, wait=_WAIT_S if follow else 0.0)
            if part.segments:
                yield from changes.read(slice_of(part))
            if not follow and end_ts is None and part.to_ts >= part.newest_ts:
                end_ts = part.to_ts
            ts = part.to_ts
            if time.monotonic() - self._reported_at > _ADVANCE_S or (end_ts is not None and ts >= end_ts):
                self.advance(ts)

    def _call(self, request: Callable[[Client], T]) -> T:
        """Repeat a request while the cluster has nobody who can answer."""
        deadline = time.monotonic() + _RETRY_S
        while True:
            try:
                return self._connection.call(request)
            except WeirError as error:
                if not _may_pass(error) or time.monotonic() > deadline:
                    raise
            time.sleep(0.2)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()


def _may_pass(error: WeirError) -> bool:
    return error.retryable or (isinstance(error, RemoteError) and error.status == HTTPStatus.SERVICE_UNAVAILABLE)


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
