"""Flush plan: how far each span is written, and by which tasks."""

from dataclasses import replace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.control.runtime import FlushLimits, SpanPosition
from agent.flush import job
from agent.flush.plan import FlushPlan, Weights, group_tasks, plan_flush
from agent.log.reader import LogReader
from agent.ports.sink import FeedContext, FlushTask, Sink
from agent.rows.batches import SegmentRef
from reactor.ids import TableSpan, Ts
from reactor.messages import Barrier
from reactor.records.changefeed import SinkMode
from reactor.records.log_head import LogHead
from reactor.records.tables.schema_change import SchemaChangeKind, TableChange
from reactor.records.tables.table import TableRecord

UPSERT = FeedContext("feed", "delta+file:///lake", SinkMode.UPSERT)
CHANGELOG = replace(UPSERT, sink_mode=SinkMode.CHANGELOG)
SMALL = Weights(merge_bytes=25, part_bytes_min=20, part_bytes_max=20, parts_max=2)


def segment(
    seq: int, first: int, last: int, resolved: int | None = None, *, size: int = 10, tables: tuple[int, ...] = (1,)
) -> SegmentRef:
    resolved_ts = Ts(last if resolved is None else resolved)
    return SegmentRef(f"/log/{seq}", seq, 1, Ts(first), Ts(last), resolved_ts, size, frozenset(tables))


def position(
    recorded: int, checkpoint: int | None = None, *, table: int = 1, key: tuple[str, ...] = ("id",)
) -> SpanPosition:
    record = TableRecord(table_id=table, schema_name="public", name=f"t{table}", key=key)
    return SpanPosition(TableSpan(table), record, Ts(recorded), Ts(recorded if checkpoint is None else checkpoint))


def limits(resolved: int, **barrier: int) -> FlushLimits:
    return FlushLimits(LogHead(resolved_ts=Ts(resolved)), Barrier(Ts(barrier.get("barrier", 1 << 62))))


def goals(plan: FlushPlan) -> list[tuple[int, int]]:
    return [(item.span.table_id, to_ts) for item, to_ts in plan.targets]


TEN = tuple(segment(at, 10 * at + 1, 10 * at + 9, 10 * at + 10) for at in range(10))


def test_a_span_goes_to_the_target_in_one_task() -> None:
    plan = plan_flush([position(5)], TEN[:2], limits(20), feed=UPSERT)
    assert goals(plan) == [(1, 20)]
    [task] = plan.tasks
    assert (task.from_ts, task.to_ts, task.segments, task.part, task.parts) == (5, 20, TEN[:2], 0, 1)
    assert not plan.is_behind


def test_the_barrier_holds() -> None:
    plan = plan_flush([position(5)], TEN, limits(100, barrier=15), feed=UPSERT)
    assert goals(plan) == [(1, 15)]
    assert plan.tasks[0].segments == TEN[:2]


def test_a_span_without_events_moves_without_a_task() -> None:
    plan = plan_flush([position(5, 30, table=2)], TEN, limits(100), feed=UPSERT)
    assert goals(plan) == [(2, 100)]
    assert plan.tasks == ()


def test_a_table_that_has_gone_is_not_written_any_more() -> None:
    """A held one may have changes in the log from before it was dropped; there are no columns that they would fit."""
    gone = TableChange(kind=SchemaChangeKind.DROP, table_id=1, before="{}")
    at = replace(limits(100), changes={1: (Ts(50), gone)})
    plan = plan_flush([position(5)], TEN, at, feed=UPSERT)
    assert goals(plan) == [(1, 100)]
    assert plan.tasks == ()
    assert plan_flush([position(50)], TEN, at, feed=UPSERT).tasks, "one of its name that came later"


def test_a_task_covers_the_way_from_the_record() -> None:
    log = (segment(0, 1, 9, 10, tables=(2,)), segment(1, 11, 19, 20))
    [task] = plan_flush([position(0, 10)], log, limits(20), feed=UPSERT).tasks
    assert (task.from_ts, task.to_ts, task.segments) == (0, 20, log[1:])


def test_what_is_there_already_is_left_alone() -> None:
    assert plan_flush([position(5, 100)], TEN, limits(100), feed=UPSERT) == FlushPlan((), ())


def test_a_merge_is_no_heavier_than_allowed() -> None:
    plan = plan_flush([position(0)], TEN, limits(100), feed=UPSERT, weights=SMALL)
    assert goals(plan) == [(1, 20)]
    assert plan.tasks[0].segments == TEN[:2]
    assert plan.is_behind


