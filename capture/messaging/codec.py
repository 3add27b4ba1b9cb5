"""Message codec: converts messages between captures to plain arrays of plain values, and strictly back.

Every type is an array in the order of its fields; a body is tagged with an integer. Arrays are only extended at their
end: a reader ignores fields after those it knows, and uses defaults for fields that an older writer omits, so adjacent
versions understand each other. Every other deviation is a ``FrameError``: a value of another type, a number out of
range, a missing field without a default. ``capture.messaging.frames`` serialises the arrays.

A span is sent with its last key hash, not its end: ``KEY_SPACE`` itself exceeds a 64-bit integer by one.
"""

import math
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum
from functools import partial
from typing import Any, TypeVar

from capture.errors import FrameError
from reactor.errors import Scope
from reactor.ids import KEY_SPACE, MAX_TS, CaptureId, ChangefeedId, TableSpan, Ts
from reactor.messages import (
    AddSpan,
    Barrier,
    Body,
    DispatchResponse,
    Header,
    Heartbeat,
    HeartbeatResponse,
    Liveness,
    Message,
    Place,
    RemoveSpan,
    SpanCheckpoint,
    SpanState,
    SpanStatus,
    StartWorker,
    StopWorker,
    WorkerStage,
    WorkerStatus,
)
from reactor.records.changefeed import RunningError, Unit

_INT_MAX = (1 << 63) - 1
_STATES = tuple(SpanState)
_EnumT = TypeVar("_EnumT", bound=StrEnum)

# construct named tuples from an iterable of fields, without a Python call each
_new_span: Callable[[Iterable[Any]], TableSpan] = partial(tuple.__new__, TableSpan)
_new_checkpoint: Callable[[Iterable[Any]], SpanCheckpoint] = partial(tuple.__new__, SpanCheckpoint)
_new_status: Callable[[Iterable[Any]], SpanStatus] = partial(tuple.__new__, SpanStatus)


class UnknownBodyError(FrameError):
    """A body of a kind that this version does not know: well-formed, to be skipped."""

    def __init__(self, tag: int) -> None:
        super().__init__(f"unknown message body {tag}; the peer runs a newer version")
        self.tag = tag


def message_row(message: Message) -> tuple[object, ...]:
    """Return the array that represents a message on the wire."""
    header, body = message.header, message.body
    tag, row_of = _WRITERS[type(body)]
    return (
        message.sender,
        message.receiver,
        message.changefeed,
        (header.version, header.owner_revision, header.processor_epoch, header.changefeed_epoch),
        tag,
        row_of(body),
    )


def message_of(row: object) -> Message:
    """Inverse of ``message_row``.

    :raises UnknownBodyError: well-formed, but of a kind that this version does not know.
    :raises FrameError: not a message.
    """
    sender, receiver, changefeed, header, tag, body = fields(row, 6)
    reader = _READERS.get(integer(tag))
    if reader is None:
        raise UnknownBodyError(tag)
    return Message(
        sender=CaptureId(text(sender)),
        receiver=CaptureId(text(receiver)),
        changefeed=ChangefeedId(text(changefeed)),
        header=_header(header),
        body=reader(body),
    )


def fields(row: object, required: int, *defaults: object) -> list[Any]:
    """Return exactly the fields this version knows: more are cut off, missing ones at the end get their defaults."""
    if type(row) is not list or len(row) < required:
        raise FrameError(f"expected an array of at least {required} fields, got {_kind(row)}")
    width = required + len(defaults)
    return row[:width] + list(defaults[max(len(row) - required, 0) :])


def text(value: object) -> str:
    if type(value) is not str:
        raise FrameError(f"expected text, got {_kind(value)}")
    return value


def binary(value: object) -> bytes:
    if type(value) is not bytes:
        raise FrameError(f"expected bytes, got {_kind(value)}")
    return value


def integer(value: object, maximum: int = _INT_MAX) -> int:
    if type(value) is not int or not 0 <= value <= maximum:
        raise FrameError(f"expected a whole number up to {maximum}, got {_kind(value)}")
    return value


def _boolean(value: object) -> bool:
    if type(value) is not bool:
        raise FrameError(f"expected true or false, got {_kind(value)}")
    return value


def _seconds(value: object) -> float:
    if type(value) not in (float, int) or not math.isfinite(value):  # type: ignore[arg-type]  # just checked
        raise FrameError(f"expected seconds, got {_kind(value)}")
    return float(value)  # type: ignore[arg-type]


def _array(value: object) -> list[Any]:
    if type(value) is not list:
        raise FrameError(f"expected an array, got {_kind(value)}")
    return value


