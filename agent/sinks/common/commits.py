"""Commits of a flush: one step for each table, and the results of its tasks.

A span is committed with all its parts or not at all. A span with a failed part, or one that another writer has
advanced, gets an error and is left out; the others are committed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from agent.errors import SinkError, SinkFencedError
from agent.ports.sink import FlushResult, FlushTask
from agent.sinks.common.side_by_side import side_by_side
from reactor.errors import Scope, WeirError
from reactor.ids import TableSpan
from reactor.records.tables.table import TableRecord

Work = tuple[FlushTask, FlushResult]


@dataclass(frozen=True, slots=True)
class _Refusal:
    """The reason why a span was not committed, as reported in its result."""

    text: str
    code: str
    retryable: bool
    scope: Scope

    @classmethod
    def of_error(cls, error: WeirError) -> "_Refusal":
        return cls(str(error), error.code, error.retryable, error.scope)

    @classmethod
    def of_result(cls, result: FlushResult) -> "_Refusal":
        return cls(result.error, result.error_code, result.retryable, result.scope)


class Stale:
    """The spans that another writer has advanced, found while a table is committed."""

    def __init__(self) -> None:
        self.refusals: dict[TableSpan, _Refusal] = {}

    def expected(self, work: Sequence[Work], is_written: Callable[[FlushTask], bool]) -> list[Work]:
        """Return the work that the table does not record yet, without that of stale writers."""
        found = []
        for task, result in work:
            try:
                if not is_written(task):
                    found.append((task, result))
            except SinkFencedError as error:
                self.refusals[task.span] = _Refusal.of_error(error)
        return found


#: commits the work of one table in one step, and notes stale spans
CommitWork = Callable[[Sequence[Work], Stale], None]


def commit_results(work: Sequence[Work], commit: CommitWork) -> list[FlushResult]:
    """Commit what the tasks of one flush wrote for one table, with one call of ``commit``."""
    errors = {task.span: _Refusal.of_result(result) for task, result in work if result.error}
    ready = [(task, result) for task, result in work if result.files and task.span not in errors]
    if ready:
        stale = Stale()
        try:
            commit(ready, stale)
        except SinkError as error:
            errors |= dict.fromkeys((task.span for task, _ in ready), _Refusal.of_error(error))
        errors |= stale.refusals
    written = {task.span for task, _ in ready}
    return [_settled(result, errors.get(task.span), is_written=task.span in written) for task, result in work]


def _settled(result: FlushResult, refusal: _Refusal | None, *, is_written: bool) -> FlushResult:
    if refusal is not None:
        return replace(
            result,
            committed=False,
            error=refusal.text,
            error_code=refusal.code,
            retryable=refusal.retryable,
            scope=refusal.scope,
        )
    return replace(result, committed=True) if is_written else result


def table_by_table(
    tasks: Sequence[FlushTask],
    results: Sequence[FlushResult],
    settle: Callable[[TableRecord, list[Work]], list[FlushResult]],
) -> list[FlushResult]:
    """Return the results of all tasks, in their order; ``settle`` commits those of one table, several at a time."""
    done = list(results)
    at: dict[TableRecord, list[int]] = {}
    for index, task in enumerate(tasks):
        at.setdefault(task.table, []).append(index)

    def settle_table(table: TableRecord) -> list[FlushResult]:
        return settle(table, [(tasks[index], results[index]) for index in at[table]])

    for table, settled in zip(at, side_by_side(settle_table, list(at)), strict=True):
        for index, result in zip(at[table], settled, strict=True):
            done[index] = result
    return done