def test_a_transaction_is_never_cut() -> None:
    log = (segment(0, 5, 5, 4), segment(1, 5, 5, 4), segment(2, 5, 5, 5), segment(3, 6, 9, 9))
    plan = plan_flush([position(4)], log, limits(9), feed=UPSERT, weights=SMALL)
    assert goals(plan) == [(1, 5)]
    assert plan.tasks[0].segments == log[:3]


def test_the_first_flush_after_a_resumed_dump_reaches_its_consistent_point() -> None:
    start = position(0)
    start = replace(start, table=start.table.with_(consistent_ts=Ts(45)))
    plan = plan_flush([start], TEN, limits(100), feed=UPSERT, weights=SMALL)
    assert goals(plan) == [(1, 50)]


@pytest.mark.parametrize(("feed", "key"), [(CHANGELOG, ("id",)), (UPSERT, ())])
def test_a_backlog_is_appended_in_parts(feed: FeedContext, key: tuple[str, ...]) -> None:
    plan = plan_flush([position(0, key=key)], TEN, limits(100), feed=feed, weights=SMALL)
    assert goals(plan) == [(1, 40)]
    assert [(task.part, task.parts, task.segments) for task in plan.tasks] == [(0, 2, TEN[:2]), (1, 2, TEN[2:4])]
    assert {(task.from_ts, task.to_ts) for task in plan.tasks} == {(0, 40)}
    assert plan.is_behind


def test_parts_are_as_many_as_cores_can_use() -> None:
    log = tuple(segment(at, 10 * at + 1, 10 * at + 9, size=1 << 20) for at in range(40))
    assert len(plan_flush([position(0)], log, limits(399), feed=CHANGELOG).tasks) == 8
    assert len(plan_flush([position(0)], log[:3], limits(29), feed=CHANGELOG).tasks) == 2
    heavy = tuple(replace(item, bytes=16 << 20) for item in log)
    assert len(plan_flush([position(0)], heavy, limits(399), feed=CHANGELOG).tasks) == 40


@given(
    ends=st.lists(st.tuples(st.integers(1, 9), st.booleans(), st.booleans()), min_size=1, max_size=12),
    recorded=st.integers(0, 20),
    target=st.integers(1, 60),
    is_changelog=st.booleans(),
)
def test_flushes_get_there_and_cut_no_transaction(
    ends: list[tuple[int, bool, bool]], recorded: int, target: int, is_changelog: bool
) -> None:
    """Whatever the segments: flush after flush makes progress, and ends at the target or between two transactions."""
    log, at, resolved = [], 1, 0
    for seq, (width, is_open, is_ours) in enumerate(ends):
        last = at + width
        resolved = last - 1 if is_open else last
        log.append(segment(seq, at, last, resolved, tables=(1,) if is_ours else (2,)))
        at = last if is_open else last + 1
    target = min(target, resolved)
    here = position(min(recorded, target))
    for _ in range(len(log) + 1):
        if here.checkpoint_ts >= target:
            break
        plan = plan_flush([here], log, limits(target), feed=CHANGELOG if is_changelog else UPSERT, weights=SMALL)
        [(_, to_ts)] = plan.targets
        assert here.checkpoint_ts < to_ts <= target
        assert to_ts == target or to_ts in {item.resolved_ts for item in log}
        covered = {item.seq for task in plan.tasks for item in task.segments}
        needed = {s.seq for s in log if 1 in s.tables and s.last_ts > here.committed_ts and s.first_ts <= to_ts}
        assert covered == needed
        here = replace(here, checkpoint_ts=to_ts, committed_ts=to_ts if plan.tasks else here.committed_ts)
    assert here.checkpoint_ts >= target


def test_spans_of_one_table_are_merged_one_after_the_other() -> None:
    """Any others run side by side."""
    keyed, keyless = (
        TableRecord(table_id=1, schema_name="s", name="t", key=("id",)),
        TableRecord(table_id=2, schema_name="s", name="u"),
    )

    def task(table: TableRecord, start: int, mode: SinkMode) -> FlushTask:
        return FlushTask(FeedContext("feed", "", mode), TableSpan(table.table_id, start), table, (), Ts(1), Ts(2))

    merged = [task(keyed, start, SinkMode.UPSERT) for start in (0, 8)]
    appended = [task(keyless, start, SinkMode.UPSERT) for start in (0, 8)]
    assert group_tasks([merged[0], *appended, merged[1]]) == [tuple(merged), (appended[0],), (appended[1],)]
    changelog = [task(keyed, start, SinkMode.CHANGELOG) for start in (0, 8)]
    assert group_tasks(changelog) == [(changelog[0],), (changelog[1],)]