def _word(value: object, words: type[_EnumT]) -> _EnumT:
    try:
        return words(text(value))
    except ValueError:
        raise FrameError(f"expected one of {', '.join(words)}, got {value!r:.40}") from None


def _kind(value: object) -> str:
    return f"an array of {len(value)}" if isinstance(value, list) else type(value).__name__


def _header(row: object) -> Header:
    version, owner_revision, processor_epoch, changefeed_epoch = fields(row, 4)
    return Header(text(version), integer(owner_revision), text(processor_epoch), integer(changefeed_epoch))


# spans and statuses occur by the thousand: they are checked by column, not by value


def _span_row(span: TableSpan) -> tuple[object, ...]:
    return span.table_id, span.start, span.end - 1


def _span_rows(spans: Iterable[TableSpan]) -> list[tuple[object, ...]]:
    return [(id, start, end - 1) for id, start, end in spans]


def _span(row: object) -> TableSpan:
    return _spans([row])[0]


def _spans(rows: object) -> tuple[TableSpan, ...]:
    columns = _columns(rows, 3)
    return tuple(_build_spans(*columns)) if columns else ()


def _build_spans(ids: Sequence[Any], starts: Sequence[Any], lasts: Sequence[Any]) -> Iterator[TableSpan]:
    _check_integers(ids, _INT_MAX)
    _check_integers(starts, KEY_SPACE - 1)
    _check_integers(lasts, KEY_SPACE - 1)
    if not all(map(operator.le, starts, lasts)):
        raise FrameError("expected spans that start before they end")
    # nearly all spans end where the key space does: share one integer object
    ends = [KEY_SPACE if last == KEY_SPACE - 1 else last + 1 for last in lasts]
    return map(_new_span, zip(ids, starts, ends, strict=True))


def _status_rows(statuses: Iterable[SpanStatus]) -> list[tuple[object, ...]]:
    return [
        (table_id, start, end - 1, state, checkpoint_ts, resolved_ts, time)
        for (table_id, start, end), state, (checkpoint_ts, resolved_ts), time in statuses
    ]


def _statuses(rows: object) -> tuple[SpanStatus, ...]:
    columns = _columns(rows, 6, 0.0)
    if not columns:
        return ()
    ids, starts, lasts, states, checkpoints, resolved, times = columns
    _check_integers(states, len(_STATES) - 1)
    _check_integers(checkpoints, MAX_TS)
    _check_integers(resolved, MAX_TS)
    if not set(map(type, times)) <= {float, int} or not all(map(math.isfinite, times)):
        raise FrameError("expected commit times in seconds")
    spans, at = _build_spans(ids, starts, lasts), map(_new_checkpoint, zip(checkpoints, resolved, strict=True))
    fields_of_each = zip(spans, map(_STATES.__getitem__, states), at, map(float, times), strict=True)
    return tuple(map(_new_status, fields_of_each))


def _status(row: object) -> SpanStatus:
    return _statuses([row])[0]


def _columns(rows: object, required: int, *defaults: object) -> list[Sequence[Any]]:
    """Like ``fields`` for many rows at once, transposed: one sequence per field, none if there are no rows."""
    table = _array(rows)
    if not table:
        return []
    if set(map(type, table)) != {list}:
        raise FrameError("expected an array of arrays")
    width = required + len(defaults)
    lengths = set(map(len, table))
    if min(lengths) < required:
        raise FrameError(f"expected rows of at least {required} fields")
    if lengths != {width}:
        table = [fields(row, required, *defaults) for row in table]
    return list(zip(*table, strict=True))


def _check_integers(column: Sequence[Any], maximum: int) -> None:
    if set(map(type, column)) != {int} or min(column) < 0 or max(column) > maximum:
        raise FrameError(f"expected whole numbers up to {maximum}")


def _checkpoint_row(at: SpanCheckpoint) -> tuple[object, ...]:
    return at.checkpoint_ts, at.resolved_ts


def _checkpoint(row: object) -> SpanCheckpoint:
    checkpoint_ts, resolved_ts = fields(row, 2)
    return SpanCheckpoint(Ts(integer(checkpoint_ts)), Ts(integer(resolved_ts)))


def _heartbeat_row(body: Heartbeat) -> tuple[object, ...]:
    barrier = (body.barrier.global_ts, body.barrier.tables)
    parts = body.part, body.parts
    return _span_rows(body.spans), body.is_stopping, barrier, *parts, body.takes_together, body.follows_log


def _heartbeat(row: object) -> Heartbeat:
    known = fields(row, 0, [], False, [], 0, 1, False, False)
    spans, is_stopping, barrier, part, parts, takes_together, follows_log = known
    return Heartbeat(
        _spans(spans),
        _boolean(is_stopping),
        _barrier(barrier),
        integer(part),
        integer(parts),
        _boolean(takes_together),
        _boolean(follows_log),
    )


