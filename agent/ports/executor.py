"""Executor port: runs a function over descriptors, one Spark task each."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from agent.deadline import Deadline


T = TypeVar("T")


U = TypeVar("U")


class Executor(Protocol):
    """Runs a function over descriptors, one Spark task each.

    Blocking; call it from a worker thread. ``function`` must be importable on the executors; descriptors and results
    are pickled. Results come in the order of the descriptors. When ``deadline`` ends, the job is cancelled; ``at_once``
    is how many of its tasks may run at a time.

    :raises agent.errors.JobTimeoutError: it was cancelled.
    :raises agent.errors.JobError: the job failed as a whole (Spark gone, task died); retryable.
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
