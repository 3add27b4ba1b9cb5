"""Dull-field builders for the owner's tests."""

from collections.abc import Iterable, Mapping

from owner.scheduler.captures import CaptureStatus
from owner.scheduler.replication import ReplicationSet
from owner.scheduler.span_index import SpanIndex
from owner.scheduler.view import View
from reactor.ids import CaptureId, ChangefeedId, TableSpan, Ts
from reactor.messages import SpanCheckpoint, SpanState, SpanStatus
from reactor.records.changefeed import ChangefeedConfig, ChangefeedInfo, FeedState, Mode, RunningError, SealedUri

A, B, C = CaptureId("a"), CaptureId("b"), CaptureId("c")
FEED = ChangefeedId("feed")
S1, S2, S3 = TableSpan(1), TableSpan(2), TableSpan(3)


def status(state: SpanState, ts: int = 0, *, span: TableSpan = S1, time: float = 0.0) -> SpanStatus:
    return SpanStatus(span, state, SpanCheckpoint(Ts(ts), Ts(ts)), time)


def info(
    state: FeedState = FeedState.NORMAL,
    *,
    mode: Mode = Mode.ALL,
    epoch: int = 1,
    target_ts: int | None = None,
    stuck_s: int = 1800,
    error: RunningError | None = None,
) -> ChangefeedInfo:
    return ChangefeedInfo(
        id=FEED,
        source=SealedUri(masked="postgresql://u:***@h/d", sealed="x"),
        sink=SealedUri(masked="delta+file:///d", sealed="y"),
        mode=mode,
        state=state,
        epoch=epoch,
        target_ts=None if target_ts is None else Ts(target_ts),
        config=ChangefeedConfig(stuck_seconds=stuck_s),
        error=error,
    )


def error(code: str = "SourceUnreachable", *, retryable: bool = True) -> RunningError:
    return RunningError(code=code, message="it broke", time=1.0, retryable=retryable)


def replicating(span: TableSpan, capture: CaptureId, ts: int = 1) -> ReplicationSet:
    return ReplicationSet.rebuild(span, Ts(ts), {capture: status(SpanState.REPLICATING, ts, span=span)})


def view(
    placed: dict[TableSpan, CaptureId],
    captures: dict[CaptureId, CaptureStatus] | list[CaptureId],
    *,
    spans: list[TableSpan] | None = None,
    owner: CaptureId = A,
    max_tasks: int = 10,
    add_batch_size: int = 50,
) -> View:
    """Every placed span is replicating; ``spans`` (those that should be) default to the placed ones."""
    if isinstance(captures, list):
        captures = dict.fromkeys(captures, CaptureStatus.INITIALIZED)
    sets = {span: replicating(span, capture) for span, capture in placed.items()}
    index = index_of(sets, sorted(placed if spans is None else spans))
    return View(index, captures, owner, max_tasks, add_batch_size)


def index_of(sets: Mapping[TableSpan, ReplicationSet], wanted: Iterable[TableSpan]) -> SpanIndex:
    """What several sets amount to."""
    index = SpanIndex()
    for replication in sets.values():
        index.add(replication)
    index.want(wanted)
    return index


def tables(count: int, *, first: int = 1) -> list[TableSpan]:
    return [TableSpan(first + number) for number in range(count)]