def _barrier(row: object) -> Barrier:
    global_ts, tables = fields(row, 0, MAX_TS, [])
    pairs = [fields(pair, 2) for pair in _array(tables)]
    return Barrier(Ts(integer(global_ts)), tuple((integer(table), Ts(integer(ts))) for table, ts in pairs))


def _response_row(body: HeartbeatResponse) -> tuple[object, ...]:
    worker = None if body.worker is None else _worker_row(body.worker)
    together = None if body.together is None else (*body.together.checkpoint, body.together.time)
    numbers = body.rows_flushed, body.part, body.parts, body.number
    return _status_rows(body.statuses), body.liveness, worker, *numbers, body.is_full, together, _span_rows(body.joined)


def _response(row: object) -> HeartbeatResponse:
    known = fields(row, 0, [], Liveness.ALIVE.value, None, 0, 0, 1, 0, False, None, [])
    statuses, liveness, worker, rows_flushed, part, parts, number, is_full, together, joined = known
    return HeartbeatResponse(
        _statuses(statuses),
        _word(liveness, Liveness),
        None if worker is None else _worker(worker),
        integer(rows_flushed),
        integer(part),
        integer(parts),
        integer(number),
        _boolean(is_full),
        None if together is None else _place(together),
        _spans(joined),
    )


def _place(row: object) -> Place:
    checkpoint_ts, resolved_ts, time = fields(row, 3)
    return Place(_checkpoint([checkpoint_ts, resolved_ts]), _seconds(time))


def _worker_row(worker: WorkerStatus) -> tuple[object, ...]:
    error = None if worker.error is None else _error_row(worker.error)
    done = worker.rows_done, worker.rows_total
    return worker.source, worker.unit, worker.epoch, worker.stage, *done, error, worker.bytes_done


def _worker(row: object) -> WorkerStatus:
    source, unit, epoch, stage, rows_done, rows_total, error, bytes_done = fields(row, 4, 0, 0, None, 0)
    return WorkerStatus(
        source=text(source),
        unit=_word(unit, Unit),
        epoch=integer(epoch),
        stage=_word(stage, WorkerStage),
        rows_done=integer(rows_done),
        rows_total=integer(rows_total),
        bytes_done=integer(bytes_done),
        error=None if error is None else _error(error),
    )


def _error_row(error: RunningError) -> tuple[object, ...]:
    return error.code, error.message, error.capture, error.time, error.retryable, error.table_id, error.scope


def _error(row: object) -> RunningError:
    code, message, capture, time, retryable, table_id, scope = fields(row, 2, None, 0.0, True, None, Scope.CHANGEFEED)
    return RunningError(
        code=text(code),
        message=text(message),
        capture=None if capture is None else CaptureId(text(capture)),
        time=_seconds(time),
        retryable=_boolean(retryable),
        table_id=None if table_id is None else integer(table_id),
        scope=_word(scope, Scope),
    )


def _add_row(body: AddSpan) -> tuple[object, ...]:
    return _span_row(body.span), body.is_secondary, _checkpoint_row(body.checkpoint)


def _add(row: object) -> AddSpan:
    span, is_secondary, at = fields(row, 3)
    return AddSpan(_span(span), _boolean(is_secondary), _checkpoint(at))


def _remove(row: object) -> RemoveSpan:
    return RemoveSpan(_span(fields(row, 1)[0]))


def _dispatched(row: object) -> DispatchResponse:
    status, number = fields(row, 1, 0)
    return DispatchResponse(_status(status), integer(number))


def _start_worker(row: object) -> StartWorker:
    source, unit, epoch = fields(row, 3)
    return StartWorker(text(source), _word(unit, Unit), integer(epoch))


def _stop_worker(row: object) -> StopWorker:
    source, epoch = fields(row, 2)
    return StopWorker(text(source), integer(epoch))


#: tags are permanent: a removed body's number is never reused
_WRITERS: dict[type, tuple[int, Callable[[Any], tuple[object, ...]]]] = {
    Heartbeat: (1, _heartbeat_row),
    HeartbeatResponse: (2, _response_row),
    AddSpan: (3, _add_row),
    RemoveSpan: (4, lambda body: (_span_row(body.span),)),
    DispatchResponse: (5, lambda body: (*_status_rows([body.status]), body.number)),
    StartWorker: (6, lambda body: (body.source, body.unit, body.epoch)),
    StopWorker: (7, lambda body: (body.source, body.epoch)),
}
_READERS: dict[int, Callable[[object], Body]] = {
    1: _heartbeat,
    2: _response,
    3: _add,
    4: _remove,
    5: _dispatched,
    6: _start_worker,
    7: _stop_worker,
}
