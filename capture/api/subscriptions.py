"""Subscription port: how readers of changes find a table's part of the change log, and keep it from being removed.

A *subscription* is a named position in the log of one table. A server says which files hold the next changes; the
reader reads and decodes them itself, from the log storage (``agent.feeds.changes``), and reports how far it is. The
name belongs to the reader that opened it last: its session is refused from then on to any earlier one.
"""

from enum import StrEnum
from typing import Annotated, Protocol

from pydantic import Field

from capture.api.requests.base import CONVERTED, Asked, Name, PositionTs, TableName
from reactor.records.base import COUNT_MAX
from reactor.records.changefeed import FilterConfig
from reactor.records.tables.table import TableRecord
from reactor.views import SubscriptionView, View

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$"
EXPIRES_DEFAULT_S, EXPIRES_MAX_S = 3_600.0, 7 * 86_400.0
WAIT_MAX_S = 20.0


class Begin(StrEnum):
    """``EARLIEST``: the oldest change that the log has. ``LATEST``: the next one."""

    EARLIEST = "earliest"
    LATEST = "latest"


class SubscriptionAsked(Asked):
    """``table``: schema.name. ``begin``: where a new reader begins: behind a Ts, or at either end of the log; one that
    exists continues where it is. ``at_ts``: where it continues, if the reader knows that itself. ``expires_seconds``:
    how long its position is kept without a request of it."""

    name: Annotated[str, Field(pattern=NAME_PATTERN)]
    table: TableName
    begin: PositionTs | Annotated[Begin, CONVERTED] = Begin.LATEST
    at_ts: PositionTs | None = None
    expires_seconds: Annotated[float, Field(ge=10, le=EXPIRES_MAX_S)] = EXPIRES_DEFAULT_S


class OpenedSubscription(View):
    """``ts``: the reader has every change up to it. ``session``: to be sent with every request. ``columns``: the
    table's columns as they are at the source (``agent.rows.schema.TableSchema``)."""

    name: str
    table: str
    ts: int
    session: str
    columns: str


class LogAsked(Asked):
    """The changes behind ``after_ts``, up to ``to_ts`` (None: the newest), in segments of about ``max_bytes`` at most.
    ``wait_seconds``: how long to wait for a change."""

    session: Name
    after_ts: PositionTs
    to_ts: PositionTs | None = None
    max_bytes: Annotated[int, Field(ge=1, le=COUNT_MAX)] | None = None
    wait_seconds: Annotated[float, Field(ge=0, le=WAIT_MAX_S)] = 0.0


class AdvanceAsked(Asked):
    """``ts``: the reader has every change up to it."""

    session: Name
    ts: PositionTs


class SegmentView(View):
    """See ``agent.rows.batches.SegmentRef``."""

    path: str
    seq: int
    epoch: int
    first_ts: int
    last_ts: int
    resolved_ts: int
    bytes: int = 0


class LogPart(View):
    """The files with the table's changes in ``(from_ts, to_ts]``, in order. ``table`` and ``filter``: to decode them
    with. ``newest_ts``: the log's end."""

    table: TableRecord
    filter: FilterConfig
    from_ts: int
    to_ts: int
    newest_ts: int
    segments: tuple[SegmentView, ...] = ()


class Subscriptions(Protocol):
    """The requests of readers. All errors are ``WeirError``; one of a reader that has to begin again is a
    ``PositionGoneError``."""

    async def open(self, changefeed_id: str, asked: SubscriptionAsked) -> OpenedSubscription: ...

    async def list(self, changefeed_id: str) -> "list[SubscriptionView]": ...

    async def read(self, changefeed_id: str, name: str, asked: LogAsked) -> LogPart: ...

    async def advance(self, changefeed_id: str, name: str, asked: AdvanceAsked) -> SubscriptionView: ...

    async def close(self, changefeed_id: str, name: str) -> None:
        """Forget the position; does nothing if there is none."""
        ...
