"""Executor port: runs a function over descriptors, one Spark task each."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from agent.deadline import Deadline


T = TypeVar("T")


U = TypeVar("U")


class Executor(Protocol):
    """Runs a function over descriptors, one Spark task each.

    ``map`` blocks; call it from a worker thread. ``function`` must be importable on the executors; descriptors and
    results are pickled. Results are in the order of the descriptors. The job is cancelled at ``deadline``. At most
    ``at_once`` of its tasks run at a time. A result may be a list that has errors of ``agent.task_errors.carried`` for
    some of a descriptor's parts; what ``function`` raises fails the job.

    :raises agent.errors.JobTimeoutError: the job was cancelled.
    :raises agent.errors.JobError: the job failed as a whole (Spark is gone, a task died); retryable.
    """

    def map(
        self,
        function: Callable[[T], U],
        descriptors: Sequence[T],
        *,
        description: str,
        deadline: "Deadline | None" = None,
        at_once: int | None = None,
    ) -> list[U]: ...

    def cores(self) -> int:
        """Return how many tasks run at the same time, as far as known; at least 1."""
        ...
