"""Barrier, watermark and what must be kept: the arithmetic of positions."""

import itertools
from random import Random

from owner.feed import retention
from owner.progress import barrier, watermark
from owner.progress.barrier import TABLE_BARRIERS_MAX, Hold
from owner.progress.watermark import SpanPosition
from reactor.ids import KEY_SPACE, MAX_TS, TableSpan, Ts
from reactor.messages import Barrier
from reactor.records.changefeed import ChangefeedStatus, FeedState
from reactor.records.log_head import LogHead
from reactor.records.tables.schema_change import DdlRecord, SchemaChangeKind, TableChange
from tests.unit.owner.owner_build import error, info

FREE = barrier.limits(None, None, [])


def _ddl(ts: int, table: int, *, done: bool = False) -> DdlRecord:
    """``ts``: where the table's spans have to stand."""
    change = TableChange(kind=SchemaChangeKind.ALTER, table_id=table)
    return DdlRecord(ts=Ts(ts + 1), changes=(change,), statement="alter", done=done)


def _at(span: TableSpan, ts: int, time: float = 0.0) -> SpanPosition:
    return SpanPosition(span, Ts(ts), time)


def _head(ts: int, time: float = 0.0) -> LogHead:
    return LogHead(resolved_ts=Ts(ts), resolved_time=time)


def test_nothing_holds() -> None:
    assert barrier.Limits(Barrier(MAX_TS, ()), MAX_TS, "") == FREE


def test_the_lowest_holds_and_is_named() -> None:
    known = barrier.limits(Ts(50), Hold(Ts(40), 99.0), [_ddl(30, 7), _ddl(20, 8, done=True), _ddl(60, 9)])
    assert known.barrier == Barrier(Ts(40), ((7, Ts(30)),))
    assert known.lowest_ts == 30
    assert known.reason == "barrier schema change of table 7 at 30"
    assert barrier.limits(Ts(50), None, []).reason == "barrier target-ts at 50"
    assert barrier.limits(Ts(50), Hold(Ts(40), 99.0), []).reason == "barrier hold at 40"


def test_tables_beyond_256_hold_everything() -> None:
    known = barrier.limits(None, None, [_ddl(1000 + number, number) for number in range(512)])
    assert len(known.barrier.tables) == TABLE_BARRIERS_MAX
    assert known.barrier.global_ts == 1256, "the 257th"
    assert known.lowest_ts == 1000


def test_several_changes_of_one_table_hold_at_the_first() -> None:
    assert barrier.limits(None, None, [_ddl(9, 1), _ddl(5, 1)]).barrier.tables == ((1, Ts(5)),)


def test_random_barriers_are_their_minimum() -> None:
    random = Random(1)
    for _ in range(50):
        ddl = [_ddl(random.randrange(1, 100), random.randrange(5)) for _ in range(random.randrange(6))]
        target = Ts(random.randrange(1, 100))
        known = barrier.limits(target, None, ddl)
        assert known.lowest_ts == min([target, *(record.barrier_ts for record in ddl)])


def test_the_slowest_span_is_the_checkpoint() -> None:
    assert watermark.advance((Ts(10), 5.0), _head(20, 9.0), FREE) == watermark.Watermark(Ts(10), 5.0, Ts(20))


def test_time_is_the_logs_where_the_checkpoint_is_at_its_end() -> None:
    assert watermark.advance((Ts(20), 5.0), _head(20, 9.0), FREE) == watermark.Watermark(Ts(20), 9.0, Ts(20))


def test_without_spans_the_log_is_the_checkpoint() -> None:
    assert watermark.advance(None, _head(20, 9.0), FREE) == watermark.Watermark(Ts(20), 9.0, Ts(20))


def test_a_table_is_covered_when_no_part_of_it_is_missing() -> None:
    half = KEY_SPACE // 2
    first, second = TableSpan(1, 0, half), TableSpan(1, half)
    for positions in ([], [_at(first, 9)], [_at(second, 9)], [_at(TableSpan(1, 5), 9)]):
        assert not watermark.covers([1], positions)
    assert watermark.covers([1], [_at(first, 9), _at(second, 4)])


def test_the_barrier_caps_checkpoint_and_resolved() -> None:
    held = barrier.limits(Ts(15), None, [_ddl(8, 1)])
    assert watermark.advance((Ts(9), 0.0), _head(20), held) == watermark.Watermark(Ts(8), 0.0, Ts(15))


def test_nothing_counts_beyond_the_head_that_the_owner_has_seen() -> None:
    """Behind it may be a schema change that creates a table, whose rows would be passed over."""
    assert watermark.advance((Ts(30), 0.0), _head(20), FREE).checkpoint_ts == 20


def test_status_never_goes_back() -> None:
    stored = ChangefeedStatus(checkpoint_ts=Ts(10), checkpoint_time=50.0, resolved_ts=Ts(20))
    for checkpoint, time, resolved in itertools.product((5, 10, 15), (0.0, 40.0, 60.0), (15, 25)):
        reached = watermark.Watermark(Ts(checkpoint), time, Ts(resolved))
        after = watermark.merged(stored, reached, FREE)
        assert after.checkpoint_ts == max(10, checkpoint)
        assert after.resolved_ts == max(20, resolved)
        assert after.checkpoint_time >= 50.0
        assert after.checkpoint_time == (60.0 if time == 60.0 and checkpoint >= 10 else 50.0)


def test_which_changefeeds_hold_their_log() -> None:
    holding = info(), info(FeedState.STOPPED), info(FeedState.FAILED, error=error())
    assert all(map(retention.holds_log, holding))
    released = info(FeedState.FINISHED), info(FeedState.FAILED, error=error("PositionLost"))
    assert not any(map(retention.holds_log, released))
