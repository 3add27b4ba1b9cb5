"""Inflight tasks: decides which tasks may start, and tracks the running ones.

A single task waits while ``max_task_concurrency`` tasks run; a burst does not. Only a removal replaces a task that a
span already has. A task is over when its span is replicating without a pending change, is removed, or has lost the
capture it was meant for.
"""

from collections.abc import Callable, Iterable
from functools import partial

from owner.scheduler.replication import Order, ReplicationSet, SetState
from owner.scheduler.span_index import SpanIndex
from owner.scheduler.tasks import AddTask, Burst, MoveTask, RemoveTask, Task
from reactor.ids import TableSpan, Ts


class Inflight:
    """The running tasks by span."""

    def __init__(self, max_task_concurrency: int) -> None:
        self.running: dict[TableSpan, Task] = {}
        self._limit = max_task_concurrency

    @property
    def is_full(self) -> bool:
        return len(self.running) >= self._limit

    def clear_finished(self, span_index: SpanIndex) -> None:
        """Remove the tasks whose span has reached its goal or is gone; only a span that has changed can."""
        for span in span_index.take_moved():
            task = self.running.get(span)
            if task is not None and _is_over(task, span_index.sets.get(span)):
                del self.running[span]

    def drop(self, spans: Iterable[TableSpan]) -> None:
        """Drop tasks that depend on a capture that is gone; a policy decides again."""
        for span in spans:
            self.running.pop(span, None)

    def start(self, task: Task | Burst, span_index: SpanIndex, checkpoint_of: Callable[[TableSpan], Ts]) -> list[Order]:
        """Start what may start; the rest is rejected, and its policy will propose it again."""
        if isinstance(task, Burst):
            return [order for single in task.tasks for order in self._start_one(single, span_index, checkpoint_of)]
        return [] if self.is_full else self._start_one(task, span_index, checkpoint_of)

    def _start_one(self, task: Task, span_index: SpanIndex, checkpoint_of: Callable[[TableSpan], Ts]) -> list[Order]:
        if task.span in self.running and not isinstance(task, RemoveTask):
            return []
        replication = span_index.sets.get(task.span)
        if replication is None:
            if not isinstance(task, AddTask):
                return []
            replication = ReplicationSet(task.span, checkpoint_of(task.span))
            span_index.add(replication)
        assert replication.span == task.span, f"the task of {task.span} is given to {replication.span}"
        self.running[task.span] = task
        return span_index.change(replication, partial(_order, task, replication))


def _order(task: Task, replication: ReplicationSet) -> list[Order]:
    match task:
        case AddTask():
            return replication.handle_add(task.capture)
        case MoveTask():
            return replication.handle_move(task.capture)
        case RemoveTask():
            return replication.handle_remove()


def _is_over(task: Task, replication: ReplicationSet | None) -> bool:
    if replication is None:
        return True
    if isinstance(task, RemoveTask):
        return replication.is_removed or replication.state is SetState.REPLICATING
    return replication.state in (SetState.REPLICATING, SetState.ABSENT)
