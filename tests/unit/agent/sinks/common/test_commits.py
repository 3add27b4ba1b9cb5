"""Results of a flush: which spans of a table are committed together, and what the others report."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from agent.errors import SinkFencedError, SinkPassingError
from agent.ports.sink import FeedContext, FlushResult, FlushTask
from agent.sinks.common.commits import Stale, Work, commit_results, table_by_table
from reactor.errors import Scope
from reactor.ids import TableSpan, Ts
from reactor.records.changefeed import SinkMode
from reactor.records.tables.table import TableRecord

FEED = FeedContext("feed", "", SinkMode.CHANGELOG)


def work_on(table_id: int, *starts: int) -> list[Work]:
    """One task for each span of a table, with a file."""
    table = TableRecord(table_id=table_id, schema_name="a", name=f"t{table_id}", key=("id",))
    tasks = [FlushTask(FEED, TableSpan(table_id, start, start + 10), table, (), Ts(1), Ts(2)) for start in starts]
    return [(task, FlushResult(task.span, task.from_ts, task.to_ts, files=("file",))) for task in tasks]


def test_a_span_is_committed_with_all_its_parts_or_not_at_all() -> None:
    good, bad = work_on(1, 0, 10)
    failed = (bad[0], replace(bad[1], error="no memory", error_code="Job", retryable=False, scope=Scope.TABLE))
    given: list[Work] = []
    results = commit_results([good, bad, failed], lambda work, _: given.extend(work))
    assert given == [good]
    assert [(result.committed, result.error) for result in results] == [(True, ""), *[(False, "no memory")] * 2]
    assert {(result.error_code, result.retryable, result.scope) for result in results[1:]} == {
        ("Job", False, Scope.TABLE)
    }


def test_a_stale_writer_is_left_out_of_a_commit() -> None:
    work = work_on(1, 0, 10, 20)

    def is_written(task: FlushTask) -> bool:
        if task.span.start == 10:
            raise SinkFencedError("another writer was here")
        return task.span.start == 20

    def commit(work: Sequence[Work], stale: Stale) -> None:
        assert stale.expected(work, is_written) == [work[0]]

    results = commit_results(work, commit)
    assert [(result.committed, result.error_code) for result in results] == [
        (True, ""),
        (False, SinkFencedError.code),
        (True, ""),
    ]


def test_a_commit_that_fails_fails_every_span() -> None:
    def commit(work: Sequence[Work], stale: Stale) -> None:
        raise SinkPassingError("the store is away")

    results = commit_results(work_on(1, 0, 10), commit)
    assert [(result.committed, result.error) for result in results] == [(False, "the store is away")] * 2


def test_nothing_is_committed_without_files() -> None:
    [(task, result)] = work_on(1, 0)
    empty = replace(result, files=())
    assert commit_results([(task, empty)], lambda *_: pytest.fail("there is nothing to commit")) == [empty]


def test_results_have_the_order_of_their_tasks() -> None:
    work = [one for pair in zip(work_on(1, 0, 10), work_on(2, 0, 10), strict=True) for one in pair]
    seen = []

    def settle(table: TableRecord, work: list[Work]) -> list[FlushResult]:
        seen.append((table.table_id, len(work)))
        return [replace(result, rows=task.table.table_id * 100 + task.span.start) for task, result in work]

    results = table_by_table([task for task, _ in work], [result for _, result in work], settle)
    assert [result.rows for result in results] == [100, 200, 110, 210]
    assert sorted(seen) == [(1, 2), (2, 2)]