def test_light_tasks_of_many_tables_go_together() -> None:
    """Evenly; a heavy one is left alone, and with few tables each has a task of its own."""
    log = segment(0, 1, 9, size=100 << 10, tables=tuple(range(40)))
    heavy = segment(1, 11, 19, size=700 << 10, tables=(0,))
    plan = plan_flush([position(0, table=at) for at in range(40)], [log, heavy], limits(19), feed=UPSERT)
    groups = group_tasks(plan.tasks)
    assert sorted(len(group) for group in groups) == [1, 9, 10, 10, 10]
    assert {task for group in groups for task in group} == set(plan.tasks)
    assert group_tasks(plan.tasks[1:4]) == [(task,) for task in plan.tasks[1:4]]


@pytest.mark.parametrize(("cores", "groups"), [(1, 2), (2, 2), (3, 3), (4, 4), (64, 4)])
def test_light_tasks_take_one_round_of_the_cores(cores: int, groups: int) -> None:
    log = segment(0, 1, 9, size=100 << 10, tables=tuple(range(8)))
    plan = plan_flush([position(0, table=at) for at in range(8)], [log], limits(9), feed=UPSERT)
    found = group_tasks(plan.tasks, cores=cores)
    assert (len(found), {task for group in found for task in group}) == (groups, set(plan.tasks))


def test_heavy_tasks_are_divided_whatever_the_cores() -> None:
    log = segment(0, 1, 9, size=64 << 20, tables=tuple(range(8)))
    plan = plan_flush([position(0, table=at) for at in range(8)], [log], limits(9), feed=UPSERT)
    assert len(group_tasks(plan.tasks, cores=1)) == 8


def test_what_a_table_skips_is_not_read() -> None:
    at = position(5)
    skipping = replace(at, table=at.table.with_(skipped_ts=Ts(25)))
    [task] = plan_flush([skipping], TEN, limits(40), feed=UPSERT).tasks
    assert (task.from_ts, task.to_ts, task.segments) == (5, 40, TEN[2:4]), "of the first one the task leaves rows out"


class Log:
    """The reader of a log in memory. ``asked``: from where on it was read."""

    def __init__(self) -> None:
        self.segments_: list[SegmentRef] = []
        self.asked: list[int] = []

    def segments(self, head: LogHead, from_ts: Ts, to_ts: Ts, *, known_ts: Ts) -> tuple[SegmentRef, ...]:
        self.asked.append(from_ts)
        return tuple(item for item in self.segments_ if item.last_ts > from_ts and item.first_ts <= to_ts)


def context_of(log: Log) -> job.FlushContext:
    return job.FlushContext(UPSERT, sink=cast("Sink", None), reader=cast("LogReader", log), executor=cast("Any", None))


@given(
    st.lists(
        st.tuples(
            st.frozensets(st.integers(1, 4), max_size=2),
            st.integers(0, 9),
            st.booleans(),
            st.frozensets(st.integers(1, 4)),
        ),
        min_size=1,
        max_size=12,
    )
)
def test_what_was_searched_before_is_not_searched_again_and_nothing_is_missed(
    rounds: list[tuple[frozenset[int], int, bool, frozenset[int]]],
) -> None:
    """Each round the log gets a segment, and a flush moves spans up to somewhere in it, or fails; some spans return,
    with the position that the sink has."""
    log = Log()
    context = context_of(log)
    spans = {table: position(0, table=table) for table in range(1, 5)}
    for number, (tables, target, fails, again) in enumerate(rounds):
        log.segments_.append(segment(number, 10 * number + 1, 10 * number + 9, tables=tuple(tables)))
        at = limits(10 * number + target)
        spans |= {table: replace(spans[table], checkpoint_ts=spans[table].committed_ts) for table in again}
        positions = [*spans.values()]
        plan = job._plan(context, positions, at)
        assert plan == plan_flush(positions, log.segments_, at, feed=UPSERT)
        written = {task.span for task in plan.tasks}
        for moved, ts in () if fails else plan.targets:
            committed_ts = ts if moved.span in written else moved.committed_ts
            spans[moved.table.table_id] = replace(moved, checkpoint_ts=ts, committed_ts=committed_ts)


def test_quiet_tables_do_not_let_each_flush_search_the_whole_log() -> None:
    log = Log()
    context = context_of(log)
    quiet = [position(0, table=table) for table in range(2, 50)]
    busy = position(0)
    for number in range(20):
        log.segments_.append(segment(number, 10 * number + 1, 10 * number + 9))
        plan = job._plan(context, [busy, *quiet], limits(10 * number + 9))
        at = {moved.span: ts for moved, ts in plan.targets}
        busy = replace(busy, checkpoint_ts=at[busy.span], committed_ts=at[busy.span])
        quiet = [replace(one, checkpoint_ts=at[one.span]) for one in quiet]
    assert log.asked == [0, *(10 * number + 9 for number in range(19))]
